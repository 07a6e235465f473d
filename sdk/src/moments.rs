//! Exact moments of a stream of numbers by Welford's recurrence.
//!
//! A sum of squares would cancel: at a mean of 10^7 and a deviation of 0.1 it gives 0.0 (NIST
//! NumAcc4), and latencies in microseconds are numbers of that kind.

/// Count, sum, sum of squared deviations from the mean, extremes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Moments {
    pub(crate) n: u64,
    pub(crate) sum: f64,
    pub(crate) m2: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    mean: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self {
            n: 0,
            sum: 0.0,
            m2: 0.0,
            min: f64::INFINITY,
            max: 0.0,
            mean: 0.0,
        }
    }
}

impl Moments {
    /// Adds one value.
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    pub(crate) fn add(&mut self, value: f64) {
        self.n += 1;
        self.sum += value;
        let delta = value - self.mean;
        self.mean += delta / self.n as f64;
        self.m2 += delta * (value - self.mean);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds all values of another stream (Chan's formula).
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.n == 0 {
            return;
        }
        if self.n == 0 {
            *self = *other;
            return;
        }
        let (a, b) = (self.n as f64, other.n as f64);
        let delta = other.mean - self.mean;
        self.n += other.n;
        self.sum += other.sum;
        self.m2 += other.m2 + delta * delta * a * b / (a + b);
        self.mean += delta * b / (a + b);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Moments that were stored as count, sum and squared deviations.
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    pub(crate) fn from_parts(n: u64, sum: f64, m2: f64) -> Self {
        let mean = if n == 0 { 0.0 } else { sum / n as f64 };
        Self {
            n,
            sum,
            m2,
            min: mean,
            max: mean,
            mean,
        }
    }

    /// Standard deviation over mean; 0 below two values or at a zero mean.
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    pub(crate) fn coefficient_of_variation(&self) -> f64 {
        if self.n < 2 || self.mean <= 0.0 {
            return 0.0;
        }
        (self.m2 / (self.n - 1) as f64).sqrt() / self.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: impl IntoIterator<Item = f64>) -> Moments {
        let mut moments = Moments::default();
        for value in values {
            moments.add(value);
        }
        moments
    }

    /// NIST StRD, univariate, NumAcc4: certified mean 10000000.2, standard deviation 0.1.
    #[test]
    fn numacc4_keeps_its_certified_deviation() {
        let mut values = vec![10_000_000.2];
        for _ in 0..500 {
            values.extend([10_000_000.1, 10_000_000.3]);
        }
        let moments = of(values);
        let sd = (moments.m2 / 1000.0).sqrt();
        assert_eq!(moments.n, 1001);
        assert!((moments.mean - 10_000_000.2).abs() < 1e-7, "{moments:?}");
        assert!((sd - 0.1).abs() < 1e-8, "{sd}");
    }

    proptest! {
        #[test]
        fn merging_is_adding_everything(
            a in prop::collection::vec(0.0..1e7_f64, 0..50),
            b in prop::collection::vec(0.0..1e7_f64, 0..50),
        ) {
            let mut merged = of(a.clone());
            merged.merge(&of(b.clone()));
            let whole = of(a.into_iter().chain(b));
            prop_assert_eq!(merged.n, whole.n);
            prop_assert!((merged.m2 - whole.m2).abs() <= 1e-9 * (whole.m2 + 1.0));
            prop_assert_eq!(merged.min.to_bits(), whole.min.to_bits());
            prop_assert_eq!(merged.max.to_bits(), whole.max.to_bits());
        }
    }
}
