//! Columns of a block that belong together, and the rows made of their values.

use clickhouse::error::Error;

use super::blocks::Block;
use super::values::{CellColumn, Value};

/// Returns a column with one value a row, or with one array a row if `is_array`. Only [`columns!`] calls it.
///
/// The arrays of columns that belong together have the same lengths. The first such column sets `ends`, the end of each
/// row's values.
///
/// # Errors
/// The column is missing, or it has another type or other lengths.
pub fn column<'a, T: Value<'a>>(
    block: &'a Block,
    name: &str,
    is_array: bool,
    ends: &mut Option<&'a [usize]>,
) -> Result<T::Column, Error> {
    let wrong = |what: &str| Error::SchemaMismatch(format!("column {name:?}{what}"));
    let column = block.column(name).ok_or_else(|| wrong(" is missing"))?;
    let of = &column.type_name;
    let other_type = || wrong(&format!(": type {of} is not the expected one"));
    let mut cells = CellColumn::of(column);
    if is_array {
        let own = cells.take_array().ok_or_else(other_type)?;
        if **ends.get_or_insert(own) != *own {
            return Err(wrong(" is of another length"));
        }
    }
    T::column(cells).ok_or_else(other_type)
}

/// Declares columns whose names begin with a prefix, and rows made of their values. A row of the block gives one such
/// row, or as many as its arrays have elements.
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
                let mut ends = None;
                Ok(Self {
                    $($field: $crate::native::decode::column::<$type>(
                        block,
                        concat!($prefix, stringify!($field)),
                        $is_array,
                        &mut ends,
                    )?,)*
                    ends,
                })
            }

            /// Returns the rows that a row of the block contains.
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
