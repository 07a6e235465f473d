//! The WAL as a file of recorded reports: what `replay` reads. Beside a collector that runs, or
//! without one: reading takes no lock and changes nothing.

use std::io::{self, Write};
use std::path::Path;

use bytes::Bytes;
use epwatch_proto::RecordedReport;
use epwatch_proto::recorded::write_recorded;

use crate::wal::{Record, WalError, WalRecords};
use crate::wal_record::ReportRecord;

/// The WAL could not be dumped.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The WAL cannot be read.
    #[error("failed to read wal")]
    Wal(#[from] WalError),
    /// The records cannot be written.
    #[error("failed to write recorded reports")]
    Write(#[source] io::Error),
}

/// What was dumped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dumped {
    /// Reports written.
    pub reports: u64,
    /// Records that this version cannot read, left out.
    pub unreadable: u64,
    /// Bytes of the WAL that held no whole record: damage, or segments that a running collector
    /// used again meanwhile.
    pub skipped_bytes: u64,
}

/// Writes every report that the WAL in `wal_dir` still holds, oldest first, each after its length
/// as a varint. Those that are in the store already stay in the WAL until their segment is used
/// again, so the first ones may be older than the writer's checkpoint.
///
/// # Errors
/// [`DumpError`]; what was written until then is whole.
pub fn dump_wal(wal_dir: &Path, to: &mut impl Write) -> Result<Dumped, DumpError> {
    let mut records = WalRecords::open(wal_dir)?;
    let mut dumped = Dumped::default();
    while let Some(record) = records.next_record()? {
        match recorded(&record) {
            Some(report) => {
                write_recorded(to, &report).map_err(DumpError::Write)?;
                dumped.reports += 1;
            }
            None => dumped.unreadable += 1,
        }
    }
    dumped.skipped_bytes = records.skipped_bytes();
    Ok(dumped)
}

fn recorded(record: &Record) -> Option<RecordedReport> {
    let parsed = ReportRecord::parse(&record.payload).ok()?;
    Some(RecordedReport {
        received_at_unix_ms: i64::try_from(record.received_at_us / 1000).ok()?,
        app_id: parsed.app_id.to_owned(),
        environment: parsed.environment.to_owned(),
        report: Bytes::copy_from_slice(parsed.report),
        sent: parsed.sent,
        is_unproven: parsed.is_unproven,
    })
}
