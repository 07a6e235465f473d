//! Dumps a WAL as a file of recorded reports, for `epwatch replay`. It takes no lock and changes nothing, so a collector
//! may run.

use std::io::{self, Write};
use std::path::Path;

use bytes::Bytes;
use epwatch_proto::RecordedReport;
use epwatch_proto::recorded::write_recorded;

use crate::wal::{Record, WalError, WalRecords};
use crate::wal_record::ReportRecord;

/// The reason why a WAL was not dumped.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The WAL cannot be read.
    #[error("failed to read wal")]
    Wal(#[from] WalError),
    /// The records cannot be written.
    #[error("failed to write recorded reports")]
    Write(#[source] io::Error),
}

/// Counts of a dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dumped {
    /// Reports written to the file.
    pub reports: u64,
    /// Records left out, because this version cannot read them.
    pub unreadable: u64,
    /// Bytes without a whole record: damage, or segments recycled during the dump.
    pub skipped_bytes: u64,
}

/// Writes every report in the WAL at `wal_dir`, oldest first, each with its length as a varint. Stored reports stay in
/// the WAL until their segment is recycled, so the first ones may be older than the writer's checkpoint.
///
/// # Errors
/// [`DumpError`]; reports written before the error are complete.
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
        is_unproven: Some(parsed.mark.is_unproven),
        is_own: Some(parsed.mark.is_own),
        network: (parsed.mark.network[0] != 0).then_some(parsed.mark.network),
    })
}
