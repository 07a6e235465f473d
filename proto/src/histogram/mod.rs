//! The one histogram layout of the fleet: HdrHistogram, microseconds, 2 significant digits,
//! 1 us to 60 s. Fixed, so that merging is adding.
//!
//! A bucket is its index in the counts array of the crate `hdrhistogram` at these settings, 0 to
//! 2559, and holds the values `bucket_low_us(i) <= v < bucket_high_us(i)`. The layout is 128
//! sub-buckets per octave; the first 256 buckets are 1 us wide. In closed form:
//!
//! ```text
//! shift(i) = max(i / 128, 1) - 1                          (integer division)
//! low(i)   = if i < 256 then i else (128 + i % 128) << shift(i)
//! high(i)  = low(i) + (1 << shift(i)) = low(i + 1)        (exclusive)
//! ```
//!
//! and in ClickHouse, where the functions have a prefix because they are global:
//!
//! ```sql
//! CREATE FUNCTION epwatch_bucket_low_us AS (i) ->
//!     if(i < 256, toUInt64(i),
//!        bitShiftLeft(toUInt64(128 + i % 128), greatest(intDiv(i, 128), 1) - 1));
//! CREATE FUNCTION epwatch_bucket_high_us AS (i) ->
//!     epwatch_bucket_low_us(i) + bitShiftLeft(toUInt64(1), greatest(intDiv(i, 128), 1) - 1);
//! ```
//!
//! The upper edge is exclusive on purpose. With the crate's inclusive `highest_equivalent` a bucket 1 us wide would
//! have no width. A CDF drawn over the edges would have holes. `tests/fixtures/wire/bucket_edges.csv` lists the edges
//! of all buckets, as the crate computes them.

mod bounds;
mod codec;
mod sparse;

pub(crate) use bounds::HistBounds;
pub use sparse::SparseHistogram;

use crate::wire_enum::wire_enum;

wire_enum! {
    /// Layout of a histogram's buckets. Only equal schemes are added up.
    pub enum HistScheme: HistScheme {
        /// HDR V2, microseconds, 2 significant digits, lowest 1, highest 60,000,000.
        HdrUs2sd160s = HdrUs2sd160s "hdr_us_2sd_1_60s",
    }
}

/// Smallest value that differs from zero, in microseconds.
pub const LOWEST_US: u64 = 1;
/// Largest value a recorder may record: longer runs are recorded at this value.
pub const HIGHEST_US: u64 = 60_000_000;
/// Significant decimal digits.
pub const SIGNIFICANT_DIGITS: u8 = 2;
/// Number of buckets of the layout: every index is below this.
pub const N_BUCKETS: u16 = 2560;
/// Maximum number of encoded bytes of one histogram.
pub const MAX_ENCODED_BYTES: usize = 8 << 10;

/// Sub-buckets of each octave after the first two: half of the power of two that holds
/// 2 x 10^digits values.
const SUB_BUCKET_HALF_COUNT: u16 = 128;

/// The bucket of a value in microseconds; values beyond `HIGHEST_US` go into the bucket of `HIGHEST_US`.
#[inline]
pub fn bucket_of_us(value_us: u64) -> u16 {
    let value = value_us.min(HIGHEST_US);
    let half = u64::from(SUB_BUCKET_HALF_COUNT);
    let octave = (value | (2 * half - 1)).ilog2() - half.ilog2();
    let index = u64::from(octave) * half + (value >> octave);
    u16::try_from(index).expect("HIGHEST_US is in bucket 2532")
}

/// Lower edge of a bucket in microseconds, inclusive.
#[inline]
pub fn bucket_low_us(index: u16) -> u64 {
    if index < 2 * SUB_BUCKET_HALF_COUNT {
        return u64::from(index);
    }
    let sub_bucket = SUB_BUCKET_HALF_COUNT + index % SUB_BUCKET_HALF_COUNT;
    u64::from(sub_bucket) << shift(index)
}

/// Upper edge of a bucket in microseconds, exclusive: the lower edge of the next one.
#[inline]
pub fn bucket_high_us(index: u16) -> u64 {
    bucket_low_us(index) + (1 << shift(index))
}

/// Binary logarithm of a bucket's width.
#[inline]
fn shift(index: u16) -> u32 {
    u32::from((index / SUB_BUCKET_HALF_COUNT).max(1) - 1).min(u64::BITS - 9)
}

#[cfg(test)]
pub(crate) mod tests {
    use hdrhistogram::Histogram;

    use super::*;

    /// An empty histogram of the scheme, in the crate's own type.
    pub(crate) fn recording_histogram() -> Histogram<u64> {
        Histogram::new_with_bounds(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS).unwrap()
    }

    #[test]
    fn edges_are_those_of_the_crate() {
        let hdr = recording_histogram();
        assert_eq!(hdr.distinct_values(), usize::from(N_BUCKETS));
        let mut low = 0;
        for index in 0..N_BUCKETS {
            assert_eq!(bucket_low_us(index), low, "low of {index}");
            low = hdr.next_non_equivalent(low);
            assert_eq!(bucket_high_us(index), low, "high of {index}");
        }
    }

    #[test]
    fn values_are_between_the_edges_of_their_bucket() {
        for exponent in 0..27 {
            for offset in [-1, 0, 1, 77] {
                let value = (1_u64 << exponent)
                    .saturating_add_signed(offset)
                    .min(HIGHEST_US);
                let index = bucket_of_us(value);
                assert!(bucket_low_us(index) <= value && value < bucket_high_us(index));
            }
        }
        assert_eq!(bucket_of_us(HIGHEST_US), 2532);
        assert_eq!(bucket_of_us(u64::MAX), 2532);
    }

    #[test]
    fn no_index_overflows() {
        assert!(bucket_low_us(u16::MAX) > 0);
    }
}
