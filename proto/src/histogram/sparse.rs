//! A histogram as its occupied buckets, the form that rows in the store hold.

use super::{N_BUCKETS, bucket_high_us, bucket_low_us, bucket_of_us};
use crate::error::ParseError;

/// Maximum number of runs in all buckets: 2^63 - 1.
const MOST_RUNS: u64 = i64::MAX.cast_unsigned();

/// Occupied buckets of the fleet's scheme: indices rising, counts not zero, total within `i64`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SparseHistogram {
    pub(super) indices: Vec<u16>,
    pub(super) counts: Vec<u64>,
    pub(super) total: u64,
}

impl SparseHistogram {
    /// Makes one of bucket indices and their counts, as rows in the store hold them.
    ///
    /// # Errors
    /// Indices that do not rise or are out of range, counts of zero, lists of different length,
    /// a total that does not fit `i64`.
    pub fn from_parts(indices: Vec<u16>, counts: Vec<u64>) -> Result<Self, ParseError> {
        if indices.len() != counts.len() {
            let expected = format!("{} counts", indices.len());
            return Err(ParseError::malformed("counts", expected, counts.len()));
        }
        if !indices.is_sorted_by(|a, b| a < b) {
            let expected = "rising indices";
            return Err(ParseError::malformed("indices", expected, "others"));
        }
        if let Some(last) = indices.last().filter(|i| **i >= N_BUCKETS) {
            let expected = format!("below {N_BUCKETS}");
            return Err(ParseError::malformed("indices", expected, last));
        }
        if counts.contains(&0) {
            return Err(ParseError::malformed("counts", "1 or more", 0));
        }
        let total = counts
            .iter()
            .try_fold(0_u64, |sum, n| sum.checked_add(*n))
            .filter(|total| *total <= MOST_RUNS)
            .ok_or_else(|| ParseError::malformed("total", "at most 2^63 - 1", "more"))?;
        Ok(Self {
            indices,
            counts,
            total,
        })
    }

    /// Counts `n` runs of `value_us` microseconds. Saturates where counts end.
    pub fn record_n(&mut self, value_us: u64, n: u64) {
        self.add(bucket_of_us(value_us), n);
    }

    /// Adds another histogram. Saturates where counts end.
    pub fn merge(&mut self, other: &Self) {
        self.add_all(other.buckets());
    }

    /// Adds buckets in any order, fastest if their indices rise. Saturates where counts end. Leaves out indices that are
    /// out of range.
    pub fn add_all(&mut self, buckets: impl IntoIterator<Item = (u16, u64)>) {
        let buckets = buckets.into_iter();
        if self.is_empty() {
            let n_most = buckets.size_hint().1.unwrap_or(0);
            self.indices.reserve(n_most.min(N_BUCKETS.into()));
            self.counts.reserve(n_most.min(N_BUCKETS.into()));
        }
        let (mut after, mut least) = (0, 0);
        for (index, count) in buckets {
            if index < least {
                after = 0;
            }
            if index < N_BUCKETS {
                after = self.add_after(after, index, count);
                least = index + 1;
            }
        }
    }

    fn add(&mut self, index: u16, n: u64) {
        self.add_after(0, index, n);
    }

    /// Adds to a bucket behind the first `after` entries; returns where the entry of the next higher bucket may be.
    #[inline]
    fn add_after(&mut self, after: usize, index: u16, n: u64) -> usize {
        let n = n.min(MOST_RUNS - self.total);
        if n == 0 {
            return after;
        }
        self.total += n;
        // After an earlier merge, consecutive buckets mostly have adjacent entries.
        let at = match self.indices.get(after) {
            Some(next) if *next == index => after,
            _ => after + n_below(&self.indices[after..], index),
        };
        match self.indices.get(at) {
            Some(next) if *next == index => self.counts[at] += n,
            _ => {
                self.indices.insert(at, index);
                self.counts.insert(at, n);
            }
        }
        at + 1
    }

    /// Indices of the occupied buckets, rising.
    pub fn indices(&self) -> &[u16] {
        &self.indices
    }

    /// Runs in each occupied bucket.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Index and count of each occupied bucket, rising.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u64)> {
        self.indices
            .iter()
            .copied()
            .zip(self.counts.iter().copied())
    }

    /// Runs in all buckets.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Latency at quantile `q` in `[0, 1]`, in microseconds, interpolated within the bucket as if
    /// its runs were spread evenly. `None` if empty or `q` is out of range.
    #[expect(clippy::cast_precision_loss, reason = "edges are below 2^53")]
    pub fn quantile_us(&self, q: f64) -> Option<f64> {
        let (index, within) = self.locate(q)?;
        let low = bucket_low_us(index) as f64;
        let high = bucket_high_us(index) as f64;
        Some(low + (high - low) * within)
    }

    /// Bucket of a quantile, and where in the bucket it lies, 0 to 1.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank rounded in its 54th bit stays in or beside its bucket"
    )]
    fn locate(&self, q: f64) -> Option<(u16, f64)> {
        if !(0.0..=1.0).contains(&q) || self.is_empty() {
            return None;
        }
        let rank = ((q * self.total as f64).ceil() as u64).clamp(1, self.total);
        let mut before = 0;
        for (index, count) in self.buckets() {
            if before + count >= rank {
                let within = ((rank - before) as f64 - 0.5) / count as f64;
                return Some((index, within));
            }
            before += count;
        }
        None
    }
}

/// Entries that are compared at once, before a binary search in the rest. The next bucket's entry is mostly among them.
const NEAR: usize = 16;

/// Returns how many of the rising `indices` are below `index`.
#[inline]
fn n_below(indices: &[u16], index: u16) -> usize {
    let is_below = |next: &u16| *next < index;
    let Some((near, far)) = indices.split_first_chunk::<NEAR>() else {
        return indices.partition_point(is_below);
    };
    // Without a branch, so that the processor compares all of them in a few instructions.
    match near.iter().filter(|next| is_below(next)).count() {
        NEAR => NEAR + far.partition_point(is_below),
        n => n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(samples: &[(u64, u64)]) -> SparseHistogram {
        let mut sparse = SparseHistogram::default();
        for (value, n) in samples {
            sparse.record_n(*value, *n);
        }
        sparse
    }

    #[test]
    fn counts_saturate_instead_of_wrapping() {
        let mut sparse = of(&[(5, u64::MAX)]);
        sparse.merge(&of(&[(9, 7)]));
        assert_eq!(sparse.total(), i64::MAX.cast_unsigned());
        assert_eq!(sparse.indices(), [5]);
    }

    #[test]
    fn quantiles_need_samples_and_a_share() {
        assert_eq!(of(&[]).quantile_us(0.5), None);
        assert_eq!(of(&[(1, 1)]).quantile_us(f64::NAN), None);
        assert_eq!(of(&[(1, 1)]).quantile_us(1.1), None);
        assert_eq!(of(&[(100, 4)]).quantile_us(0.5), Some(100.375));
    }

    proptest! {
        #[test]
        fn merged_in_any_order_is_all_in_one(
            a in prop::collection::vec((0..70_000_000_u64, 1..1_000_u64), 0..40),
            b in prop::collection::vec((0..70_000_000_u64, 1..1_000_u64), 0..40),
        ) {
            let all = of(&[a.clone(), b.clone()].concat());
            let (mut ab, mut ba) = (of(&a), of(&b));
            ab.merge(&of(&b));
            ba.merge(&of(&a));
            prop_assert_eq!(&ab, &all);
            prop_assert_eq!(&ba, &all);
            let parts = (all.indices().to_vec(), all.counts().to_vec());
            prop_assert_eq!(SparseHistogram::from_parts(parts.0, parts.1), Ok(all.clone()));
            let mut falling = of(&b);
            let beyond = [(N_BUCKETS, 1), (u16::MAX, 1)];
            falling.add_all(of(&a).buckets().collect::<Vec<_>>().into_iter().rev().chain(beyond));
            prop_assert_eq!(falling, all);
        }

        #[test]
        fn quantile_is_in_the_crates_bucket(
            values in prop::collection::vec(1..60_000_000_u64, 1..200),
            q in 0.0..=1.0_f64,
        ) {
            let mut hdr = super::super::tests::recording_histogram();
            for value in &values {
                hdr.record(*value).unwrap();
            }
            let samples: Vec<_> = values.iter().map(|value| (*value, 1)).collect();
            let sparse = of(&samples);
            let (index, _) = sparse.locate(q).unwrap();
            let value = hdr.value_at_quantile(q);
            prop_assert!(bucket_low_us(index) <= value && value < bucket_high_us(index));
            let us = sparse.quantile_us(q).unwrap();
            prop_assert!(bucket_low_us(index) as f64 <= us && us <= bucket_high_us(index) as f64);
        }
    }
}
