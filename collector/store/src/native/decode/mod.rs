//! Answers as blocks of columns (ClickHouse's Native format): the store copies columns where it would
//! have to spell each value of a row.
//!
//! [`columns!`] names columns and the rows that are made of them. The values of a column of arrays lie
//! one after the other, and are read where they lie. The client crate has a reader of blocks too, which
//! makes an iterator for each array: on reports, which are little else than arrays, that took the
//! detector longer than all it then does with them.
//!
//! Format: <https://clickhouse.com/docs/interfaces/specs/NativeFormat>, without a protocol version.

mod blocks;
mod values;

use std::ops::Range;

use clickhouse::error::Error;

pub use blocks::{Block, Blocks};
pub use values::{FixedBytes, List, Millis, Value};

/// Reads columns of a block that belong together.
#[derive(Debug)]
pub struct Columns<'a> {
    block: &'a Block,
    /// Where each row's values end, once a column of arrays said so.
    ends: Option<&'a [usize]>,
}

impl<'a> Columns<'a> {
    /// Columns of a block, none of them read yet.
    pub fn of(block: &'a Block) -> Self {
        Self { block, ends: None }
    }

    /// Returns a column with one value a row, or with an array a row if `is_array`: those of one group
    /// are of the same lengths.
    ///
    /// # Errors
    /// It is missing, or of another type or length.
    pub fn column<T: Value<'a>>(&mut self, name: &str, is_array: bool) -> Result<T::Column, Error> {
        let wrong = |what: &str| Error::SchemaMismatch(format!("column {name:?} {what}"));
        let column = self.block.column(name).ok_or_else(|| wrong("is missing"))?;
        let mut arrays = column.arrays();
        if is_array {
            let (ends, inner) = arrays.split_first().ok_or_else(|| wrong("has no arrays"))?;
            if *self.ends.get_or_insert(ends) != *ends {
                return Err(wrong("is of another length"));
            }
            arrays = inner;
        }
        T::column(arrays, column.values()).ok_or_else(|| wrong("is of another type"))
    }

    /// Returns where the arrays of each row end, if columns of arrays were read.
    pub fn ends(self) -> Option<&'a [usize]> {
        self.ends
    }
}

/// Returns where a row's values lie in the columns of its group.
pub fn range_of(ends: Option<&[usize]>, row: usize) -> Range<usize> {
    let Some(ends) = ends else {
        return row..row + 1;
    };
    let start = row.checked_sub(1).and_then(|before| ends.get(before));
    let end = ends.get(row).copied().unwrap_or_default();
    start.copied().unwrap_or_default()..end
}

/// Declares columns whose names begin with a prefix, and rows of their values: one a row of the block,
/// or as many as its arrays have.
#[macro_export]
macro_rules! columns {
    ($columns:ident of $row:ident, is_array: $is_array:literal, $prefix:literal {
        $($field:ident: $type:ty,)*
    }) => {
        struct $row<'a> {
            $($field: $type,)*
        }

        struct $columns<'a> {
            ends: Option<&'a [usize]>,
            $($field: <$type as $crate::native::decode::Value<'a>>::Column,)*
        }

        impl<'a> $columns<'a> {
            const NAMES: &'static [&'static str] = &[$(concat!($prefix, stringify!($field))),*];

            fn of(
                block: &'a $crate::native::decode::Block,
            ) -> Result<Self, ::clickhouse::error::Error> {
                let mut columns = $crate::native::decode::Columns::of(block);
                Ok(Self {
                    $($field: columns.column::<$type>(
                        concat!($prefix, stringify!($field)),
                        $is_array,
                    )?,)*
                    ends: columns.ends(),
                })
            }

            /// Returns the rows that lie in a row of the block.
            fn rows(
                &self,
                of: usize,
            ) -> impl Iterator<Item = Result<$row<'a>, ::clickhouse::error::Error>> + '_ {
                $crate::native::decode::range_of(self.ends, of)
                    .map(|at| self.row(at).ok_or(::clickhouse::error::Error::NotEnoughData))
            }

            fn row(&self, at: usize) -> Option<$row<'a>> {
                Some($row {
                    $($field: <$type as $crate::native::decode::Value<'a>>::at(&self.$field, at)?,)*
                })
            }
        }
    };
}

pub use columns;

#[cfg(test)]
mod tests;
