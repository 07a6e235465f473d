//! Stores the rows that the writer would make of reports, for tests of programs that read the store.

use std::time::Duration;

use clickhouse::Client;
use epwatch_proto::{Report, SendClock};

use crate::encode::{CardinalityLimiter, Encoder};
use crate::store::Sink;
use crate::wal::{Record, WalOffset};
use crate::wal_record::{self, SenderMark};

/// A report as a collector received it.
#[derive(Debug)]
pub struct ReceivedReport {
    /// Its place in the collector's WAL.
    pub offset: WalOffset,
    /// Receive time, microseconds since 1970.
    pub received_at_us: u64,
    /// The device's clocks at the upload.
    pub sent: SendClock,
    /// True if the installation is new and beyond the quota of its app or network.
    pub is_unproven: bool,
    /// The report. Its own app, environment and installation count as proven by the key.
    pub report: Report,
}

/// Stores reports as one batch of collector 1, whose buckets have this length.
///
/// # Panics
/// Panics if a report is invalid, or the store does not take the rows.
pub async fn store(client: Client, bucket: Duration, received: &[ReceivedReport]) {
    store_of(1, client, bucket, received).await;
}

/// Does the same as [`store`], as a batch of another collector.
///
/// # Panics
/// Panics as [`store`] does.
pub async fn store_of(
    collector_id: u64,
    client: Client,
    bucket: Duration,
    received: &[ReceivedReport],
) {
    let records: Vec<Record> = received.iter().map(ReceivedReport::record).collect();
    let mut encoder = Encoder::new(collector_id, bucket, CardinalityLimiter::default());
    let batch = encoder.encode(&records);
    assert!(batch.unreadable.is_empty(), "{:?}", batch.unreadable);
    let sink = Sink::new(client);
    for (table, rows) in [
        ("report_copies", &batch.copies),
        ("placements", &batch.placements),
        ("reports", &batch.reports),
    ] {
        let stored = sink.insert_body(table, rows, None).await;
        stored.expect("the store takes the rows");
    }
}

impl ReceivedReport {
    fn record(&self) -> Record {
        let app = &self.report.app;
        let mark = SenderMark {
            is_unproven: self.is_unproven,
            ..SenderMark::default()
        };
        let mut payload = Vec::new();
        let of_key = (app.id.as_str(), app.environment.as_str());
        wal_record::write_header(&mut payload, &self.sent, of_key, mark);
        payload.extend(self.report.to_bytes());
        Record::of(self.offset, self.received_at_us, payload.into())
    }
}
