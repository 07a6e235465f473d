//! Descriptive statistics of a cohort window: the coefficient of variation within and between devices, and whether
//! latency is bimodal. They are computed for each window, stored, and shown in pages. They never decide a verdict: over
//! merged runs these numbers are large in most healthy cohorts.

use epwatch_model::{Mixture, Modes, WindowStatistics};
use epwatch_stats::{
    HistogramError, Moments, RangeHistogram, VarianceSplit, Weighting, dip, mixture, valley,
};

use crate::judge::window::{CohortWindow, count_devices};

/// Minimum height of a mode as a share of the other mode's height; a few stray runs make a lower one.
const MIN_PROMINENCE: f64 = 0.1;

/// Returns the statistics of a window; all `None` without clean runs.
///
/// # Errors
/// Histograms with different bucket schemes, which `read` prevents.
pub fn describe(window: &CohortWindow) -> Result<WindowStatistics, HistogramError> {
    let mut statistics = describe_spread(window)?;
    describe_modes(window, &mut statistics)?;
    Ok(statistics)
}

/// Returns quantiles and coefficients of variation of a window, without [`describe_modes`].
///
/// # Errors
/// Fails as [`describe`] does.
pub(crate) fn describe_spread(window: &CohortWindow) -> Result<WindowStatistics, HistogramError> {
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
    Ok(WindowStatistics {
        shape_key: main.shape_key.to_owned(),
        p50_us: main.histogram.quantile(0.5),
        p95_us: main.histogram.quantile(0.95),
        cv: split.and_then(|split| split.cv_total()),
        cv_within: split.and_then(|split| split.cv_within()),
        cv_between: split.and_then(|split| split.cv_between()),
        ..WindowStatistics::default()
    })
}

/// Adds whether latency is bimodal, which takes most of the time of a description.
///
/// # Errors
/// Fails as [`describe`] does.
pub(crate) fn describe_modes(
    window: &CohortWindow,
    statistics: &mut WindowStatistics,
) -> Result<(), HistogramError> {
    let Some(main) = window.main_shape()? else {
        return Ok(());
    };
    let devices = count_devices(main.votes.iter().copied());
    statistics.dip = dip::of_histogram(&main.histogram);
    statistics.dip_p = statistics.dip.and_then(|dip| dip::p_value(dip, devices));
    statistics.modes = valley::deepest(&main.histogram, devices)
        .filter(|valley| valley.prominence >= MIN_PROMINENCE)
        .map(|valley| Modes {
            fast_us: valley.fast_mode_us,
            slow_us: valley.slow_mode_us,
            depth: valley.depth,
        });
    statistics.mixture = mixture(&main.histogram, devices);
    Ok(())
}

fn mixture(histogram: &RangeHistogram, devices: u64) -> Option<Mixture> {
    let fitted = mixture::fit(histogram, devices).filter(|fitted| fitted.bic_gain > 0.0)?;
    let separation = fitted.separation();
    separation.is_finite().then(|| Mixture {
        slow_share: fitted.slow.weight,
        fast_us: fitted.fast.median_us(),
        slow_us: fitted.slow.median_us(),
        separation,
    })
}
