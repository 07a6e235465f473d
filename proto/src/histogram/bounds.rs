//! The range of values that a histogram's buckets allow. Validation of a series reads it, without the buckets.

use super::{bucket_high_us, bucket_low_us};

/// Bounds of the values in the buckets, in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HistBounds {
    /// Runs in all buckets.
    pub(crate) total: u64,
    first: u16,
    last: u16,
    pub(crate) sum_us: (f64, f64),
}

impl HistBounds {
    /// Adds a bucket; indices must rise. A bucket with a count of 0 changes nothing.
    #[inline]
    pub(crate) fn add(&mut self, index: u16, count: u64) {
        // Without a branch: see `walk` in `codec`.
        self.first = if self.total == 0 { index } else { self.first };
        self.last = if count > 0 { index } else { self.last };
        self.total = self.total.saturating_add(count);
        let (low, high) = edges_us(index);
        let count = number(count);
        self.sum_us.0 += count * low;
        self.sum_us.1 += count * high;
    }

    /// Edges of the lowest bucket; zeros if there are no buckets.
    pub(crate) fn first_us(&self) -> (f64, f64) {
        self.edges_us(self.first)
    }

    /// Edges of the highest bucket; zeros if there are no buckets.
    pub(crate) fn last_us(&self) -> (f64, f64) {
        self.edges_us(self.last)
    }

    fn edges_us(&self, index: u16) -> (f64, f64) {
        match self.total {
            0 => (0.0, 0.0),
            _ => edges_us(index),
        }
    }
}

#[inline]
fn edges_us(index: u16) -> (f64, f64) {
    (number(bucket_low_us(index)), number(bucket_high_us(index)))
}

/// Converts a number below 2^63, which processors do in one instruction; for larger ones they need several.
#[inline]
#[expect(clippy::cast_precision_loss, reason = "bounds")]
fn number(n: u64) -> f64 {
    n.cast_signed() as f64
}
