//! Allocations of a run, and the memory that series hold.

use std::{thread, time::Duration};

use epwatch_sdk::simulation::SessionRecorder;

use crate::{
    Rounds,
    time::{Rig, Together, at, core_and_recorder},
};

/// Memory of series after an interval was sealed: live series, their swap partners, and the recorder itself, over all
/// shards.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Memory {
    pub(crate) bytes_per_series: i64,
    pub(crate) bytes_of_8_series: i64,
    pub(crate) bytes_of_8_series_two_threads: i64,
}

/// Allocations of a wrapped run after the first one of its stratum, with seals in between.
pub(crate) fn allocations_per_run(rounds: Rounds) -> f64 {
    let rig = Rig::start();
    let session = rig.session();
    let mut allocations = 0;
    for _ in 0..3 {
        for _ in 0..10 {
            session.run(|| ());
        }
        let measured = allocation_counter::measure(|| {
            for _ in 0..rounds.runs {
                session.run(|| ());
            }
        });
        allocations += measured.count_total;
        // Seals the interval. The upload fails, because no collector listens.
        let _ = rig.watch.flush(Duration::from_secs(30));
        // The swap must not cost the next run an allocation either.
        allocations += allocation_counter::measure(|| session.run(|| ())).count_total;
    }
    allocations as f64 / f64::from(3 * rounds.runs)
}

/// Measures with 8 input shapes and with none. The difference has each series' part of the session's memory, but not
/// the session's own memory.
pub(crate) fn of_series() -> Memory {
    let bytes_of_8_series = held(8, 1);
    Memory {
        bytes_per_series: (bytes_of_8_series - held(0, 1)) / 8,
        bytes_of_8_series,
        bytes_of_8_series_two_threads: held(8, 2),
    }
}

/// Bytes of a session's recorder with this number of series, after two seals.
fn held(series: u32, threads: usize) -> i64 {
    let (mut core, first) = core_and_recorder();
    // Memory that the device keeps for its first session belongs to no series.
    record_cold(&first);
    for round in 0..3 {
        core.seal(at(50 + round));
    }
    let mut bytes = 0;
    let mut recorder = None;
    bytes += allocation_counter::measure(|| recorder = Some(crate::time::open(&mut core, "1")))
        .bytes_current;
    let recorder = recorder.unwrap();
    bytes += allocation_counter::measure(|| record_cold(&recorder)).bytes_current;
    for round in 0..4 {
        bytes += record_from(&recorder, series, threads);
        bytes += allocation_counter::measure(|| drop(core.seal(at(60 + round)))).bytes_current;
    }
    bytes + record_from(&recorder, series, threads)
}

/// Cold runs have a stratum of their own, which the second seal frees.
fn record_cold(recorder: &SessionRecorder) {
    for _ in 0..epwatch_sdk::policy::COLD_RUNS {
        recorder.record(Duration::from_secs(1), Duration::from_millis(9), "static");
    }
}

/// Records each series from all threads at once, so that each thread gets its shard. Returns the bytes that the series
/// hold.
fn record_from(recorder: &SessionRecorder, series: u32, threads: usize) -> i64 {
    let shapes: Vec<_> = (0..series).map(|n| format!("x:{}", n % 8)).collect();
    let together = Together::of(threads);
    let record = || {
        together.wait();
        let measured = allocation_counter::measure(|| {
            for run in 0..20_000 {
                for shape in &shapes {
                    let latency = Duration::from_micros(8_000 + run % 1_000);
                    recorder.record(Duration::from_secs(1), latency, shape);
                }
            }
        });
        measured.bytes_current
    };
    match threads {
        1 => record(),
        _ => thread::scope(|s| {
            let threads: Vec<_> = (0..threads).map(|_| s.spawn(record)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        }),
    }
}
