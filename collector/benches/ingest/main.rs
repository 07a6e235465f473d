//! Cost of receiving, per CPU-second of the server: `cargo bench -p epwatch-collector --bench ingest`, with `-- --json`
//! as one JSON document.
//!
//! One light client loads, in turns, the collector and a bare tonic service of the same contract that only decodes and
//! answers. Each server is a process of its own, on a CPU of its own where there are two. `--soak 600` loads for 600
//! seconds and prints the collector's memory. `--only-ingest` and `--only-writer` run one half each.
//! `--storage 1000000` stores a million reports and prints their bytes on disk, by table and column. The WAL lies on a
//! file system with a real fsync. Without `--bench` (as `cargo test --benches` runs it) everything happens once and
//! briefly. Only its correctness counts.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program's output"
)]

mod client;
mod cpus;
mod payload;
mod server;
mod storage;
mod writer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use epwatch_collector::config::CollectorConfig;

use crate::client::{Done, Shape};
use crate::payload::Template;
use crate::server::Server;
use crate::writer::{Round, Stored};

/// The allocator of the program `epwatch`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// 256 in flight over few connections: 512 connections with one request each cost half as much
/// again, on both sides.
const SHAPE: Shape = Shape {
    connections: 8,
    in_flight_each: 32,
};
const BATCH: usize = 100;

/// Durations and number of rounds.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rounds: usize,
    load: Duration,
    half_load: Duration,
    /// Time for which a WAL is filled for the writer.
    fill: Duration,
}

const FULL: Plan = Plan {
    rounds: 5,
    load: Duration::from_millis(2_500),
    half_load: Duration::from_secs(10),
    fill: Duration::from_millis(1_500),
};
const QUICK: Plan = Plan {
    rounds: 1,
    load: Duration::from_millis(200),
    half_load: Duration::from_millis(300),
    fill: Duration::from_millis(50),
};

fn main() -> ExitCode {
    server::run_if_child();
    if std::env::args()
        .nth(1)
        .is_some_and(|arg| arg == writer::ENGINE_CHILD)
    {
        return epwatch_store::embedded::run_engine_child();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let plan = if has("--bench") && !has("--quick") {
        FULL
    } else {
        QUICK
    };
    let dir = work_dir();
    cpus::apart();
    let mut figures = serde_json::Map::new();
    if let Some(reports) = args.iter().position(|arg| arg == "--storage") {
        let reports = args.get(reports + 1).and_then(|n| n.parse().ok());
        storage::measure(dir.path(), reports.unwrap_or(1_000_000), &mut figures);
    } else if let Some(seconds) = args.iter().position(|arg| arg == "--soak") {
        let seconds = args.get(seconds + 1).and_then(|n| n.parse().ok());
        soak(
            dir.path(),
            Duration::from_secs(seconds.unwrap_or(600)),
            &mut figures,
        );
    } else if !has("--only-writer") {
        measure_ingest(dir.path(), plan, &mut figures);
    }
    if !has("--only-ingest") && !has("--soak") && !has("--storage") {
        measure_writer(dir.path(), plan, &mut figures);
    }
    let figures = serde_json::Value::Object(figures);
    if has("--json") {
        println!("{figures}");
    } else {
        print_table(&figures);
    }
    ExitCode::SUCCESS
}

/// Measures the cost of ingest, and the time of an ack.
fn measure_ingest(dir: &Path, plan: Plan, figures: &mut Figures) {
    let collector = Server::start("collector", dir);
    let bare = Server::start("bare", dir);
    let envelope = Server::start("envelope", dir);
    let servers = [&collector, &bare, &envelope];
    let unary = rounds(&servers, 1, plan);
    let n_unary = collector.counter("epwatch_collector_requests_total");
    let n_unary_syncs = collector.counter("epwatch_collector_wal_syncs_total");
    let batched = rounds(&servers[..2], BATCH, plan);
    let rss_after_rounds = collector.rss_mib();
    let half = per_second(&unary[0]) / 2.0;
    let syncs_before = sync_totals(&collector);
    let template = Template::new(1);
    let report_bytes = template.report_bytes;
    let paced = client::paced(collector.address, SHAPE, template, plan.half_load, half);
    let syncs = sync_totals(&collector);
    let mut put = |name: &str, value: f64| figures.insert(name.to_owned(), value.into());
    put("unary_ratio_to_bare", ratio(&unary[0], &unary[1]));
    put("unary_ratio_to_envelope", ratio(&unary[0], &unary[2]));
    put("unary_reports_per_cpu_second", per_cpu_second(&unary[0]));
    put("bare_reports_per_cpu_second", per_cpu_second(&unary[1]));
    put("envelope_reports_per_cpu_second", per_cpu_second(&unary[2]));
    put("unary_reports_per_second", per_second(&unary[0]));
    put("unary_reports_per_sync", n_unary / n_unary_syncs.max(1.0));
    put("batched_ratio_to_bare", ratio(&batched[0], &batched[1]));
    put(
        "batched_reports_per_cpu_second",
        per_cpu_second(&batched[0]),
    );
    put(
        "batched_bare_reports_per_cpu_second",
        per_cpu_second(&batched[1]),
    );
    put("batched_reports_per_second", per_second(&batched[0]));
    put("ack_p50_ms_half_load", paced.quantile_ms(0.5));
    put("ack_p99_ms_half_load", paced.quantile_ms(0.99));
    put("ack_max_ms_half_load", paced.quantile_ms(1.0));
    put(
        "sync_ms_mean_half_load",
        1e3 * (syncs.0 - syncs_before.0) / (syncs.1 - syncs_before.1),
    );
    put("rss_mib_after_rounds", rss_after_rounds);
    put("rss_mib_at_end", collector.rss_mib());
    figures.insert("report_bytes".into(), report_bytes.into());
}

/// Measures a collector's memory under full load, after each tenth of the time.
fn soak(dir: &Path, duration: Duration, figures: &mut Figures) {
    const PARTS: u32 = 10;
    let collector = Server::start("soaked", dir);
    let mut rss_mib = Vec::new();
    let mut reports = 0;
    for _ in 0..PARTS {
        let part = client::full(collector.address, SHAPE, Template::new(1), duration / PARTS);
        reports += part.reports;
        rss_mib.push(collector.rss_mib().round());
    }
    figures.insert("soak_seconds".into(), duration.as_secs().into());
    figures.insert("soak_reports".into(), reports.into());
    figures.insert("soak_rss_mib".into(), rss_mib.into());
}

/// Compares the path from the WAL into the engine with the engine alone.
fn measure_writer(dir: &Path, plan: Plan, figures: &mut Figures) {
    // Writer and engine share the machine, as they do in `serve`; the engine alone has all of it.
    cpus::together();
    let batch = CollectorConfig::default().batch.max_reports;
    let rounds: Vec<_> = (0..plan.rounds.min(3))
        .map(|n| writer::round(&dir.join(format!("writer-{n}")), plan.fill, batch))
        .collect();
    let middle = |of: &dyn Fn(&Round) -> f64| median(rounds.iter().map(of));
    let per_second = |side: &Stored| side.rows / side.seconds;
    let cpu_us =
        |side: &Stored| 1e6 * (side.engine_cpu_seconds + side.writer_cpu_seconds) / side.rows;
    let mut put = |name: String, value: f64| figures.insert(name, value.into());
    type Side = fn(&Round) -> &Stored;
    for (name, engine) in [
        ("engine", (|round| &round.engine) as Side),
        ("engine_of_blocks", |round| &round.engine_of_blocks),
    ] {
        put(
            format!("writer_ratio_to_{name}"),
            middle(&|round| per_second(&round.writer) / per_second(engine(round))),
        );
        put(
            format!("writer_ratio_to_{name}_by_cpu"),
            middle(&|round| cpu_us(engine(round)) / cpu_us(&round.writer)),
        );
        put(
            format!("{name}_rows_per_second"),
            middle(&|round| per_second(engine(round))),
        );
        put(
            format!("{name}_cpu_us_per_row"),
            middle(&|round| cpu_us(engine(round))),
        );
    }
    let mut put_writer = |name: &str, of: &dyn Fn(&Stored) -> f64| {
        put(name.to_owned(), middle(&|round| of(&round.writer)));
    };
    put_writer("writer_rows_per_second", &per_second);
    put_writer("writer_cpu_us_per_row", &|writer| {
        1e6 * writer.writer_cpu_seconds / writer.rows
    });
    put_writer("writer_engine_cpu_us_per_row", &|writer| {
        1e6 * writer.engine_cpu_seconds / writer.rows
    });
    put_writer("writer_rows", &|writer| writer.rows);
}

type Figures = serde_json::Map<String, serde_json::Value>;

fn print_table(figures: &serde_json::Value) {
    for (name, value) in figures.as_object().into_iter().flatten() {
        match value.as_f64() {
            Some(number) => println!("{name:<40} {number:>12.2}"),
            None => println!("{name:<40} {value}"),
        }
    }
}

/// Seconds spent in syncs, and how many there were.
fn sync_totals(collector: &Server) -> (f64, f64) {
    let seconds = collector.counter("epwatch_collector_wal_sync_seconds_total");
    (
        seconds,
        collector.counter("epwatch_collector_wal_syncs_total"),
    )
}

/// A directory on a real disk.
fn work_dir() -> tempfile::TempDir {
    let root = std::env::var_os("EPWATCH_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    std::fs::create_dir_all(&root).expect("the bench's directory can be made");
    let dir = tempfile::tempdir_in(&root).expect("the bench's directory can be written");
    let kind = rustix::fs::statfs(dir.path()).expect("it is there").f_type;
    // From linux/magic.h: tmpfs and ramfs, where fsync does nothing.
    assert!(
        kind != 0x0102_1994 && kind != 0x8584_58f6,
        "{} lies in memory, where fsync does nothing; set EPWATCH_BENCH_DIR to a directory on a disk",
        root.display()
    );
    dir
}

/// Rates of one server in a round.
#[derive(Debug, Clone, Copy)]
struct Rate {
    per_cpu_second: f64,
    reports_per_second: f64,
}

/// Loads the servers in turns; returns each server's rounds.
fn rounds(servers: &[&Server], n_reports: usize, plan: Plan) -> Vec<Vec<Rate>> {
    let mut all: Vec<Vec<Rate>> = vec![Vec::new(); servers.len()];
    for server in servers {
        client::full(
            server.address,
            SHAPE,
            Template::new(n_reports),
            plan.load / 4,
        );
    }
    for _ in 0..plan.rounds {
        for (server, rates) in servers.iter().zip(&mut all) {
            let before = server.cpu_seconds();
            let done = client::full(server.address, SHAPE, Template::new(n_reports), plan.load);
            rates.push(rate(&done, server.cpu_seconds() - before));
        }
    }
    all
}

#[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
fn rate(done: &Done, cpu_seconds: f64) -> Rate {
    Rate {
        // The clock of /proc has steps of 10 ms: a quick run may see none.
        per_cpu_second: done.reports as f64 / cpu_seconds.max(0.01),
        reports_per_second: done.reports as f64 / done.seconds,
    }
}

/// Returns the ratio of two servers' rates, as the median of the rounds. Both servers of a round had the machine in the
/// same state, which changes by a third within minutes.
fn ratio(of: &[Rate], to: &[Rate]) -> f64 {
    let pairs = of.iter().zip(to);
    median(pairs.map(|(of, to)| of.per_cpu_second / to.per_cpu_second))
}

fn per_cpu_second(rounds: &[Rate]) -> f64 {
    median(rounds.iter().map(|rate| rate.per_cpu_second))
}

fn per_second(rounds: &[Rate]) -> f64 {
    median(rounds.iter().map(|rate| rate.reports_per_second))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
