//! A latency histogram as the few buckets that hold runs.
//!
//! Buckets contain their edges; the caller that decodes them maps indices to edges. Within a bucket the runs are
//! assumed to be spread evenly over the *logarithm* of latency, which is how HDR buckets grow. So the distribution
//! function is piecewise linear in ln(us), and quantile, share and dip are exact for it.

use crate::Moments;

/// Runs with a latency in [`low_us`, `high_us`) microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// Lower edge, included.
    pub low_us: f64,
    /// Upper edge, excluded.
    pub high_us: f64,
    /// Number of runs.
    pub count: u64,
}

impl Bucket {
    /// Lower edge for a logarithmic axis. A bucket that starts at 0 counts as starting at half its upper edge, because
    /// 0 has no logarithm. HDR's first bucket, [0, 1) us, counts as [0.5, 1).
    fn positive_low_us(&self) -> f64 {
        if self.low_us > 0.0 {
            self.low_us
        } else {
            self.high_us / 2.0
        }
    }

    /// Natural logarithms of both edges, the lower one as [`Self::positive_low_us`].
    pub(crate) fn ln_edges(&self) -> (f64, f64) {
        (self.positive_low_us().ln(), self.high_us.ln())
    }
}

/// Buckets that no histogram has.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HistogramError {
    /// An edge is negative or not finite, or the upper one is not above the lower one.
    #[error("failed to build a histogram: bucket [{low_us}, {high_us}) us is not an interval")]
    Edges {
        /// Lower edge as given.
        low_us: f64,
        /// Upper edge as given.
        high_us: f64,
    },
    /// Two different buckets overlap, because they come from different bucket schemes.
    #[error(
        "failed to build a histogram: a bucket that starts at {low_us} us overlaps the one before \
         it, which ends at {end_us} us"
    )]
    Overlap {
        /// Where the earlier bucket ends.
        end_us: f64,
        /// Where the later one starts.
        low_us: f64,
    },
    /// The counts add up to more than 2^64 - 1.
    #[error("failed to build a histogram: the counts exceed 64 bits")]
    Count,
}

/// Buckets in order of latency, without overlaps, none of them empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RangeHistogram {
    buckets: Vec<Bucket>,
    n: u64,
}

impl RangeHistogram {
    /// Takes buckets in any order. The same bucket given twice is added up, and an empty one is left out. So many
    /// histograms are merged by passing all of their buckets.
    ///
    /// # Errors
    /// Edges are not an interval, buckets overlap in part, or counts exceed 64 bits.
    pub fn from_buckets(buckets: impl IntoIterator<Item = Bucket>) -> Result<Self, HistogramError> {
        let buckets = buckets.into_iter();
        let mut given: Vec<Bucket> = Vec::with_capacity(buckets.size_hint().0);
        let mut n = 0_u64;
        for bucket in buckets {
            let Bucket {
                low_us,
                high_us,
                count,
            } = bucket;
            if !(low_us >= 0.0 && high_us > low_us && high_us.is_finite()) {
                return Err(HistogramError::Edges { low_us, high_us });
            }
            n = n.checked_add(count).ok_or(HistogramError::Count)?;
            if count > 0 {
                given.push(bucket);
            }
        }
        // Decoded buckets are already in order, each once.
        if !given.is_sorted_by(|a, b| a.high_us <= b.low_us) {
            given.sort_by(|a, b| a.low_us.total_cmp(&b.low_us));
            given.dedup_by(|next, before| {
                let is_same = next.low_us == before.low_us && next.high_us == before.high_us;
                if is_same {
                    before.count += next.count;
                }
                is_same
            });
        }
        let mut neighbours = given.iter().zip(given.iter().skip(1));
        if let Some((before, next)) = neighbours.find(|(a, b)| a.high_us > b.low_us) {
            let (end_us, low_us) = (before.high_us, next.low_us);
            return Err(HistogramError::Overlap { end_us, low_us });
        }
        Ok(Self { buckets: given, n })
    }

    /// Returns the sum of both histograms.
    ///
    /// # Errors
    /// Fails as [`Self::from_buckets`] does: bucket schemes differ, or counts exceed 64 bits.
    pub fn merged(&self, other: &Self) -> Result<Self, HistogramError> {
        Self::from_buckets(self.buckets.iter().chain(&other.buckets).copied())
    }

    /// The buckets, in order of latency.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Number of runs.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Whether there are no runs.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// The latency in microseconds below which a share `q` of the runs lies.
    ///
    /// The inverse of the distribution function, linear in ln(us) inside a bucket. `None` without
    /// runs or for a `q` outside [0, 1].
    pub fn quantile(&self, q: f64) -> Option<f64> {
        if self.is_empty() || !(0.0..=1.0).contains(&q) {
            return None;
        }
        let rank = q * self.n as f64;
        let mut below = 0.0;
        for bucket in &self.buckets {
            let count = bucket.count as f64;
            if below + count >= rank {
                let inside = ((rank - below) / count).clamp(0.0, 1.0);
                let low = bucket.positive_low_us();
                // An edge of a bucket is returned exactly.
                return Some(match inside {
                    1.0 => bucket.high_us,
                    _ => (low * (bucket.high_us / low).powf(inside)).min(bucket.high_us),
                });
            }
            below += count;
        }
        // This is only reached through rounding of the last sum.
        self.buckets.last().map(|bucket| bucket.high_us)
    }

    /// Share of runs slower than `latency_us`, in [0, 1]; the complement of the same distribution
    /// function as [`Self::quantile`].
    ///
    /// `None` without runs or for a NaN.
    pub fn share_above(&self, latency_us: f64) -> Option<f64> {
        if self.is_empty() || latency_us.is_nan() {
            return None;
        }
        let mut above = 0.0;
        for bucket in self.buckets.iter().rev() {
            if latency_us >= bucket.high_us {
                break;
            }
            let inside = if latency_us > bucket.positive_low_us() {
                let (low, high) = bucket.ln_edges();
                ((high - latency_us.ln()) / (high - low)).clamp(0.0, 1.0)
            } else {
                1.0
            };
            above += bucket.count as f64 * inside;
        }
        Some((above / self.n as f64).min(1.0))
    }

    /// Moments of the buckets, in microseconds. Runs are spread evenly over the logarithm in each: mean (b - a) / ln(b
    /// / a), second moment (b^2 - a^2) / (2 ln(b / a)).
    ///
    /// They are for sets of runs whose exact sums were not kept. At two significant digits a CV of 2-5 % is right to
    /// four decimals. `None` without runs, or if a sum leaves the range of a float.
    pub fn estimated_moments(&self) -> Option<Moments> {
        let mut total = Moments::default();
        for bucket in &self.buckets {
            let (low, high) = bucket.ln_edges();
            let (a, b, width) = (low.exp(), high.exp(), high - low);
            let mean = (b - a) / width;
            let variance = ((b + a) / 2.0 - mean) * mean;
            let n = bucket.count as f64;
            let part = Moments::from_parts(bucket.count, mean * n, variance.max(0.0) * n)?;
            total = total.merged(&part);
        }
        (!self.is_empty()).then_some(total)
    }

    /// Mean and population variance of ln(us); `None` without runs.
    pub(crate) fn ln_moments(&self) -> Option<(f64, f64)> {
        let (mut n, mut mean, mut m2) = (0.0, 0.0, 0.0);
        for bucket in &self.buckets {
            let (low, high) = bucket.ln_edges();
            let (count, mid, width) = (bucket.count as f64, (low + high) / 2.0, high - low);
            n += count;
            let delta = mid - mean;
            mean += delta * count / n;
            // The second term is the variance inside a bucket that is filled evenly.
            m2 += count * (delta * (mid - mean) + width * width / 12.0);
        }
        (n > 0.0).then(|| (mean, m2 / n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(low_us: f64, high_us: f64, count: u64) -> Bucket {
        Bucket {
            low_us,
            high_us,
            count,
        }
    }

    #[test]
    fn buckets_are_sorted_added_up_and_kept_only_if_they_hold_runs() {
        let given = [
            bucket(8.0, 9.0, 1),
            bucket(1.0, 2.0, 2),
            bucket(8.0, 9.0, 3),
            bucket(3.0, 4.0, 0),
        ];
        let histogram = RangeHistogram::from_buckets(given).unwrap();
        assert_eq!(
            histogram.buckets(),
            [bucket(1.0, 2.0, 2), bucket(8.0, 9.0, 4)]
        );
        assert_eq!(histogram.n(), 6);
    }

    #[test]
    fn quantiles_interpolate_in_log_latency_and_share_above_inverts_them() {
        let histogram =
            RangeHistogram::from_buckets([bucket(100.0, 400.0, 50), bucket(800.0, 900.0, 50)])
                .unwrap();
        assert_eq!(histogram.quantile(0.0), Some(100.0));
        assert!((histogram.quantile(0.25).unwrap() - 200.0).abs() < 1e-9);
        assert_eq!(histogram.quantile(0.5), Some(400.0));
        assert_eq!(histogram.quantile(1.0), Some(900.0));
        assert!((histogram.share_above(200.0).unwrap() - 0.75).abs() < 1e-12);
        assert_eq!(histogram.share_above(600.0), Some(0.5));
        assert_eq!(histogram.share_above(0.0), Some(1.0));
        assert_eq!(histogram.share_above(900.0), Some(0.0));
    }

    #[test]
    fn the_bucket_from_zero_reads_from_half_its_upper_edge() {
        let histogram = RangeHistogram::from_buckets([bucket(0.0, 1.0, 4)]).unwrap();
        assert_eq!(histogram.quantile(0.0), Some(0.5));
        assert_eq!(histogram.share_above(0.25), Some(1.0));
    }

    #[test]
    fn says_nothing_without_runs_or_outside_the_range() {
        let empty = RangeHistogram::default();
        assert_eq!((empty.quantile(0.5), empty.share_above(1.0)), (None, None));
        assert_eq!(empty.estimated_moments(), None);
        let one = RangeHistogram::from_buckets([bucket(1.0, 2.0, 1)]).unwrap();
        assert_eq!((one.quantile(1.1), one.quantile(f64::NAN)), (None, None));
        assert_eq!(one.share_above(f64::NAN), None);
    }

    #[test]
    fn impossible_buckets_are_refused_with_their_edges() {
        for (low, high) in [
            (2.0, 1.0),
            (-1.0, 1.0),
            (1.0, f64::INFINITY),
            (f64::NAN, 1.0),
        ] {
            let refused = RangeHistogram::from_buckets([bucket(low, high, 1)]);
            assert!(
                matches!(refused, Err(HistogramError::Edges { .. })),
                "{low} {high}"
            );
        }
        let overlapping = [bucket(1.0, 3.0, 1), bucket(2.0, 4.0, 1)];
        let overlap = HistogramError::Overlap {
            end_us: 3.0,
            low_us: 2.0,
        };
        assert_eq!(RangeHistogram::from_buckets(overlapping), Err(overlap));
        let many = [bucket(1.0, 2.0, u64::MAX), bucket(2.0, 3.0, 1)];
        assert_eq!(
            RangeHistogram::from_buckets(many),
            Err(HistogramError::Count)
        );
    }
}
