//! One launch: the run times of a process with one session, in order, and the numbers that rules compare.

use epwatch_stats::{Moments, SLOW_RUN, order_stat};

/// Minimum number of runs of a launch after the warm-up. The p95 of fewer is their maximum.
pub const LEAST_RUNS: usize = 20;

/// Scales a median absolute deviation to the standard deviation of a normal law.
const MAD_TO_SD: f64 = 1.4826;

/// Runs that cannot be judged.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LaunchError {
    /// Too few runs after the warm-up.
    #[error(
        "failed to judge a launch of {runs} runs of which {warmup} are warm-up: at least {LEAST_RUNS} must remain; \
         measure {} or more",
        warmup.saturating_add(LEAST_RUNS)
    )]
    TooFewRuns {
        /// Runs in the file, warm-up included.
        runs: usize,
        /// Runs to drop.
        warmup: usize,
    },
    /// A run without a duration.
    #[error("failed to judge a launch: run {at} takes 0 us; expected whole microseconds from 1 on")]
    NoDuration {
        /// Place of the run, from 1.
        at: usize,
    },
}

/// Run times of one launch, without its warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    ascending_us: Vec<f64>,
    cv: f64,
}

impl Launch {
    /// Drops the first `warmup` runs and keeps the rest.
    ///
    /// # Errors
    /// Too few runs, or one of 0 us.
    pub fn new(runs_us: &[u64], warmup: usize) -> Result<Self, LaunchError> {
        let kept = runs_us.get(warmup..).unwrap_or_default();
        if kept.len() < LEAST_RUNS {
            let runs = runs_us.len();
            return Err(LaunchError::TooFewRuns { runs, warmup });
        }
        if let Some(at) = kept.iter().position(|us| *us == 0) {
            let at = warmup + at + 1;
            return Err(LaunchError::NoDuration { at });
        }
        let mut ascending_us: Vec<f64> = kept.iter().map(|us| *us as f64).collect();
        ascending_us.sort_by(f64::total_cmp);
        let moments: Moments = ascending_us.iter().copied().collect();
        let cv = moments.cv().expect("20 runs of 1 us or more");
        Ok(Self { ascending_us, cv })
    }

    /// Run times in ascending order, in microseconds.
    pub fn ascending_us(&self) -> &[f64] {
        &self.ascending_us
    }

    /// Returns this launch with all run times multiplied by `times`.
    #[must_use]
    pub fn times(&self, times: f64) -> Self {
        Self {
            ascending_us: self.ascending_us.iter().map(|us| us * times).collect(),
            cv: self.cv,
        }
    }

    /// The smallest run time that at least the share `q` of the runs do not exceed (nearest rank).
    pub fn quantile_us(&self, q: f64) -> f64 {
        let n = self.ascending_us.len();
        #[expect(clippy::cast_possible_truncation, reason = "between 1 and n")]
        #[expect(clippy::cast_sign_loss, reason = "between 1 and n")]
        let rank = (q * n as f64).ceil().clamp(1.0, n as f64) as usize;
        self.ascending_us[rank - 1]
    }

    /// The middle run time, or the mean of the two middle ones.
    pub fn median_us(&self) -> f64 {
        order_stat::median(&self.ascending_us).expect("a launch has runs, none is NaN")
    }

    /// Sample standard deviation over mean.
    pub fn cv(&self) -> f64 {
        self.cv
    }

    /// The CV's robust form, 1.4826 MAD / median: one spike does not move it.
    pub fn robust_cv(&self) -> f64 {
        let median = self.median_us();
        let away = self.ascending_us.iter().map(|us| (us - median).abs());
        let away: Vec<f64> = away.collect();
        MAD_TO_SD * order_stat::median(&away).expect("as the runs") / median
    }

    /// Share of runs that take longer than this, in [0, 1].
    pub fn share_beyond(&self, us: f64) -> f64 {
        let within = self.ascending_us.partition_point(|run| *run <= us);
        1.0 - within as f64 / self.ascending_us.len() as f64
    }

    /// Share of runs beyond 1.7 x the launch's own p10, in [0, 1].
    pub fn slow_share(&self) -> f64 {
        self.share_beyond(SLOW_RUN * self.quantile_us(0.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_runs_after_the_warm_up() {
        let mut runs = vec![90_000, 50_000, 20_000];
        runs.extend((0..20).map(|i| 10_000 + 100 * i));
        runs[22] = 40_000;
        let launch = Launch::new(&runs, 3).unwrap();
        assert_eq!(launch.median_us(), 10_950.0);
        assert_eq!(launch.quantile_us(0.1), 10_100.0);
        assert_eq!(launch.quantile_us(0.95), 11_800.0);
        assert_eq!(launch.quantile_us(1.0), 40_000.0);
        assert!((launch.slow_share() - 0.05).abs() < 1e-12);
        assert!((launch.share_beyond(33_300.0) - 0.05).abs() < 1e-12);
        assert!((launch.cv() - 0.5277).abs() < 1e-3, "{}", launch.cv());
        assert!((launch.robust_cv() - 1.4826 * 500.0 / 10_950.0).abs() < 1e-9);
    }

    #[test]
    fn few_runs_and_runs_of_nothing_are_refused() {
        let error = Launch::new(&[1_000; 5], 3).unwrap_err();
        assert_eq!(error, LaunchError::TooFewRuns { runs: 5, warmup: 3 });
        assert!(error.to_string().contains("measure 23 or more"), "{error}");
        assert!(Launch::new(&[1_000; 22], 3).is_err());
        assert!(Launch::new(&[], usize::MAX).is_err());
        let mut runs = [1_000; 23];
        runs[4] = 0;
        let error = Launch::new(&runs, 3).unwrap_err();
        assert_eq!(error, LaunchError::NoDuration { at: 5 });
        assert!(Launch::new(&[u64::MAX; 20], 0).unwrap().cv() < 1e-9);
    }
}
