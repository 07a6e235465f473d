//! Descriptive statistics of a cohort window. They never decide a verdict.

use serde::{Deserialize, Serialize};

/// Statistics of the clean runs of a cohort's commonest input shape.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowStatistics {
    /// The input shape; other shapes differ in latency by design.
    pub shape_key: String,
    /// Median of all runs, in microseconds.
    pub p50_us: Option<f64>,
    /// Quantile 0.95 of all runs, in microseconds.
    pub p95_us: Option<f64>,
    /// Coefficient of variation of all runs, with equal weight for each device.
    pub cv: Option<f64>,
    /// Coefficient of variation of one device's runs, averaged over devices.
    pub cv_within: Option<f64>,
    /// Coefficient of variation of the devices' means.
    pub cv_between: Option<f64>,
    /// Hartigan's dip of the merged histogram, in [0, 0.25].
    pub dip: Option<f64>,
    /// Chance of such a dip if there is one mode and as many observations as devices.
    pub dip_p: Option<f64>,
    /// The two modes, if the smoothed histogram has two.
    pub modes: Option<Modes>,
    /// Two groups of runs, if two lognormal distributions fit better than one.
    pub mixture: Option<Mixture>,
}

/// Two lognormal groups of runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixture {
    /// Share of the runs in the slower group, in [0, 1].
    pub slow_share: f64,
    /// Median of the faster group, in microseconds.
    pub fast_us: f64,
    /// Median of the slower group, in microseconds.
    pub slow_us: f64,
    /// Ashman's D: above 2 the groups are separate.
    pub separation: f64,
}

impl Mixture {
    /// Whether there are two groups worth naming: separate, and neither of them a few stray runs.
    #[must_use]
    pub fn are_two(&self) -> bool {
        self.separation >= 2.0 && (0.05..=0.95).contains(&self.slow_share)
    }
}

/// Two modes of the latency histogram.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modes {
    /// The faster one, in microseconds.
    pub fast_us: f64,
    /// The slower one, in microseconds.
    pub slow_us: f64,
    /// Depth of the valley between them, in (0, 1].
    pub depth: f64,
}
