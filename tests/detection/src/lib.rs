//! Runs the detector over labelled fleets, through the code of `epwatch replay`, and counts how often it is right. The
//! counts are false pages of each confounder, recall of each fault, and how hard the fleets are.
//!
//! Fleets are evaluated one after another, with the scenarios in turn. So an interrupted run has some fleets of each
//! scenario.
#![expect(missing_docs, reason = "only this workspace uses it")]

mod cost;
mod evaluation;
mod figures;
mod goals;
pub mod golden;
mod jitter_table;
pub mod labelled;
mod outcome;
mod repaired;
mod report;
mod scenarios;
mod senders;
pub mod stories;
mod textbook_rules;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub use cost::{record, replay_of};
pub use outcome::{FaultOutcome, Healthy, JitterOutcome, Outcome, Repair};
pub use repaired::repaired;
pub use report::markdown;
pub use senders::Keys;

use scenarios::Scenario;

/// Number of families that are evaluated as one fleet.
const FLEET: usize = 26;

/// Families of a scenario that are evaluated as one fleet.
#[derive(Debug, Clone)]
pub struct Batch {
    scenario: Scenario,
    from: u64,
    to: u64,
    /// The batch's position in its scenario, in [0, 1).
    place: f64,
}

/// Returns all batches of `families` of each fault, and more healthy ones. Their seeds are from the half million that
/// begins at the first seed of a run. With `only`, returns the batches of scenarios whose name contains it.
#[must_use]
pub fn batches(families: u64, only: Option<&str>) -> Vec<Batch> {
    let mut batches = Vec::new();
    for scenario in scenarios::all() {
        if only.is_some_and(|only| !scenario.name.contains(only)) {
            continue;
        }
        let n = scenario.n_families(families);
        for from in (0..n).step_by(FLEET) {
            batches.push(Batch {
                scenario: scenario.clone(),
                from,
                to: n.min(from + FLEET as u64),
                place: from as f64 / n as f64,
            });
        }
    }
    batches.sort_by(|a, b| a.place.total_cmp(&b.place));
    batches
}

/// Settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// First of the half million seeds.
    pub first_seed: u64,
    /// The keys that devices report with.
    pub keys: Keys,
    /// Minimum number of windows, a day each, before the change: devices are established after ten days.
    pub history: u32,
    /// Fleets at once.
    pub threads: usize,
    /// After this time no further fleet begins.
    pub no_longer_than: Duration,
    /// Whether wrong verdicts and a line of each fleet go to stderr.
    pub verbose: bool,
}

impl Batch {
    /// Whether the figures are from this batch.
    #[must_use]
    pub fn is_of(&self, outcome: &Outcome) -> bool {
        (self.scenario.name.as_str(), self.from, self.to)
            == (outcome.scenario.as_str(), outcome.from, outcome.to)
    }
}

/// Evaluates fleets, and passes the figures of each to `keep`.
///
/// # Errors
/// A fleet could not be replayed, or `keep` failed.
///
/// # Panics
/// Panics if a fleet's thread panicked.
pub fn evaluate(
    batches: &[Batch],
    options: RunOptions,
    keep: impl FnMut(&Outcome) -> anyhow::Result<()> + Send,
) -> anyhow::Result<Vec<Outcome>> {
    let keep = Mutex::new(keep);
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let began = Instant::now();
    let work = || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        while began.elapsed() < options.no_longer_than {
            let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            let scenario = &batch.scenario;
            let mut specs = scenario.families(options.first_seed, batch.from, batch.to);
            for spec in &mut specs {
                spec.windows.0 = spec.windows.0.max(options.history);
            }
            let outcome = if let Some(story) = scenario.story() {
                let seeds = specs.iter().map(|spec| spec.seed);
                let reports = |seed| (story.reports(seed), story.deadline_ms(seed));
                let wrong = |lines: &[_]| story.wrong_in(lines);
                stories::evaluate(&scenario.name, seeds, &runtime, reports, wrong)?
            } else if let Some(fleet) = scenario.golden() {
                let seeds = specs.iter().map(|spec| spec.seed);
                let reports = |seed| (fleet.reports(seed), None);
                let wrong = |lines: &[_]| fleet.wrong_in(lines);
                stories::evaluate(&scenario.name, seeds, &runtime, reports, wrong)?
            } else if let Some(jitter) = scenario.jitter() {
                let families = (batch.from, &*specs);
                stories::jitter::evaluate(&scenario.name, jitter, families, &runtime)?
            } else if let Some(day) = scenario.repaired_on() {
                repaired::evaluate(&scenario.name, &specs, day, &runtime)?
            } else {
                let with = (options.keys, options.verbose);
                let evaluation = evaluation::evaluate(&scenario.name, &specs, with);
                runtime.block_on(evaluation)?
            };
            let outcome = Outcome {
                from: batch.from,
                to: batch.to,
                ..outcome
            };
            if options.verbose {
                writeln!(std::io::stderr(), "{}", report::line(&outcome))?;
            }
            (*keep.lock().expect("no thread panics while it keeps"))(&outcome)?;
            let mut outcomes = outcomes.lock().expect("no thread panics while it adds");
            outcomes.push(outcome);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a panic was printed already"))
    })?;
    Ok(outcomes.into_inner().expect("no thread panicked"))
}
