//! Encodes WAL records as rows of the store's tables. The same records always make the same rows, so that a repeated
//! batch is the same batch. For names [`cardinality`] ensures this. The writer calls this; nothing here reaches the
//! store.

mod cardinality;
mod column;
mod copy;
mod first_reports;
mod placement;
mod report;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use epwatch_proto::event_time;
use epwatch_proto::{InstallationId, Report, ReportKey};
pub(crate) use epwatch_store::native::encode::EncodedBlock;
use epwatch_store::native::encode::{BlockBuilder, CHUNK_BYTES};
use sha2::{Digest, Sha256};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::cardinality::saved_names::{line_of as line_of_name, parse as parse_names};
pub(crate) use self::cardinality::{
    CardinalityLimiter, Dimension, Limited, StoredName, stored_names_sql,
};
use self::column::FillReport;
pub(crate) use self::column::{TIME, U32S, WORD, WORDS};
use self::copy::COPIES;
pub(crate) use self::first_reports::FirstReport;
use self::first_reports::FirstReports;
use self::placement::{FillPlacement, KnownPlacements, PLACEMENTS};
use self::report::REPORTS;
use self::stored::Stored;
use crate::buffer_pool::Buffer;
use crate::refusal_counts::bucket_of;
use crate::wal::Record;
use crate::wal_record::{RecordError, ReportRecord};

/// How many reports are parsed as a group before their columns are filled.
const PARSED_AT_ONCE: usize = 16;

/// How many groups may be parsed before the columns need them.
const PARSED_AHEAD: usize = 4;

/// Encodes the batches of one collector. The memory of the columns is reused for each batch.
#[derive(Debug)]
pub(crate) struct Encoder {
    collector_id: u64,
    bucket: Duration,
    known: KnownPlacements,
    names: CardinalityLimiter,
    first_reports: FirstReports,
    copies: BlockBuilder<FillReport>,
    placements: BlockBuilder<FillPlacement>,
    reports: BlockBuilder<FillReport>,
}

/// A buffer for a chunk of a block.
pub(crate) fn chunk() -> Buffer {
    Buffer::of(CHUNK_BYTES)
}

/// The encoded rows of a batch, by table.
#[derive(Debug)]
pub(crate) struct EncodedBatch {
    pub(crate) copies: EncodedBlock,
    pub(crate) placements: EncodedBlock,
    pub(crate) reports: EncodedBlock,
    /// Start times of the reports' buckets, in seconds.
    pub(crate) buckets: BTreeSet<u32>,
    /// The installations of the reports; an installation may occur several times.
    pub(crate) installations: Vec<InstallationId>,
    /// Errors of unreadable records. A newer version wrote them: reports are validated before the WAL.
    pub(crate) unreadable: Vec<String>,
    /// Names that the limiter replaced.
    pub(crate) limited: Limited,
    /// The first reports of a batch that may be inserted.
    pub(crate) first_reports: Vec<FirstReport>,
}

impl Encoder {
    pub(crate) fn new(collector_id: u64, bucket: Duration, names: CardinalityLimiter) -> Self {
        Self {
            collector_id,
            bucket,
            known: KnownPlacements::default(),
            names,
            first_reports: FirstReports::default(),
            copies: BlockBuilder::new(&COPIES),
            placements: BlockBuilder::new(&PLACEMENTS),
            reports: BlockBuilder::new(&REPORTS),
        }
    }

    /// The names that are admitted.
    pub(crate) fn names(&mut self) -> &mut CardinalityLimiter {
        &mut self.names
    }

    /// Encodes as [`Self::encode`] does, and saves admitted names before the insert, so that a crash does not change
    /// the decision.
    ///
    /// After an error the caller encodes the batch again, and its placements count as new again.
    pub(crate) fn encode_and_persist_names(
        &mut self,
        records: &[Record],
    ) -> io::Result<EncodedBatch> {
        let first = records.iter().map(|record| record.offset.0).min();
        self.names.begin_batch(first.unwrap_or(0));
        let mut rows = self.encode(records);
        let last = records.iter().map(|record| record.offset.0).max();
        self.names.end_batch(last.map_or(0, |last| last + 1));
        if let Err(error) = self.names.save() {
            self.known = KnownPlacements::default();
            return Err(error);
        }
        rows.first_reports = self.first_reports.take();
        Ok(rows)
    }

    /// Encodes records in the sorting order of `reports`, so that the store need not sort. The order depends on the
    /// records only, so the same names are admitted after a crash. Placements of earlier batches are left out.
    pub(crate) fn encode(&mut self, records: &[Record]) -> EncodedBatch {
        let Self {
            collector_id,
            bucket,
            known,
            names,
            first_reports,
            copies,
            placements,
            reports,
        } = self;
        copies.begin(records.len());
        // Nearly all placements are known.
        placements.begin(0);
        reports.begin(records.len());
        let mut buckets = BTreeSet::new();
        let mut installations = Vec::new();
        let mut unreadable = Vec::new();
        let mut limited = Limited::default();
        let mut sound = Vec::with_capacity(PARSED_AT_ONCE);
        parse_in_order(records, *bucket, *collector_id, |parsed| {
            sound.clear();
            for one in parsed {
                match one {
                    Ok(mut stored) => {
                        names.apply(&mut stored, &mut limited);
                        first_reports.add(&stored);
                        buckets.insert(stored.bucket);
                        let installation = stored.report.key.installation;
                        if installations.last() != Some(&installation) {
                            installations.push(installation);
                        }
                        sound.push(stored);
                    }
                    Err(error) => unreadable.push(error),
                }
            }
            copies.push(&sound, |fill, column, stored| fill(column, stored));
            for stored in &sound {
                let new: Vec<_> = placement::new_ones(stored, known).collect();
                placements.push(&new, |fill, column, session| fill(column, stored, session));
            }
            reports.push(&sound, |fill, column, stored| fill(column, stored));
        });
        EncodedBatch {
            copies: copies.finish(chunk),
            placements: placements.finish(chunk),
            reports: reports.finish(chunk),
            buckets,
            installations,
            unreadable,
            limited,
            first_reports: Vec::new(),
        }
    }
}

/// A record with the fields that are read before its report is parsed.
struct Logged<'a> {
    record: &'a Record,
    parsed: Result<ReportRecord<'a>, RecordError>,
    bucket: u32,
    /// `None` if the report is unreadable.
    key: Option<ReportKey>,
}

impl<'a> Logged<'a> {
    fn of(record: &'a Record, bucket: Duration) -> Self {
        let parsed = ReportRecord::parse(&record.payload);
        let key = parsed
            .as_ref()
            .ok()
            .and_then(|parsed| ReportKey::peek(parsed.report));
        Self {
            record,
            parsed,
            bucket: bucket_of(record.received_at_us, bucket),
            key,
        }
    }

    /// The sorting key of `reports`.
    fn sorting_key(&self) -> impl Ord {
        let app = self
            .parsed
            .as_ref()
            .map(|parsed| (parsed.app_id, parsed.environment));
        (app.ok(), self.bucket, self.key)
    }
}

/// Records in the sorting order of `reports`.
fn by_sorting_key(records: &[Record], bucket: Duration) -> Vec<Logged<'_>> {
    let logged = records.iter().map(|record| Logged::of(record, bucket));
    let mut logged: Vec<_> = logged.collect();
    logged.sort_by(|a, b| a.sorting_key().cmp(&b.sorting_key()));
    logged
}

/// Parses records in the sorting order of `reports`, on another thread, because parsing is half of a row's cost. `take`
/// gets a few reports at a time, because a parsed report is large.
fn parse_in_order(
    records: &[Record],
    bucket: Duration,
    collector_id: u64,
    mut take: impl FnMut(Vec<Result<Stored, String>>),
) {
    thread::scope(|scope| {
        let (parsed, to_take) = mpsc::sync_channel(PARSED_AHEAD);
        scope.spawn(move || {
            for some in by_sorting_key(records, bucket).chunks(PARSED_AT_ONCE) {
                let some = some.iter().map(|logged| read(logged, collector_id));
                // The receiver is gone if the other thread panicked.
                let Ok(()) = parsed.send(some.collect()) else {
                    return;
                };
            }
        });
        to_take.into_iter().for_each(&mut take);
    });
}

/// The column `content`: two reports with the same key and different contents are a conflict. Collectors of all
/// versions compare it in one store, so its algorithm never changes.
fn content_of(report: &[u8]) -> u32 {
    let hash = Sha256::digest(report);
    u32::from_le_bytes(hash[..4].try_into().expect("four bytes"))
}

/// Parses a record's report. An error names the WAL offset.
fn read(logged: &Logged<'_>, collector_id: u64) -> Result<Stored, String> {
    let offset = logged.record.offset;
    let unreadable = |error: &dyn std::fmt::Display| format!("{offset}: {error}");
    let parsed = logged.parsed.as_ref().map_err(|error| unreadable(error))?;
    let report = Report::parse(parsed.report).map_err(|error| unreadable(&error.detail()))?;
    let received_ms = i64::try_from(logged.record.received_at_us / 1000).unwrap_or(i64::MAX);
    let chipset = report.device.chipset.as_str();
    Ok(Stored {
        collector_id,
        wal_offset: logged.record.offset.0,
        received_ms,
        occurred: event_time::estimate(received_ms, &parsed.sent, (&report).into()),
        bucket: logged.bucket,
        app_id: parsed.app_id.to_owned(),
        environment: parsed.environment.to_owned(),
        mark: parsed.mark,
        chipset: chipset.to_owned(),
        session_chipsets: report.session_chipsets(chipset).collect(),
        start_failure_chipsets: report.start_failure_chipsets(chipset).collect(),
        content: content_of(parsed.report),
        report,
    })
}
