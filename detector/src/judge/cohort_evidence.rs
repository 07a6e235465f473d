//! Histograms behind a verdict: runs by latency, now and of the version before, and devices by the ratio to their own
//! past. `evaluate` makes them for each chipset's window, `verdict_store` keeps them, and pages draw them. They decide
//! nothing and hold no ids.
//!
//! Bins are equally wide on a logarithmic axis. A histogram of clean runs has about 100 buckets at 2 significant
//! digits. In bins of a sixteenth of an octave it has 20 to 60 numbers, and a mode 5 % away is still visible.

use std::collections::BTreeMap;

use epwatch_model::{
    CohortEvidence, CohortVerdict, LATENCY_BINS, LatencyBins, RATIO_BINS, RatioBins,
};
use epwatch_stats::{HistogramError, RangeHistogram};

use crate::judge::window::{CohortWindow, MainShape};

/// First and last bin of ratios: a 64th, and 1,024 times. Ratios beyond them are counted there.
const RATIOS: (i32, i32) = (-6 * 8, 10 * 8);

/// Share of the work on the NPU below which a device is among those with work on the CPU.
const ALL_ON_NPU: f64 = 0.98;

/// Returns the histograms of a chipset's window; `previous` is the version before it in the same window.
///
/// # Errors
/// Histograms with different bucket schemes, which `read` prevents.
pub fn evidence_of(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    verdict: &CohortVerdict,
) -> Result<CohortEvidence, HistogramError> {
    let main = window.main_shape()?;
    let shape = main.as_ref().map_or("", |main| main.shape_key);
    let reference = match previous {
        Some(previous) => {
            let runs = previous.histogram_of_shape(shape)?;
            let runs = latency_bins(&runs);
            (!runs.runs.is_empty()).then(|| (previous.key.model_version.clone(), runs))
        }
        None => None,
    };
    Ok(CohortEvidence {
        key: window.key.clone(),
        window_end: verdict.window_end,
        window: verdict.window,
        class: verdict.class,
        severity: verdict.severity,
        statistics: verdict.statistics.clone(),
        numbers: verdict.numbers.clone(),
        runs: main
            .as_ref()
            .map(|main| latency_bins(&main.histogram))
            .unwrap_or_default(),
        reference,
        ratios: main.as_ref().map(ratio_bins).unwrap_or_default(),
    })
}

/// Returns the bin of a positive value.
#[expect(
    clippy::cast_possible_truncation,
    reason = "logarithms of latencies and ratios are small"
)]
fn bin(value: f64, per_octave: f64) -> i32 {
    (value.log2() * per_octave).floor() as i32
}

/// Returns the first bin and the counts from there on, without gaps.
fn dense<N: Copy + Default>(counts: &BTreeMap<i32, N>) -> (i32, Vec<N>) {
    let ends = counts.keys().next().zip(counts.keys().next_back());
    let Some((&first, &last)) = ends else {
        return (0, Vec::new());
    };
    let at = |bin| counts.get(&bin).copied().unwrap_or_default();
    (first, (first..=last).map(at).collect())
}

fn latency_bins(histogram: &RangeHistogram) -> LatencyBins {
    let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
    for bucket in histogram.buckets() {
        let middle = f64::midpoint(bucket.low_us, bucket.high_us).max(1.0);
        let count = counts.entry(bin(middle, LATENCY_BINS)).or_default();
        *count = count.saturating_add(bucket.count);
    }
    let (first, runs) = dense(&counts);
    LatencyBins {
        p10_us: histogram.quantile(0.1),
        p50_us: histogram.quantile(0.5),
        p90_us: histogram.quantile(0.9),
        first,
        runs,
    }
}

fn ratio_bins(main: &MainShape<'_>) -> RatioBins {
    // A device with several placements counts in the bin of its slowest vote.
    let mut devices: BTreeMap<_, Option<(f64, bool)>> = BTreeMap::new();
    for vote in &main.votes {
        let ratio = vote
            .latency
            .as_ref()
            .and_then(|latency| latency.p10_ratio());
        let ratio = ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0);
        let share = vote.placement.npu_share();
        let is_on_cpu = share.is_some_and(|(share, _)| share < ALL_ON_NPU);
        let of_device = devices.entry(vote.installation).or_default();
        let is_slower = |ratio: &f64| of_device.is_none_or(|(other, _)| other < *ratio);
        if let Some(ratio) = ratio.filter(is_slower) {
            *of_device = Some((ratio, is_on_cpu));
        }
    }
    let mut counts: BTreeMap<i32, (u32, u32)> = BTreeMap::new();
    let mut without_past = 0;
    for device in devices.into_values() {
        let Some((ratio, is_on_cpu)) = device else {
            without_past += 1;
            continue;
        };
        let at = bin(ratio, RATIO_BINS).clamp(RATIOS.0, RATIOS.1);
        let (on_npu, on_cpu) = counts.entry(at).or_default();
        *if is_on_cpu { on_cpu } else { on_npu } += 1;
    }
    let (first, both) = dense(&counts);
    let (on_npu, on_cpu) = both.into_iter().unzip();
    RatioBins {
        first,
        on_npu,
        on_cpu,
        without_past,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::window::histogram_of;
    use crate::testing::{Fleet, judged, reference};

    #[test]
    fn devices_that_moved_are_apart_and_slower_than_their_past() {
        let (window, previous) = (
            Fleet::with_fallback(0.5).window(),
            Fleet::default().window(),
        );
        let verdict = judged(&window, Some(&previous), &reference());
        let evidence = evidence_of(&window, Some(&previous), &verdict).unwrap();
        let ratios = &evidence.ratios;
        let sum = |devices: &[u32]| devices.iter().map(|n| u64::from(*n)).sum::<u64>();
        let all = sum(&ratios.on_npu) + sum(&ratios.on_cpu) + ratios.without_past;
        assert_eq!(all, window.n_devices());
        assert_eq!(sum(&ratios.on_cpu), window.n_devices() / 2);
        // The devices hit are 2.9 times slower: an octave and a half.
        let at = |devices: &[u32]| {
            ratios.first + i32::try_from(devices.iter().position(|n| *n > 0).unwrap()).unwrap()
        };
        assert!(
            at(&ratios.on_cpu) >= 8 && at(&ratios.on_npu) < 4,
            "{ratios:?}"
        );
        assert_eq!(evidence.runs.runs.iter().sum::<u64>(), window.n_runs());
        let (version, runs) = evidence.reference.as_ref().unwrap();
        assert_eq!(*version, previous.key.model_version);
        assert_eq!(runs.runs.iter().sum::<u64>(), previous.n_runs());
        assert!(evidence.is_kept());
        let healthy = judged(&previous, None, &reference());
        assert!(!evidence_of(&previous, None, &healthy).unwrap().is_kept());
    }

    #[test]
    fn runs_are_all_in_a_bin_and_bins_have_no_gaps() {
        let histogram = histogram_of([(700, 90), (701, 5), (1_100, 5)]).unwrap();
        let bins = latency_bins(&histogram);
        assert_eq!(bins.runs.iter().sum::<u64>(), 100);
        let bucket = histogram.buckets().first().unwrap();
        let begins = |at: i32| (f64::from(at) / LATENCY_BINS).exp2();
        let middle = f64::midpoint(bucket.low_us, bucket.high_us);
        assert!(
            begins(bins.first) <= middle && middle < begins(bins.first + 1),
            "{bins:?}"
        );
        assert!(bins.runs.len() > 20, "{bins:?}");
        assert_eq!(
            latency_bins(&histogram_of([]).unwrap()),
            LatencyBins::default()
        );
    }

    #[test]
    fn bins_of_ratios_begin_at_eighths_of_an_octave() {
        assert_eq!(
            (
                bin(1.0, RATIO_BINS),
                bin(4.0, RATIO_BINS),
                bin(0.99, RATIO_BINS)
            ),
            (0, 16, -1)
        );
    }
}
