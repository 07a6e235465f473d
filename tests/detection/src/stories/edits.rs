//! What stories change in the reports of a family: latencies, baselines, versions, firmwares.

use std::collections::BTreeMap;

use epwatch_proto::histogram::{bucket_high_us, bucket_low_us, bucket_of_us};
use epwatch_proto::placement::CPU_EP;
use epwatch_proto::{
    BaselineAbsence, Baselines, Fingerprint, LatencySeries, Placement, Report, SparseHistogram,
};

/// A device's place in [0, 1), the same in all of its reports.
pub(super) fn luck(report: &Report) -> f64 {
    let bytes = report.key.installation.as_bytes();
    f64::from(u16::from_le_bytes([bytes[0], bytes[1]])) / 65_536.0
}

/// Multiplies a share of the runs of every series; 1 for all of them.
pub(super) fn slow_down(report: &mut Report, factor: f64, share: f64) {
    for series in &mut report.series {
        slow_series(series, factor, share);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "microseconds and small counts"
)]
fn slow_series(series: &mut LatencySeries, factor: f64, share: f64) {
    let mut slowed: BTreeMap<u16, u64> = BTreeMap::new();
    let (mut n, mut sum, mut squares) = (0_u64, 0.0, 0.0);
    let (mut min, mut max) = (f64::INFINITY, 0.0_f64);
    let mut carried = 0.0;
    for (index, count) in series.histogram.buckets() {
        let middle = (bucket_low_us(index) + bucket_high_us(index)) as f64 / 2.0;
        // What is left of a share goes on to the next bucket.
        carried += share * count as f64;
        let slow = (carried.floor() as u64).min(count);
        carried -= slow as f64;
        for (us, count) in [(middle, count - slow), (middle * factor, slow)] {
            if count == 0 {
                continue;
            }
            *slowed.entry(bucket_of_us(us as u64)).or_default() += count;
            n += count;
            sum += us * count as f64;
            squares += us * us * count as f64;
            min = min.min(us);
            max = max.max(us);
        }
    }
    let (indices, counts) = slowed.into_iter().unzip();
    series.histogram = SparseHistogram::from_parts(indices, counts).expect("in order");
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

/// Gives devices with a baseline one of another version, which was slower by a factor.
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

/// The model has no version before.
pub(super) fn without_past(report: &mut Report) {
    for series in &mut report.series {
        series.baselines = Baselines::Absent(BaselineAbsence::FirstVersion);
        series.exceed = None;
    }
}

/// Puts every session where the placement says.
pub(super) fn place(report: &mut Report, placement: &Placement) {
    for session in &mut report.sessions {
        session.placement = placement.clone();
    }
}

/// A new runtime attributes this share of the MACs to the CPU, and computes as before.
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
