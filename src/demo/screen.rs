//! Output of the demo while it runs: one block that is redrawn on a terminal, a line every few seconds elsewhere.
//! Always on stderr; stdout is for the answer.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use clickhouse::{Client, Row};
use serde::Deserialize;

use super::models::FIRST_VERSION;

/// Pause between two lines if stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of the fleet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) devices: u64,
    pub(super) reports_acked: u64,
    pub(super) runs: u64,
}

/// The last verdict of one cohort.
#[derive(Debug, Deserialize, Row)]
struct Cohort {
    chipset: String,
    version: String,
    devices: u64,
    p50_ms: Option<f64>,
    cv_within: Option<f64>,
    cv_between: Option<f64>,
    npu_share: Option<f64>,
    verdict: String,
}

const COHORTS: &str = "
SELECT
    toString(chipset) AS chipset, toString(model_version) AS version,
    argMax(c.devices, window_end) AS devices,
    argMax(c.p50_us, window_end) / 1000 AS p50_ms,
    argMax(c.cv_within, window_end) AS cv_within,
    argMax(c.cv_between, window_end) AS cv_between,
    argMax(c.npu_share, window_end) AS npu_share,
    toString(argMax(c.verdict, window_end)) AS verdict
FROM cohort_windows_v1 AS c
WHERE environment = ? AND firmware = '' AND window_end > now() - INTERVAL 10 SECOND
GROUP BY chipset, model_version
ORDER BY chipset, model_version";

/// The demo's screen.
#[derive(Debug)]
pub(super) struct Screen {
    started: Instant,
    is_terminal: bool,
    /// Lines of the block at the bottom of a terminal.
    block: String,
    last_line: Option<Instant>,
}

impl Screen {
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            is_terminal: io::stderr().is_terminal(),
            block: String::new(),
            last_line: None,
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

    /// Shows progress and cohorts; no cohorts while the store is away.
    pub(super) async fn refresh(&mut self, counts: Counts, store: &Client, environment: &str) {
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
        let cohorts: Vec<Cohort> = store
            .query(COHORTS)
            .bind(environment)
            .fetch_all()
            .await
            .unwrap_or_default();
        self.draw("", format!("{line}\n{}\n", table(&cohorts)));
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

/// Indent of the facts of a page.
const INDENT: &str = "              ";

/// Breaks lines at spaces, so that a terminal breaks no word. Continued lines are indented as the facts of a page are.
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

fn table(cohorts: &[Cohort]) -> String {
    let mut text = String::from(
        "chipset  version  devices    p50 ms   NPU share  CV within  CV between  verdict",
    );
    for cohort in cohorts {
        text.push_str(&format!(
            "\n{:<8} {:<8} {:>7} {} {}  {} {}  {}",
            cohort.chipset,
            cohort.version,
            cohort.devices,
            number(cohort.p50_ms, 9, 2),
            number(cohort.npu_share.map(|s| s * 100.0), 9, 1),
            number(cohort.cv_within, 10, 3),
            number(cohort.cv_between, 10, 3),
            match (cohort.verdict.as_str(), cohort.version.as_str()) {
                // It has no reference before the second version is out, which is no lack of devices.
                ("not_enough_data", FIRST_VERSION) => "first version",
                (verdict, _) => verdict,
            },
        ));
    }
    text
}

fn number(value: Option<f64>, width: usize, digits: usize) -> String {
    match value {
        Some(value) => format!("{value:>width$.digits$}"),
        None => format!("{:>width$}", "-"),
    }
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

    #[test]
    fn a_first_version_is_called_so() {
        let cohort = |version: &str| Cohort {
            chipset: "SM8650".to_owned(),
            version: version.to_owned(),
            devices: 140,
            p50_ms: None,
            cv_within: None,
            cv_between: None,
            npu_share: None,
            verdict: "not_enough_data".to_owned(),
        };
        let text = table(&[cohort(FIRST_VERSION), cohort("2")]);
        let mut lines = text.lines().skip(1);
        assert!(lines.next().unwrap().ends_with("  first version"), "{text}");
        assert!(
            lines.next().unwrap().ends_with("  not_enough_data"),
            "{text}"
        );
    }
}
