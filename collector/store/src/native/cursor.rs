//! Reads numbers, texts and the extent of columns from bytes that may end too early.

use super::types::ColumnType;
use super::{HAS_OWN_KEYS, LOW_CARDINALITY_VERSION};

/// Longest part of a column in bytes, far above the size that an engine sends at once. Without this limit a hostile
/// length would make a reader collect bytes for ever.
pub(super) const MAX_BYTES: usize = 1 << 30;

/// The reason why bytes cannot be read as blocks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidBlock {
    #[error("column {column:?}: type {data_type}")]
    Type { column: String, data_type: String },
    #[error("{0}")]
    Length(String),
}

/// The reason why a cursor cannot move on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// More bytes are needed.
    Incomplete,
    /// No further bytes would help.
    Invalid(InvalidBlock),
}

pub(super) fn invalid<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Invalid(InvalidBlock::Length(what.into())))
}

#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], Stop> {
        if n > MAX_BYTES {
            return invalid(format!("{n} bytes in a column"));
        }
        let end = self.at + n;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::Incomplete)?;
        self.at = end;
        Ok(taken)
    }

    /// Takes `n` values of `width` bytes.
    pub(super) fn values(&mut self, n: usize, width: usize) -> Result<&'a [u8], Stop> {
        self.take(n.saturating_mul(width))
    }

    pub(crate) fn varint(&mut self) -> Result<usize, Stop> {
        let mut value = 0_u64;
        for shift in (0..63).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return usize::try_from(value).or_else(|_| invalid(format!("a length of {value}")));
            }
        }
        invalid("a length without an end")
    }

    pub(super) fn u64(&mut self) -> Result<u64, Stop> {
        let bytes = self.take(8)?.try_into().expect("eight were taken");
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn count(&mut self) -> Result<usize, Stop> {
        let count = self.u64()?;
        usize::try_from(count).or_else(|_| invalid(format!("a count of {count}")))
    }

    pub(crate) fn text(&mut self) -> Result<&'a [u8], Stop> {
        let length = self.varint()?;
        self.take(length)
    }

    /// Reads the prefixes that come before a whole column.
    pub(super) fn skip_prefix(&mut self, data_type: &ColumnType) -> Result<(), Stop> {
        match data_type {
            ColumnType::Fixed(_) | ColumnType::String => Ok(()),
            ColumnType::LowCardinality(_) => match self.u64()? {
                LOW_CARDINALITY_VERSION => Ok(()),
                other => invalid(format!("LowCardinality of version {other}")),
            },
            ColumnType::Nullable(inner) | ColumnType::Array(inner) => self.skip_prefix(inner),
            ColumnType::Tuple(elements) => elements
                .iter()
                .try_for_each(|inner| self.skip_prefix(inner)),
        }
    }

    /// Skips the data of a column, whose length follows from its values alone.
    pub(super) fn skip(&mut self, data_type: &ColumnType, rows: usize) -> Result<(), Stop> {
        match data_type {
            ColumnType::Fixed(of) => drop(self.values(rows, of.width)?),
            ColumnType::String => {
                for _ in 0..rows {
                    self.text()?;
                }
            }
            ColumnType::Nullable(inner) => {
                self.take(rows)?;
                self.skip(inner, rows)?;
            }
            ColumnType::Array(inner) => {
                let n = self.last_end(rows)?;
                self.skip(inner, n)?;
            }
            ColumnType::Tuple(elements) => {
                for element in elements {
                    self.skip(element, rows)?;
                }
            }
            ColumnType::LowCardinality(_) if rows == 0 => {}
            ColumnType::LowCardinality(keys) => {
                let flags = self.u64()?;
                if flags & HAS_OWN_KEYS != 0 {
                    let n = self.count()?;
                    self.skip(keys, n)?;
                }
                let n = self.count()?;
                self.values(n, 1 << (flags & 3))?;
            }
        }
        Ok(())
    }

    fn last_end(&mut self, rows: usize) -> Result<usize, Stop> {
        let ends = self.values(rows, 8)?;
        let last = ends
            .last_chunk()
            .map_or(0, |last| u64::from_le_bytes(*last));
        usize::try_from(last).or_else(|_| invalid(format!("an array that ends at {last}")))
    }
}
