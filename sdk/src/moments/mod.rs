//! Exact moments: integers during recording, then floats that merge by Chan's formula.
//!
//! A sum of squares in floating point would suffer from cancellation. At a mean of 10^7 and a deviation of 0.1 it gives
//! 0.0 (NIST NumAcc4), and latencies in microseconds are such numbers. Welford's recurrence does not cancel, but
//! divides once per run and rounds. A latency is a whole number of nanoseconds, so count, sum and sum of squares are
//! integers. These are exact, do not depend on the order, and cost one multiplication and two additions per run.

/// Exact count, sum and sum of squares of whole numbers (nanoseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sums {
    n: u64,
    sum: u128,
    squares: u128,
    min: u64,
    max: u64,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            n: 0,
            sum: 0,
            squares: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

impl Sums {
    /// Adds one value. Runs are clipped to 60 s, so no sum overflows within 2^56 runs.
    #[inline]
    pub(crate) fn add(&mut self, value: u64) {
        let wide = u128::from(value);
        self.n += 1;
        self.sum += wide;
        self.squares += wide * wide;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds the sums of another stream; exact in any order.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.n += other.n;
        self.sum += other.sum;
        self.squares += other.squares;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    pub(crate) fn n(&self) -> u64 {
        self.n
    }

    /// Returns the moments in another unit: 1000 turns nanoseconds into microseconds. Rounds each number once or twice.
    #[expect(clippy::cast_precision_loss, reason = "that is the rounding")]
    pub(crate) fn in_units_of(&self, unit: f64) -> Moments {
        if self.n == 0 {
            return Moments::default();
        }
        Moments {
            n: self.n,
            sum: self.sum as f64 / unit,
            m2: self.squared_deviations() / (unit * unit),
            min: self.min as f64 / unit,
            max: self.max as f64 / unit,
        }
    }

    /// `squares - sum^2 / n`. With `sum = q n + r` it is `squares - q^2 n - 2 q r - r^2 / n`, where nothing overflows
    /// and only the last, smallest term is not an integer.
    #[expect(clippy::cast_precision_loss, reason = "rounded once, at the end")]
    fn squared_deviations(&self) -> f64 {
        let n = u128::from(self.n);
        let (q, r) = (self.sum / n, self.sum % n);
        let rest = r * r;
        let whole = self.squares - q * q * n - 2 * q * r - rest / n;
        whole as f64 - (rest % n) as f64 / n as f64
    }
}

/// Count, sum, sum of squared deviations from the mean, and extremes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Moments {
    pub(crate) n: u64,
    pub(crate) sum: f64,
    pub(crate) m2: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self {
            n: 0,
            sum: 0.0,
            m2: 0.0,
            min: f64::INFINITY,
            max: 0.0,
        }
    }
}

impl Moments {
    /// Adds another stream (Chan's formula).
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
        let delta = other.mean() - self.mean();
        self.n += other.n;
        self.sum += other.sum;
        self.m2 += other.m2 + delta * delta * a * b / (a + b);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Restores moments that were stored without their extremes.
    pub(crate) fn from_parts(n: u64, sum: f64, m2: f64) -> Self {
        let stored = Self {
            n,
            sum,
            m2,
            ..Self::default()
        };
        let mean = stored.mean();
        Self {
            min: mean,
            max: mean,
            ..stored
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    fn mean(&self) -> f64 {
        match self.n {
            0 => 0.0,
            n => self.sum / n as f64,
        }
    }

    /// Standard deviation over mean; 0 below two values or at a zero mean.
    pub(crate) fn coefficient_of_variation(&self) -> f64 {
        let mean = self.mean();
        if mean <= 0.0 {
            return 0.0;
        }
        self.standard_deviation() / mean
    }

    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    fn standard_deviation(&self) -> f64 {
        match self.n {
            0 | 1 => 0.0,
            n => (self.m2 / (n - 1) as f64).sqrt(),
        }
    }
}

#[cfg(test)]
pub(crate) mod nist;
#[cfg(test)]
pub(crate) mod tests;
