//! `CvIncrease`: devices whose runs vary more than before.
//!
//! A device is hit if the coefficient of variation (CV) of its clean runs is at least three values. They are twice its
//! own earlier CV, 1.5 times the cohort's in earlier windows, and 0.15. The last value is needed because single spikes
//! move a steady device's CV by more than any fault. Both baselines are needed because different programs measure them.
//! The signal counts devices, and compares the count with the cohort's history.

use epwatch_model::{Installation, Signal, SignalId};
use epwatch_stats::order_stat::median;

use crate::judge::baseline::Baseline;
use crate::judge::hash::HashMap;
use crate::judge::tally::Tally;
use crate::judge::window::{CohortWindow, DeviceVote, MIN_RUNS_HIGH};

use super::control::Control;
use super::limits::{Limits, counted_signal, is_enough};

/// Share of healthy devices that are hit in a window. In healthy fleets, one device's clean CV spans 0.035 to 0.59 from
/// the 5 % to the 95 % point (the project's detection measurements).
pub(crate) const FLEET_RATE: f64 = 0.1;

/// Minimum multiple of the device's own earlier CV.
const OWN: f64 = 2.0;

/// Minimum multiple of the cohort's CV in earlier windows.
const OF_COHORT: f64 = 1.5;

/// CV below which a device counts as steady.
const LEAST: f64 = 0.15;

/// Share of the devices that must be hit.
pub(crate) const MIN_SHARE: f64 = 0.1;

/// The result of `CvIncrease`.
#[derive(Debug, Clone, PartialEq)]
pub struct CvIncrease {
    /// Value: share of the devices hit. Threshold: the multiple of their own earlier CV.
    pub signal: Signal,
    /// Median CV of the devices hit.
    pub cv: Option<f64>,
    /// Median of their earlier CVs.
    pub earlier_cv: Option<f64>,
    /// Whether the previous version in the same window varies more as well.
    pub control: Control,
}

/// A device's CV now and before.
#[derive(Debug, Clone, Copy)]
struct BeforeAndNowCv {
    now: f64,
    before: f64,
}

impl BeforeAndNowCv {
    fn ratio(self) -> f64 {
        self.now / self.before
    }

    fn is_hit(self, of_cohort: f64) -> bool {
        self.now >= LEAST && self.now >= OF_COHORT * of_cohort && self.ratio() >= OWN
    }
}

/// Returns each device's pair with the largest ratio.
fn pairs(votes: &[DeviceVote]) -> HashMap<Installation, BeforeAndNowCv> {
    let mut worst: HashMap<Installation, BeforeAndNowCv> = HashMap::default();
    for vote in votes {
        let Some(latency) = vote.latency.as_ref() else {
            continue;
        };
        let (Ok(earlier), Some(now)) = (&latency.device_baseline, latency.moments.cv()) else {
            continue;
        };
        // Votes that were filled up with runs of earlier windows are left out, because these runs belong to the past.
        let enough = latency.moments.n() >= MIN_RUNS_HIGH
            && !latency.is_filled_up
            && earlier.n >= MIN_RUNS_HIGH;
        let is_usable = earlier.cv.is_finite() && earlier.cv > 0.0;
        if !(enough && is_usable) {
            continue;
        }
        let pair = BeforeAndNowCv {
            now,
            before: earlier.cv,
        };
        let slot = worst.entry(vote.installation).or_insert(pair);
        if pair.ratio() > slot.ratio() {
            *slot = pair;
        }
    }
    worst
}

/// Returns the pairs of the devices hit, and the tally of all devices with a pair.
fn counted(window: &CohortWindow, of_cohort: f64) -> (Vec<BeforeAndNowCv>, Tally) {
    let pairs = pairs(&window.votes);
    let hit: Vec<BeforeAndNowCv> = pairs
        .values()
        .copied()
        .filter(|pair| pair.is_hit(of_cohort))
        .collect();
    let tally = Tally {
        hits: hit.len() as u64,
        devices: pairs.len() as u64,
    };
    (hit, tally)
}

/// Counts devices that vary more; `None` if no device has a baseline, or the cohort has no earlier CV.
#[must_use]
pub(crate) fn varies(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<CvIncrease> {
    let of_cohort = baseline.cv_within?;
    let (hit, tally) = counted(window, of_cohort);
    if tally.devices == 0 {
        return None;
    }
    let p = baseline.chance(SignalId::CvIncrease, FLEET_RATE, tally);
    let fires = is_enough(tally, MIN_SHARE) && p <= limits.p_latency;
    let of = |field: fn(&BeforeAndNowCv) -> f64| {
        let values: Vec<f64> = hit.iter().map(field).collect();
        median(&values)
    };
    Some(CvIncrease {
        signal: counted_signal(SignalId::CvIncrease, tally, p, OWN, fires),
        cv: of(|pair| pair.now),
        earlier_cv: of(|pair| pair.before),
        control: previous.map_or(Control::Absent, |previous| {
            Control::of_previous(counted(previous, of_cohort).1, tally.share())
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fleet, noisy};

    #[track_caller]
    fn found(window: &CohortWindow, previous: Option<&CohortWindow>) -> CvIncrease {
        let limits = Limits::for_windows_a_day(1_000.0);
        let baseline = Baseline {
            cv_within: Some(0.17),
            ..Baseline::default()
        };
        varies(window, previous, &baseline, &limits).unwrap()
    }

    #[test]
    fn devices_that_vary_more_are_counted() {
        let spread = found(&noisy(0.5), None);
        assert!(spread.signal.fires, "{spread:?}");
        assert!((25..=35).contains(&spread.signal.hits), "{spread:?}");
        assert!(spread.cv.unwrap() > 2.0 * spread.earlier_cv.unwrap());
    }

    #[test]
    fn devices_as_steady_as_before_are_not() {
        for seed in 1..6 {
            let fleet = Fleet {
                seed,
                ..Fleet::default()
            };
            assert!(!found(&fleet.window(), None).signal.fires, "seed {seed}");
        }
    }

    /// A heavier model scales mean and deviation alike.
    #[test]
    fn a_slower_model_varies_no_more() {
        let fleet = Fleet {
            weight: 3.0,
            ..Fleet::default()
        };
        assert!(!found(&fleet.window(), None).signal.fires);
    }

    #[test]
    fn a_previous_version_that_varies_too_is_a_control() {
        let sick = noisy(0.5);
        let steady = Fleet::default().window();
        assert!(found(&sick, Some(&sick)).control.vetoes());
        assert!(!found(&sick, Some(&steady)).control.vetoes());
    }
}
