//! The values of one column, as the format has them.

use super::chunks::{ChunkBuffer, Pieces, put_text};
use super::dictionary::Words;

/// The values of one column. Which parts of it are used is for its type to say.
#[derive(Debug, Default)]
pub struct Column {
    /// Of lists, and of the lists in them.
    ends: [Ends; 2],
    /// In how many lists the next value is.
    depth: usize,
    /// Of `LowCardinality`; the second are those of a map's values.
    words: [Words; 2],
    nulls: Vec<u8>,
    values: Vec<u8>,
}

/// Where the elements of each list end.
#[derive(Debug, Default)]
struct Ends {
    last: u64,
    encoded: Vec<u8>,
}

/// A value of fixed length.
pub trait Fixed: Copy {
    /// Adds its bytes, the lowest first.
    fn put(self, out: &mut Vec<u8>);
}

macro_rules! fixed {
    ($($type:ty)+) => {
        $(impl Fixed for $type {
            #[inline]
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        })+
    };
}
fixed! { u16 u32 u64 i32 i64 f32 f64 }

impl Fixed for bool {
    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
}

impl Fixed for [u8; 16] {
    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self);
    }
}

impl Column {
    /// A number, a flag, a fixed string.
    #[inline]
    pub fn put(&mut self, value: impl Fixed) {
        value.put(&mut self.values);
    }

    /// NULL for `None`.
    #[inline]
    pub fn maybe<T: Fixed + Default>(&mut self, value: Option<T>) {
        self.nulls.push(u8::from(value.is_none()));
        value.unwrap_or_default().put(&mut self.values);
    }

    /// A `String`.
    #[inline]
    pub fn text(&mut self, text: &str) {
        put_text(&mut self.values, text);
    }

    /// A `LowCardinality(String)`.
    #[inline]
    pub fn word(&mut self, word: &str) {
        self.words[0].push(word);
    }

    /// An element of a map of words.
    #[inline]
    pub fn pair(&mut self, key: &str, value: &str) {
        self.words[0].push(key);
        self.words[1].push(value);
    }

    /// An element of a map of counts.
    #[inline]
    pub fn count(&mut self, key: &str, n: u64) {
        self.word(key);
        self.put(n);
    }

    /// A list or a map: `each` adds one element.
    #[inline]
    pub fn list<T>(
        &mut self,
        elements: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        self.depth += 1;
        let mut n = 0;
        for element in elements {
            each(self, element);
            n += 1;
        }
        self.end_list(n);
    }

    /// A list of numbers.
    #[inline]
    pub fn numbers<T: Fixed>(&mut self, numbers: &[T]) {
        self.depth += 1;
        self.values.reserve(size_of_val(numbers));
        for number in numbers {
            number.put(&mut self.values);
        }
        self.end_list(numbers.len());
    }

    fn end_list(&mut self, n: usize) {
        self.depth -= 1;
        let ends = &mut self.ends[self.depth];
        ends.last += n as u64;
        ends.last.put(&mut ends.encoded);
    }

    pub(super) fn add_to<B: ChunkBuffer>(
        &self,
        pieces: &mut Pieces<B, impl Fn() -> B>,
        kind: &str,
    ) {
        let n_words = kind.matches("LowCardinality(").count();
        let n_lists = kind.matches("Array(").count() + kind.matches("Map(").count();
        for _ in 0..n_words {
            pieces.number(1);
        }
        for ends in self.ends.iter().take(n_lists) {
            pieces.add(&ends.encoded);
        }
        // A map's numbers stand behind its keys.
        let [keys, values] = &self.words;
        keys.add_to(pieces);
        pieces.add(&self.nulls);
        pieces.add(&self.values);
        values.add_to(pieces);
    }

    pub(super) fn clear(&mut self) {
        for ends in &mut self.ends {
            ends.last = 0;
            ends.encoded.clear();
        }
        self.depth = 0;
        self.words.iter_mut().for_each(Words::clear);
        self.nulls.clear();
        self.values.clear();
    }

    pub(super) fn capacity(&self) -> usize {
        let words = self.words.iter().map(Words::capacity);
        self.parts().map(Vec::capacity).chain(words).sum()
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &Vec<u8>> {
        let ends = self.ends.iter().map(|ends| &ends.encoded);
        ends.chain([&self.nulls, &self.values])
    }

    /// For so many times what is there.
    pub(super) fn make_room(&mut self, times: usize) {
        let ends = self.ends.iter_mut().map(|ends| &mut ends.encoded);
        for part in ends.chain([&mut self.nulls, &mut self.values]) {
            part.reserve(part.len() * times);
        }
        for words in &mut self.words {
            words.make_room(times);
        }
    }
}
