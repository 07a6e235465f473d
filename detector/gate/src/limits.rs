//! Absolute limits over launches, and the cost of a limit on a healthy model.

use epwatch_stats::order_stat::median;

use crate::{Judged, Launch, bounds};

/// Chance of failing a healthy model below which a limit is above the device's floor.
const FREE_OF_COST: f64 = 0.01;

/// Judges one number per launch (median, p95, share of runs that are late) against a limit.
///
/// The bounds of the median over launches must lie on one side of the limit. A single launch decides by its number
/// alone, and a report has to say that there was only one.
pub fn judge_limit(of_launches: &[f64], limit: f64) -> Judged {
    let n = of_launches.len();
    match *of_launches {
        [] => return Judged::Undecided(Some(bounds::LEAST)),
        [only] if only <= limit => return Judged::Pass,
        [_] => return Judged::Fail,
        _ if n < bounds::LEAST => return Judged::Undecided(Some(bounds::LEAST)),
        _ => {}
    }
    if bounds::lower(of_launches).is_some_and(|low| low > limit) {
        return Judged::Fail;
    }
    if bounds::upper(of_launches).is_some_and(|high| high <= limit) {
        return Judged::Pass;
    }
    let beyond = of_launches.iter().filter(|value| **value > limit).count();
    Judged::Undecided(bounds::deciding(beyond.min(n - beyond), n, 1.0))
}

/// Judges the median CV of the launches against a limit. `Undecided` without launches.
pub fn judge_cv(launches: &[Launch], cv_max: f64) -> Judged {
    let cvs: Vec<f64> = launches.iter().map(Launch::cv).collect();
    match median(&cvs) {
        None => Judged::Undecided(Some(bounds::LEAST)),
        Some(cv) if cv <= cv_max => Judged::Pass,
        Some(_) => Judged::Fail,
    }
}

/// The rule by which launches beyond a limit fail it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailsBy {
    /// The median over launches, as a limit of the CV.
    Median,
    /// The lower bound of that median, as any other limit.
    Bound,
}

impl FailsBy {
    /// Smallest number of launches beyond a limit that fails it; `None` if no number does.
    fn least(self, launches: usize) -> Option<usize> {
        match (self, launches) {
            (_, 0) => None,
            (Self::Median, n) => Some(n.div_ceil(2)),
            (Self::Bound, 1) => Some(1),
            (Self::Bound, n) if n < bounds::LEAST => None,
            (Self::Bound, n) => Some(n + 1 - bounds::rank(n)?),
        }
    }

    /// Upper bound of the chance that a gate of so many launches fails, if each launch is beyond the limit with this
    /// chance.
    fn chance(self, launches: usize, beyond: f64) -> f64 {
        let least = self.least(launches);
        least.map_or(0.0, |least| {
            bounds::at_least(least as u64, launches, beyond)
        })
    }
}

/// Upper bound of the chance that a healthy model breaks a limit with so many launches.
///
/// `healthy` holds one number for each launch of a calibration, A against A. The share of them beyond the limit is the
/// chance that any launch is beyond it. `None` without a calibration or launches.
pub fn cost(healthy: &[f64], limit: f64, launches: usize, by: FailsBy) -> Option<f64> {
    if healthy.is_empty() || launches == 0 {
        return None;
    }
    let beyond = beyond(healthy, limit) as f64 / healthy.len() as f64;
    Some(by.chance(launches, beyond))
}

/// The device's floor. It is the smallest number of a calibration that, as a limit, fails a healthy model in at most 1
/// % of all verdicts. A policy's limit below it is a warning in each report.
pub fn floor(healthy: &[f64], launches: usize, by: FailsBy) -> Option<f64> {
    let free = |limit: &f64| cost(healthy, *limit, launches, by).is_some_and(|c| c <= FREE_OF_COST);
    let limits = healthy.iter().copied().filter(free);
    limits.min_by(f64::total_cmp)
}

/// The floor's upper bound, which holds for 19 of 20 calibrations. It takes the largest share beyond a limit that the launches
/// do not exclude. `None` if they are too few.
pub fn floor_bound(healthy: &[f64], launches: usize, by: FailsBy) -> Option<f64> {
    let free = |limit: &f64| {
        let share = bounds::most_share(beyond(healthy, *limit) as u64, healthy.len());
        launches > 0 && by.chance(launches, share) <= FREE_OF_COST
    };
    let limits = healthy.iter().copied().filter(free);
    limits.min_by(f64::total_cmp)
}

fn beyond(healthy: &[f64], limit: f64) -> usize {
    healthy.iter().filter(|value| **value > limit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_decide_and_not_the_point() {
        assert_eq!(judge_limit(&[9.0; 6], 10.0), Judged::Pass);
        assert_eq!(judge_limit(&[10.0; 6], 10.0), Judged::Pass);
        assert_eq!(judge_limit(&[10.1; 6], 10.0), Judged::Fail);
        let mixed = [9.0, 9.0, 9.0, 9.0, 9.0, 11.0];
        assert_eq!(judge_limit(&mixed, 10.0), Judged::Undecided(Some(12)));
        let mut eleven = [9.0; 11];
        eleven[..2].fill(11.0);
        assert_eq!(judge_limit(&eleven, 10.0), Judged::Undecided(Some(15)));
        assert_eq!(
            judge_limit(&[[9.0; 3], [11.0; 3]].concat(), 10.0),
            Judged::Undecided(None)
        );
    }

    #[test]
    fn one_launch_decides_by_its_number_and_few_do_not() {
        assert_eq!(judge_limit(&[9.0], 10.0), Judged::Pass);
        assert_eq!(judge_limit(&[11.0], 10.0), Judged::Fail);
        assert_eq!(judge_limit(&[f64::NAN], 10.0), Judged::Fail);
        for few in [&[][..], &[99.0; 5]] {
            assert_eq!(judge_limit(few, 10.0), Judged::Undecided(Some(6)));
        }
    }

    /// The median CV of all launches decides, so that one spike in one launch does not.
    #[test]
    fn the_cv_of_most_launches_decides() {
        let calm = Launch::new(&[[1_000; 10], [1_040; 10]].concat(), 0).unwrap();
        let mut runs = [1_000; 20];
        runs[7] = 5_000;
        let spiked = Launch::new(&runs, 0).unwrap();
        assert!(spiked.cv() > 0.7 && spiked.robust_cv() < 1e-9);
        let two = [calm.clone(), calm.clone(), spiked.clone()];
        assert_eq!(judge_cv(&two, 0.08), Judged::Pass);
        assert_eq!(
            judge_cv(&[calm, spiked.clone(), spiked], 0.08),
            Judged::Fail
        );
        assert_eq!(judge_cv(&[], 0.08), Judged::Undecided(Some(6)));
    }

    #[test]
    fn a_limit_below_the_floor_costs_and_one_above_does_not() {
        use FailsBy::{Bound, Median};
        let healthy: Vec<f64> = (1..=20).map(|i| f64::from(i) / 100.0).collect();
        assert_eq!(cost(&healthy, 0.2, 6, Median), Some(0.0));
        assert_eq!(cost(&healthy, 0.0, 6, Median), Some(1.0));
        // A quarter of the launches is beyond the limit. First one launch is enough to fail, then three of six.
        assert!((cost(&healthy, 0.15, 1, Median).unwrap() - 0.25).abs() < 1e-12);
        assert!((cost(&healthy, 0.15, 6, Median).unwrap() - 0.169_433).abs() < 1e-6);
        assert_eq!(floor(&healthy, 6, Median), Some(0.19));
        assert_eq!(floor(&healthy, 1, Median), Some(0.2));
        assert_eq!(
            (floor(&[], 6, Median), cost(&healthy, 0.1, 0, Median)),
            (None, None)
        );
        // A bound fails if all six launches are beyond it. With 9 of 20 beyond, that happens in 0.8 % of all gates.
        assert_eq!(floor(&healthy, 6, Bound), Some(0.11));
        assert_eq!(floor(&healthy, 3, Bound), Some(0.01));
    }

    /// `scipy.stats.beta.ppf(0.95, k + 1, n - k)`: 0.1391 for 0 of 20, 0.3437 for 3 of 20.
    #[test]
    fn a_bound_of_the_floor_lies_above_it() {
        let healthy: Vec<f64> = (1..=20).map(|i| f64::from(i) / 100.0).collect();
        assert!((bounds::most_share(0, 20) - 0.139_108).abs() < 1e-5);
        assert!((bounds::most_share(3, 20) - 0.343_664).abs() < 1e-5);
        assert_eq!(floor_bound(&healthy, 6, FailsBy::Bound), Some(0.15));
        // Twenty launches are too few to bound the floor for the median of six.
        assert_eq!(floor_bound(&healthy, 6, FailsBy::Median), None);
    }
}
