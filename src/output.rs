//! Output of every subcommand: answers on stdout, everything else on stderr, colour only on a terminal.

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
    process::ExitCode,
};

use epwatch_collector::directives::store::DirectiveError;
use epwatch_proto::visible;
use epwatch_run::ReportKind;
use epwatch_store::TargetError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::config::ConfigError;

/// Exit code: a negative answer.
pub(crate) const NO: u8 = 1;
/// Exit code: wrong use. The same as the exit code of clap.
const WRONG_USE: u8 = 2;
/// Exit code: an error that the user did not cause.
pub(crate) const COULD_NOT_FIND_OUT: u8 = 3;
/// Exit code: a signal ended the command. A shell reports the same for SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// The command line makes no sense, whatever the state of the machine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongUse(pub(crate) String);

/// Refuses a file for a report that could not be written, or that has something else than a report of this kind.
pub(crate) fn check_report(argument: &str, file: &Path, kind: ReportKind) -> Result<(), WrongUse> {
    let checked = epwatch_run::check_report(argument, file, kind);
    checked.map_err(|error| WrongUse(error.to_string()))
}

/// A signal ended the command before it had an answer.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// A command's negative answer, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct No(pub(crate) String);

/// Returns the terminal's width if standard output is a terminal.
pub(crate) fn columns() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Returns the error of a command that needs a ClickHouse server.
pub(crate) fn no_server_is_named() -> WrongUse {
    WrongUse(
        "no ClickHouse server is named; give --clickhouse http://host:8123, or run `epwatch serve` for the \
         embedded one"
            .to_owned(),
    )
}

/// Prints an error and its causes once, at the top, and returns the exit code for it.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    say(error);
    let is_wrong_use =
        error.is::<WrongUse>() || error.is::<ConfigError>() || error.is::<TargetError>();
    // An unreachable store is an error, but a refusal by the store is an answer.
    let refusal = error.downcast_ref::<DirectiveError>();
    let is_refused = refusal.is_some_and(|why| !matches!(why, DirectiveError::Store(_)));
    ExitCode::from(if error.is::<Interrupted>() {
        INTERRUPTED
    } else if is_wrong_use {
        WRONG_USE
    } else if is_refused || error.is::<No>() {
        NO
    } else {
        COULD_NOT_FIND_OUT
    })
}

/// Prints why the command line cannot be used, and returns the exit code for it.
pub(crate) fn wrong_use(error: &anyhow::Error) -> ExitCode {
    say(error);
    ExitCode::from(WRONG_USE)
}

fn say(error: &anyhow::Error) {
    // The text may have names from an untrusted model, whose escape sequences a terminal would obey.
    let words = in_words(error);
    let lines: Vec<String> = words.lines().map(visible).collect();
    remark(lines.join("\n"));
}

/// Returns text from an untrusted model on one line, with invisible characters as their code points. A separate line
/// could be a command for the CI that prints it.
pub(crate) fn one_line(text: &str) -> String {
    visible(&text.replace(['\n', '\r', '\t'], " "))
}

/// Begins each text on standard error.
pub(crate) const PREFIX: &str = "epwatch: ";
/// Begins the line of an error's cause, after the error.
pub(crate) const CAUSE: &str = "  because: ";

/// Writes text that is not part of the answer to standard error.
pub(crate) fn remark(text: impl std::fmt::Display) {
    // If stderr is closed, the text is dropped.
    let _ = writeln!(io::stderr(), "{PREFIX}{text}");
}

/// Returns the error and its causes, without those that repeat the text before them.
fn in_words(error: &anyhow::Error) -> String {
    let mut lines: Vec<String> = error.chain().map(ToString::to_string).collect();
    lines.dedup();
    lines.join(&format!("\n{CAUSE}"))
}

/// Standard output. If its reader is gone, bytes are dropped, because a server must not end for that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_gone(io::stdout().write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_gone(io::stdout().flush(), ())
    }
}

fn unless_gone<T>(written: io::Result<T>, dropped: T) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(dropped),
        other => other,
    }
}

/// Whether standard output has no reader any more, found without a write.
pub(crate) fn is_reader_gone() -> bool {
    let stdout = io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let is_gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut watched, Some(&at_once)).is_ok_and(|_| watched[0].revents().intersects(is_gone))
}

/// Writes one line of an answer.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(Stdout, "{text}")
}

/// Writes one line for people. A server continues if this fails.
pub(crate) fn notice(text: impl std::fmt::Display) {
    if let Err(error) = line(text) {
        tracing::warn!(%error, "failed to write to standard output");
    }
}

/// Writes the one JSON document of `--json`.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(document)?;
    Ok(line(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strangers_name_stays_on_its_line() {
        for (text, expected) in [
            ("a\n::error::b", "a ::error::b"),
            ("\u{1b}[31mred\r\n", "[U+001B][31mred  "),
            ("x\u{202e}y\tz", "x[U+202E]y z"),
        ] {
            assert_eq!(one_line(text), expected);
        }
    }

    #[test]
    fn a_cause_is_named_once() {
        let error = anyhow::anyhow!("refused").context("tcp").context("tcp");
        let error = error.context("failed to upload");
        assert_eq!(
            in_words(&error),
            "failed to upload\n  because: tcp\n  because: refused"
        );
    }
}
