//! Columns of a block that belong together, and the rows that are made of their values.

use clickhouse::error::Error;

use super::blocks::Block;
use super::values::{CellColumn, Value};

/// Reads columns of a block that belong together. For [`columns!`] alone.
#[derive(Debug)]
pub struct Columns<'a> {
    block: &'a Block,
    /// Where each row's values end; `None` before the first column of arrays.
    ends: Option<&'a [usize]>,
}

impl<'a> Columns<'a> {
    /// Reads from `block`.
    #[must_use]
    pub fn of(block: &'a Block) -> Self {
        Self { block, ends: None }
    }

    /// Returns a column with one value a row, or with an array a row if `is_array`. The arrays of one group
    /// have the same lengths.
    ///
    /// # Errors
    /// The column is missing, or it has another type or other lengths.
    pub fn column<T: Value<'a>>(&mut self, name: &str, is_array: bool) -> Result<T::Column, Error> {
        let wrong = |what: &str| Error::SchemaMismatch(format!("column {name:?}{what}"));
        let column = self.block.column(name);
        let column = column.ok_or_else(|| wrong(" is missing"))?;
        let other_type = || {
            wrong(&format!(
                ": type {} is not the expected one",
                column.type_name
            ))
        };
        let mut cells = CellColumn::of(column);
        if is_array {
            let ends = cells.take_array().ok_or_else(other_type)?;
            if **self.ends.get_or_insert(ends) != *ends {
                return Err(wrong(" is of another length"));
            }
        }
        T::column(cells).ok_or_else(other_type)
    }

    /// Returns where the arrays of each row end, if columns of arrays were read.
    #[must_use]
    pub fn ends(self) -> Option<&'a [usize]> {
        self.ends
    }
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
