//! Changes that stories make in the reports of a family: latencies, baselines, versions, firmwares.

use std::collections::BTreeMap;

use epwatch_proto::histogram::{bucket_high_us, bucket_low_us, bucket_of_us};
use epwatch_proto::placement::CPU_EP;
use epwatch_proto::{
    BaselineAbsence, Baselines, Fingerprint, GraphKind, LatencySeries, Placement, ReasonCode,
    Report, SparseHistogram,
};

/// Returns a device's position in [0, 1), which is equal in all of its reports.
pub(super) fn luck(report: &Report) -> f64 {
    let bytes = report.key.installation.as_bytes();
    f64::from(u16::from_le_bytes([bytes[0], bytes[1]])) / 65_536.0
}

/// Multiplies the latency of a share of each series' runs; the share 1 is all runs.
pub(super) fn slow_down(report: &mut Report, factor: f64, share: f64) {
    for series in &mut report.series {
        slow_series(series, factor, share);
    }
}

/// Multiplies the latency of all runs in series with an input shape.
pub(super) fn slow_shape(report: &mut Report, shape: &str, factor: f64) {
    let slow = report.series.iter_mut();
    for series in slow.filter(|series| series.stratum.shape_key == shape) {
        slow_series(series, factor, 1.0);
    }
}

/// Makes the runs below each series' median faster by a factor, and the others slower by it.
pub(super) fn alternate(report: &mut Report, factor: f64) {
    for series in &mut report.series {
        let (fast, slow) = by_speed(series, series.n / 2);
        let fast = fast.into_iter().map(|(us, count)| (us / factor, count));
        let slow = slow.into_iter().map(|(us, count)| (us * factor, count));
        take_runs(series, &fast.chain(slow).collect::<RunsByLatency>());
    }
}

/// Multiplies the latency of the slowest share of each series' runs.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "small counts"
)]
pub(super) fn stretch_slowest(report: &mut Report, factor: f64, share: f64) {
    for series in &mut report.series {
        let n_fast = ((1.0 - share) * series.n as f64).round() as u64;
        let (mut runs, slow) = by_speed(series, n_fast);
        runs.extend(slow.into_iter().map(|(us, count)| (us * factor, count)));
        take_runs(series, &runs);
    }
}

/// Divides every series into two by input shape; the second gets this share of the runs. Both are equally fast.
pub(super) fn split_shapes(report: &mut Report, shapes: [&str; 2], share: f64) {
    let mut split = Vec::with_capacity(2 * report.series.len());
    for series in &report.series {
        let (second, first) = divided(series, share);
        for (shape, runs) in shapes.into_iter().zip([first, second]) {
            let mut part = series.clone();
            part.stratum.shape_key = shape.into();
            part.first_runs_us.clear();
            (part.slow_fast_switches, part.longest_slow_streak) = (None, None);
            let dropped = if split.len() % 2 == 0 {
                series.dropped_runs
            } else {
                0
            };
            part.dropped_runs = dropped;
            take_runs(&mut part, &runs);
            part.runs_seen = part.n * u64::from(part.sampled_one_in.max(1)) + dropped;
            if part.n > 0 {
                split.push(part);
            }
        }
    }
    report.series = split;
}

/// Runs by their latency in microseconds.
type RunsByLatency = Vec<(f64, u64)>;

/// Returns a number of the fastest runs of a series, and the rest.
fn by_speed(series: &LatencySeries, n_fast: u64) -> (RunsByLatency, RunsByLatency) {
    let (mut fast, mut slow) = (RunsByLatency::new(), RunsByLatency::new());
    let mut left = n_fast;
    for (index, count) in series.histogram.buckets() {
        let middle = (bucket_low_us(index) + bucket_high_us(index)) as f64 / 2.0;
        let n_fast = count.min(left);
        left -= n_fast;
        fast.push((middle, n_fast));
        slow.push((middle, count - n_fast));
    }
    (fast, slow)
}

/// Returns a share of the runs of a series, and the rest.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "microseconds and small counts"
)]
fn divided(series: &LatencySeries, share: f64) -> (RunsByLatency, RunsByLatency) {
    let (mut part, mut rest) = (RunsByLatency::new(), RunsByLatency::new());
    let mut carried = 0.0;
    for (index, count) in series.histogram.buckets() {
        let middle = (bucket_low_us(index) + bucket_high_us(index)) as f64 / 2.0;
        // The fraction that is left is carried to the next bucket.
        carried += share * count as f64;
        let taken = (carried.floor() as u64).min(count);
        carried -= taken as f64;
        part.push((middle, taken));
        rest.push((middle, count - taken));
    }
    (part, rest)
}

fn slow_series(series: &mut LatencySeries, factor: f64, share: f64) {
    let (mut runs, rest) = divided(series, share);
    for (us, _) in &mut runs {
        *us *= factor;
    }
    runs.extend(rest);
    take_runs(series, &runs);
}

/// Gives a series these runs.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "microseconds and small counts"
)]
fn take_runs(series: &mut LatencySeries, runs: &[(f64, u64)]) {
    let mut buckets: BTreeMap<u16, u64> = BTreeMap::new();
    let (mut n, mut sum, mut squares) = (0_u64, 0.0, 0.0);
    let (mut min, mut max) = (f64::INFINITY, 0.0_f64);
    for (us, count) in runs.iter().copied().filter(|(_, count)| *count > 0) {
        *buckets.entry(bucket_of_us(us as u64)).or_default() += count;
        n += count;
        sum += us * count as f64;
        squares += us * us * count as f64;
        min = min.min(us);
        max = max.max(us);
    }
    let (indices, counts) = buckets.into_iter().unzip();
    series.histogram = SparseHistogram::from_parts(indices, counts).expect("in order");
    series.n = n;
    series.sum_us = sum;
    series.m2_us2 = (squares - sum * sum / n.max(1) as f64).max(0.0);
    (series.min_us, series.max_us) = (min, max);
    series.exceed = None;
}

/// Renames the version of every session.
pub(super) fn rename(report: &mut Report, version: &str) {
    for session in &mut report.sessions {
        session.model.version = version.into();
    }
}

/// Replaces baselines by baselines of another version, which was slower by a factor.
pub(super) fn learnt_on(report: &mut Report, version: &str, factor: f64) {
    for series in &mut report.series {
        if let Baselines::Known(known) = &mut series.baselines {
            for baseline in known {
                baseline.model_version = version.into();
                baseline.p10_us *= factor;
                baseline.p50_us *= factor;
                baseline.p95_us *= factor;
            }
        }
        series.exceed = None;
    }
}

/// Removes the model's earlier version from baselines.
pub(super) fn without_past(report: &mut Report) {
    for series in &mut report.series {
        series.baselines = Baselines::Absent(BaselineAbsence::FirstVersion);
        series.exceed = None;
    }
}

/// Replaces the placement of every session.
pub(super) fn place(report: &mut Report, placement: &Placement) {
    for session in &mut report.sessions {
        session.placement = placement.clone();
    }
}

/// Turns the model into a compiled one. `for_another` says that it was made for another chipset.
pub(super) fn compile(report: &mut Report, for_another: bool) {
    for session in &mut report.sessions {
        session.placement.graph_kind = GraphKind::EpContext;
        if for_another {
            let reason = ReasonCode::EpcontextForAnother;
            session.placement.reasons.push(reason);
        }
    }
}

/// Attributes this share of the MACs to the CPU, as a new runtime that computes as before may do.
pub(super) fn recount(report: &mut Report, share: f64) {
    report.runtime.ort_version = "1.33.0".into();
    for session in &mut report.sessions {
        let placement = &mut session.placement;
        for print in [&mut placement.exact, &mut placement.normalised] {
            *print = print.map(|print| Fingerprint {
                value: print.value ^ 0x5555,
                ..print
            });
        }
        for ep in &mut placement.eps {
            let macs = match ep.ep == CPU_EP {
                true => share,
                false => 1.0 - share,
            };
            ep.macs_share = ep.macs_share.map(|_| macs);
        }
    }
}
