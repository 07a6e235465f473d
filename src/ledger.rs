//! Counts of reports by outcome, in the documents of `load` and `demo`.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

/// recorded = stored + dropped + refused + missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, Row)]
pub(crate) struct ReportLedger {
    pub(crate) recorded: u64,
    pub(crate) stored: u64,
    pub(crate) dropped: u64,
    pub(crate) refused: u64,
    pub(crate) duplicate: u64,
    pub(crate) missing: i64,
}
