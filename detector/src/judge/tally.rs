//! A count of devices hit among the devices counted, and how surprising it is.

use epwatch_stats::beta_binomial::{BetaPrior, upper_tail};
use serde::{Deserialize, Serialize};

/// Weight of the fleet-wide rate, in devices: about the size of a cohort (the project's detection
/// measurements).
pub(crate) const PRIOR_STRENGTH: f64 = 100.0;

/// Chance below which a number of hits differs significantly from a rate.
const SURELY: f64 = 0.05;

/// Devices hit among the devices that a signal could be computed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub hits: u64,
    pub devices: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.hits += other.hits;
        self.devices += other.devices;
    }
}

impl Tally {
    /// Counts one device for each item.
    pub(crate) fn of<T>(items: impl IntoIterator<Item = T>, is_hit: impl Fn(T) -> bool) -> Self {
        let mut tally = Tally::default();
        for item in items {
            tally.devices += 1;
            tally.hits += u64::from(is_hit(item));
        }
        tally
    }

    /// Whether significantly fewer devices are hit than at this rate.
    pub(crate) fn is_surely_below(self, rate: f64) -> bool {
        1.0 - chance_of_more(rate, self.hits + 1, self.devices) < SURELY
    }

    /// Whether significantly more devices are hit than at this rate.
    pub(crate) fn is_surely_above(self, rate: f64) -> bool {
        chance_of_more(rate, self.hits, self.devices) < SURELY
    }

    /// Returns the chance of at least as many hits at this rate.
    pub(crate) fn chance_at(self, rate: f64) -> f64 {
        chance_of_more(rate, self.hits, self.devices)
    }

    /// Returns the share of the devices hit, in [0, 1]; 0 without devices.
    #[must_use]
    pub fn share(self) -> f64 {
        self.hits as f64 / self.devices.max(1) as f64
    }

    /// Returns the tally of windows with the same devices: their mean rate, at the size of the largest window.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and max_devices"
    )]
    pub fn from_means(mean_hits: f64, mean_devices: f64, max_devices: u64) -> Self {
        let rate = (mean_hits / mean_devices).clamp(0.0, 1.0);
        Tally {
            hits: (rate * max_devices as f64).round() as u64,
            devices: max_devices,
        }
    }
}

/// A signal's rate among healthy devices, and how much it weighs against a cohort's own history.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BaseRate {
    /// Share of healthy devices that are hit, in (0, 1).
    pub rate: f64,
    /// Weight of the rate, in devices: small if cohorts differ.
    pub strength: f64,
}

/// Returns the chance of at least `hits` hits if each device is hit at `rate`.
fn chance_of_more(rate: f64, hits: u64, devices: u64) -> f64 {
    // With so strong a prior, the beta-binomial becomes a binomial.
    let given = BetaPrior::from_rate(rate.clamp(1e-6, 1.0 - 1e-6), 1e6);
    given.map_or(1.0, |given| upper_tail(hits, devices, given))
}

/// Returns the chance of at least as many hits, given the fleet's rate and the cohort's own history.
pub(crate) fn surprise(found: Tally, fleet: BaseRate, past: Tally) -> f64 {
    // A rates file may hold any number.
    let rate = fleet.rate.clamp(1e-4, 0.99);
    let strength = fleet.strength.clamp(1.0, 10_000.0);
    let prior =
        BetaPrior::from_rate(rate, strength).expect("between 0 and 1, and a positive strength");
    // A history with more hits than devices is invalid.
    let prior = prior.updated(past.hits, past.devices).unwrap_or(prior);
    upper_tail(found.hits.min(found.devices), found.devices, prior)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a cohort always had slow devices, its history makes more of them unsurprising.
    #[test]
    fn a_cohorts_own_past_shifts_the_fleets_rate() {
        let found = Tally {
            hits: 15,
            devices: 100,
        };
        let fleet = BaseRate {
            rate: 0.01,
            strength: PRIOR_STRENGTH,
        };
        let unknown = surprise(found, fleet, Tally::default());
        let usual = surprise(
            found,
            fleet,
            Tally {
                hits: 40,
                devices: 400,
            },
        );
        let unusual = surprise(
            found,
            fleet,
            Tally {
                hits: 0,
                devices: 400,
            },
        );
        assert!(
            unusual < unknown && unknown < usual,
            "{unusual} {unknown} {usual}"
        );
        assert!(usual > 0.01 && unusual < 1e-6, "{unusual} {usual}");
    }
}
