//! The range of values that a histogram's buckets allow. Validation of a series reads it, without the buckets.

use super::{bucket_high_us, bucket_low_us};

/// Least and most of what the values in the buckets can be, in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HistBounds {
    /// Runs in all buckets.
    pub(crate) total: u64,
    /// Edges of the lowest bucket.
    pub(crate) first_us: (f64, f64),
    /// Edges of the highest bucket.
    pub(crate) last_us: (f64, f64),
    pub(crate) sum_us: (f64, f64),
}

impl HistBounds {
    /// Adds a bucket; indices rise.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "bounds")]
    pub(crate) fn add(&mut self, index: u16, count: u64) {
        let edges = (bucket_low_us(index) as f64, bucket_high_us(index) as f64);
        if self.total == 0 {
            self.first_us = edges;
        }
        self.last_us = edges;
        self.total = self.total.saturating_add(count);
        self.sum_us.0 += count as f64 * edges.0;
        self.sum_us.1 += count as f64 * edges.1;
    }
}
