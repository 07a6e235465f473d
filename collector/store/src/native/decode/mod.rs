//! Answers of the store as blocks of columns.
//!
//! [`Blocks`] reads a query's answer, [`columns!`] names columns and the rows made of them. The values of a column of
//! arrays follow each other, and are read in place. The client crate's own reader makes an iterator for each array.
//! Reports are mostly arrays, and reading them that way took longer than all of the detector's work on them.

mod blocks;
mod columns;
#[cfg(test)]
mod tests;
mod values;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::blocks::BlockDecoder;
pub use self::blocks::{Block, Blocks};
pub use self::columns::{column, columns};
pub use self::values::{CellColumn, FixedBytes, FixedColumn, List, Millis, Value, range_of};
