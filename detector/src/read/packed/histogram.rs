//! A sparse histogram in two or three bytes a bucket: differences of indices and counts as varints.
//! Recordings and held windows have millions of them.

use epwatch_proto::SparseHistogram;

use crate::read::varint;

pub(super) fn pack(histogram: &SparseHistogram, bytes: &mut Vec<u8>) {
    let mut before = 0;
    for (index, count) in histogram.buckets() {
        varint::push(bytes, u64::from(index - before));
        varint::push(bytes, count);
        before = index;
    }
}

/// The buckets of a packed histogram, in the order of their indices.
#[derive(Debug)]
pub(in crate::read) struct PackedBuckets<'a> {
    rest: &'a [u8],
    index: u16,
}

impl<'a> PackedBuckets<'a> {
    pub(super) fn of(packed: &'a [u8]) -> Self {
        Self {
            rest: packed,
            index: 0,
        }
    }
}

impl Iterator for PackedBuckets<'_> {
    type Item = (u16, u64);

    fn next(&mut self) -> Option<(u16, u64)> {
        if self.rest.is_empty() {
            return None;
        }
        let difference = varint::take(&mut self.rest);
        let difference = u16::try_from(difference).unwrap_or(u16::MAX);
        self.index = self.index.saturating_add(difference);
        Some((self.index, varint::take(&mut self.rest)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // A bucket takes at least two bytes.
        (0, Some(self.rest.len().div_ceil(2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_packed_histogram_comes_back_as_it_was(
            values in prop::collection::vec((0..70_000_000_u64, 1..1_000_000_000_u64), 0..60),
        ) {
            let mut histogram = SparseHistogram::default();
            for (value, n) in values {
                histogram.record_n(value, n);
            }
            let mut packed = Vec::new();
            pack(&histogram, &mut packed);
            let mut unpacked = SparseHistogram::default();
            unpacked.add_all(PackedBuckets::of(&packed));
            prop_assert_eq!(unpacked, histogram);
        }
    }
}
