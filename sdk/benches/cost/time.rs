//! Times. The compared sides take turns.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use epwatch_proto::{Placement, ReasonCode, SessionOptions};
use epwatch_sdk::{
    ModelInfo, SdkConfig, Watch,
    simulation::{
        Core, CoreConfig, Now, SessionInfo, SessionRecorder, SimulatedSession, random_stream,
        simulated_device,
    },
};

use crate::Rounds;

/// Costs of a run on one thread, in nanoseconds.
#[derive(Debug)]
pub(crate) struct RunCost {
    pub(crate) clock_pair_ns: f64,
    pub(crate) record_ns: f64,
    pub(crate) wrapped_minus_bare_ns: f64,
}

/// Measures an empty run, bare and wrapped, and the parts of the wrapper's time.
pub(crate) fn run(rounds: Rounds) -> RunCost {
    let rig = Rig::start();
    let session = rig.session();
    let recorder = recorder();
    let began = Duration::from_secs(1);
    let mut wrapped_minus_bare = Vec::new();
    let mut clock_pair = Vec::new();
    let mut record = Vec::new();
    for round in 0..rounds.rounds + 2 {
        let bare = each(rounds.runs, || {
            black_box(do_nothing());
        });
        let wrapped = each(rounds.runs, || {
            black_box(session.run(do_nothing));
        });
        let clock = each(rounds.runs, || {
            let began = Instant::now();
            black_box(began.elapsed());
        });
        let latency = black_box(Duration::from_nanos(8_000_000));
        let recorded = each(rounds.runs, || {
            recorder.record(black_box(began), black_box(latency), black_box("static"));
        });
        // The first two rounds warm up.
        if round >= 2 {
            wrapped_minus_bare.push(wrapped - bare);
            clock_pair.push(clock - bare);
            record.push(recorded - bare);
        }
    }
    RunCost {
        clock_pair_ns: median(clock_pair),
        record_ns: median(record),
        wrapped_minus_bare_ns: median(wrapped_minus_bare),
    }
}

#[inline(never)]
fn do_nothing() -> u32 {
    black_box(7)
}

/// Nanoseconds of one `record` on a series, by two threads that begin together. Fails if a run was lost.
pub(crate) fn record_two_threads(rounds: Rounds) -> f64 {
    let mut costs = Vec::new();
    let (mut core, recorder) = core_and_recorder();
    let mut sealed = 0;
    for round in 0..rounds.rounds {
        let together = Together::of(2);
        let (recorder, together) = (&recorder, &together);
        let record = || {
            together.wait();
            each(rounds.runs, || {
                let (began, latency) = (Duration::from_secs(1), Duration::from_millis(8));
                recorder.record(black_box(began), black_box(latency), black_box("static"));
            })
        };
        let of_round: Vec<f64> = thread::scope(|s| {
            let threads = [s.spawn(record), s.spawn(record)];
            threads.map(|t| t.join().unwrap()).into()
        });
        costs.extend(of_round);
        let reports = core.seal(at(60 + round as u64));
        sealed += reports.iter().map(|r| r.runs).sum::<u64>();
    }
    let made = 2 * rounds.rounds as u64 * u64::from(rounds.runs);
    assert_eq!(sealed, made, "runs were lost");
    median(costs)
}

/// Lets threads begin at the same moment. They spin, because waking a thread takes longer than a round.
#[derive(Debug)]
pub(crate) struct Together {
    missing: AtomicUsize,
}

impl Together {
    pub(crate) fn of(threads: usize) -> Self {
        Self {
            missing: AtomicUsize::new(threads),
        }
    }

    pub(crate) fn wait(&self) {
        self.missing.fetch_sub(1, Relaxed);
        while self.missing.load(Relaxed) > 0 {
            thread::yield_now();
        }
    }
}

/// Microseconds that starting the SDK takes on the caller's thread.
pub(crate) fn init_us(rounds: Rounds) -> f64 {
    let starts = (0..rounds.starts).map(|_| {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir);
        let began = Instant::now();
        let watch = Watch::start(config).unwrap();
        let us = began.elapsed().as_secs_f64() * 1e6;
        watch.stop(Duration::from_secs(30)).unwrap();
        us
    });
    median(starts.collect())
}

/// Mean nanoseconds of a call.
fn each(runs: u32, mut call: impl FnMut()) -> f64 {
    let began = Instant::now();
    for _ in 0..runs {
        call();
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(runs)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Starts the SDK in a folder of its own, without a collector.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) watch: Watch,
    _dir: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            watch: Watch::start(config(&dir)).unwrap(),
            _dir: dir,
        }
    }

    pub(crate) fn session(&self) -> SimulatedSession {
        let options = SessionOptions::default();
        self.watch.simulated_session(model(), placement(), options)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.watch.stop(Duration::from_secs(30));
    }
}

fn config(dir: &tempfile::TempDir) -> SdkConfig {
    // Port 1 has no listener, and the first upload is due in hours.
    SdkConfig::builder("app", "http://127.0.0.1:1", "key", dir.path())
        .with_consent(true)
        .with_device(simulated_device("SM8650").into())
        .with_report_interval(Duration::from_secs(36_000))
        .build()
        .unwrap()
}

pub(crate) fn model() -> ModelInfo {
    ModelInfo::new("m", "1").unwrap()
}

fn placement() -> Placement {
    Placement::unavailable(vec![], ReasonCode::AssignmentApiUnavailable)
}

/// Makes a device in virtual time with a session.
pub(crate) fn core_and_recorder() -> (Core, Arc<SessionRecorder>) {
    let config = CoreConfig::new("app", simulated_device("SM8650")).unwrap();
    let mut core = Core::new(config, random_stream(), at(0));
    core.set_installation(epwatch_proto::InstallationId::from_secret(b"bench"));
    let recorder = open(&mut core, "1");
    (core, recorder)
}

/// Opens another session of a device.
pub(crate) fn open(core: &mut Core, version: &str) -> Arc<SessionRecorder> {
    let model = ModelInfo::new("m", version).unwrap();
    core.open_session(SessionInfo::new(model, placement()), at(1))
}

pub(crate) fn recorder() -> Arc<SessionRecorder> {
    core_and_recorder().1
}

pub(crate) fn at(seconds: u64) -> Now {
    let wall = 1_800_000_000_000 + 1000 * i64::try_from(seconds).unwrap();
    Now::simulated(Duration::from_secs(seconds), wall)
}
