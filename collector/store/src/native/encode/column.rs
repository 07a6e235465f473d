//! The values of one column while rows are added.

use super::chunks::{ChunkBuffer, ChunkWriter};
use super::dictionary::Dictionary;
use crate::native::types::ColumnType;
use crate::native::{LOW_CARDINALITY_VERSION, put_text};

/// The values of one column. Its type decides which parts are used.
#[derive(Debug, Default)]
pub struct ColumnBuilder {
    /// Ends of the lists, then ends of the lists in them.
    ends: [Ends; 2],
    /// The number of lists around the next value.
    depth: usize,
    /// Dictionaries for `LowCardinality` values. The second one is for the values of a map.
    dictionaries: [Dictionary; 2],
    nulls: Vec<u8>,
    values: Vec<u8>,
}

/// Where the elements of each list end.
#[derive(Debug, Default)]
struct Ends {
    last: u64,
    encoded: Vec<u8>,
}

/// A value whose encoding has a fixed width.
pub trait FixedWidth: Copy {
    /// Appends the value's bytes, the lowest first.
    fn put(self, out: &mut Vec<u8>);
}

macro_rules! fixed_width {
    ($($type:ty: $bytes:expr,)+) => {
        $(impl FixedWidth for $type {
            #[inline]
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&($bytes)(self));
            }
        })+
    };
}
fixed_width! {
    bool: |flag| [u8::from(flag)], [u8; 16]: |bytes| bytes,
    u16: u16::to_le_bytes, u32: u32::to_le_bytes, u64: u64::to_le_bytes,
    i32: i32::to_le_bytes, i64: i64::to_le_bytes,
    f32: f32::to_le_bytes, f64: f64::to_le_bytes,
}

impl ColumnBuilder {
    /// Adds a number, a flag or a fixed string.
    #[inline]
    pub fn put(&mut self, value: impl FixedWidth) {
        value.put(&mut self.values);
    }

    /// Adds a nullable value.
    #[inline]
    pub fn maybe<T: FixedWidth + Default>(&mut self, value: Option<T>) {
        self.nulls.push(u8::from(value.is_none()));
        value.unwrap_or_default().put(&mut self.values);
    }

    /// Adds a `String`.
    #[inline]
    pub fn text(&mut self, text: &str) {
        put_text(&mut self.values, text);
    }

    /// Adds a `LowCardinality(String)`.
    #[inline]
    pub fn word(&mut self, word: &str) {
        self.dictionaries[0].push(word);
    }

    /// Adds an element of a map from words to words.
    #[inline]
    pub fn pair(&mut self, key: &str, value: &str) {
        self.dictionaries[0].push(key);
        self.dictionaries[1].push(value);
    }

    /// Adds an element of a map from words to counts.
    #[inline]
    pub fn count(&mut self, key: &str, n: u64) {
        self.word(key);
        self.put(n);
    }

    /// Adds a list or a map. `each` adds one element.
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

    /// Adds a list of numbers.
    #[inline]
    pub fn numbers<T: FixedWidth>(&mut self, numbers: &[T]) {
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
        chunks: &mut ChunkWriter<B, impl Fn() -> B>,
        data_type: &ColumnType,
    ) {
        let is_list = |part: &ColumnType| matches!(part, ColumnType::Array(_));
        for _ in 0..data_type.count(|part| matches!(part, ColumnType::LowCardinality(_))) {
            chunks.number(LOW_CARDINALITY_VERSION);
        }
        for ends in self.ends.iter().take(data_type.count(is_list)) {
            chunks.add(&ends.encoded);
        }
        // A map's counts come after its keys.
        let [keys, values] = &self.dictionaries;
        keys.add_to(chunks);
        chunks.add(&self.nulls);
        chunks.add(&self.values);
        values.add_to(chunks);
    }

    pub(super) fn clear(&mut self) {
        self.depth = 0;
        self.ends.iter_mut().for_each(|ends| ends.last = 0);
        self.parts_mut().for_each(Vec::clear);
        self.dictionaries.iter_mut().for_each(Dictionary::clear);
    }

    pub(super) fn capacity(&self) -> usize {
        let dictionaries = self.dictionaries.iter().map(Dictionary::capacity);
        self.parts().map(Vec::capacity).chain(dictionaries).sum()
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &Vec<u8>> {
        let ends = self.ends.iter().map(|ends| &ends.encoded);
        ends.chain([&self.nulls, &self.values])
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        let ends = self.ends.iter_mut().map(|ends| &mut ends.encoded);
        ends.chain([&mut self.nulls, &mut self.values])
    }

    /// Reserves memory for `times` as many values as the column has now.
    pub(super) fn make_room(&mut self, times: usize) {
        self.parts_mut()
            .for_each(|part| part.reserve(part.len() * times));
        let dictionaries = self.dictionaries.iter_mut();
        dictionaries.for_each(|dictionary| dictionary.make_room(times));
    }
}
