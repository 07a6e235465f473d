//! The dictionary of a `LowCardinality` column.

use std::collections::HashMap;
use std::ops::Range;

use super::chunks::{ChunkBuffer, ChunkWriter};
use crate::native::{OWN_KEYS, put_text};

/// Each distinct text once as a key, and for each value the index of its key.
#[derive(Debug, Default)]
pub(super) struct Dictionary {
    /// Where a key begins in `encoded`, and its index.
    keys: HashMap<Box<str>, (usize, u32), foldhash::quality::RandomState>,
    encoded: Vec<u8>,
    of_values: Vec<u32>,
    /// The last value's key and index, because the next value is mostly the same.
    last: (Range<usize>, u32),
}

impl Dictionary {
    #[inline]
    pub(super) fn push(&mut self, value: &str) {
        if self.encoded[self.last.0.clone()] != *value.as_bytes() || self.of_values.is_empty() {
            self.find(value);
        }
        self.of_values.push(self.last.1);
    }

    fn find(&mut self, value: &str) {
        if let Some((start, index)) = self.keys.get(value) {
            self.last = (*start..*start + value.len(), *index);
            return;
        }
        let index = u32::try_from(self.keys.len()).expect("fewer than 2^32 values");
        put_text(&mut self.encoded, value);
        let start = self.encoded.len() - value.len();
        self.keys.insert(value.into(), (start, index));
        self.last = (start..start + value.len(), index);
    }

    pub(super) fn add_to<B: ChunkBuffer>(&self, chunks: &mut ChunkWriter<B, impl Fn() -> B>) {
        if self.of_values.is_empty() {
            return;
        }
        // An index takes 1, 2 or 4 bytes.
        let width = match self.keys.len() {
            0..=0x100 => 0,
            0x101..=0x1_0000 => 1,
            _ => 2,
        };
        chunks.number(OWN_KEYS | width);
        chunks.number(self.keys.len() as u64);
        chunks.add(&self.encoded);
        chunks.number(self.of_values.len() as u64);
        match width {
            0 => chunks.low_bytes::<1>(&self.of_values),
            1 => chunks.low_bytes::<2>(&self.of_values),
            _ => chunks.low_bytes::<4>(&self.of_values),
        }
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.encoded.clear();
        self.of_values.clear();
        self.last = (0..0, 0);
    }

    pub(super) fn capacity(&self) -> usize {
        let of_values = self.of_values.capacity() * size_of::<u32>();
        // An entry takes about 100 bytes with its key.
        100 * self.keys.capacity() + self.encoded.capacity() + of_values
    }

    /// Reserves memory for `times` as many values as the column has now.
    pub(super) fn make_room(&mut self, times: usize) {
        self.of_values.reserve(self.of_values.len() * times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::encode::CHUNK_BYTES;

    #[test]
    fn indexes_of_many_keys_take_more_bytes() {
        for (n, width) in [(256, 1), (257, 2), (65_536, 2), (65_537, 4)] {
            let mut dictionary = Dictionary::default();
            for key in 0..n {
                dictionary.push(&key.to_string());
            }
            dictionary.push("0");
            dictionary.push("0");
            let mut chunks = ChunkWriter::new(|| vec![0; CHUNK_BYTES]);
            dictionary.add_to(&mut chunks);
            let bytes = chunks.finish().concat();
            let indexes = &bytes[bytes.len() - width * (n + 2)..];
            let last = &indexes[width * (n - 1)..];
            let expected = [n - 1, 0, 0].map(usize::to_le_bytes);
            let expected: Vec<u8> = expected.iter().flat_map(|p| &p[..width]).copied().collect();
            assert_eq!(last, expected, "{n} keys");
        }
    }
}
