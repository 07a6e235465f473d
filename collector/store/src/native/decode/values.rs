//! Values of a column, as the rows that ask for them know them.

use std::ops::Range;

use bytes::Bytes;

/// Texts one after the other.
#[derive(Debug, Default)]
pub struct Texts {
    pub(super) text: String,
    /// Where each ends; on a boundary of characters.
    pub(super) ends: Vec<usize>,
}

impl Texts {
    fn get(&self, at: usize) -> Option<&str> {
        self.text.get(super::range_of(Some(&self.ends), at))
    }
}

/// The values of a column: of all its rows, those of arrays one after the other.
#[derive(Debug)]
pub enum Values {
    /// Values of one width, as they lie.
    Fixed {
        /// Bytes of a value.
        width: usize,
        /// The values.
        bytes: Bytes,
    },
    /// The same; where `nulls` has a value's byte set, it stands for none.
    Nullable {
        /// A byte for each value.
        nulls: Bytes,
        /// Bytes of a value.
        width: usize,
        /// The values.
        bytes: Bytes,
    },
    Texts(Texts),
    /// Numbers of texts, each below their count.
    Numbered {
        /// Of each value.
        numbers: Vec<u32>,
        /// What they number.
        texts: Texts,
    },
}

impl Values {
    fn fixed<const WIDTH: usize>(&self) -> Option<&[[u8; WIDTH]]> {
        match self {
            Self::Fixed { width, bytes } if *width == WIDTH => Some(bytes.as_chunks().0),
            _ => None,
        }
    }
}

/// A column: how its arrays are cut, from the outer to the inner, and the values in them.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) arrays: Vec<Vec<usize>>,
    pub(super) values: Values,
}

impl Column {
    pub(super) fn arrays(&self) -> &[Vec<usize>] {
        &self.arrays
    }

    pub(super) fn values(&self) -> &Values {
        &self.values
    }
}

/// What a cell may be read as.
pub trait Value<'a>: Sized {
    /// A column that is known to hold such values.
    type Column: Copy;

    /// `None` for a column of another type. `arrays` cut the values into those of cells.
    fn column(arrays: &'a [Vec<usize>], values: &'a Values) -> Option<Self::Column>;

    /// `None` beyond the column's end.
    fn at(column: &Self::Column, at: usize) -> Option<Self>;
}

/// Numbers, little-endian as they lie.
macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl<'a> Value<'a> for $number {
            type Column = &'a [[u8; size_of::<$number>()]];

            fn column(arrays: &'a [Vec<usize>], values: &'a Values) -> Option<Self::Column> {
                values.fixed().filter(|_| arrays.is_empty())
            }

            fn at(column: &Self::Column, at: usize) -> Option<Self> {
                column.get(at).map(|bytes| Self::from_le_bytes(*bytes))
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, i64, f32, f64);

/// Values that lie as others do.
macro_rules! lies_as {
    ($($type:ty: $other:ty, $made:expr;)*) => {$(
        impl<'a> Value<'a> for $type {
            type Column = <$other as Value<'a>>::Column;

            fn column(arrays: &'a [Vec<usize>], values: &'a Values) -> Option<Self::Column> {
                <$other>::column(arrays, values)
            }

            fn at(column: &Self::Column, at: usize) -> Option<Self> {
                <$other>::at(column, at).map($made)
            }
        }
    )*};
}

/// Milliseconds since 1970: `DateTime64(3)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Millis(pub i64);

lies_as! {
    bool: u8, |byte| byte != 0;
    Millis: i64, Millis;
}

/// `FixedString(N)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FixedBytes<const N: usize>(pub [u8; N]);

impl<'a, const N: usize> Value<'a> for FixedBytes<N> {
    type Column = &'a [[u8; N]];

    fn column(arrays: &'a [Vec<usize>], values: &'a Values) -> Option<Self::Column> {
        values.fixed().filter(|_| arrays.is_empty())
    }

    fn at(column: &Self::Column, at: usize) -> Option<Self> {
        column.get(at).copied().map(Self)
    }
}

impl<'a> Value<'a> for Option<f32> {
    type Column = (&'a [u8], &'a [[u8; 4]]);

    fn column(arrays: &'a [Vec<usize>], values: &'a Values) -> Option<Self::Column> {
        match values {
            Values::Nullable {
                nulls,
                width: 4,
                bytes,
            } if arrays.is_empty() => Some((nulls, bytes.as_chunks().0)),
            _ => None,
        }
    }

    fn at((nulls, bytes): &Self::Column, at: usize) -> Option<Self> {
        let is_null = *nulls.get(at)? != 0;
        let value = f32::from_le_bytes(*bytes.get(at)?);
        Some((!is_null).then_some(value))
    }
}

impl<'a> Value<'a> for &'a str {
    type Column = (Option<&'a [u32]>, &'a Texts);

    fn column(arrays: &'a [Vec<usize>], values: &'a Values) -> Option<Self::Column> {
        match values {
            _ if !arrays.is_empty() => None,
            Values::Texts(texts) => Some((None, texts)),
            Values::Numbered { numbers, texts } => Some((Some(numbers), texts)),
            _ => None,
        }
    }

    fn at((numbers, texts): &Self::Column, at: usize) -> Option<Self> {
        match numbers {
            None => texts.get(at),
            Some(numbers) => texts.get(usize::try_from(*numbers.get(at)?).ok()?),
        }
    }
}

/// A cell with an array, not read yet.
#[derive(Debug)]
pub struct List<'a, T: Value<'a>> {
    column: T::Column,
    range: Range<usize>,
}

impl<'a, T: Value<'a>> List<'a, T> {
    /// Returns its values.
    pub fn collected(&self) -> Vec<T> {
        // Its length is that of values which came.
        let mut values = Vec::with_capacity(self.range.len());
        values.extend(self.range.clone().map_while(|at| T::at(&self.column, at)));
        values
    }
}

impl<'a, T: Value<'a>> Value<'a> for List<'a, T> {
    type Column = (&'a [usize], T::Column);

    fn column(arrays: &'a [Vec<usize>], values: &'a Values) -> Option<Self::Column> {
        let (ends, inner) = arrays.split_first()?;
        Some((ends, T::column(inner, values)?))
    }

    fn at((ends, column): &Self::Column, at: usize) -> Option<Self> {
        ends.get(at)?;
        Some(Self {
            column: *column,
            range: super::range_of(Some(ends), at),
        })
    }
}
