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
    /// The app that the app key proved.
    pub(super) app_id: String,
    pub(super) environment: String,
    pub(super) mark: SenderMark,
    /// The chipset, which this collector normalised from the raw text.
    pub(super) chipset: String,
    /// The chipsets in the names of its sessions' cohorts, one for each session.
    pub(super) session_chipsets: Vec<String>,
    /// The chipset for each session that could not be created; empty if the session was to run on the CPU.
    pub(super) start_failure_chipsets: Vec<String>,
    /// A hash of the received bytes.
    pub(super) content: u32,
    pub(super) report: Report,
}
