//! What the demo shows while it runs: one block that is redrawn on a terminal, a line every few
//! seconds elsewhere. Always on stderr; stdout is for the answer.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use clickhouse::{Client, Row};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;

/// Between two lines where nothing can be redrawn.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What the fleet has done so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) devices: u64,
    pub(super) reports_acked: u64,
    pub(super) runs: u64,
}

/// One cohort as the detector judged it last.
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
    block: ProgressBar,
    is_terminal: bool,
    last_line: Option<Instant>,
}

impl Screen {
    pub(super) fn new(started: Instant) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let block = ProgressBar::new_spinner();
        block
            .set_style(ProgressStyle::with_template("{msg}").expect("the template is well formed"));
        if !is_terminal {
            block.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self {
            started,
            block,
            is_terminal,
            last_line: None,
        }
    }

    /// Writes lines that stay.
    pub(super) fn say(&self, text: impl std::fmt::Display) {
        let text = format!("[{:>4.0}s] {text}", self.started.elapsed().as_secs_f64());
        if self.is_terminal {
            self.block.println(text);
        } else {
            // The demo goes on when nobody reads.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Shows where things stand. A store that is away for a moment leaves the cohorts out.
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
        self.block
            .set_message(format!("{line}\n{}", table(&cohorts)));
        self.block.tick();
    }

    /// Takes the block off the screen.
    pub(super) fn finish(&self) {
        self.block.finish_and_clear();
    }
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
            cohort.verdict,
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
