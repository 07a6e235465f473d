//! Mean, variance and coefficient of variation from exact sums.
//!
//! A series is sent as (n, sum, m2), where m2 is the sum of squared deviations from its own mean. It is not sent as (n,
//! sum, sum of squares), which loses all precision if the mean is large against the spread. With that form, NIST's
//! NumAcc4 gives a standard deviation of 0. Merging: T. F. Chan, G. H. Golub and R. J. LeVeque, *Updating formulae and
//! a pairwise algorithm for computing sample variances*, 1979. Accumulating: B. P. Welford, *Note on a method for
//! calculating corrected sums of squares and products*, Technometrics 4(3), 1962.

/// Number, sum and squared deviations of a set of values, in the unit of the values (latency:
/// microseconds) and its square.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moments {
    n: u64,
    sum: f64,
    m2: f64,
}

impl Moments {
    /// Makes moments of n, sum and m2 = sum of (x - mean)^2, as a device or a roll-up recorded them.
    ///
    /// `None` if no values can have such sums. That is a sum or m2 that is not finite, a negative m2, or anything but
    /// zeros with n = 0.
    pub fn from_parts(n: u64, sum: f64, m2: f64) -> Option<Self> {
        let possible = sum.is_finite() && m2.is_finite() && m2 >= 0.0;
        let nothing = n == 0 && (sum != 0.0 || m2 != 0.0);
        (possible && !nothing).then_some(Self { n, sum, m2 })
    }

    /// Number of values.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Sum of the values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Sum of squared deviations from the mean.
    pub fn m2(&self) -> f64 {
        self.m2
    }

    /// Arithmetic mean; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / self.n as f64)
    }

    /// Sample variance, m2 / (n - 1); `None` below two values.
    pub fn variance(&self) -> Option<f64> {
        (self.n > 1).then(|| self.m2 / (self.n - 1) as f64)
    }

    /// Variance of the values as a whole population, m2 / n; `None` without values.
    pub fn population_variance(&self) -> Option<f64> {
        (self.n > 0).then(|| self.m2 / self.n as f64)
    }

    /// Sample standard deviation; `None` below two values.
    pub fn sd(&self) -> Option<f64> {
        self.variance().map(f64::sqrt)
    }

    /// Coefficient of variation, sample standard deviation over mean: unitless, so models compare.
    ///
    /// `None` below two values or if the mean is not positive, because the ratio is meaningless then.
    pub fn cv(&self) -> Option<f64> {
        let mean = self.mean().filter(|mean| *mean > 0.0)?;
        Some(self.sd()? / mean)
    }

    /// The moments of both sets together (Chan):
    /// m2 = m2a + m2b + (mean_b - mean_a)^2 * na * nb / (na + nb).
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let (Some(mean), Some(other_mean)) = (self.mean(), other.mean()) else {
            return if self.n == 0 { *other } else { *self };
        };
        let (na, nb) = (self.n as f64, other.n as f64);
        let delta = other_mean - mean;
        Self {
            n: self.n.saturating_add(other.n),
            sum: self.sum + other.sum,
            m2: self.m2 + other.m2 + delta * delta * (na / (na + nb)) * nb,
        }
    }
}

impl FromIterator<f64> for Moments {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut accumulator = Accumulator::default();
        for value in values {
            accumulator.push(value);
        }
        accumulator.moments()
    }
}

/// Takes values one by one and keeps their moments to working precision.
///
/// It uses Welford's recurrence on the deviations from the first value, with a compensated sum (A. Neumaier, 1974). So
/// a mean that is large against the spread costs no digits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Accumulator {
    n: u64,
    first: f64,
    deviations: f64,
    lost: f64,
    mean: f64,
    m2: f64,
}

impl Accumulator {
    /// Counts one value. One that is not finite makes all moments NaN, so filter before.
    pub fn push(&mut self, value: f64) {
        if self.n == 0 {
            self.first = value;
        }
        self.n += 1;
        let deviation = value - self.first;

        let sum = self.deviations + deviation;
        self.lost += if self.deviations.abs() >= deviation.abs() {
            (self.deviations - sum) + deviation
        } else {
            (deviation - sum) + self.deviations
        };
        self.deviations = sum;

        let before = deviation - self.mean;
        self.mean = (self.deviations + self.lost) / self.n as f64;
        self.m2 += before * (deviation - self.mean);
    }

    /// The moments of the values so far.
    pub fn moments(&self) -> Moments {
        let sum = self
            .first
            .mul_add(self.n as f64, self.deviations + self.lost);
        Moments {
            n: self.n,
            sum,
            m2: self.m2.max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NumAcc1 to 4 are three values or one value and 1,000 alternations, made by rule.
    fn alternating(first: f64, low: f64, high: f64) -> Moments {
        let pairs = (0..500).flat_map(|_| [low, high]);
        std::iter::once(first).chain(pairs).collect()
    }

    #[track_caller]
    fn check(moments: Moments, mean: f64, sd: f64, sd_tolerance: f64) {
        let got = (moments.mean().unwrap(), moments.sd().unwrap());
        assert!(
            (got.0 / mean - 1.0).abs() < 1e-15,
            "mean {} against {mean}",
            got.0
        );
        assert!(
            (got.1 / sd - 1.0).abs() < sd_tolerance,
            "sd {} against {sd}",
            got.1
        );
    }

    /// Certified by NIST StRD, univariate. The tolerance is what the decimal inputs leave when
    /// rounded to binary: 10000000.1 is off by up to 9e-10.
    #[test]
    fn nist_numerical_accuracy_sets_are_reproduced() {
        check(
            [10_000_001.0, 10_000_003.0, 10_000_002.0]
                .into_iter()
                .collect(),
            10_000_002.0,
            1.0,
            1e-15,
        );
        check(alternating(1.2, 1.1, 1.3), 1.2, 0.1, 1e-14);
        check(
            alternating(1_000_000.2, 1_000_000.1, 1_000_000.3),
            1_000_000.2,
            0.1,
            1e-9,
        );
        check(
            alternating(10_000_000.2, 10_000_000.1, 10_000_000.3),
            10_000_000.2,
            0.1,
            1e-8,
        );
    }

    #[test]
    fn merging_halves_of_a_hard_set_keeps_the_spread() {
        let half = |_| {
            [10_000_000.1, 10_000_000.3]
                .into_iter()
                .cycle()
                .take(500)
                .collect()
        };
        let halves: [Moments; 2] = [0, 1].map(half);
        let one: Moments = [10_000_000.2].into_iter().collect();
        check(
            halves[0].merged(&one).merged(&halves[1]),
            10_000_000.2,
            0.1,
            1e-8,
        );
    }

    #[test]
    fn says_nothing_where_there_is_nothing_to_say() {
        let none = Moments::default();
        assert_eq!((none.mean(), none.sd(), none.cv()), (None, None, None));
        let one: Moments = [5.0].into_iter().collect();
        assert_eq!((one.mean(), one.sd(), one.cv()), (Some(5.0), None, None));
        let zeros: Moments = [0.0, 0.0].into_iter().collect();
        assert_eq!((zeros.sd(), zeros.cv()), (Some(0.0), None));
    }

    #[test]
    fn impossible_parts_are_refused() {
        assert_eq!(Moments::from_parts(2, 4.0, -1.0), None);
        assert_eq!(Moments::from_parts(2, f64::NAN, 1.0), None);
        assert_eq!(Moments::from_parts(2, 1.0, f64::INFINITY), None);
        assert_eq!(Moments::from_parts(0, 1.0, 0.0), None);
        assert!(Moments::from_parts(0, 0.0, 0.0).is_some());
    }
}
