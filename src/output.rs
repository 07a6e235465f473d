//! Output of every subcommand: answers on stdout, everything else on stderr, colour only on a terminal.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use epwatch_collector::directives::store::DirectiveError;
use epwatch_store::TargetError;
use serde::Serialize;

use crate::config::ConfigError;

/// Exit code: the answer is no.
pub(crate) const NO: u8 = 1;
/// Exit code: wrong use. The same as clap's.
const WRONG_USE: u8 = 2;
/// Exit code: an error that is not the user's.
pub(crate) const COULD_NOT_FIND_OUT: u8 = 3;

/// The command line makes no sense, whatever the state of the machine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongUse(pub(crate) String);

/// The answer of a command is no, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct No(pub(crate) String);

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
    // A store that cannot be reached is an error, a refusal of the store is an answer.
    let refusal = error.downcast_ref::<DirectiveError>();
    let is_refused = refusal.is_some_and(|why| !matches!(why, DirectiveError::Store(_)));
    ExitCode::from(if is_wrong_use {
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
    let mut text = format!("epwatch: {error}");
    for cause in error.chain().skip(1) {
        text.push_str(&format!("\n  because: {cause}"));
    }
    // A closed stderr leaves nothing to do.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes one line of an answer.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}

/// Writes the one JSON document of `--json`.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, document)?;
    writeln!(out)?;
    Ok(())
}
