//! Column types that several tables share.

use epwatch_store::native::encode::ColumnBuilder;

use super::stored::Stored;

pub(super) type FillReport = fn(&mut ColumnBuilder, &Stored);

pub(super) const TIME: &str = "DateTime64(3, 'UTC')";
pub(super) const WORD: &str = "LowCardinality(String)";
pub(super) const WORDS: &str = "Array(LowCardinality(String))";
pub(super) const U32S: &str = "Array(UInt32)";
