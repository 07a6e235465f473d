//! Blocks of an answer, read as it arrives. The answer is not trusted: lengths are checked, and memory is
//! reserved for bytes that arrived, not for announced ones.

use std::fmt;

use bytes::Bytes;
use clickhouse::error::Error;
use clickhouse::query::{BytesCursor, Query};
use futures::future::BoxFuture;

use crate::native::OWN_KEYS;
use crate::native::cursor::{Cursor, InvalidBlock, MAX_BYTES, Stop, invalid};
use crate::native::split::{Part, RawColumn, Splitter};
use crate::native::types::ColumnType;

use super::values::{Column, Texts, Values};

/// The columns of a block.
#[derive(Debug, PartialEq)]
pub struct Block {
    n_columns: usize,
    n_rows: usize,
    columns: Vec<Column>,
}

impl Block {
    /// Returns the number of rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// Stream of the blocks of a query's answer.
pub struct Blocks {
    chunks: BytesCursor,
    decoder: BlockDecoder,
}

impl Blocks {
    /// Sends the query.
    ///
    /// # Errors
    /// A value of the query is not bound.
    pub fn of(query: Query) -> Result<Self, Error> {
        Ok(Self {
            chunks: query.fetch_bytes("Native")?,
            decoder: BlockDecoder::default(),
        })
    }

    /// Returns the next block, `None` at the end.
    ///
    /// # Errors
    /// The store failed, the answer ends within a block, or a column has a type that is not decoded here.
    #[expect(clippy::should_implement_trait, reason = "it is asynchronous")]
    pub fn next(&mut self) -> BoxFuture<'_, Result<Option<Block>, Error>> {
        Box::pin(async move {
            loop {
                if let Some(block) = self.decoder.next()? {
                    return Ok(Some(block));
                }
                match self.chunks.next().await? {
                    Some(chunk) => self.decoder.push(&chunk),
                    None => return self.decoder.finish().map(|()| None),
                }
            }
        })
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").finish_non_exhaustive()
    }
}

/// Decodes blocks from bytes that arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct BlockDecoder {
    splitter: Splitter,
    open: Option<Block>,
}

impl BlockDecoder {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.splitter.push(bytes);
    }

    /// Returns the next whole block, or `None` until more has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Block>, Error> {
        let mismatch = |invalid: InvalidBlock| Error::SchemaMismatch(invalid.to_string());
        loop {
            let is_whole = |block: &Block| block.columns.len() == block.n_columns;
            if self.open.as_ref().is_some_and(is_whole) {
                return Ok(self.open.take());
            }
            match self.splitter.next().map_err(mismatch)? {
                None => return Ok(None),
                Some(Part::Block { n_columns, n_rows }) => {
                    let columns = Vec::new();
                    self.open = Some(Block {
                        n_columns,
                        n_rows,
                        columns,
                    });
                }
                Some(Part::Column(raw)) => {
                    let Some(block) = &mut self.open else {
                        continue;
                    };
                    let column = decoded(&raw, block.n_rows).map_err(|stop| match stop {
                        Stop::Incomplete => Error::NotEnoughData,
                        Stop::Invalid(invalid) => mismatch(invalid),
                    })?;
                    block.columns.push(column);
                }
            }
        }
    }

    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.splitter.is_at_end() {
            Ok(())
        } else {
            Err(Error::NotEnoughData)
        }
    }
}

fn decoded(raw: &RawColumn, n_rows: usize) -> Result<Column, Stop> {
    let mut data = ColumnData {
        bytes: &raw.data,
        cursor: Cursor::new(&raw.data),
    };
    if n_rows > 0 {
        data.cursor.skip_prefix(&raw.data_type)?;
    }
    let mut n_values = n_rows;
    let mut arrays = Vec::new();
    let mut data_type = &raw.data_type;
    while let ColumnType::Array(inner) = data_type {
        let ends = data.ends(n_values)?;
        n_values = ends.last().copied().unwrap_or_default();
        arrays.push(ends);
        data_type = inner;
    }
    let nulls = match data_type {
        ColumnType::Nullable(inner) => {
            data_type = inner;
            Some(data.bytes(n_values, 1)?)
        }
        _ => None,
    };
    let values = match (data_type, nulls) {
        (ColumnType::Fixed(of), nulls) => Values::Fixed {
            of: *of,
            nulls,
            bytes: data.bytes(n_values, of.width)?,
        },
        (ColumnType::String, None) => Values::Texts(data.texts(n_values)?),
        (ColumnType::LowCardinality(keys), None) if **keys == ColumnType::String => {
            data.keyed(n_values)?
        }
        _ => {
            return Err(Stop::Invalid(InvalidBlock::Type {
                column: raw.name.clone(),
                data_type: raw.type_name.clone(),
            }));
        }
    };
    Ok(Column {
        name: raw.name.clone(),
        type_name: raw.type_name.clone(),
        arrays,
        values,
    })
}

/// The bytes of a column, from the front.
struct ColumnData<'a> {
    bytes: &'a Bytes,
    cursor: Cursor<'a>,
}

impl ColumnData<'_> {
    /// Returns `n` values of `width` bytes without copying them.
    fn bytes(&mut self, n: usize, width: usize) -> Result<Bytes, Stop> {
        let values = self.cursor.values(n, width)?;
        Ok(self.bytes.slice_ref(values))
    }

    /// Reads the ends of `n` arrays, which never decrease.
    fn ends(&mut self, n: usize) -> Result<Vec<usize>, Stop> {
        let bytes = self.cursor.values(n, 8)?;
        let mut ends = Vec::with_capacity(n);
        let mut last = 0;
        for end in bytes.as_chunks().0 {
            let end = usize::try_from(u64::from_le_bytes(*end)).unwrap_or(usize::MAX);
            if end < last || end > MAX_BYTES {
                return invalid("an array that ends before it begins, or never");
            }
            ends.push(end);
            last = end;
        }
        Ok(ends)
    }

    fn texts(&mut self, n: usize) -> Result<Texts, Stop> {
        let mut all = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..n {
            all.extend_from_slice(self.cursor.text()?);
            ends.push(all.len());
        }
        let Ok(text) = String::from_utf8(all) else {
            return invalid("a text that is not UTF-8");
        };
        if !ends.iter().all(|end| text.is_char_boundary(*end)) {
            return invalid("a text that ends within a character");
        }
        Ok(Texts { text, ends })
    }

    /// Reads `LowCardinality` values.
    fn keyed(&mut self, n: usize) -> Result<Values, Stop> {
        if n == 0 {
            return Ok(Values::Keyed {
                indexes: Vec::new(),
                keys: Texts::default(),
            });
        }
        let flags = self.cursor.u64()?;
        let width = match flags ^ OWN_KEYS {
            0 => 1,
            1 => 2,
            2 => 4,
            _ => return invalid(format!("LowCardinality of kind {flags:#x}")),
        };
        let n_keys = self.cursor.count()?;
        let keys = self.texts(n_keys)?;
        if self.cursor.count()? != n {
            return invalid("LowCardinality of another length");
        }
        let bytes = self.cursor.values(n, width)?;
        let mut indexes: Vec<u32> = Vec::with_capacity(n);
        match width {
            1 => indexes.extend(bytes.iter().map(|byte| u32::from(*byte))),
            2 => {
                let pairs = bytes.as_chunks().0.iter();
                indexes.extend(pairs.map(|pair| u32::from(u16::from_le_bytes(*pair))));
            }
            _ => indexes.extend(bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b))),
        }
        let highest = indexes.iter().max().copied().unwrap_or_default();
        if usize::try_from(highest).map_or(true, |highest| highest >= n_keys) {
            return invalid("LowCardinality with a key that is missing");
        }
        Ok(Values::Keyed { indexes, keys })
    }
}
