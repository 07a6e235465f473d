//! `epwatch-detection`: evaluates the detector on labelled fleets and writes the figures.
//!
//! Each fleet's figures are appended to a file, so that a run that was broken off can continue.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use epwatch_detection::{
    Batch, Keys, Outcome, RunOptions, batches, evaluate, markdown, record, replay_of,
};

/// A fleet is millions of small texts and lists, which this allocator makes and frees faster than the system's
/// allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HELP: &str = "\
epwatch-detection FIRST_SEED FAMILIES [OPTIONS]

  FIRST_SEED            first of half a million seeds; report from 500000, tune below
  FAMILIES              families of a fault; 300 are enough for the bounds of the report
  --results FILE        append each fleet's figures here, and leave out fleets that are there; the
                        file must be of the same FIRST_SEED and FAMILIES
  --write FILE          write the report here instead of to stdout
  --rules COMMIT        name the commit of the rules in the report
  --only NAME           only scenarios whose name contains this
  --keys own|app        the kind of the keys that devices report with; else no network weighs them
  --history N           at least N windows of a day before a change; with keys of kind app 12 make
                        devices established
  --threads N           evaluate so many fleets at once [default: 2]
  --minutes N           begin no fleet after so many minutes

The cost of a replay, under `/usr/bin/time -v` for its CPU time and memory:

  --record FILE         write FAMILIES reports of the operational mix instead
  --replay FILE         replay such a file instead";

#[derive(Debug)]
struct Args {
    first_seed: u64,
    families: u64,
    results: Option<PathBuf>,
    write: Option<PathBuf>,
    rules: Option<String>,
    only: Option<String>,
    keys: Keys,
    history: u32,
    threads: usize,
    minutes: u64,
    record: Option<PathBuf>,
    replay: Option<PathBuf>,
}

impl Args {
    fn read() -> anyhow::Result<Option<Self>> {
        let mut read = Args {
            first_seed: 500_000,
            families: 20,
            results: None,
            write: None,
            rules: None,
            only: None,
            keys: Keys::default(),
            history: 0,
            threads: 2,
            minutes: 24 * 60,
            record: None,
            replay: None,
        };
        let mut numbers = Vec::new();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--results" => read.results = Some(value()?.into()),
                "--write" => read.write = Some(value()?.into()),
                "--rules" => read.rules = Some(value()?),
                "--record" => read.record = Some(value()?.into()),
                "--replay" => read.replay = Some(value()?.into()),
                "--only" => read.only = Some(value()?),
                "--keys" => {
                    read.keys = match &*value()? {
                        "own" => Keys::Own,
                        "app" => Keys::App,
                        other => anyhow::bail!("--keys is own or app, not {other:?}"),
                    }
                }
                "--history" => read.history = value()?.parse().context("--history")?,
                "--threads" => read.threads = value()?.parse().context("--threads")?,
                "--minutes" => read.minutes = value()?.parse().context("--minutes")?,
                "--help" | "-h" => return Ok(None),
                number => {
                    let number: u64 = number
                        .parse()
                        .with_context(|| format!("{number:?} is not a number; see --help"))?;
                    numbers.push(number);
                }
            }
        }
        read.first_seed = numbers.first().copied().unwrap_or(read.first_seed);
        read.families = numbers.get(1).copied().unwrap_or(read.families);
        Ok(Some(read))
    }

    /// Returns the arguments that the figures depend on.
    fn command(&self) -> String {
        let only = self.only.as_ref().map(|only| format!(" --only '{only}'"));
        let keys = match self.keys {
            Keys::Unknown => "",
            Keys::Own => " --keys own",
            Keys::App => " --keys app",
        };
        let only = only.unwrap_or_default();
        let history = match self.history {
            0 => String::new(),
            days => format!(" --history {days}"),
        };
        format!("{} {}{only}{keys}{history}", self.first_seed, self.families)
    }
}

fn main() -> anyhow::Result<()> {
    let Some(args) = Args::read()? else {
        writeln!(std::io::stdout(), "{HELP}")?;
        return Ok(());
    };
    if let Some(path) = &args.record {
        let written = record(path, args.first_seed, args.families)?;
        writeln!(std::io::stdout(), "{written} reports")?;
        return Ok(());
    }
    if let Some(path) = &args.replay {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let cost = runtime.block_on(replay_of(path))?;
        writeln!(std::io::stdout(), "{cost}")?;
        return Ok(());
    }
    let mut outcomes = match &args.results {
        Some(path) => known(path)?,
        None => Vec::new(),
    };
    let all = batches(args.families, args.only.as_deref());
    let asked = all.len();
    let left: Vec<Batch> = all
        .into_iter()
        .filter(|unit| !outcomes.iter().any(|outcome| unit.is_of(outcome)))
        .collect();
    let mut file = match &args.results {
        Some(path) => {
            let mut options = std::fs::OpenOptions::new();
            let file = options.create(true).append(true).open(path);
            Some(file.with_context(|| format!("opening {}", path.display()))?)
        }
        None => None,
    };
    let keep = |outcome: &Outcome| {
        if let Some(file) = &mut file {
            writeln!(file, "{}", serde_json::to_string(outcome)?)?;
        }
        Ok(())
    };
    let options = RunOptions {
        first_seed: args.first_seed,
        keys: args.keys,
        history: args.history,
        threads: args.threads,
        no_longer_than: Duration::from_secs(args.minutes * 60),
        verbose: true,
    };
    outcomes.extend(evaluate(&left, options, keep)?);
    let report = markdown(&outcomes, &args.command(), asked, args.rules.as_deref());
    match &args.write {
        Some(path) => {
            std::fs::write(path, report).with_context(|| format!("writing {}", path.display()))?;
        }
        None => write!(std::io::stdout(), "{report}")?,
    }
    Ok(())
}

fn known(path: &Path) -> anyhow::Result<Vec<Outcome>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    // The last line may be incomplete after an interrupted run.
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}
