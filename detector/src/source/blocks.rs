//! Answers as blocks of columns (ClickHouse's Native format): the store copies columns where it would
//! have to spell each value of a row.
//!
//! [`columns!`] names columns and the rows that are made of them. A column of arrays is read as it lies:
//! one [`List`] a row, without a copy.

use std::error::Error as StdError;
use std::iter::{Once, once};
use std::marker::PhantomData;

use clickhouse::error::Error;
use clickhouse::native::decode::{Decode, ValueReader};
use clickhouse::native::{ArrayData, ArrayReader, Block, ColumnIter, DataTypeNode};

use crate::window::Installation;

/// What the crate's `Decode` fails with.
type DecodeError = Box<dyn StdError + Send + Sync>;

/// A cell with one value.
pub(super) struct One<'a, T>(T, PhantomData<&'a ()>);

impl<'a, T: Decode<'a>> One<'a, T> {
    pub(super) fn read(self) -> Result<Option<Once<Result<T, Error>>>, Error> {
        Ok(Some(once(Ok(self.0))))
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for One<'a, T> {
    fn compatible(data_type: &DataTypeNode) -> bool {
        T::compatible(data_type)
    }

    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, DecodeError> {
        Ok(Self(T::decode(reader)?, PhantomData))
    }
}

/// A cell with an array.
pub(super) struct List<'a, T>(Option<ArrayData<'a>>, PhantomData<T>);

impl<'a, T: Decode<'a>> List<'a, T> {
    pub(super) fn read(self) -> Result<Option<ArrayReader<'a, T>>, Error> {
        self.0.map(ArrayData::into_reader).transpose()
    }

    /// Returns its values.
    pub(super) fn collected(self) -> Result<Vec<T>, Error> {
        match self.read()? {
            None => Ok(Vec::new()),
            Some(values) => {
                let mut all = Vec::with_capacity(values.size_hint().0);
                for value in values {
                    all.push(value?);
                }
                Ok(all)
            }
        }
    }
}

impl<T> Default for List<'_, T> {
    fn default() -> Self {
        Self(None, PhantomData)
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for List<'a, T> {
    fn compatible(data_type: &DataTypeNode) -> bool {
        matches!(data_type, DataTypeNode::Array(of) if T::compatible(of.remove_compatible_wrappers()))
    }

    fn decode(_: &mut ValueReader<'a>) -> Result<Self, DecodeError> {
        Err("an array is expected".into())
    }

    fn decode_array(data: ArrayData<'a>) -> Result<Self, DecodeError> {
        Ok(Self(Some(data), PhantomData))
    }
}

/// Who sent a report.
#[derive(Default, Clone, Copy)]
pub(super) struct Sender(pub(super) Installation);

impl Decode<'_> for Sender {
    fn compatible(data_type: &DataTypeNode) -> bool {
        matches!(data_type, DataTypeNode::FixedString(16))
    }

    fn decode(reader: &mut ValueReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(*reader.read_bytes_fixed()?))
    }
}

/// Milliseconds since 1970: `DateTime64(3)` as it lies.
#[derive(Default, Clone, Copy)]
pub(super) struct Millis(pub(super) i64);

impl Decode<'_> for Millis {
    fn compatible(data_type: &DataTypeNode) -> bool {
        matches!(data_type, DataTypeNode::DateTime64(..))
    }

    fn decode(reader: &mut ValueReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(i64::from_le_bytes(*reader.read_bytes_fixed()?)))
    }
}

/// Returns a block's column.
pub(super) fn column<'a, T: Decode<'a>>(
    block: &'a Block,
    name: &str,
) -> Result<ColumnIter<'a, T>, Error> {
    let column = block.column_by_name(name);
    let column = column.ok_or_else(|| Error::SchemaMismatch(format!("no column {name:?}")))?;
    column.iter()
}

/// Returns a column's next cell.
pub(super) fn next_of<'a, T: Decode<'a>>(column: &mut ColumnIter<'a, T>) -> Result<T, Error> {
    column.next().ok_or(Error::NotEnoughData)?
}

/// Declares columns whose names begin with a prefix, and rows of their values. Cells are [`One`], and
/// give one row each, or [`List`], and give as many as there are in each array: all arrays of a row are
/// of one length.
macro_rules! columns {
    ($columns:ident of $row:ident in $cell:ident $prefix:literal {
        $($field:ident: $type:ty,)*
    }) => {
        #[derive(Default)]
        struct $row<'a> {
            $($field: $type,)*
        }

        struct $columns<'a> {
            $($field: ColumnIter<'a, $cell<'a, $type>>,)*
        }

        impl<'a> $columns<'a> {
            const NAMES: &'static [&'static str] = &[$(concat!($prefix, stringify!($field))),*];

            fn of(block: &'a Block) -> Result<Self, Error> {
                Ok(Self {
                    $($field: column(block, concat!($prefix, stringify!($field)))?,)*
                })
            }

            /// Reads the rows of the next cell of each column.
            fn next(&mut self, rows: &mut Vec<$row<'a>>) -> Result<(), Error> {
                rows.clear();
                let mut length = None;
                $(
                    if let Some(values) = next_of(&mut self.$field)?.read()? {
                        let found = values.size_hint().0;
                        if *length.get_or_insert(found) != found {
                            let name = concat!($prefix, stringify!($field));
                            let text = format!("column {name:?} is of another length");
                            return Err(Error::SchemaMismatch(text));
                        }
                        rows.resize_with(found, Default::default);
                        for (row, value) in rows.iter_mut().zip(values) {
                            row.$field = value?;
                        }
                    }
                )*
                Ok(())
            }
        }
    };
}

pub(super) use columns;
