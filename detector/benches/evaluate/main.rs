//! What judging a window costs: `cargo bench -p epwatch-detector --bench evaluate`, with `-- --json`
//! as one JSON document.
//!
//! Fills its own embedded store with a fleet's reports, 100 a cohort and day. The 14 days before the window are as full
//! as the window, and have the detector's findings of every hour. Then it judges the last two windows as the detector
//! does. It prints the time, and the processor time and memory of detector and engine. It does this at a 16th, a
//! quarter and all of `--reports` (1,000,000: 10,000 cohorts). `first_...` is the first evaluation after a start of
//! detector and engine. `next_...` is the evaluation an hour later, like all others in operation; `seconds` is its
//! time. `ahead_...` is the reading that the detector does for it between the two. Filling takes far longer than
//! judging: `--dir DIR` keeps the stores for the next time. `--only N` measures one size, and `--days N` makes fewer
//! days before the window. `--installations N` adds installations of the first app that ran no model:
//! `--only 10000 --reports 10000 --apps 1 --days 1 --installations 5000000` shows what pages of an app with millions of
//! installations cost. Without `--bench` (as `cargo test --benches` runs it) a small fleet is judged.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program's output"
)]

mod fleet;
mod memory;
#[path = "../../tests/engine/schema.rs"]
mod schema;
mod sketches;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clickhouse::Client;
use epwatch_detector::read::Source;
use epwatch_detector::{DetectorConfig, Evaluator};
use epwatch_model::Severity;
use epwatch_store::embedded::{ChildProgram, EmbeddedConfig, EmbeddedStore};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::fleet::Fleet;

/// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ENGINE_CHILD: &str = "engine-child";
/// One evaluation alone in a process, so that its peak of memory is its own.
const JUDGE: &str = "judge";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == ENGINE_CHILD) {
        return epwatch_store::embedded::run_engine_child();
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(3)
        }
    }
}

/// The options of the command line.
#[derive(Debug, Clone)]
struct Plan {
    sizes: Vec<u64>,
    dir: Option<PathBuf>,
    fleet: Fleet,
    rounds: usize,
    json: bool,
}

impl Plan {
    fn from_args(args: &[String]) -> Result<Plan> {
        let value = |name: &str| {
            args.iter()
                .position(|arg| arg == name)
                .map(|at| args.get(at + 1))
        };
        let number = |name: &str, default: u64| match value(name) {
            None => Ok(default),
            Some(text) => {
                let text = text.with_context(|| format!("{name} needs a number"))?;
                text.parse()
                    .with_context(|| format!("{name} {text} is not a number"))
            }
        };
        let has = |name: &str| args.iter().any(|arg| arg == name);
        let full = has("--bench");
        let reports = number("--reports", if full { 1_000_000 } else { 2_000 })?;
        let sizes = match value("--only") {
            Some(_) => vec![number("--only", 0)?],
            None if full => vec![reports / 16, reports / 4, reports],
            None => vec![reports],
        };
        Ok(Plan {
            sizes,
            dir: value("--dir").flatten().map(PathBuf::from),
            fleet: Fleet {
                reports,
                apps: number("--apps", 50)?,
                reports_a_device: number("--reports-a-device", 4)?,
                days: number("--days", if full { 14 } else { 2 })?,
                installations: number("--installations", if full { 0 } else { 1_000 })?,
                end: Timestamp::UNIX_EPOCH,
            },
            rounds: usize::try_from(number("--rounds", if full { 3 } else { 1 })?)?,
            json: has("--json"),
        })
    }
}

fn run(args: &[String]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    if args.first().is_some_and(|arg| arg == JUDGE) {
        let figures = runtime.block_on(judge(&args[1..]))?;
        println!("{figures}");
        return Ok(());
    }
    let plan = Plan::from_args(args)?;
    let mut figures = serde_json::Map::new();
    figures.insert("cohort_window".into(), sketches::measure());
    let mut sizes = Vec::new();
    for size in &plan.sizes {
        let fleet = plan.fleet.of_size(*size);
        let measured = runtime.block_on(measure(&plan, &fleet))?;
        eprintln!("{measured}");
        sizes.push(measured);
    }
    if let Some(last) = sizes.last().and_then(Value::as_object) {
        figures.extend(last.clone());
    }
    figures.insert("sizes".into(), sizes.into());
    if plan.json {
        println!("{}", Value::from(figures));
    } else {
        println!("{}", serde_json::to_string_pretty(&Value::from(figures))?);
    }
    Ok(())
}

/// Fills a store of this size, and has another process judge its last window.
async fn measure(plan: &Plan, fleet: &Fleet) -> Result<Value> {
    let temporary = tempfile::tempdir()?;
    let dir = match &plan.dir {
        Some(dir) => dir.join(format!(
            "{}-{}-{}",
            fleet.reports, fleet.days, fleet.installations
        )),
        None => temporary.path().to_owned(),
    };
    std::fs::create_dir_all(&dir)?;
    let store = start(&dir).await?;
    let (fleet, fill) = fleet::filled(&store, fleet, &dir).await?;
    let stored = fleet::stored(&store.client(fleet::DATABASE), &fleet).await?;
    store.stop().await;

    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        // A fresh engine, so that its peak of memory comes from the evaluation.
        let store = start(&dir).await?;
        let idle = memory::of_child();
        let arguments = [
            JUDGE.to_owned(),
            format!("unix:{}", store.socket().display()),
            fleet.end.as_second().to_string(),
            memory::child().context("the engine is not a child of this process")?,
        ];
        let mut judging = Command::new(std::env::current_exe()?);
        judging.args(arguments).stderr(Stdio::inherit());
        let output = tokio::task::spawn_blocking(move || judging.output()).await??;
        ensure!(output.status.success(), "the evaluation failed");
        let mut judged: Value = serde_json::from_slice(&output.stdout)?;
        judged["engine_idle_rss_bytes"] = idle.into();
        judged["engine_peak_rss_bytes"] = memory::of_child().into();
        store.stop().await;
        rounds.push(judged);
    }
    rounds.sort_by(|a, b| seconds_of(a).total_cmp(&seconds_of(b)));
    let mut figures = rounds.swap_remove(rounds.len() / 2);
    figures["reports"] = fleet.reports.into();
    figures["earlier_reports"] = stored.into();
    figures["days"] = fleet.days.into();
    figures["further_installations"] = fleet.installations.into();
    figures["fill_seconds"] = fill.as_secs_f64().into();
    Ok(figures)
}

fn seconds_of(figures: &Value) -> f64 {
    figures["seconds"].as_f64().unwrap_or(f64::NAN)
}

/// Judges two windows over the given store: the one that ends at the given second, and before it the one that ends an
/// hour earlier.
async fn judge(args: &[String]) -> Result<Value> {
    let [address, end, engine] = args else {
        anyhow::bail!("a store, the end of a window and the engine's process are needed");
    };
    let target = epwatch_store::StoreTarget::parse(address, fleet::DATABASE)?;
    let client: Client = epwatch_store::client(&target);
    let config = DetectorConfig::default();
    let end = Timestamp::from_second(end.parse()?)?;
    // `end` becomes the first window end in an eighth of a window's length. Only this window needs other past windows
    // than the window before it.
    let eighth = i64::try_from(config.window.0.as_secs())? / 8;
    let end = Timestamp::from_second(end.as_second() / eighth * eighth)?;
    let before = end - config.step.0;
    let evaluator = Evaluator::new(Source::new(client, config.max_votes), config);
    let (_, first) = timed(&evaluator, before, engine).await?;
    let began = Instant::now();
    evaluator.look_ahead(end).await?;
    let ahead_seconds = began.elapsed().as_secs_f64();
    let (evaluation, next) = timed(&evaluator, end, engine).await?;
    let whole = |v: &&epwatch_model::CohortVerdict| v.key.firmware.is_none();
    let cohorts = evaluation.verdicts.iter().filter(whole).count();
    let mut classes = std::collections::BTreeMap::<&str, u64>::new();
    for verdict in &evaluation.verdicts {
        *classes.entry(verdict.class.as_str()).or_default() += 1;
    }
    let is_page = |v: &&epwatch_model::CohortVerdict| v.severity == Severity::Page;
    Ok(json!({
        "cohorts": cohorts,
        "pages": evaluation.verdicts.iter().filter(is_page).count(),
        "verdicts": evaluation.verdicts.len(),
        "classes": classes,
        "seconds": next.seconds,
        "first_seconds": first.seconds,
        "next_seconds": next.seconds,
        "ahead_seconds": ahead_seconds,
        "per_cohort_us": next.seconds * 1e6 / cohorts.max(1) as f64,
        "peak_rss_bytes": memory::own(),
        "first_detector_cpu_seconds": first.detector_cpu_seconds,
        "detector_cpu_seconds": next.detector_cpu_seconds,
        "first_engine_cpu_seconds": first.engine_cpu_seconds,
        "engine_cpu_seconds": next.engine_cpu_seconds,
    }))
}

/// The cost of an evaluation.
struct Taken {
    seconds: f64,
    detector_cpu_seconds: f64,
    engine_cpu_seconds: f64,
}

async fn timed(
    evaluator: &Evaluator,
    end: Timestamp,
    engine: &str,
) -> Result<(epwatch_detector::Evaluation, Taken)> {
    let cpu = || (memory::cpu_seconds("self"), memory::cpu_seconds(engine));
    let before = cpu();
    let began = Instant::now();
    let evaluation = evaluator.evaluate(end).await?;
    let seconds = began.elapsed().as_secs_f64();
    let after = cpu();
    ensure!(evaluation.failures.is_empty(), "{:?}", evaluation.failures);
    let taken = Taken {
        seconds,
        detector_cpu_seconds: after.0 - before.0,
        engine_cpu_seconds: after.1 - before.1,
    };
    Ok((evaluation, taken))
}

async fn start(dir: &Path) -> Result<EmbeddedStore> {
    let library = epwatch_engines::for_tests(epwatch_engines::Engine::Chdb).chdb_library();
    let program = ChildProgram::new(std::env::current_exe()?, [ENGINE_CHILD]);
    let mut config = EmbeddedConfig::new(dir.join("store"), library, program);
    config.memory_limit_bytes = 4 << 30;
    config.stop_timeout = Duration::from_secs(30);
    let store = EmbeddedStore::start(config).await?;
    store.ready().await?;
    Ok(store)
}
