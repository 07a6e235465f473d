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

pub(super) fn unpack(mut bytes: &[u8]) -> SparseHistogram {
    // A bucket takes two bytes at the least.
    let room = bytes.len() / 2;
    let (mut indices, mut counts) = (Vec::with_capacity(room), Vec::with_capacity(room));
    let mut index = 0_u16;
    while !bytes.is_empty() {
        let difference = varint::take(&mut bytes);
        index = index.saturating_add(u16::try_from(difference).unwrap_or(u16::MAX));
        indices.push(index);
        counts.push(varint::take(&mut bytes));
    }
    SparseHistogram::from_parts(indices, counts)
        .expect("only histograms that were valid are packed")
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
            prop_assert_eq!(unpack(&packed), histogram);
        }
    }
}
