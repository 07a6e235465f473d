//! A report between the WAL and the columns: what each column of a row is taken from.

use epwatch_proto::Report;
use epwatch_proto::event_time::EventTime;

/// A report of the WAL, parsed again.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(super) collector_id: u64,
    pub(super) wal_offset: u64,
    pub(super) received_ms: i64,
    pub(super) bucket: u32,
    pub(super) occurred: EventTime,
    /// What the app key proved.
    pub(super) app_id: String,
    pub(super) environment: String,
    pub(super) is_unproven: bool,
    /// The chipset as this collector reads the raw text.
    pub(super) chipset: String,
    pub(super) report: Report,
}
