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

mod chunks;
mod column;
mod dictionary;

use bytes::Bytes;

pub use self::chunks::{CHUNK_BYTES, ChunkBuffer};
use self::chunks::{Pieces, put_len, put_text};
pub use self::column::{Column, Fixed};

/// Memory that a table's columns keep for the next batch: a full one of reports takes about half of it.
const KEPT_BYTES: usize = 128 << 20;
/// Rows after which it is known well enough how much memory all of them will take.
const SAMPLE_ROWS: usize = 256;

/// Rows of one table, ready to be sent as often as it takes.
#[derive(Debug, Clone)]
pub struct Body {
    /// `(a, b, c)`.
    pub columns: String,
    /// The block, in pieces.
    pub chunks: Vec<Bytes>,
    /// Rows in the block; 0 for no block at all.
    pub n_rows: usize,
}

/// A column of a table: its name, its type as the table has it, and what fills it from a row.
#[derive(Debug)]
pub struct ColumnOf<F> {
    /// Its name in the table.
    pub name: &'static str,
    /// Its type as the table has it.
    pub kind: &'static str,
    /// What fills it from a row.
    pub fill: F,
}

/// Rows of one table, while they are added. Its memory serves batch after batch.
#[derive(Debug)]
pub struct Block<F: 'static> {
    layout: &'static [ColumnOf<F>],
    columns: Vec<Column>,
    n_rows: usize,
    most_rows: usize,
}

impl<F> Block<F> {
    /// An empty block of these columns.
    pub fn new(layout: &'static [ColumnOf<F>]) -> Self {
        Self {
            layout,
            columns: Vec::new(),
            n_rows: 0,
            most_rows: 0,
        }
    }

    /// Begins a batch of some `most_rows`, without what one that was given up left.
    pub fn begin(&mut self, most_rows: usize) {
        let kept_bytes: usize = self.columns.iter().map(Column::capacity).sum();
        if kept_bytes > KEPT_BYTES {
            self.columns.clear();
        }
        self.columns.iter_mut().for_each(Column::clear);
        self.columns.resize_with(self.layout.len(), Column::default);
        self.n_rows = 0;
        self.most_rows = most_rows;
    }

    /// Adds rows: `fill` calls what fills a column, which adds one value to it. A column takes all of them
    /// before the next one does, so a few rows at a time stay near the processor with it.
    #[inline]
    pub fn push<R>(&mut self, rows: &[R], fill: impl Fn(&F, &mut Column, &R)) {
        for (of, column) in self.layout.iter().zip(&mut self.columns) {
            for row in rows {
                fill(&of.fill, column, row);
            }
        }
        let was_known = self.n_rows >= SAMPLE_ROWS;
        self.n_rows += rows.len();
        if !was_known && self.n_rows >= SAMPLE_ROWS {
            self.make_room();
        }
    }

    /// Sets memory aside for as many rows as are expected, going by those that are there: to grow into it
    /// step by step takes twice as much, and each fresh page of it is dear.
    fn make_room(&mut self) {
        let times = self.most_rows.div_ceil(self.n_rows);
        let bytes = |column: &Column| column.parts().map(|part| part.len() * times).sum::<usize>();
        // Large reports in front are no reason to expect as many more.
        if self.columns.iter().map(bytes).sum::<usize>() <= KEPT_BYTES {
            for column in &mut self.columns {
                column.make_room(times);
            }
        }
    }

    /// Encodes the rows. `new_buffer` makes what holds a chunk, of [`CHUNK_BYTES`] or more.
    pub fn finish<B: ChunkBuffer>(&mut self, new_buffer: impl Fn() -> B) -> Body {
        let names: Vec<&str> = self.layout.iter().map(|of| of.name).collect();
        let mut pieces = Pieces::new(new_buffer);
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
        block.push(&[sample("given up")], |fill, column, row| fill(column, row));
        // Whatever a batch that was given up left.
        block.begin(samples.len());
        for samples in samples.chunks(2) {
            block.push(samples, |fill, column, row| fill(column, row));
        }
        block.finish(|| vec![0; CHUNK_BYTES])
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
    fn large_columns_are_cut_and_nothing_is_sent_of_no_rows() {
        let mut large = sample("a");
        large.lists = vec![vec![9; 2_000_000]];
        let body = self::body(&[large]);
        assert_eq!(body.chunks.len(), 4);
        assert!(body.chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES));
        assert!(self::body(&[]).chunks.is_empty());
    }
}
