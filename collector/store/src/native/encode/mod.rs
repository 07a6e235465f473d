//! Encodes rows of a table as one block, once for all attempts of their insert.
//!
//! The collector lists a table's columns with [`ColumnDef`], adds rows to a [`BlockBuilder`] and sends the
//! [`EncodedBlock`]. The store compares each column's type with the type that the block names. So no value is stored as
//! another type than it was encoded as.

mod chunks;
mod column;
mod dictionary;

use bytes::Bytes;

use self::chunks::ChunkWriter;
pub use self::chunks::{CHUNK_BYTES, ChunkBuffer};
pub use self::column::{ColumnBuilder, FixedWidth};
use super::types::ColumnType;
use super::{put_text, put_varint};

/// Memory that a table's columns keep for the next batch. A full batch of reports takes about half of it.
const KEPT_BYTES: usize = 128 << 20;
/// How many rows are needed to estimate the memory of a whole batch.
const SAMPLE_ROWS: usize = 256;

/// Rows of one table, ready to be sent any number of times.
#[derive(Debug, Clone)]
pub struct EncodedBlock {
    /// The columns of the insert: `(a, b, c)`.
    pub columns: String,
    /// The block's bytes.
    pub chunks: Vec<Bytes>,
    /// Rows in the block; 0 if there is none.
    pub n_rows: usize,
}

/// A column of a table.
#[derive(Debug)]
pub struct ColumnDef<F> {
    /// Its name in the table.
    pub name: &'static str,
    /// Its type in the table.
    pub data_type: &'static str,
    /// Adds its value from a row.
    pub fill: F,
}

/// Defines a column; `fill` adds its value from a row.
pub const fn column<F>(name: &'static str, data_type: &'static str, fill: F) -> ColumnDef<F> {
    ColumnDef {
        name,
        data_type,
        fill,
    }
}

/// Collects rows of one table. Batches use its memory one after the other.
#[derive(Debug)]
pub struct BlockBuilder<F: 'static> {
    layout: &'static [ColumnDef<F>],
    columns: Vec<ColumnBuilder>,
    n_rows: usize,
    most_rows: usize,
}

impl<F> BlockBuilder<F> {
    /// Returns an empty builder for these columns.
    #[must_use]
    pub fn new(layout: &'static [ColumnDef<F>]) -> Self {
        Self {
            layout,
            columns: Vec::new(),
            n_rows: 0,
            most_rows: 0,
        }
    }

    /// Begins a batch of about `most_rows` rows, and drops the rows of an abandoned batch.
    pub fn begin(&mut self, most_rows: usize) {
        let kept_bytes: usize = self.columns.iter().map(ColumnBuilder::capacity).sum();
        if kept_bytes > KEPT_BYTES {
            self.columns.clear();
        }
        self.columns.iter_mut().for_each(ColumnBuilder::clear);
        self.columns
            .resize_with(self.layout.len(), ColumnBuilder::default);
        self.n_rows = 0;
        self.most_rows = most_rows;
    }

    /// Adds rows. `fill` adds one value of a row to a column. All `rows` go into one column before the next column, so
    /// that the few rows of a call stay in the processor's cache.
    #[inline]
    pub fn push<R>(&mut self, rows: &[R], fill: impl Fn(&F, &mut ColumnBuilder, &R)) {
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

    /// Reserves memory for all expected rows, estimated from the added ones. Growing step by step would take twice as
    /// much memory, and each fresh page costs time.
    fn make_room(&mut self) {
        let times = self.most_rows.div_ceil(self.n_rows);
        let bytes =
            |column: &ColumnBuilder| column.parts().map(|part| part.len() * times).sum::<usize>();
        // A batch may begin with large rows and go on with small ones.
        if self.columns.iter().map(bytes).sum::<usize>() <= KEPT_BYTES {
            for column in &mut self.columns {
                column.make_room(times);
            }
        }
    }

    /// Encodes the rows. `new_buffer` returns memory for a chunk, of [`CHUNK_BYTES`] or more.
    pub fn finish<B: ChunkBuffer>(&mut self, new_buffer: impl Fn() -> B) -> EncodedBlock {
        let names: Vec<&str> = self.layout.iter().map(|of| of.name).collect();
        let mut chunks = ChunkWriter::new(new_buffer);
        if self.n_rows > 0 {
            let mut head = Vec::new();
            put_varint(&mut head, self.columns.len());
            put_varint(&mut head, self.n_rows);
            for (of, column) in self.layout.iter().zip(&self.columns) {
                put_text(&mut head, of.name);
                put_text(&mut head, of.data_type);
                chunks.add(&head);
                head.clear();
                let data_type = ColumnType::parse(of.data_type);
                let data_type =
                    data_type.expect("a column definition names a type that is known here");
                column.add_to(&mut chunks, &data_type);
            }
        }
        EncodedBlock {
            columns: format!("({})", names.join(", ")),
            chunks: chunks.finish(),
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

    type Fill = fn(&mut ColumnBuilder, &Sample);
    static LAYOUT: [ColumnDef<Fill>; 6] = [
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

    fn body(samples: &[Sample]) -> EncodedBlock {
        let mut block = BlockBuilder::new(&LAYOUT);
        block.begin(1);
        block.push(&[sample("given up")], |fill, column, row| fill(column, row));
        // Rows of an abandoned batch are not in the next batch.
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

    fn named(name: &str, data_type: &str, data: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        put_text(&mut out, name);
        put_text(&mut out, data_type);
        out.extend(data.concat());
        out
    }

    /// The expected bytes are written by hand, after the format's documentation and the engine's own output.
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
