//! Descriptive statistics of a cohort window: the coefficient of variation within and between devices, and
//! whether latency is bimodal. Computed for each window, stored and shown in pages. They never decide a
//! verdict: over merged runs these numbers are large in most healthy cohorts.

use epwatch_stats::{
    HistogramError, Moments, SparseHistogram, VarianceSplit, Weighting, dip, mixture, valley,
};
use serde::{Deserialize, Serialize};

use crate::window::{CohortWindow, count_devices};

/// Least height of a mode as a share of the other's; a few stray runs make a lower one.
const MIN_PROMINENCE: f64 = 0.1;

/// Statistics of the clean runs of a cohort's commonest input shape.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
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
    /// Chance of such a dip with one mode, for as many observations as there are devices.
    pub dip_p: Option<f64>,
    /// The two modes, if the smoothed histogram has two.
    pub modes: Option<Modes>,
    /// Two groups of runs, if two lognormal distributions fit better than one.
    pub mixture: Option<Mixture>,
}

/// Two lognormal groups of runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mixture {
    /// Share of the runs in the slower one, in [0, 1].
    pub slow_share: f64,
    /// Median of the faster one, in microseconds.
    pub fast_us: f64,
    /// Median of the slower one, in microseconds.
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
pub struct Modes {
    /// The faster one, in microseconds.
    pub fast_us: f64,
    /// The slower one, in microseconds.
    pub slow_us: f64,
    /// Depth of the valley between them, in (0, 1].
    pub depth: f64,
}

/// Returns the statistics of a window; all `None` without clean runs.
///
/// # Errors
/// Histograms with different bucket schemes, which `read` prevents.
pub fn describe(window: &CohortWindow) -> Result<WindowStatistics, HistogramError> {
    let Some(main) = window.main_shape()? else {
        return Ok(WindowStatistics::default());
    };
    let moments: Vec<Moments> = main
        .votes
        .iter()
        .filter_map(|vote| vote.latency.as_ref())
        .map(|l| l.moments)
        .collect();
    let split = VarianceSplit::over_devices(&moments, Weighting::Devices);
    let devices = count_devices(main.votes.iter().copied());
    let dip = dip::of_histogram(&main.histogram);
    Ok(WindowStatistics {
        shape_key: main.shape_key.to_owned(),
        p50_us: main.histogram.quantile(0.5),
        p95_us: main.histogram.quantile(0.95),
        cv: split.and_then(|split| split.cv_total()),
        cv_within: split.and_then(|split| split.cv_within()),
        cv_between: split.and_then(|split| split.cv_between()),
        dip,
        dip_p: dip.and_then(|dip| dip::p_value(dip, devices)),
        modes: valley::deepest(&main.histogram, devices)
            .filter(|valley| valley.prominence >= MIN_PROMINENCE)
            .map(|valley| Modes {
                fast_us: valley.fast_mode_us,
                slow_us: valley.slow_mode_us,
                depth: valley.depth,
            }),
        mixture: mixture(&main.histogram, devices),
    })
}

fn mixture(histogram: &SparseHistogram, devices: u64) -> Option<Mixture> {
    let fitted = mixture::fit(histogram, devices).filter(|fitted| fitted.bic_gain > 0.0)?;
    let separation = fitted.separation();
    separation.is_finite().then(|| Mixture {
        slow_share: fitted.slow.weight,
        fast_us: fitted.fast.median_us(),
        slow_us: fitted.slow.median_us(),
        separation,
    })
}
