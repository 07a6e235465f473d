//! Runs the detector over labelled fleets, through the code of `epwatch replay`, and says how often it
//! is right: false pages of each confounder, recall of each fault, and how hard the fleets are.
//!
//! Fleets are judged one after another, stories in turn, so that a run that is broken off has some of
//! each.
#![expect(missing_docs, reason = "only this workspace uses it")]

mod evaluation;
mod outcome;
mod report;
mod scenarios;
mod textbook_rules;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub use outcome::{FaultOutcome, Healthy, Outcome};
pub use report::written;

use scenarios::Named;

/// 2026-01-01.
const START_MS: i64 = 1_767_225_600_000;

/// Families that are judged as one fleet.
const FLEET: usize = 26;

/// Families of a story that are judged as one fleet.
#[derive(Debug, Clone)]
pub struct Unit {
    story: Named,
    number: u64,
    from: u64,
    to: u64,
    /// How far into its story it is, in [0, 1).
    place: f64,
}

/// All that is to be judged: `families` of each fault, and more of what is healthy. Seeds are the half
/// million from `first_seed`. With `only`, stories whose name contains it.
#[must_use]
pub fn units(families: u64, only: Option<&str>) -> Vec<Unit> {
    let mut units = Vec::new();
    for (number, story) in (0..).zip(scenarios::all()) {
        if only.is_some_and(|only| !story.name.contains(only)) {
            continue;
        }
        let n = story.n_families(families);
        for from in (0..n).step_by(FLEET) {
            units.push(Unit {
                story: story.clone(),
                number,
                from,
                to: n.min(from + FLEET as u64),
                place: from as f64 / n as f64,
            });
        }
    }
    units.sort_by(|a, b| a.place.total_cmp(&b.place));
    units
}

/// How fleets are judged.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    /// First of the half million seeds.
    pub first_seed: u64,
    /// Fleets at once.
    pub threads: usize,
    /// No fleet begins after so long.
    pub no_longer_than: Duration,
    /// Whether wrong verdicts and a line of each fleet go to stderr.
    pub verbose: bool,
}

impl Unit {
    /// Whether these are figures of this fleet.
    #[must_use]
    pub fn is_of(&self, outcome: &Outcome) -> bool {
        (self.story.name.as_str(), self.from, self.to)
            == (outcome.story.as_str(), outcome.from, outcome.to)
    }
}

/// Judges fleets, and hands on each one's figures as they come.
///
/// # Errors
/// A fleet could not be replayed, or `keep` failed.
///
/// # Panics
/// Where a fleet's thread panicked.
pub fn judged(
    units: &[Unit],
    course: Course,
    keep: impl FnMut(&Outcome) -> anyhow::Result<()> + Send,
) -> anyhow::Result<Vec<Outcome>> {
    let keep = Mutex::new(keep);
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let began = Instant::now();
    let work = || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        while began.elapsed() < course.no_longer_than {
            let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            let story = &unit.story;
            let specs = story.families(course.first_seed, unit.number, unit.from, unit.to);
            let judged = evaluation::judge(&story.name, &specs, course.verbose);
            let outcome = Outcome {
                from: unit.from,
                to: unit.to,
                ..runtime.block_on(judged)?
            };
            if course.verbose {
                writeln!(std::io::stderr(), "{}", report::line(&outcome))?;
            }
            (*keep.lock().expect("no thread panics while it keeps"))(&outcome)?;
            let mut outcomes = outcomes.lock().expect("no thread panics while it adds");
            outcomes.push(outcome);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..course.threads.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a panic was printed already"))
    })?;
    Ok(outcomes.into_inner().expect("no thread panicked"))
}
