//! A sparse histogram in two or three bytes a bucket: differences of indices and counts as varints.
//! A recording holds millions of them.

use epwatch_proto::SparseHistogram;

pub(super) fn pack(histogram: &SparseHistogram) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(histogram.indices().len() * 3);
    let mut before = 0;
    for (index, count) in histogram.buckets() {
        push(&mut bytes, u64::from(index - before));
        push(&mut bytes, count);
        before = index;
    }
    bytes.into_boxed_slice()
}

/// Adds a packed histogram to another.
pub(super) fn add(bytes: &[u8], to: &mut SparseHistogram) {
    // A bucket takes two bytes at the least.
    let room = bytes.len() / 2;
    let (mut indices, mut counts) = (Vec::with_capacity(room), Vec::with_capacity(room));
    let (mut at, mut index) = (0, 0_u16);
    while at < bytes.len() {
        let difference = take(bytes, &mut at);
        index = index.saturating_add(u16::try_from(difference).unwrap_or(u16::MAX));
        indices.push(index);
        counts.push(take(bytes, &mut at));
    }
    let unpacked = SparseHistogram::from_parts(indices, counts)
        .expect("only histograms that were valid are packed");
    if to.is_empty() {
        *to = unpacked;
    } else {
        to.merge(&unpacked);
    }
}

fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
}

fn take(bytes: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0_u64, 0);
    while let Some(byte) = bytes.get(*at) {
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 || shift > 63 {
            break;
        }
    }
    value
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
            let mut back = SparseHistogram::default();
            add(&pack(&histogram), &mut back);
            prop_assert_eq!(back, histogram);
        }
    }
}
