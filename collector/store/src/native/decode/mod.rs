//! Answers of the store as blocks of columns.
//!
//! [`Blocks`] reads a query's answer, [`columns!`] names columns and the rows that are made of them. The values
//! of a column of arrays lie one after the other, and are read where they lie. The client crate's own reader of
//! blocks makes an iterator for each array: on reports, which are little else than arrays, that took the
//! detector longer than everything it then does with them.

mod blocks;
mod columns;
#[cfg(test)]
mod tests;
mod values;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::blocks::BlockDecoder;
pub use self::blocks::{Block, Blocks};
pub use self::columns::{Columns, columns};
pub use self::values::{CellColumn, FixedBytes, List, Millis, Value, range_of};
