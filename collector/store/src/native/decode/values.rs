//! Values of a column, by the Rust types that they are read as.

use std::ops::Range;

use bytes::Bytes;

use crate::native::types::FixedType;

/// A decoded column.
#[derive(Debug, PartialEq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) type_name: String,
    /// Where each array ends, for arrays from the outer to the inner.
    pub(super) arrays: Vec<Vec<usize>>,
    /// Values of all rows; the values of arrays follow each other.
    pub(super) values: Values,
}

#[derive(Debug, PartialEq)]
pub(super) enum Values {
    Fixed {
        of: FixedType,
        /// For a `Nullable`, one byte for each value: 1 for NULL.
        nulls: Option<Bytes>,
        bytes: Bytes,
    },
    Texts(Texts),
    /// Values of a `LowCardinality`. Every index is below the number of keys.
    Keyed {
        indexes: Vec<u32>,
        keys: Texts,
    },
}

/// Texts that follow each other.
#[derive(Debug, Default, PartialEq)]
pub struct Texts {
    pub(super) text: String,
    /// Ends of the texts, on boundaries of characters.
    pub(super) ends: Vec<usize>,
}

impl Texts {
    fn get(&self, at: usize) -> Option<&str> {
        self.text.get(range_of(Some(&self.ends), at))
    }
}

/// Returns the range of a row's values in a column of arrays that end at `ends`.
#[must_use]
pub fn range_of(ends: Option<&[usize]>, row: usize) -> Range<usize> {
    let Some(ends) = ends else {
        return row..row + 1;
    };
    let start = row.checked_sub(1).and_then(|before| ends.get(before));
    let end = ends.get(row).copied().unwrap_or_default();
    start.copied().unwrap_or_default()..end
}

/// A column, cut into the cells that a [`Value`] is read from.
#[derive(Debug, Clone, Copy)]
pub struct CellColumn<'a> {
    arrays: &'a [Vec<usize>],
    values: &'a Values,
}

impl<'a> CellColumn<'a> {
    pub(super) fn of(column: &'a Column) -> Self {
        Self {
            arrays: &column.arrays,
            values: &column.values,
        }
    }

    /// Takes the outermost array off and returns where each row's elements end; `None` if there is none.
    pub(super) fn take_array(&mut self) -> Option<&'a [usize]> {
        let (ends, inner) = self.arrays.split_first()?;
        self.arrays = inner;
        Some(ends)
    }

    /// Returns values of the type `name`, which is `Nullable` if `is_nullable` is true.
    fn fixed<const WIDTH: usize>(
        self,
        name: &str,
        is_nullable: bool,
    ) -> Option<FixedColumn<'a, WIDTH>> {
        let Values::Fixed { of, nulls, bytes } = self.values else {
            return None;
        };
        let is_it = self.arrays.is_empty() && of.name == name && of.width == WIDTH;
        (is_it && nulls.is_some() == is_nullable).then(|| FixedColumn {
            nulls: nulls.as_deref().unwrap_or_default(),
            values: bytes.as_chunks().0,
        })
    }
}

/// Values of one width.
#[derive(Debug, Clone, Copy)]
pub struct FixedColumn<'a, const WIDTH: usize> {
    /// For a `Nullable`, one byte for each value: 1 for NULL. Otherwise empty.
    nulls: &'a [u8],
    values: &'a [[u8; WIDTH]],
}

/// A type that cells can be read as.
pub trait Value<'a>: Sized {
    /// A column that holds such values.
    type Column: Copy;

    /// Returns the column; `None` if it has another type.
    fn column(cells: CellColumn<'a>) -> Option<Self::Column>;

    /// Returns the value at an index; `None` beyond the column's end.
    fn at(column: &Self::Column, at: usize) -> Option<Self>;
}

/// Milliseconds since 1970, from a `DateTime64(3)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Millis(pub i64);

/// Implements [`Value`] for types of one width, from the type's name and the conversion of its bytes.
macro_rules! fixed {
    ($($value:ty: $name:literal, $width:literal, $read:expr;)*) => {$(
        impl<'a> Value<'a> for $value {
            type Column = FixedColumn<'a, $width>;

            fn column(cells: CellColumn<'a>) -> Option<Self::Column> {
                cells.fixed($name, false)
            }

            fn at(column: &Self::Column, at: usize) -> Option<Self> {
                column.values.get(at).copied().map($read)
            }
        }

        impl<'a> Value<'a> for Option<$value> {
            type Column = FixedColumn<'a, $width>;

            fn column(cells: CellColumn<'a>) -> Option<Self::Column> {
                cells.fixed($name, true)
            }

            fn at(column: &Self::Column, at: usize) -> Option<Self> {
                let is_null = *column.nulls.get(at)? != 0;
                let value = column.values.get(at).copied().map($read)?;
                Some((!is_null).then_some(value))
            }
        }
    )*};
}

fixed! {
    bool: "Bool", 1, |[byte]| byte != 0;
    u16: "UInt16", 2, u16::from_le_bytes;
    u32: "UInt32", 4, u32::from_le_bytes;
    u64: "UInt64", 8, u64::from_le_bytes;
    f32: "Float32", 4, f32::from_le_bytes;
    f64: "Float64", 8, f64::from_le_bytes;
    Millis: "DateTime64", 8, |bytes| Millis(i64::from_le_bytes(bytes));
}

/// A `FixedString(N)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FixedBytes<const N: usize>(pub [u8; N]);

impl<'a, const N: usize> Value<'a> for FixedBytes<N> {
    type Column = FixedColumn<'a, N>;

    fn column(cells: CellColumn<'a>) -> Option<Self::Column> {
        cells.fixed("FixedString", false)
    }

    fn at(column: &Self::Column, at: usize) -> Option<Self> {
        column.values.get(at).copied().map(Self)
    }
}

impl<'a> Value<'a> for &'a str {
    type Column = (Option<&'a [u32]>, &'a Texts);

    fn column(cells: CellColumn<'a>) -> Option<Self::Column> {
        match cells.values {
            _ if !cells.arrays.is_empty() => None,
            Values::Texts(texts) => Some((None, texts)),
            Values::Keyed { indexes, keys } => Some((Some(indexes), keys)),
            Values::Fixed { .. } => None,
        }
    }

    fn at((indexes, texts): &Self::Column, at: usize) -> Option<Self> {
        match indexes {
            None => texts.get(at),
            Some(indexes) => texts.get(usize::try_from(*indexes.get(at)?).ok()?),
        }
    }
}

/// A cell with an array, which is read on demand.
#[derive(Debug)]
pub struct List<'a, T: Value<'a>> {
    column: T::Column,
    range: Range<usize>,
}

impl<'a, T: Value<'a>> List<'a, T> {
    /// Returns the array's values.
    #[must_use]
    pub fn collected(&self) -> Vec<T> {
        // The length is bounded by the values that arrived.
        let mut values = Vec::with_capacity(self.range.len());
        values.extend(self.range.clone().map_while(|at| T::at(&self.column, at)));
        values
    }
}

impl<'a, T: Value<'a>> Value<'a> for List<'a, T> {
    type Column = (&'a [usize], T::Column);

    fn column(mut cells: CellColumn<'a>) -> Option<Self::Column> {
        let ends = cells.take_array()?;
        Some((ends, T::column(cells)?))
    }

    fn at((ends, column): &Self::Column, at: usize) -> Option<Self> {
        ends.get(at)?;
        Some(Self {
            column: *column,
            range: range_of(Some(ends), at),
        })
    }
}
