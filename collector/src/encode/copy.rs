//! Rows of `report_copies`: the fields that decide which copy of a report counts.

use epwatch_store::native::encode::{ColumnDef, column};

use super::column::{FillReport, TIME, WORD};

pub(super) static COPIES: [ColumnDef<FillReport>; 9] = [
    column("installation", "FixedString(16)", |c, r| {
        c.put(*r.report.key.installation.as_bytes())
    }),
    column("stream_id", "UInt64", |c, r| c.put(r.report.key.stream.0)),
    column("sequence", "UInt64", |c, r| {
        c.put(r.report.key.sequence.get())
    }),
    column("received_at", TIME, |c, r| c.put(r.received_ms)),
    column("collector_id", "UInt64", |c, r| c.put(r.collector_id)),
    column("wal_offset", "UInt64", |c, r| c.put(r.wal_offset)),
    column("bucket", "DateTime('UTC')", |c, r| c.put(r.bucket)),
    column("app_id", WORD, |c, r| c.word(&r.app_id)),
    column("content", "UInt32", |c, r| c.put(r.content)),
];
