//! Cuts an answer, whose bytes arrive in any pieces, into the columns of its blocks.

use bytes::{Buf, Bytes, BytesMut};

use super::cursor::{Cursor, InvalidBlock, Stop};
use super::types::ColumnType;

/// The next part of an answer.
#[derive(Debug)]
pub(super) enum Part {
    /// A block begins.
    Block { n_columns: usize, n_rows: usize },
    /// The next column of the open block.
    Column(RawColumn),
}

/// A whole column, not decoded.
#[derive(Debug)]
pub(super) struct RawColumn {
    pub(super) name: String,
    pub(super) type_name: String,
    pub(super) data_type: ColumnType,
    /// Encoded name and type.
    pub(super) head: Bytes,
    /// Prefixes and data; empty in a block without rows.
    pub(super) data: Bytes,
}

#[derive(Debug, Default)]
pub(super) struct Splitter {
    held: BytesMut,
    /// Columns of the open block that have not arrived.
    n_columns_left: usize,
    n_rows: usize,
}

impl Splitter {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Returns the next whole part, or `None` until more has arrived.
    pub(super) fn next(&mut self) -> Result<Option<Part>, InvalidBlock> {
        let part = if self.n_columns_left == 0 {
            self.block()
        } else {
            self.column()
        };
        match part {
            Ok(part) => Ok(Some(part)),
            Err(Stop::Incomplete) => Ok(None),
            Err(Stop::Invalid(invalid)) => Err(invalid),
        }
    }

    /// Returns whether the answer ended at the end of a block.
    pub(super) fn is_at_end(&self) -> bool {
        self.held.is_empty() && self.n_columns_left == 0
    }

    fn block(&mut self) -> Result<Part, Stop> {
        let mut cursor = Cursor::new(&self.held);
        let (n_columns, n_rows) = (cursor.varint()?, cursor.varint()?);
        let length = cursor.position();
        self.held.advance(length);
        (self.n_columns_left, self.n_rows) = (n_columns, n_rows);
        Ok(Part::Block { n_columns, n_rows })
    }

    fn column(&mut self) -> Result<Part, Stop> {
        let mut cursor = Cursor::new(&self.held);
        let name = String::from_utf8_lossy(cursor.text()?).into_owned();
        let type_name = String::from_utf8_lossy(cursor.text()?).into_owned();
        let head = cursor.position();
        let Some(data_type) = ColumnType::parse(&type_name) else {
            return Err(Stop::Invalid(InvalidBlock::Type {
                column: name,
                data_type: type_name,
            }));
        };
        if self.n_rows > 0 {
            cursor.skip_prefix(&data_type)?;
            cursor.skip(&data_type, self.n_rows)?;
        }
        let data = cursor.position() - head;
        self.n_columns_left -= 1;
        Ok(Part::Column(RawColumn {
            name,
            type_name,
            data_type,
            head: self.held.split_to(head).freeze(),
            data: self.held.split_to(data).freeze(),
        }))
    }
}
