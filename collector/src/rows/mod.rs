//! From the log's records to the store's rows. Pure: the same records always make the same rows,
//! so that a batch that goes out again after a crash is the same batch.

mod placement;
mod report;
mod table;

use std::time::Duration;

use epwatch_proto::{Chipset, Report, SendClock};

pub(crate) use self::placement::KnownPlacements;
pub(crate) use self::table::{CopyRow, OutcomeRow, PlacementRow, ReportRow};
use crate::outcomes::bucket_of;
use crate::record::ReportRecord;
use crate::wal::Record;

/// A report of the log, parsed again.
#[derive(Debug)]
pub(crate) struct Stored {
    collector_id: u64,
    wal_offset: u64,
    received_ms: i64,
    bucket: u32,
    sent: SendClock,
    /// What the app key proved.
    app_id: String,
    environment: String,
    /// The chipset as this collector reads the raw text.
    chipset: Chipset,
    report: Report,
}

/// A batch, parsed.
#[derive(Debug)]
pub(crate) struct Prepared {
    reports: Vec<Stored>,
    /// Why records could not be read: a newer version wrote them, since all were parsed before
    /// they went into the log.
    pub(crate) unreadable: Vec<String>,
}

impl Prepared {
    pub(crate) fn from_records(records: Vec<Record>, collector_id: u64, bucket: Duration) -> Self {
        let mut prepared = Self {
            reports: Vec::with_capacity(records.len()),
            unreadable: Vec::new(),
        };
        for record in &records {
            match read(record, collector_id, bucket) {
                Ok(stored) => prepared.reports.push(stored),
                Err(error) => prepared
                    .unreadable
                    .push(format!("{}: {error}", record.offset)),
            }
        }
        prepared
    }

    /// One row a report, in the order of the log.
    pub(crate) fn rows(&self) -> Vec<ReportRow<'_>> {
        self.reports.iter().map(report::row).collect()
    }

    /// The placements that `known` does not have yet.
    pub(crate) fn placements(&self, known: &mut KnownPlacements) -> Vec<PlacementRow<'_>> {
        self.reports
            .iter()
            .flat_map(|stored| placement::new_rows(stored, known))
            .collect()
    }
}

fn read(record: &Record, collector_id: u64, bucket: Duration) -> Result<Stored, String> {
    let parsed = ReportRecord::parse(&record.payload).map_err(|error| error.to_string())?;
    let report = Report::parse(parsed.report).map_err(|error| error.detail())?;
    let device = &report.device;
    let chipset = Chipset::normalise(&device.chipset_raw, &device.soc_manufacturer, &device.board);
    Ok(Stored {
        collector_id,
        wal_offset: record.offset.0,
        received_ms: i64::try_from(record.received_at_us / 1000).unwrap_or(i64::MAX),
        bucket: bucket_of(record.received_at_us, bucket),
        app_id: parsed.app_id.to_owned(),
        environment: parsed.environment.to_owned(),
        chipset,
        sent: parsed.sent,
        report,
    })
}

/// Shares have six digits in the store.
#[expect(clippy::cast_possible_truncation, reason = "a share, 0 to 1")]
fn share(share: Option<f64>) -> Option<f32> {
    share.map(|share| share as f32)
}
