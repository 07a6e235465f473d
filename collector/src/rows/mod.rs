//! From the log's records to the store's rows. The same records always make the same rows, so that
//! a batch that goes out again after a crash is the same batch; [`guard`] says how, for names.

mod guard;
mod placement;
mod report;
mod rowbinary;
mod table;

use std::collections::BTreeSet;
use std::time::Duration;

use epwatch_proto::{Chipset, InstallationId, Report, ReportKey, SendClock};

pub(crate) use self::guard::{Dimension, Limited, NameGuard};
pub(crate) use self::placement::KnownPlacements;
pub(crate) use self::rowbinary::Body;
use self::rowbinary::BodyWriter;
pub(crate) use self::table::OutcomeRow;
use self::table::{CopyRow, PlacementRow, ReportRow};
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
    is_unproven: bool,
    /// The chipset as this collector reads the raw text.
    chipset: String,
    report: Report,
}

/// A batch as the rows of each table, encoded.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) copies: Body,
    pub(crate) placements: Body,
    pub(crate) reports: Body,
    /// Start times of the buckets that the reports fall into, in seconds.
    pub(crate) buckets: BTreeSet<u32>,
    /// Why records could not be read: a newer version wrote them, since all were parsed before
    /// they went into the log.
    pub(crate) unreadable: Vec<String>,
    /// Names that the guard left out.
    pub(crate) limited: Limited,
}

impl Prepared {
    /// Turns records into rows, in the order of the table of reports: the store then need not sort.
    /// The same records come in the same order, so names are let in alike after a crash. Of
    /// placements those that `known` does not have yet.
    pub(crate) fn from_records(
        records: &[Record],
        collector_id: u64,
        bucket: Duration,
        known: &mut KnownPlacements,
        names: &mut NameGuard,
    ) -> Self {
        let mut copies = BodyWriter::default();
        let mut placements = BodyWriter::default();
        let mut reports = BodyWriter::default();
        let mut buckets = BTreeSet::new();
        let mut unreadable = Vec::new();
        let mut limited = Limited::default();
        // One after the other: a parsed report is large, and is gone before the next.
        for record in by_sorting_key(records, bucket) {
            let mut stored = match read(record, collector_id, bucket) {
                Ok(stored) => stored,
                Err(error) => {
                    unreadable.push(format!("{}: {error}", record.offset));
                    continue;
                }
            };
            names.apply(&mut stored, &mut limited);
            copies.push(&CopyRow::of(&stored));
            for row in placement::new_rows(&stored, known) {
                placements.push(&row);
            }
            reports.push(&report::row(&stored));
            buckets.insert(stored.bucket);
        }
        Self {
            copies: copies.finish::<CopyRow>(),
            placements: placements.finish::<PlacementRow<'_>>(),
            reports: reports.finish::<ReportRow<'_>>(),
            buckets,
            unreadable,
            limited,
        }
    }
}

/// Records in the order in which the store keeps reports.
fn by_sorting_key(records: &[Record], bucket: Duration) -> Vec<&Record> {
    let key = |record| (sorting_key(record, bucket), record);
    let mut keyed: Vec<_> = records.iter().map(key).collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, record)| record).collect()
}

/// App, environment, bucket, installation, stream, sequence; `None` of a record that is unreadable.
fn sorting_key(
    record: &Record,
    bucket: Duration,
) -> Option<(&str, &str, u32, InstallationId, u64, u64)> {
    let parsed = ReportRecord::parse(&record.payload).ok()?;
    let key = ReportKey::peek(parsed.report)?;
    let bucket = bucket_of(record.received_at_us, bucket);
    let (stream, sequence) = (key.stream.0, key.sequence.get());
    let (app, environment) = (parsed.app_id, parsed.environment);
    Some((app, environment, bucket, key.installation, stream, sequence))
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
        is_unproven: parsed.is_unproven,
        chipset: chipset.as_str().to_owned(),
        sent: parsed.sent,
        report,
    })
}

/// Shares have six digits in the store.
#[expect(clippy::cast_possible_truncation, reason = "a share, 0 to 1")]
fn share(share: Option<f64>) -> Option<f32> {
    share.map(|share| share as f32)
}

#[cfg(test)]
mod tests {
    use epwatch_engines::Engine;
    use epwatch_store::embedded::{ChildProgram, EmbeddedConfig, EmbeddedStore};
    use epwatch_store::migrate;

    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::schema::{MIGRATIONS, Retention, single_server};

    /// A report with every field set.
    const FULL: &[u8] = include_bytes!("../../../tests/fixtures/wire/report_full.bin");

    fn stored() -> Stored {
        let report = Report::parse(FULL).unwrap();
        let now_us = SystemClock.now_us();
        Stored {
            collector_id: 7,
            wal_offset: 640,
            // Older rows would be gone by their TTL.
            received_ms: i64::try_from(now_us / 1000).unwrap(),
            bucket: bucket_of(now_us, Duration::from_secs(3600)),
            sent: SendClock::default(),
            app_id: report.app.id.clone(),
            environment: report.app.environment.clone(),
            is_unproven: true,
            chipset: "SM8650".into(),
            report,
        }
    }

    /// Inserts through the client, which checks every value against the table's types, and through
    /// our encoder, which does not; both must give the same rows.
    macro_rules! check {
        ($engine:expr, $table:literal, $row:ty, $rows:expr) => {{
            let rows = $rows;
            let checked = $engine.client("checked");
            let mut insert = checked.insert::<$row>($table).await.unwrap();
            let mut encoded = BodyWriter::default();
            for row in &rows {
                insert.write(row).await.unwrap();
                encoded.push(row);
            }
            insert.end().await.unwrap();
            check_encoded($engine, $table, encoded.finish::<$row>()).await;
        }};
    }

    async fn check_encoded(engine: &EmbeddedStore, table: &'static str, body: Body) {
        let sink = crate::store::Sink::new(engine.client("encoded"));
        sink.insert_body(table, &body, None).await.unwrap();
        let mut found = Vec::new();
        for database in ["checked", "encoded"] {
            let sql = format!("SELECT hex(toString(tuple(*))) FROM {table}");
            let rows = engine.client(database).query(&sql).fetch_all::<String>();
            found.push(rows.await.unwrap());
        }
        assert_eq!(found[0].len(), body.n_rows, "{table}");
        assert_eq!(found[0], found[1], "{table}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn encoded_rows_are_what_the_tables_take() {
        let dir = tempfile::tempdir().unwrap();
        let library = epwatch_engines::for_tests(Engine::Chdb).chdb_library();
        let program = ChildProgram::for_tests().unwrap();
        let config = EmbeddedConfig::new(dir.path().join("store"), library, program)
            .with_socket(dir.path().join("store.sock"));
        let engine = EmbeddedStore::start(config).await.unwrap();
        engine.ready().await.unwrap();
        for database in ["checked", "encoded"] {
            let values = single_server(Retention::default());
            let target = engine.target(database);
            migrate(&target, MIGRATIONS, &values).await.unwrap();
        }
        let stored = stored();
        check!(&engine, "reports", ReportRow<'_>, [report::row(&stored)]);
        check!(&engine, "report_copies", CopyRow, [CopyRow::of(&stored)]);
        let placements = placement::new_rows(&stored, &mut KnownPlacements::default());
        check!(&engine, "placements", PlacementRow<'_>, placements);
        engine.stop().await;
    }
}
