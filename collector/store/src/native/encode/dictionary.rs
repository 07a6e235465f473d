//! The words of a `LowCardinality` column.

use std::collections::HashMap;
use std::ops::Range;

use super::chunks::{ChunkBuffer, Pieces, put_text};

/// Of `LowCardinality`: the words come with the block, and are all that there are.
const WORDS_IN_BLOCK: u64 = 1 << 9 | 1 << 10;

/// Texts that repeat: each once, and for each value its place among them.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// With where a word begins in `encoded`.
    places: HashMap<Box<str>, (usize, u32), foldhash::quality::RandomState>,
    encoded: Vec<u8>,
    of_values: Vec<u32>,
    /// The last value's word and place: mostly the next value is the same.
    last: (Range<usize>, u32),
}

impl Words {
    #[inline]
    pub(super) fn push(&mut self, word: &str) {
        if self.encoded[self.last.0.clone()] != *word.as_bytes() || self.of_values.is_empty() {
            self.find(word);
        }
        self.of_values.push(self.last.1);
    }

    fn find(&mut self, word: &str) {
        if let Some((start, place)) = self.places.get(word) {
            self.last = (*start..*start + word.len(), *place);
            return;
        }
        let place = u32::try_from(self.places.len()).expect("fewer than 2^32 values");
        put_text(&mut self.encoded, word);
        let start = self.encoded.len() - word.len();
        self.places.insert(word.into(), (start, place));
        self.last = (start..start + word.len(), place);
    }

    pub(super) fn add_to<B: ChunkBuffer>(&self, pieces: &mut Pieces<B, impl Fn() -> B>) {
        if self.of_values.is_empty() {
            return;
        }
        // The width of a place: 1, 2 or 4 bytes.
        let width = match self.places.len() {
            0..=0x100 => 0,
            0x101..=0x1_0000 => 1,
            _ => 2,
        };
        pieces.number(WORDS_IN_BLOCK | width);
        pieces.number(self.places.len() as u64);
        pieces.add(&self.encoded);
        pieces.number(self.of_values.len() as u64);
        match width {
            0 => pieces.low_bytes::<1>(&self.of_values),
            1 => pieces.low_bytes::<2>(&self.of_values),
            _ => pieces.low_bytes::<4>(&self.of_values),
        }
    }

    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.encoded.clear();
        self.of_values.clear();
        self.last = (0..0, 0);
    }

    pub(super) fn capacity(&self) -> usize {
        let of_values = self.of_values.capacity() * size_of::<u32>();
        // A place takes some 100 bytes with its word.
        100 * self.places.capacity() + self.encoded.capacity() + of_values
    }

    /// For so many times what is there.
    pub(super) fn make_room(&mut self, times: usize) {
        self.of_values.reserve(self.of_values.len() * times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_many_words_take_more_bytes() {
        for (n, width) in [(256, 1), (257, 2), (65_536, 2), (65_537, 4)] {
            let mut words = Words::default();
            for word in 0..n {
                words.push(&word.to_string());
            }
            words.push("0");
            words.push("0");
            let mut pieces = Pieces::new(|| vec![0; crate::native::encode::CHUNK_BYTES]);
            words.add_to(&mut pieces);
            let bytes = pieces.finish().concat();
            let places = &bytes[bytes.len() - width * (n + 2)..];
            let last = &places[width * (n - 1)..];
            let expected = [n - 1, 0, 0].map(usize::to_le_bytes);
            let expected: Vec<u8> = expected.iter().flat_map(|p| &p[..width]).copied().collect();
            assert_eq!(last, expected, "{n} words");
        }
    }
}
