//! A parsed report of the WAL: the input of every column.

use epwatch_proto::Report;
use epwatch_proto::event_time::EventTime;

use crate::wal_record::SenderMark;

#[derive(Debug)]
pub(crate) struct Stored {
    pub(super) collector_id: u64,
    pub(super) wal_offset: u64,
    pub(super) received_ms: i64,
    pub(super) bucket: u32,
    pub(super) occurred: EventTime,
    /// As the app key proved.
    pub(super) app_id: String,
    pub(super) environment: String,
    pub(super) mark: SenderMark,
    /// The chipset as this collector normalises the raw text.
    pub(super) chipset: String,
    /// The chipsets that the cohorts of its sessions are named by, one for each session.
    pub(super) session_chipsets: Vec<String>,
    /// The same for each session that could not be created; empty if the CPU was asked for.
    pub(super) start_failure_chipsets: Vec<String>,
    /// A hash of its bytes as they came in.
    pub(super) content: u32,
    pub(super) report: Report,
}
