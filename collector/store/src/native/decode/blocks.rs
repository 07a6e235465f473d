//! Reads blocks from an answer as it comes. Nothing in it is believed: lengths must fit, and room is
//! taken for what came, not for what was announced.

use std::collections::HashMap;

use bytes::{Buf, Bytes, BytesMut};
use clickhouse::error::Error;
use clickhouse::native::DataTypeNode;
use clickhouse::query::{BytesCursor, Query};

use super::values::{Column, Texts, Values};

/// The longest column that is read, in bytes: far above what the store sends at once.
const MAX_COLUMN_BYTES: usize = 1 << 30;

/// Rows that came together, column by column.
#[derive(Debug)]
pub struct Block {
    n_rows: usize,
    columns: HashMap<String, Column, foldhash::quality::RandomState>,
}

impl Block {
    /// Rows in the block.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.get(name)
    }
}

/// The bytes of an answer.
#[expect(async_fn_in_trait, reason = "implemented here and in tests")]
pub trait Chunks {
    /// `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Error>;
}

impl Chunks for BytesCursor {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        Self::next(self).await
    }
}

/// The blocks of an answer, one after the other.
#[derive(Debug)]
pub struct Blocks<C = BytesCursor> {
    chunks: C,
    /// What came and was not read yet.
    held: BytesMut,
}

impl Blocks {
    /// Asks for an answer as blocks.
    ///
    /// # Errors
    /// The query is wrong.
    pub fn of(query: Query) -> Result<Self, Error> {
        Ok(Self::from_chunks(query.fetch_bytes("Native")?))
    }
}

impl<C: Chunks> Blocks<C> {
    pub(super) fn from_chunks(chunks: C) -> Self {
        Self {
            chunks,
            held: BytesMut::new(),
        }
    }

    /// Returns the next block, `None` at the end.
    ///
    /// # Errors
    /// The answer is none of blocks, or it ends early.
    pub async fn next(&mut self) -> Result<Option<Block>, Error> {
        if self.held.is_empty() && !self.receive().await? {
            return Ok(None);
        }
        let n_columns = self.length().await?;
        let n_rows = self.length().await?;
        let mut columns = HashMap::default();
        for _ in 0..n_columns {
            let name = self.text().await?;
            let data_type = self.text().await?;
            // No type has other letters, and what parses them here cuts them between bytes.
            let parsed = data_type.is_ascii().then(|| DataTypeNode::new(&data_type));
            let parsed = parsed.and_then(Result::ok);
            let column = match parsed.as_ref().and_then(Form::of) {
                Some(form) => self.column(form, n_rows).await?,
                None => return Err(invalid(format!("column {name:?}: type {data_type}"))),
            };
            columns.insert(name, column);
        }
        Ok(Some(Block { n_rows, columns }))
    }

    async fn column(&mut self, form: Form, n_rows: usize) -> Result<Column, Error> {
        if n_rows > 0 && form.values == FormOfValues::Numbered {
            // The version of its serialization; there is one.
            if self.number().await? != 1 {
                return Err(invalid("low cardinality of another version"));
            }
        }
        let mut n_values = n_rows;
        let mut arrays = Vec::new();
        for _ in 0..form.n_arrays {
            let ends = self.ends(n_values).await?;
            n_values = ends.last().copied().unwrap_or_default();
            arrays.push(ends);
        }
        let values = match form.values {
            FormOfValues::Fixed(width) => Values::Fixed {
                width,
                bytes: self.values(n_values, width).await?,
            },
            FormOfValues::Nullable(width) => Values::Nullable {
                nulls: self.values(n_values, 1).await?,
                width,
                bytes: self.values(n_values, width).await?,
            },
            FormOfValues::Texts => Values::Texts(self.texts(n_values).await?),
            FormOfValues::Numbered if n_values == 0 => Values::Texts(Texts::default()),
            FormOfValues::Numbered => self.numbered(n_values).await?,
        };
        Ok(Column { arrays, values })
    }

    /// Where arrays end: numbers that never fall.
    async fn ends(&mut self, n: usize) -> Result<Vec<usize>, Error> {
        let bytes = self.values(n, 8).await?;
        let mut ends = Vec::with_capacity(n);
        let mut last = 0;
        for end in bytes.as_chunks().0 {
            let end = usize::try_from(u64::from_le_bytes(*end)).unwrap_or(usize::MAX);
            if end < last || end > MAX_COLUMN_BYTES {
                return Err(invalid("an array that ends before it begins, or never"));
            }
            ends.push(end);
            last = end;
        }
        Ok(ends)
    }

    async fn texts(&mut self, n: usize) -> Result<Texts, Error> {
        let mut text = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..n {
            let length = self.length().await?;
            self.need(length).await?;
            text.extend_from_slice(&self.held[..length]);
            self.held.advance(length);
            ends.push(text.len());
            if text.len() > MAX_COLUMN_BYTES {
                return Err(invalid("a column of texts without an end"));
            }
        }
        let text = utf8(text)?;
        if !ends.iter().all(|end| text.is_char_boundary(*end)) {
            return Err(invalid("a text that ends within a character"));
        }
        Ok(Texts { text, ends })
    }

    /// Texts that are named once each (`LowCardinality`).
    async fn numbered(&mut self, n: usize) -> Result<Values, Error> {
        /// The block has its own texts, and no others.
        const OWN_TEXTS: u64 = 0x600;
        let meta = self.number().await?;
        let width = match meta ^ OWN_TEXTS {
            0 => 1,
            1 => 2,
            2 => 4,
            _ => return Err(invalid(format!("low cardinality of kind {meta:#x}"))),
        };
        let n_texts = self.count().await?;
        let texts = self.texts(n_texts).await?;
        if self.count().await? != n {
            return Err(invalid("low cardinality of another length"));
        }
        let bytes = self.values(n, width).await?;
        let mut numbers: Vec<u32> = Vec::with_capacity(n);
        match width {
            1 => numbers.extend(bytes.iter().map(|byte| u32::from(*byte))),
            2 => {
                let pairs = bytes.as_chunks().0.iter();
                numbers.extend(pairs.map(|pair| u32::from(u16::from_le_bytes(*pair))));
            }
            _ => numbers.extend(bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b))),
        }
        let highest = numbers.iter().max().copied().unwrap_or_default();
        if usize::try_from(highest).map_or(true, |highest| highest >= n_texts) {
            return Err(invalid("low cardinality with a text that is missing"));
        }
        Ok(Values::Numbered { numbers, texts })
    }

    /// Returns the bytes of values of one width.
    async fn values(&mut self, n: usize, width: usize) -> Result<Bytes, Error> {
        let length = n.saturating_mul(width);
        self.need(length).await?;
        Ok(self.held.split_to(length).freeze())
    }

    async fn text(&mut self) -> Result<String, Error> {
        let length = self.length().await?;
        let bytes = self.values(length, 1).await?;
        utf8(bytes.to_vec())
    }

    async fn number(&mut self) -> Result<u64, Error> {
        self.need(8).await?;
        Ok(self.held.get_u64_le())
    }

    async fn count(&mut self) -> Result<usize, Error> {
        let count = self.number().await?;
        usize::try_from(count).map_err(|_| invalid("a count without an end"))
    }

    /// Reads a length: seven bits a byte, the lowest first.
    async fn length(&mut self) -> Result<usize, Error> {
        let mut length = 0;
        for shift in (0..63).step_by(7) {
            self.need(1).await?;
            let byte = self.held.get_u8();
            length |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return usize::try_from(length).map_err(|_| invalid("a length without an end"));
            }
        }
        Err(invalid("a length without an end"))
    }

    /// Waits until so many bytes are there.
    async fn need(&mut self, length: usize) -> Result<(), Error> {
        if length > MAX_COLUMN_BYTES {
            return Err(invalid(format!("{length} bytes in a column")));
        }
        while self.held.len() < length {
            if !self.receive().await? {
                return Err(Error::NotEnoughData);
            }
        }
        Ok(())
    }

    /// `false` at the end of the answer.
    async fn receive(&mut self) -> Result<bool, Error> {
        while let Some(chunk) = self.chunks.next().await? {
            if !chunk.is_empty() {
                self.held.extend_from_slice(&chunk);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// How a column lies.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Form {
    n_arrays: usize,
    values: FormOfValues,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum FormOfValues {
    /// Of so many bytes.
    Fixed(usize),
    Nullable(usize),
    Texts,
    Numbered,
}

impl Form {
    /// `None` for a type that no column of ours has.
    fn of(data_type: &DataTypeNode) -> Option<Self> {
        use DataTypeNode as Type;
        let values = match data_type {
            Type::Array(of) => {
                let of = Self::of(of)?;
                let n_arrays = of.n_arrays + 1;
                return Some(Self { n_arrays, ..of });
            }
            Type::String => FormOfValues::Texts,
            Type::LowCardinality(of) if **of == Type::String => FormOfValues::Numbered,
            Type::Nullable(of) => FormOfValues::Nullable(width(of)?),
            other => FormOfValues::Fixed(width(other)?),
        };
        Some(Self {
            n_arrays: 0,
            values,
        })
    }
}

fn width(of: &DataTypeNode) -> Option<usize> {
    use DataTypeNode as Type;
    Some(match of {
        Type::Bool | Type::UInt8 => 1,
        Type::UInt16 => 2,
        Type::UInt32 | Type::Float32 => 4,
        Type::UInt64 | Type::Float64 | Type::DateTime64(..) => 8,
        Type::FixedString(width) => *width,
        _ => return None,
    })
}

fn utf8(bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|error| Error::InvalidUtf8Encoding(error.utf8_error()))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::SchemaMismatch(what.into())
}
