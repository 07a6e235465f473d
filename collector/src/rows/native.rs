//! Rows as one block of ClickHouse's Native format, column after column, encoded once for however
//! many tries their insert takes.
//!
//! Taking a block costs the engine some 40 % of what the same rows cost it as RowBinary, and with
//! a type beside each column's name nothing is stored as what it is not. The block, as servers
//! read it from HTTP:
//!
//! ```text
//! varint columns | varint rows | each column: text name | text type | prefix | data
//! ```
//!
//! Numbers are little endian, texts follow their length as a varint. A list is the end of each row's
//! elements among all elements (u64 each), then the elements as a column of their own; a map a list of
//! keys and a list of values; a nullable column a byte for each value, 1 for NULL, then all values.
//! `LowCardinality` has a prefix before everything else of its column, the u64 1, and as data:
//!
//! ```text
//! u64 flags and width of a place | u64 words | each word once | u64 rows | the place of each row's word
//! ```

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;

use crate::buffers::Buffer;

/// Large enough that a chunk costs nothing, small enough to be sent while the next is taken.
const CHUNK_BYTES: usize = 1 << 20;
/// Memory that a table's columns keep for the next batch: a full one of reports takes about half of it.
const KEPT_BYTES: usize = 128 << 20;
/// Rows after which it is known well enough how much memory all of them will take.
const SAMPLE_ROWS: usize = 256;

/// Of `LowCardinality`: the words come with the block, and are all that there are.
const WORDS_IN_BLOCK: u64 = 1 << 9 | 1 << 10;

/// Rows of one table, ready to be sent as often as it takes.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    /// `(a, b, c)`.
    pub(crate) columns: String,
    /// The block, in pieces.
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) n_rows: usize,
}

/// A column of a table: its name, its type as the table has it, and what fills it from a row.
#[derive(Debug)]
pub(super) struct ColumnOf<F> {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) fill: F,
}

/// Rows of one table, while they are added. Its memory serves batch after batch.
#[derive(Debug)]
pub(super) struct Block<F: 'static> {
    layout: &'static [ColumnOf<F>],
    columns: Vec<Column>,
    n_rows: usize,
    most_rows: usize,
}

impl<F> Block<F> {
    pub(super) fn new(layout: &'static [ColumnOf<F>]) -> Self {
        Self {
            layout,
            columns: Vec::new(),
            n_rows: 0,
            most_rows: 0,
        }
    }

    /// Begins a batch of some `most_rows`, without what one that was given up left.
    pub(super) fn begin(&mut self, most_rows: usize) {
        let kept_bytes: usize = self.columns.iter().map(Column::capacity).sum();
        if kept_bytes > KEPT_BYTES {
            self.columns.clear();
        }
        self.columns.iter_mut().for_each(Column::clear);
        self.columns.resize_with(self.layout.len(), Column::default);
        self.n_rows = 0;
        self.most_rows = most_rows;
    }

    /// Adds a row: `fill` calls what fills a column, which adds one value to it.
    #[inline]
    pub(super) fn push(&mut self, fill: impl Fn(&F, &mut Column)) {
        for (of, column) in self.layout.iter().zip(&mut self.columns) {
            fill(&of.fill, column);
        }
        self.n_rows += 1;
        if self.n_rows == SAMPLE_ROWS {
            self.make_room();
        }
    }

    /// Sets memory aside for as many rows as are expected, going by those that are there: to grow into it
    /// step by step takes twice as much, and each fresh page of it is dear.
    fn make_room(&mut self) {
        let times = self.most_rows.div_ceil(SAMPLE_ROWS);
        let bytes = |column: &Column| column.parts().map(|part| part.len() * times).sum::<usize>();
        // Large reports in front are no reason to expect as many more.
        if self.columns.iter().map(bytes).sum::<usize>() <= KEPT_BYTES {
            for column in &mut self.columns {
                column.make_room(times);
            }
        }
    }

    pub(super) fn finish(&mut self) -> Body {
        let names: Vec<&str> = self.layout.iter().map(|of| of.name).collect();
        let mut pieces = Pieces::default();
        if self.n_rows > 0 {
            let mut head = Vec::new();
            put_len(&mut head, self.columns.len());
            put_len(&mut head, self.n_rows);
            for (of, column) in self.layout.iter().zip(&self.columns) {
                put_text(&mut head, of.name);
                put_text(&mut head, of.kind);
                pieces.add(&head);
                head.clear();
                column.add_to(&mut pieces, of.kind);
            }
        }
        Body {
            columns: format!("({})", names.join(", ")),
            chunks: pieces.finish(),
            n_rows: self.n_rows,
        }
    }
}

/// The values of one column. Which parts of it are used is for its type to say.
#[derive(Debug, Default)]
pub(super) struct Column {
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
pub(super) trait Fixed: Copy {
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
    pub(super) fn put(&mut self, value: impl Fixed) {
        value.put(&mut self.values);
    }

    /// NULL for `None`.
    #[inline]
    pub(super) fn maybe<T: Fixed + Default>(&mut self, value: Option<T>) {
        self.nulls.push(u8::from(value.is_none()));
        value.unwrap_or_default().put(&mut self.values);
    }

    /// A `String`.
    #[inline]
    pub(super) fn text(&mut self, text: &str) {
        put_text(&mut self.values, text);
    }

    /// A `LowCardinality(String)`.
    #[inline]
    pub(super) fn word(&mut self, word: &str) {
        self.words[0].push(word);
    }

    /// An element of a map of words.
    #[inline]
    pub(super) fn pair(&mut self, key: &str, value: &str) {
        self.words[0].push(key);
        self.words[1].push(value);
    }

    /// An element of a map of counts.
    #[inline]
    pub(super) fn count(&mut self, key: &str, n: u64) {
        self.word(key);
        self.put(n);
    }

    /// A list or a map: `each` adds one element.
    #[inline]
    pub(super) fn list<T>(
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
    pub(super) fn numbers<T: Fixed>(&mut self, numbers: &[T]) {
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

    fn add_to(&self, pieces: &mut Pieces, kind: &str) {
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

    fn clear(&mut self) {
        for ends in &mut self.ends {
            ends.last = 0;
            ends.encoded.clear();
        }
        self.depth = 0;
        self.words.iter_mut().for_each(Words::clear);
        self.nulls.clear();
        self.values.clear();
    }

    fn capacity(&self) -> usize {
        let words = self.words.iter().map(Words::capacity);
        self.parts().map(Vec::capacity).chain(words).sum()
    }

    fn parts(&self) -> impl Iterator<Item = &Vec<u8>> {
        let ends = self.ends.iter().map(|ends| &ends.encoded);
        ends.chain([&self.nulls, &self.values])
    }

    /// For so many times what is there.
    fn make_room(&mut self, times: usize) {
        let ends = self.ends.iter_mut().map(|ends| &mut ends.encoded);
        for part in ends.chain([&mut self.nulls, &mut self.values]) {
            part.reserve(part.len() * times);
        }
        for words in &mut self.words {
            words.of_values.reserve(words.of_values.len() * times);
        }
    }
}

/// Texts that repeat: each once, and for each value its place among them.
#[derive(Debug, Default)]
struct Words {
    /// With where a word begins in `encoded`.
    places: HashMap<Box<str>, (usize, u32), foldhash::quality::RandomState>,
    encoded: Vec<u8>,
    of_values: Vec<u32>,
    /// The last value's word and place: mostly the next value is the same.
    last: (Range<usize>, u32),
}

impl Words {
    #[inline]
    fn push(&mut self, word: &str) {
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

    fn add_to(&self, pieces: &mut Pieces) {
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

    fn clear(&mut self) {
        self.places.clear();
        self.encoded.clear();
        self.of_values.clear();
        self.last = (0..0, 0);
    }

    fn capacity(&self) -> usize {
        let of_values = self.of_values.capacity() * size_of::<u32>();
        // A place takes some 100 bytes with its word.
        100 * self.places.capacity() + self.encoded.capacity() + of_values
    }
}

/// A body, while it is put together.
#[derive(Debug, Default)]
struct Pieces {
    full: Vec<Bytes>,
    /// The last one, and how much of it is filled.
    open: Option<(Buffer, usize)>,
}

impl Pieces {
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room(1);
            let n = room.len().min(bytes.len());
            let (now, later) = bytes.split_at(n);
            room[..n].copy_from_slice(now);
            self.filled(n);
            bytes = later;
        }
    }

    fn number(&mut self, number: u64) {
        self.add(&number.to_le_bytes());
    }

    /// The low bytes of each number.
    fn low_bytes<const N: usize>(&mut self, mut numbers: &[u32]) {
        while !numbers.is_empty() {
            let room = self.room(N);
            let n = (room.len() / N).min(numbers.len());
            let (now, later) = numbers.split_at(n);
            for (bytes, number) in room.chunks_exact_mut(N).zip(now) {
                bytes.copy_from_slice(&number.to_le_bytes()[..N]);
            }
            self.filled(N * n);
            numbers = later;
        }
    }

    /// What is free of the open piece, at least so much of it.
    fn room(&mut self, least: usize) -> &mut [u8] {
        if self
            .open
            .as_ref()
            .is_some_and(|(_, filled)| CHUNK_BYTES - filled < least)
        {
            self.close();
        }
        let (buffer, filled) = self
            .open
            .get_or_insert_with(|| (Buffer::of(CHUNK_BYTES), 0));
        &mut buffer[*filled..CHUNK_BYTES]
    }

    fn filled(&mut self, n: usize) {
        if let Some((_, filled)) = &mut self.open {
            *filled += n;
        }
    }

    fn close(&mut self) {
        if let Some((buffer, filled)) = self.open.take() {
            self.full.push(Bytes::from_owner(buffer).slice(..filled));
        }
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.close();
        self.full
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

#[inline]
fn put_len(out: &mut Vec<u8>, len: usize) {
    // Nearly all texts are short.
    if let Ok(len @ ..0x80) = u8::try_from(len) {
        return out.push(len);
    }
    prost::encoding::encode_varint(len as u64, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sample {
        id: [u8; 16],
        n: u32,
        name: &'static str,
        maybe: Option<i64>,
        lists: Vec<Vec<u16>>,
        map: Vec<(&'static str, u64)>,
    }

    type Fill = fn(&mut Column, &Sample);
    static LAYOUT: [ColumnOf<Fill>; 6] = [
        column("id", "FixedString(16)", |c, s| c.put(s.id)),
        column("n", "UInt32", |c, s| c.put(s.n)),
        column("name", "LowCardinality(String)", |c, s| c.word(s.name)),
        column("maybe", "Nullable(Int64)", |c, s| c.maybe(s.maybe)),
        column("lists", "Array(Array(UInt16))", |c, s| {
            c.list(&s.lists, |c, list| c.numbers(list));
        }),
        column("map", "Map(LowCardinality(String), UInt64)", |c, s| {
            c.list(&s.map, |c, (key, n)| c.count(key, *n));
        }),
    ];

    const fn column(name: &'static str, kind: &'static str, fill: Fill) -> ColumnOf<Fill> {
        ColumnOf { name, kind, fill }
    }

    fn body(samples: &[Sample]) -> Body {
        let mut block = Block::new(&LAYOUT);
        block.begin(1);
        block.push(|fill, column| fill(column, &sample("given up")));
        // Whatever a batch that was given up left.
        block.begin(samples.len());
        for sample in samples {
            block.push(|fill, column| fill(column, sample));
        }
        block.finish()
    }

    fn sample(name: &'static str) -> Sample {
        Sample {
            id: [7; 16],
            n: 0x0102_0304,
            name,
            maybe: None,
            lists: vec![vec![1, 2], vec![]],
            map: vec![("k", 3)],
        }
    }

    fn named(name: &str, kind: &str, data: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        put_text(&mut out, name);
        put_text(&mut out, kind);
        out.extend(data.concat());
        out
    }

    /// By hand, after the format's documentation and what the engine itself writes.
    #[test]
    fn a_block_holds_column_after_column() {
        let mut second = sample("b");
        second.maybe = Some(-1);
        second.map = Vec::new();
        let body = body(&[sample("ab"), second, sample("ab")]);
        let u64s =
            |numbers: &[u64]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_le_bytes()).collect() };
        let expected = [
            vec![6, 3],
            named("id", "FixedString(16)", &[&[7; 48]]),
            named("n", "UInt32", &[&[4, 3, 2, 1].repeat(3)]),
            named(
                "name",
                "LowCardinality(String)",
                &[
                    &u64s(&[1, 0x600, 2]),
                    b"\x02ab\x01b",
                    &u64s(&[3]),
                    &[0, 1, 0],
                ],
            ),
            named(
                "maybe",
                "Nullable(Int64)",
                &[&[1, 0, 1], &u64s(&[0, u64::MAX, 0])],
            ),
            named(
                "lists",
                "Array(Array(UInt16))",
                &[&u64s(&[2, 4, 6, 2, 2, 4, 4, 6, 6]), &[1, 0, 2, 0].repeat(3)],
            ),
            named(
                "map",
                "Map(LowCardinality(String), UInt64)",
                &[
                    &u64s(&[1, 1, 1, 2, 0x600, 1]),
                    b"\x01k",
                    &u64s(&[2]),
                    &[0, 0],
                    &u64s(&[3, 3]),
                ],
            ),
        ];
        assert_eq!(body.n_rows, 3);
        assert_eq!(body.columns, "(id, n, name, maybe, lists, map)");
        assert_eq!(body.chunks.concat(), expected.concat());
    }

    #[test]
    fn places_of_many_words_take_more_bytes() {
        for (n, width) in [(256, 1), (257, 2), (65_536, 2), (65_537, 4)] {
            let mut words = Words::default();
            for word in 0..n {
                words.push(&word.to_string());
            }
            words.push("0");
            words.push("0");
            let mut pieces = Pieces::default();
            words.add_to(&mut pieces);
            let bytes = pieces.finish().concat();
            let places = &bytes[bytes.len() - width * (n + 2)..];
            let last = &places[width * (n - 1)..];
            let expected = [n - 1, 0, 0].map(usize::to_le_bytes);
            let expected: Vec<u8> = expected.iter().flat_map(|p| &p[..width]).copied().collect();
            assert_eq!(last, expected, "{n} words");
        }
    }

    #[test]
    fn large_columns_are_cut_and_nothing_is_sent_of_no_rows() {
        let mut large = sample("a");
        large.lists = vec![vec![9; 2_000_000]];
        let body = self::body(&[large]);
        assert_eq!(body.chunks.len(), 4);
        assert!(body.chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES));
        assert!(self::body(&[]).chunks.is_empty());
    }
}
