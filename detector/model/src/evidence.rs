//! Histograms behind a verdict: runs by latency, now and of the version before, and devices by the ratio to their own
//! past.
//!
//! Bins are equally wide on a logarithmic axis. A histogram of clean runs has about 100 buckets at 2 significant
//! digits. In bins of a sixteenth of an octave it has 20 to 60 numbers, and a mode 5 % away is still visible.

use std::time::Duration;

use jiff::Timestamp;

use crate::class::{Severity, VerdictClass};
use crate::cohort::CohortKey;
use crate::statistics::WindowStatistics;
use crate::verdict::VerdictNumbers;

/// Number of bins per octave of latency.
pub const LATENCY_BINS: f64 = 16.0;

/// Number of bins per octave of a ratio.
pub const RATIO_BINS: f64 = 8.0;

/// The histograms of one chipset's window.
#[derive(Debug, Clone, PartialEq)]
pub struct CohortEvidence {
    /// The cohort that was judged.
    pub key: CohortKey,
    /// End of the window, exclusive.
    pub window_end: Timestamp,
    /// Length of the window.
    pub window: Duration,
    /// Class of the verdict.
    pub class: VerdictClass,
    /// Severity of the verdict.
    pub severity: Severity,
    /// CV and modes.
    pub statistics: WindowStatistics,
    /// Sizes and effects of the verdict.
    pub numbers: VerdictNumbers,
    /// Clean runs of the commonest input shape.
    pub runs: LatencyBins,
    /// The version before and its runs in this window; `None` if no device ran it.
    pub reference: Option<(String, LatencyBins)>,
    /// Devices by the ratio to their own past.
    pub ratios: RatioBins,
}

/// Clean runs by latency.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LatencyBins {
    /// Quantile 0.1, in microseconds.
    pub p10_us: Option<f64>,
    /// Median, in microseconds.
    pub p50_us: Option<f64>,
    /// Quantile 0.9, in microseconds.
    pub p90_us: Option<f64>,
    /// The first bin begins at 2 to the power of a sixteenth of this, in microseconds.
    pub first: i32,
    /// Runs in each bin.
    pub runs: Vec<u64>,
}

/// Devices by the ratio of their p10 to their own earlier p10, as the signals count them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RatioBins {
    /// The first bin begins at 2 to the power of an eighth of this.
    pub first: i32,
    /// Devices with nearly all of the work on the NPU, or whose placement is unknown.
    pub on_npu: Vec<u32>,
    /// Devices with work on the CPU.
    pub on_cpu: Vec<u32>,
    /// Devices whose earlier p10 is not known.
    pub without_past: u64,
}

impl CohortEvidence {
    /// Whether the store keeps it for good, not only until the cohort's next window.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.severity != Severity::None
    }
}
