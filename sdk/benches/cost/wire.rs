//! Wire bytes of a series of 1,000 runs, by its coefficient of variation.

use std::time::Duration;

use epwatch_proto::v1;
use epwatch_sdk::simulation::Core;
use prost::Message;

use crate::time::{at, core_and_recorder, open};

/// Bytes at one coefficient of variation.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct WireRow {
    pub(crate) cv_percent: u32,
    /// HDR V2 bytes.
    pub(crate) histogram: usize,
    /// The whole series with its tag and length, without a baseline.
    pub(crate) series: usize,
    /// Smallest size of the whole series over latencies.
    pub(crate) least: usize,
    /// Its largest.
    pub(crate) most: usize,
    /// The whole series with a baseline of the device itself.
    pub(crate) with_baseline: usize,
}

/// The wire's cost for CVs of 3 to 60 %. The first and the third have documented limits.
pub(crate) fn table() -> Vec<WireRow> {
    let rows = [3, 6, 10, 16, 20, 30, 40, 50, 60].map(row);
    for (row, most) in [(rows[0], 160), (rows[2], 260)] {
        assert!(row.series <= most, "{row:?} is over {most} bytes");
    }
    rows.into()
}

/// The median over latencies. The number of buckets depends on the mean's position in its octave.
fn row(cv_percent: u32) -> WireRow {
    let means_ms = [
        1.0, 1.5, 2.2, 3.3, 5.0, 8.0, 12.0, 18.0, 27.0, 40.0, 60.0, 100.0,
    ];
    let all: Vec<_> = means_ms.iter().map(|ms| series(cv_percent, *ms)).collect();
    let of = |bytes: fn(&WireRow) -> usize| {
        let mut of_means: Vec<_> = all.iter().map(bytes).collect();
        of_means.sort_unstable();
        of_means[of_means.len() / 2]
    };
    WireRow {
        cv_percent,
        histogram: of(|row| row.histogram),
        series: of(|row| row.series),
        least: all.iter().map(|row| row.series).min().unwrap_or(0),
        most: all.iter().map(|row| row.series).max().unwrap_or(0),
        with_baseline: of(|row| row.with_baseline),
    }
}

fn series(cv_percent: u32, mean_ms: f64) -> WireRow {
    let (mut core, first) = core_and_recorder();
    let alone = record_and_seal(&mut core, &first, cv_percent, mean_ms);
    first.close();
    core.seal(at(100));
    let next = open(&mut core, "2");
    let compared = record_and_seal(&mut core, &next, cv_percent, mean_ms);
    assert_eq!((alone.baselines.len(), compared.baselines.len()), (0, 1));
    WireRow {
        cv_percent,
        histogram: alone.histogram.len(),
        series: bytes_in_report(&alone),
        least: 0,
        most: 0,
        with_baseline: bytes_in_report(&compared),
    }
}

/// The series of 1,000 lognormal runs from the report of their interval.
fn record_and_seal(
    core: &mut Core,
    recorder: &epwatch_sdk::simulation::SessionRecorder,
    cv_percent: u32,
    mean_ms: f64,
) -> v1::LatencySeries {
    let at_5_s = Duration::from_secs(5);
    for _ in 0..epwatch_sdk::policy::COLD_RUNS {
        recorder.record(at_5_s, Duration::from_millis(90), "static");
    }
    for z in normal(1_000) {
        let cv = f64::from(cv_percent) / 100.0;
        let sigma = (1.0 + cv * cv).ln().sqrt();
        let ms = mean_ms * (sigma * z - sigma * sigma / 2.0).exp();
        recorder.record(at_5_s, Duration::from_secs_f64(ms / 1e3), "static");
    }
    let sealed = core.seal(at(60));
    let report = v1::Report::decode(&*sealed[0].bytes).unwrap();
    let warm = report.series.into_iter().find(|s| s.n == 1_000);
    warm.unwrap()
}

fn bytes_in_report(series: &v1::LatencySeries) -> usize {
    let report = |series| v1::Report {
        series,
        ..v1::Report::default()
    };
    report(vec![series.clone()]).encoded_len() - report(vec![]).encoded_len()
}

/// Standard normal numbers with a fixed seed (xorshift64*, Box-Muller).
fn normal(n: usize) -> impl Iterator<Item = f64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let bits = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits as f64 + 0.5) / (1_u64 << 53) as f64
    };
    (0..n).map(move |_| (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos())
}
