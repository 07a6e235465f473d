//! Column types that several tables share.

use epwatch_store::native::encode::ColumnBuilder;

use super::stored::Stored;

pub(super) type FillReport = fn(&mut ColumnBuilder, &Stored);

pub(crate) const TIME: &str = "DateTime64(3, 'UTC')";
pub(crate) const WORD: &str = "LowCardinality(String)";
pub(crate) const WORDS: &str = "Array(LowCardinality(String))";
pub(crate) const U32S: &str = "Array(UInt32)";
