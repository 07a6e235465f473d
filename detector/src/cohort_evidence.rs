//! The shape behind a verdict: runs by latency now and of the version before, devices by the ratio to their own past.
//! `evaluate` makes it of each chipset's window, `verdict_store` keeps it, pages draw it. It decides nothing and holds
//! no ids.
//!
//! Bins are equally wide on a logarithmic axis. A histogram of clean runs has 100 buckets or so at 2 significant
//! digits. In bins of a sixteenth of an octave it is 20 to 60 numbers, and a mode 5 % away is still seen.

use std::collections::BTreeMap;
use std::time::Duration;

use epwatch_stats::{HistogramError, SparseHistogram};
use jiff::Timestamp;

use crate::cohort::CohortKey;
use crate::describe::WindowStatistics;
use crate::verdict::{CohortVerdict, Severity, VerdictClass, VerdictNumbers};
use crate::window::{CohortWindow, MainShape};

/// Bins of an octave of latency.
const LATENCY_BINS: f64 = 16.0;

/// Bins of an octave of a ratio.
const RATIO_BINS: f64 = 8.0;

/// Ratios beyond these are in the first and the last bin: a 64th, and 1,024 times.
const RATIOS: (i32, i32) = (-6 * 8, 10 * 8);

/// Share of the work on the NPU below which a device is among those with work on the CPU.
const ALL_ON_NPU: f64 = 0.98;

/// The shape of one chipset's window.
#[derive(Debug, Clone, PartialEq)]
pub struct CohortEvidence {
    pub(crate) key: CohortKey,
    pub(crate) window_end: Timestamp,
    pub(crate) window: Duration,
    pub(crate) class: VerdictClass,
    pub(crate) severity: Severity,
    pub(crate) statistics: WindowStatistics,
    pub(crate) numbers: VerdictNumbers,
    pub(crate) runs: LatencyBins,
    /// The version before and its runs in this window; `None` if no device ran it.
    pub(crate) reference: Option<(String, LatencyBins)>,
    pub(crate) ratios: RatioBins,
}

/// Clean runs by latency.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LatencyBins {
    pub(crate) p10_us: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p90_us: Option<f64>,
    /// The first bin begins at 2 to the power of a sixteenth of this, in microseconds.
    pub(crate) first: i32,
    pub(crate) runs: Vec<u64>,
}

/// Devices by the ratio of their p10 to their own earlier one, as the signals count them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RatioBins {
    /// The first bin begins at 2 to the power of an eighth of this.
    pub(crate) first: i32,
    /// Devices with nearly all of the work on the NPU, or at an unknown place.
    pub(crate) on_npu: Vec<u32>,
    pub(crate) on_cpu: Vec<u32>,
    /// Devices whose earlier p10 is not known.
    pub(crate) without_past: u64,
}

impl CohortEvidence {
    /// Returns the shape of a chipset's window; `previous` is the version before it in the same window.
    ///
    /// # Errors
    /// Histograms with different bucket schemes, which `read` prevents.
    pub fn of(
        window: &CohortWindow,
        previous: Option<&CohortWindow>,
        verdict: &CohortVerdict,
    ) -> Result<Self, HistogramError> {
        let main = window.main_shape()?;
        let shape = main.as_ref().map_or("", |main| main.shape_key);
        let reference = match previous {
            Some(previous) => {
                let runs = previous.histogram_of_shape(shape)?;
                let runs = LatencyBins::of(&runs);
                (!runs.runs.is_empty()).then(|| (previous.key.model_version.clone(), runs))
            }
            None => None,
        };
        Ok(Self {
            key: window.key.clone(),
            window_end: verdict.window_end,
            window: verdict.window,
            class: verdict.class,
            severity: verdict.severity,
            statistics: verdict.statistics.clone(),
            numbers: verdict.numbers.clone(),
            runs: main
                .as_ref()
                .map(|main| LatencyBins::of(&main.histogram))
                .unwrap_or_default(),
            reference,
            ratios: main.as_ref().map(RatioBins::of).unwrap_or_default(),
        })
    }

    /// Whether the store keeps it for good, not only until the cohort's next window.
    pub(crate) fn is_kept(&self) -> bool {
        self.severity != Severity::None
    }
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

impl LatencyBins {
    fn of(histogram: &SparseHistogram) -> Self {
        let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
        for bucket in histogram.buckets() {
            let middle = f64::midpoint(bucket.low_us, bucket.high_us).max(1.0);
            let count = counts.entry(bin(middle, LATENCY_BINS)).or_default();
            *count = count.saturating_add(bucket.count);
        }
        let (first, runs) = dense(&counts);
        Self {
            p10_us: histogram.quantile(0.1),
            p50_us: histogram.quantile(0.5),
            p90_us: histogram.quantile(0.9),
            first,
            runs,
        }
    }
}

impl RatioBins {
    fn of(main: &MainShape<'_>) -> Self {
        // A device with several placements is where its slowest vote is.
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
        Self {
            first,
            on_npu,
            on_cpu,
            without_past,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fleet, judged, reference};
    use crate::window::histogram_of;

    #[test]
    fn devices_that_moved_are_apart_and_slower_than_their_past() {
        let (window, previous) = (
            Fleet::with_fallback(0.5).window(),
            Fleet::default().window(),
        );
        let verdict = judged(&window, Some(&previous), &reference());
        let evidence = CohortEvidence::of(&window, Some(&previous), &verdict).unwrap();
        let ratios = &evidence.ratios;
        let sum = |devices: &[u32]| devices.iter().map(|n| u64::from(*n)).sum::<u64>();
        let all = sum(&ratios.on_npu) + sum(&ratios.on_cpu) + ratios.without_past;
        assert_eq!(all, window.n_devices());
        assert_eq!(sum(&ratios.on_cpu), window.n_devices() / 2);
        // They are 2.9 times slower: an octave and a half.
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
        assert!(
            !CohortEvidence::of(&previous, None, &healthy)
                .unwrap()
                .is_kept()
        );
    }

    #[test]
    fn runs_are_all_in_a_bin_and_bins_have_no_gaps() {
        let histogram = histogram_of([(700, 90), (701, 5), (1_100, 5)]).unwrap();
        let bins = LatencyBins::of(&histogram);
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
            LatencyBins::of(&histogram_of([]).unwrap()),
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
