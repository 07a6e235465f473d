//! Runs that vary more than before with the old median, by strength: who is notified of them, and how.

use std::time::Instant;

use epwatch_detector::replay::Line;
use epwatch_model::{Severity, State};

use crate::labelled::{Benign, FamilyReport, FamilySpec, Truth};
use crate::outcome::{JitterOutcome, Outcome};

use super::edits::{alternate, stretch_slowest};
use super::{Story, THEN, day, drawn, is_there, lines_of, luck};

/// Shares of the devices that vary more.
pub(crate) const SHARES: [f64; 3] = [0.1, 0.3, 0.6];

/// Multiples of the earlier p95 on these devices.
pub(crate) const STRENGTHS: [f64; 5] = [1.3, 1.6, 2.0, 2.5, 3.0];

/// Share of the runs that [`Jitter::SlowestRuns`] makes slower.
const SLOWEST: f64 = 0.1;

/// A way in which runs vary more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jitter {
    /// The slowest tenth of a device's runs takes longer.
    SlowestRuns,
    /// The faster half of a device's runs is faster, and the slower half slower.
    Alternation,
}

impl Jitter {
    pub(crate) const ALL: [Jitter; 2] = [Jitter::SlowestRuns, Jitter::Alternation];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Jitter::SlowestRuns => "the slowest tenth of the runs is slower",
            Jitter::Alternation => "half of the runs is faster, half slower",
        }
    }

    /// Returns the reports of a fleet, in which a share of one chipset's devices varies more from a day on.
    fn reports(self, seed: u64, share: f64, strength: f64) -> Vec<FamilyReport> {
        let healthy = Truth::Benign(Benign::Plain);
        let mut reports = drawn(FamilySpec {
            runs: 50.0,
            ..Story::Alternation.spec(seed, healthy)
        });
        for report in reports.iter_mut().filter(|report| day(report) >= THEN) {
            if !is_there(report) || luck(&report.report) >= share {
                continue;
            }
            match self {
                Jitter::SlowestRuns => stretch_slowest(&mut report.report, strength, SLOWEST),
                Jitter::Alternation => alternate(&mut report.report, strength),
            }
        }
        reports
    }
}

/// Returns the share and the strength of a family: each pair of them in turn.
fn size_of(number: u64) -> (f64, f64) {
    let (n_shares, n_strengths) = (SHARES.len() as u64, STRENGTHS.len() as u64);
    let at = |index: u64| usize::try_from(index).expect("within a list");
    let (share, strength) = (number % n_shares, number / n_shares % n_strengths);
    (SHARES[at(share)], STRENGTHS[at(strength)])
}

/// Judges the families of a scenario, each by itself. `from` is the number of the first.
pub(crate) fn evaluate(
    scenario: &str,
    jitter: Jitter,
    (from, specs): (u64, &[FamilySpec]),
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let mut outcome = Outcome {
        scenario: scenario.to_owned(),
        ..Outcome::default()
    };
    for (spec, number) in specs.iter().zip(from..) {
        let (share, strength) = size_of(number);
        let reports = jitter.reports(spec.seed, share, strength);
        let lines = runtime.block_on(lines_of(&reports, None))?;
        outcome.jitters.push(JitterOutcome {
            seed: spec.seed,
            share,
            strength,
            notified: notified(&lines),
        });
    }
    outcome.seconds_replaying = began.elapsed().as_secs_f64();
    Ok(outcome)
}

/// Returns the highest severity of an incident that was sent.
fn notified(lines: &[Line]) -> Severity {
    let sent = lines.iter().filter_map(|line| match line {
        Line::Incident(line) if line.incident.state == State::Firing => {
            Some(line.incident.severity)
        }
        _ => None,
    });
    sent.max().unwrap_or(Severity::None)
}
