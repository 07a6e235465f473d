//! Output of the demo while it runs: one block that is redrawn on a terminal, a line every few seconds elsewhere. It is
//! always on stderr, because stdout is for the answer.

use std::{
    io::{self, IsTerminal, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use clickhouse::Client;
use epwatch_page::TerminalPage;
use epwatch_server::SystemClock;

/// Pause between two reads of the store.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Pause between two lines if stderr is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of the fleet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) devices: u64,
    pub(super) reports_acked: u64,
    pub(super) runs: u64,
}

/// The demo's screen.
#[derive(Debug)]
pub(super) struct Screen {
    started: Instant,
    is_terminal: bool,
    /// Lines of the block at the bottom of a terminal.
    block: String,
    last_line: Option<Instant>,
    /// The text that `epwatch status` prints, and when it was read.
    status: Option<(Instant, String)>,
}

impl Screen {
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            is_terminal: io::stderr().is_terminal(),
            block: String::new(),
            last_line: None,
            status: None,
        }
    }

    /// Writes lines that are not redrawn.
    pub(super) fn say(&mut self, text: impl std::fmt::Display) {
        let mut text = format!("[{:>4.0}s] {text}\n", self.started.elapsed().as_secs_f64());
        if let Some(columns) = self.is_terminal.then(columns).flatten() {
            text = wrapped(&text, columns);
        }
        let block = self.block.clone();
        self.draw(&text, block);
    }

    /// Shows progress, and the fleet as `epwatch status` does. While the store does not answer, shows the fleet's last
    /// state.
    pub(super) async fn refresh(&mut self, counts: Counts, store: &Client) {
        let line = format!(
            "{} devices, {} reports acknowledged, {} runs",
            counts.devices, counts.reports_acked, counts.runs
        );
        if !self.is_terminal {
            if self.last_line.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
                self.say(line);
                self.last_line = Some(Instant::now());
            }
            return;
        }
        if self
            .status
            .as_ref()
            .is_none_or(|(at, _)| at.elapsed() >= LOOK_EVERY)
        {
            let fleet = TerminalPage::Fleet {
                app: None,
                environment: None,
                search: String::new(),
            };
            let (facts, clock) = (Box::pin(async { Vec::new() }), Arc::new(SystemClock));
            let asked = epwatch_page::ask(store.clone(), fleet, facts, clock).await;
            let last = self.status.take().map(|(_, text)| text);
            let text = asked.map_or(last, |answer| Some(answer.text));
            self.status = Some((Instant::now(), text.unwrap_or_default()));
        }
        let status = self.status.as_ref().map_or("", |(_, text)| text);
        let block = format!("{line}\n{status}\n");
        self.draw("", block);
    }

    /// Erases the block.
    pub(super) fn finish(&mut self) {
        self.draw("", String::new());
    }

    /// Replaces the block, and writes permanent lines above it.
    fn draw(&mut self, above: &str, block: String) {
        let erase = match self.block.lines().count() {
            0 => String::new(),
            // Moves to the block's first line, and erases everything from there on.
            n => format!("\x1b[{n}F\x1b[J"),
        };
        // The block's long lines are cut, not wrapped: its height on the screen is its number of lines.
        let shown = match block.is_empty() {
            true => String::new(),
            false => format!("\x1b[?7l{block}\x1b[?7h"),
        };
        // The demo goes on if stderr is closed.
        let _ = io::stderr().write_all(format!("{erase}{above}{shown}").as_bytes());
        self.block = block;
    }
}

/// Returns the width of the terminal.
fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
    Some(usize::from(size.ws_col))
}

/// Indent of the lines below a page's first line.
const INDENT: &str = "              ";

/// Breaks lines at spaces, so that a terminal breaks no word. Continued lines have the indent of a page's lines.
fn wrapped(text: &str, columns: usize) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let mut rest = line;
        let mut indent = "";
        while indent.len() + rest.chars().count() > columns {
            let room = columns.saturating_sub(indent.len());
            let end = rest
                .char_indices()
                .nth(room)
                .map_or(rest.len(), |(at, _)| at);
            // The first words of a line may be its indent.
            let start = rest.len() - rest.trim_start().len();
            let Some(at) = rest[..end].rfind(' ').filter(|at| *at > start) else {
                break;
            };
            wrapped.push_str(indent);
            wrapped.push_str(rest[..at].trim_end());
            wrapped.push('\n');
            (rest, indent) = (rest[at..].trim_start(), INDENT);
        }
        wrapped.push_str(indent);
        wrapped.push_str(rest);
        wrapped.push('\n');
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_breaks_no_word() {
        let text = "  devices     69 hit of 69 seen (100 %)\n  why         all of them\n";
        let expected =
            "  devices     69 hit of 69\n              seen (100 %)\n  why         all of them\n";
        assert_eq!(wrapped(text, 28), expected);
        assert_eq!(wrapped(text, 80), text);
        // A word that is wider than the terminal stays whole.
        assert_eq!(wrapped("aaaaaaaaaa b\n", 5), "aaaaaaaaaa b\n");
    }
}
