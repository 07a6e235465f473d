//! Runs the detector over labelled fleets, through the code of `epwatch replay`, and says how often it
//! is right: false pages of each confounder, recall of each fault, and how hard the fleets are.
//!
//! Fleets are judged one after another and their figures appended to a file, so that a run can be
//! broken off and gone on with, and a longer one adds to a shorter one.

mod judged;
mod naive;
mod outcome;
mod report;
mod stories;

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use outcome::Outcome;
use stories::Named;

/// 2026-01-01.
const START_MS: i64 = 1_767_225_600_000;

/// Families that are judged as one fleet.
const FLEET: u64 = 26;

const HELP: &str = "\
epwatch-proof FIRST_SEED FAMILIES [OPTIONS]

  FIRST_SEED            first of half a million seeds; report from 500000, tune below
  FAMILIES              families of a fault; 500 are enough for the bounds of the report
  --results FILE        append each fleet's figures here, and leave out those that are there
  --write FILE          write the report here instead of to stdout
  --only NAME           only stories whose name contains this
  --threads N           judge so many fleets at once [default: 2]
  --minutes N           begin no fleet after so many minutes
  --verbose             show verdicts that are wrong";

#[derive(Debug)]
struct Args {
    first_seed: u64,
    families: u64,
    results: Option<PathBuf>,
    write: Option<PathBuf>,
    only: Option<String>,
    threads: usize,
    minutes: u64,
    verbose: bool,
}

impl Args {
    fn read() -> anyhow::Result<Option<Self>> {
        let mut read = Args {
            first_seed: 500_000,
            families: 20,
            results: None,
            write: None,
            only: None,
            threads: 2,
            minutes: u64::MAX / 60,
            verbose: false,
        };
        let mut numbers = Vec::new();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--results" => read.results = Some(value()?.into()),
                "--write" => read.write = Some(value()?.into()),
                "--only" => read.only = Some(value()?),
                "--threads" => read.threads = value()?.parse().context("--threads")?,
                "--minutes" => read.minutes = value()?.parse().context("--minutes")?,
                "--verbose" => read.verbose = true,
                "--help" | "-h" => return Ok(None),
                number => {
                    let number: u64 = number
                        .parse()
                        .with_context(|| format!("{number:?} is no number; see --help"))?;
                    numbers.push(number);
                }
            }
        }
        read.first_seed = numbers.first().copied().unwrap_or(read.first_seed);
        read.families = numbers.get(1).copied().unwrap_or(read.families);
        Ok(Some(read))
    }
}

/// Families of a story that make one fleet.
#[derive(Debug, Clone)]
struct Unit {
    story: Named,
    number: u64,
    from: u64,
    to: u64,
    /// How far into its story it is, in [0, 1).
    place: f64,
}

fn main() -> anyhow::Result<()> {
    let Some(args) = Args::read()? else {
        writeln!(std::io::stdout(), "{HELP}")?;
        return Ok(());
    };
    let mut outcomes = match &args.results {
        Some(path) => known(path)?,
        None => Vec::new(),
    };
    let done: HashSet<(String, u64, u64)> = outcomes
        .iter()
        .map(|outcome| (outcome.story.clone(), outcome.from, outcome.to))
        .collect();
    let units: Vec<Unit> = units(&args)
        .into_iter()
        .filter(|unit| !done.contains(&(unit.story.name.clone(), unit.from, unit.to)))
        .collect();
    outcomes.extend(judged_all(&units, &args)?);
    let report = report::written(&outcomes, args.first_seed);
    match &args.write {
        Some(path) => {
            std::fs::write(path, report).with_context(|| format!("writing {}", path.display()))?;
        }
        None => write!(std::io::stdout(), "{report}")?,
    }
    Ok(())
}

/// All that is to be judged, stories in turn, so that a run that is broken off has some of each.
fn units(args: &Args) -> Vec<Unit> {
    let mut units = Vec::new();
    for (number, story) in (0..).zip(stories::all()) {
        let only = args.only.as_ref();
        if only.is_some_and(|only| !story.name.contains(only.as_str())) {
            continue;
        }
        let n = story.n_families(args.families);
        for from in (0..n).step_by(FLEET as usize) {
            units.push(Unit {
                story: story.clone(),
                number,
                from,
                to: n.min(from + FLEET),
                place: from as f64 / n as f64,
            });
        }
    }
    units.sort_by(|a, b| a.place.total_cmp(&b.place));
    units
}

fn known(path: &Path) -> anyhow::Result<Vec<Outcome>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    // The last line is torn where a run was broken off.
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

fn judged_all(units: &[Unit], args: &Args) -> anyhow::Result<Vec<Outcome>> {
    let file = args.results.as_ref().map(|path| {
        let mut options = std::fs::OpenOptions::new();
        options.create(true).append(true).open(path)
    });
    let file = Mutex::new(file.transpose().context("opening the results")?);
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let began = Instant::now();
    let work = || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        while began.elapsed() < Duration::from_secs(args.minutes * 60) {
            let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            let story = &unit.story;
            let specs = story.families(args.first_seed, unit.number, unit.from, unit.to);
            let judged = judged::judge(&story.name, &specs, args.verbose);
            let outcome = Outcome {
                from: unit.from,
                to: unit.to,
                ..runtime.block_on(judged)?
            };
            writeln!(std::io::stderr(), "{}", report::line(&outcome))?;
            if let Some(file) = &mut *file.lock().expect("no thread panics while it writes") {
                writeln!(file, "{}", serde_json::to_string(&outcome)?)?;
            }
            let mut outcomes = outcomes.lock().expect("no thread panics while it adds");
            outcomes.push(outcome);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a panic was printed already"))
    })?;
    Ok(outcomes.into_inner().expect("no thread panicked"))
}
