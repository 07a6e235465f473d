//! A validated request as a block of one row.

use epwatch_proto::ParseError;
use epwatch_store::native::encode::{BlockBuilder, ColumnBuilder, ColumnDef, EncodedBlock};

use crate::encode::chunk;

/// Adds a request's value to a column.
pub(super) type Fill<T> = fn(&mut ColumnBuilder, &T);

pub(super) fn block_of<T>(layout: &'static [ColumnDef<Fill<T>>], row: T) -> EncodedBlock {
    let mut builder = BlockBuilder::new(layout);
    builder.begin(1);
    builder.push(&[row], |fill, column, row| fill(column, row));
    builder.finish(chunk)
}

/// Refuses a missing message.
pub(super) fn required<T>(field: &str, value: Option<T>) -> Result<T, ParseError> {
    value.ok_or_else(|| ParseError::malformed(field, "a message", "nothing"))
}
