//! From the log's records to the store's rows.

mod table;

use std::collections::HashSet;
use std::time::Duration;

pub(crate) use self::table::{CopyRow, OutcomeRow, PlacementRow, ReportRow};
use crate::wal::Record;

#[derive(Debug, Default)]
pub(crate) struct KnownPlacements(HashSet<u64>);

#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) unreadable: Vec<String>,
}

impl Prepared {
    pub(crate) fn from_records(records: Vec<Record>, collector_id: u64, bucket: Duration) -> Self {
        Self { unreadable: vec![] }
    }
    pub(crate) fn rows(&self) -> Vec<ReportRow<'_>> {
        vec![]
    }
    pub(crate) fn placements(&self, known: &mut KnownPlacements) -> Vec<PlacementRow<'_>> {
        vec![]
    }
}
