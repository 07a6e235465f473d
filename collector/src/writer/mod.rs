//! Takes durable reports from the WAL to the store, in batches that a crash does not change.
//!
//! A batch is a range of the WAL. Its end is written down before anything of it goes out, so that
//! after a crash the same range goes out again, under the same token, and the store keeps it once.
//! Rows of the key table go first: a reader in between counts a report too few for a moment, never
//! twice. Only when all tables have the batch does the checkpoint move. While the store takes a full
//! batch the next is read and encoded. The store being away means waiting, for ever, while the WAL
//! fills.

mod batch;
mod progress;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clickhouse::Row;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::batch::{BatchLimits, ReadAhead, RowBatch};
use self::progress::{PublishedProgress, RefusalCountRow};
use crate::config::BatchConfig;
use crate::encode::{
    CardinalityLimiter, Dimension, EncodedBatch, EncodedBlock, KnownPlacements, Tables,
};
use crate::metrics::Metrics;
use crate::refusal_counts::RefusalCounts;
use crate::rollup::RollUp;
use crate::store::{FIRST_PAUSE, Sink, SinkError, note_failure};
use crate::wal::{Checkpoint, Wal, WalError, WalOffset};
use epwatch_server::{Backoff, Clock};

/// The writer of one WAL.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) wal: Wal,
    pub(crate) sink: Sink,
    pub(crate) config: BatchConfig,
    pub(crate) bucket: Duration,
    pub(crate) collector_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ledger: Arc<RefusalCounts>,
    pub(crate) rollup: RollUp,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) known_placements: Arc<Mutex<KnownPlacements>>,
    pub(crate) names: Arc<Mutex<CardinalityLimiter>>,
    pub(crate) tables: Arc<Mutex<Tables>>,
    /// Bytes of the WAL that make a full batch.
    pub(crate) full_bytes: u64,
    /// Whether the last batch was one.
    pub(crate) was_full: bool,
    pub(crate) ahead: Option<ReadAhead>,
    /// The next batch, read and written down.
    pub(crate) begun: Option<RowBatch>,
    pub(crate) published: Option<PublishedProgress>,
    pub(crate) pending_refusals: Option<(String, Vec<RefusalCountRow>)>,
}

#[derive(Debug, Row, Deserialize)]
struct OffsetRow {
    wal_offset: u64,
}

/// A table that has a row for each report of a batch.
#[derive(Debug, Clone, Copy)]
enum Table {
    Copies,
    Reports,
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Self::Copies => "report_copies",
            Self::Reports => "reports",
        }
    }

    fn of(self, rows: &EncodedBatch) -> &EncodedBlock {
        match self {
            Self::Copies => &rows.copies,
            Self::Reports => &rows.reports,
        }
    }
}

/// The drain's time was up; what is left stays in the WAL.
#[derive(Debug)]
struct TimeUp;

impl Writer {
    /// Writes until `stop` is cancelled, then drains the WAL for at most `drain_timeout`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let drain_timeout = self.config.drain_timeout.0;
        let deadline = async {
            stop.cancelled().await;
            sleep(drain_timeout).await;
        };
        let outcome = tokio::select! {
            outcome = self.write(&stop) => outcome,
            () = deadline => Err(TimeUp),
        };
        let left = self
            .wal
            .stats()
            .end
            .saturating_sub(self.checkpoint.offset.0);
        match outcome {
            Ok(()) => tracing::info!("log drained into the store"),
            Err(TimeUp) => tracing::warn!(bytes = left, "left in the log for the next start"),
        }
    }

    async fn write(&mut self, stop: &CancellationToken) -> Result<(), TimeUp> {
        if let Some(end) = self.checkpoint.batch_end {
            // Written down before a crash: this range and no other.
            let limits = BatchLimits {
                end,
                max_records: usize::MAX,
                max_bytes: usize::MAX,
            };
            let batch = self.read_batch(self.checkpoint.offset, limits).await;
            self.begin_batch(&batch).await;
            self.store_batch(batch, true).await;
        }
        loop {
            self.wait_for_batch(stop).await;
            let (complete_until_us, mark) = self.wal.watermark();
            let batch = match self.begun.take() {
                Some(begun) => begun,
                None => {
                    let batch = self.read_batch(self.checkpoint.offset, self.limits()).await;
                    self.begin_batch(&batch).await;
                    batch
                }
            };
            self.read_ahead(&batch);
            self.store_batch(batch, false).await;
            if self.checkpoint.offset >= mark {
                self.checkpoint.time_us = self.checkpoint.time_us.max(complete_until_us);
            }
            self.show_progress();
            // Asked once, before the store is told: what is acknowledged meanwhile, and then the stop,
            // must not end a WAL that has something to drain. After the stop nothing comes any more.
            let is_leaving =
                stop.is_cancelled() && self.checkpoint.offset >= *self.wal.durable().borrow();
            self.publish_state(is_leaving).await;
            if is_leaving {
                self.save(self.checkpoint).await;
                return Ok(());
            }
        }
    }

    fn limits(&self) -> BatchLimits {
        BatchLimits {
            end: WalOffset(u64::MAX),
            max_records: self.config.max_reports,
            max_bytes: usize::try_from(self.config.max_bytes.0).unwrap_or(usize::MAX),
        }
    }

    /// Waits until a batch is worth writing: it is full, its first report is old enough, or it is
    /// time to say that there is none.
    async fn wait_for_batch(&self, stop: &CancellationToken) {
        // What waited behind a full batch is old enough, however little it is.
        if self.begun.is_some() || self.was_full {
            return;
        }
        let mut durable = self.wal.durable();
        let period = self.config.period.0;
        let waiting = |end: WalOffset| end.0.saturating_sub(self.checkpoint.offset.0);
        let first = durable.wait_for(|end| waiting(*end) > 0);
        tokio::select! {
            _ = timeout(period, first) => {}
            () = stop.cancelled() => return,
        }
        if waiting(*durable.borrow()) == 0 {
            return;
        }
        let is_full = durable.wait_for(|end| waiting(*end) >= self.full_bytes);
        tokio::select! {
            _ = timeout_at(Instant::now() + period, is_full) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Reads the batch that begins at `from`, and makes it rows.
    fn read_batch(
        &self,
        from: WalOffset,
        limits: BatchLimits,
    ) -> impl Future<Output = RowBatch> + Send + 'static {
        self.read(from, limits, Arc::default())
    }

    /// As [`Self::read_batch`], without the records at these places.
    fn read(
        &self,
        from: WalOffset,
        limits: BatchLimits,
        without: Arc<HashSet<u64>>,
    ) -> impl Future<Output = RowBatch> + Send + 'static {
        let (wal, known) = (self.wal.clone(), self.known_placements.clone());
        let (names, tables) = (self.names.clone(), self.tables.clone());
        let (collector_id, bucket) = (self.collector_id(), self.bucket);
        let mut backoff = Backoff::new(FIRST_PAUSE, self.config.max_backoff());
        async move {
            loop {
                let (wal, known) = (wal.clone(), known.clone());
                let (names, tables) = (names.clone(), tables.clone());
                let without = without.clone();
                let read = on_disk(move || {
                    let mut chunk =
                        wal.read(from, limits.end, limits.max_records, limits.max_bytes)?;
                    chunk
                        .records
                        .retain(|record| !without.contains(&record.offset.0));
                    let rows = EncodedBatch::encode_and_persist_names(
                        &chunk.records,
                        collector_id,
                        bucket,
                        &mut known.lock(),
                        &mut names.lock(),
                        &mut tables.lock(),
                    );
                    let rows = rows.map_err(|source| WalError::Io {
                        doing: "write down names of the log",
                        source: Arc::new(source),
                    })?;
                    Ok(RowBatch::of(from, &chunk, rows, limits))
                });
                match read.await {
                    Ok(batch) => return batch,
                    Err(error) => note_disk_failure(&error),
                }
                sleep(backoff.pause()).await;
            }
        }
    }

    /// While the store takes one full batch, the next is read if there is a fair part of one.
    fn read_ahead(&mut self, batch: &RowBatch) {
        self.was_full = batch.is_full;
        if !batch.is_full {
            return;
        }
        let n_bytes = batch.next.0 - batch.from.0;
        self.full_bytes = n_bytes.min(self.config.max_bytes.0);
        let waiting = self.wal.stats().end.saturating_sub(batch.next.0);
        if waiting >= n_bytes / 4 {
            let reading = self.read_batch(batch.next, self.limits());
            self.ahead = Some(ReadAhead::begin(reading));
        }
    }

    /// Writes down where a batch ends, before anything of it goes out.
    async fn begin_batch(&mut self, batch: &RowBatch) {
        if batch.next > self.checkpoint.offset {
            let batch_end = Some(batch.next);
            self.save(Checkpoint {
                batch_end,
                ..self.checkpoint
            })
            .await;
        }
    }

    /// Stores a batch that begins at the checkpoint and has been begun, and moves the checkpoint;
    /// the next one, if it has been read meanwhile, is begun with the same write. `may_be_stored`:
    /// an earlier process may have stored it, or parts of it.
    async fn store_batch(&mut self, batch: RowBatch, may_be_stored: bool) {
        if batch.next <= self.checkpoint.offset {
            return;
        }
        if batch.skipped_bytes > 0 {
            self.metrics.wal_skipped_bytes.inc_by(batch.skipped_bytes);
            let bytes = batch.skipped_bytes;
            tracing::error!(bytes, from = %self.checkpoint.offset, "wal is damaged, bytes skipped");
        }
        for error in &batch.rows.unreadable {
            self.metrics.wal_unreadable_reports.inc();
            tracing::error!(error, "a report of the log cannot be read by this version");
        }
        if let Some(newest_us) = batch.newest_us {
            self.insert(&batch, may_be_stored).await;
            for (dimension, n) in Dimension::ALL.iter().zip(batch.rows.limited) {
                self.metrics.limited(*dimension).inc_by(n);
            }
            self.checkpoint.time_us = self.checkpoint.time_us.max(newest_us);
        }
        if let Some(reading) = self.ahead.take() {
            self.begun = Some(reading.get().await).filter(|begun| begun.next > batch.next);
        }
        self.save(Checkpoint {
            offset: batch.next,
            time_us: self.checkpoint.time_us,
            batch_end: self.begun.as_ref().map(|begun| begun.next),
        })
        .await;
    }

    /// Writes the checkpoint down, however long the disk refuses: going on without it would give
    /// a batch another end after a crash.
    async fn save(&mut self, checkpoint: Checkpoint) {
        let mut backoff = Backoff::new(FIRST_PAUSE, self.config.max_backoff());
        loop {
            let wal = self.wal.clone();
            match on_disk(move || wal.save_checkpoint(&checkpoint)).await {
                Ok(()) => break,
                Err(error) => note_disk_failure(&error),
            }
            sleep(backoff.pause()).await;
        }
        self.checkpoint = Checkpoint {
            batch_end: None,
            ..checkpoint
        };
        self.show_progress();
    }

    /// Tells the metrics how far the store is; also where there was nothing to store.
    fn show_progress(&self) {
        let Checkpoint {
            offset, time_us, ..
        } = self.checkpoint;
        let progress = &self.metrics.progress;
        progress.checkpoint.store(offset.0, Relaxed);
        progress.complete_until_us.store(time_us, Relaxed);
    }

    /// Inserts a batch into every table, as often as it takes.
    async fn insert(&self, batch: &RowBatch, may_be_stored: bool) {
        let mut backoff = Backoff::new(FIRST_PAUSE, self.config.max_backoff());
        let mut may_be_stored = may_be_stored;
        while let Err(error) = self.try_insert(batch, may_be_stored).await {
            self.metrics.store_up.set(0);
            note_failure(&self.metrics, "batch", &error);
            sleep(backoff.pause()).await;
            may_be_stored = true;
        }
        self.metrics.store_up.set(1);
        let rows = &batch.rows;
        for (table, body) in [("reports", &rows.reports), ("placements", &rows.placements)] {
            self.metrics
                .rows
                .get_or_create(&[("table", table)])
                .inc_by(body.n_rows as u64);
        }
    }

    async fn try_insert(&self, batch: &RowBatch, may_be_stored: bool) -> Result<(), SinkError> {
        let (rows, sink) = (&batch.rows, &self.sink);
        self.insert_once(Table::Copies, batch, may_be_stored)
            .await?;
        // Without a token: what is new to this process differs after a restart, and the table
        // keeps one row of each anyway.
        sink.insert_body("placements", &rows.placements, None)
            .await?;
        self.insert_once(Table::Reports, batch, may_be_stored)
            .await?;
        self.rollup.rebuild(&rows.buckets).await
    }

    /// Inserts one table's rows of a batch, under a token by which the store knows a repetition.
    /// A store remembers a token for an hour or for so many batches, and we may come back later
    /// than that: so where the rows may be there already, they are looked for. Of several shards some may
    /// have theirs: then only the others' rows go out.
    ///
    /// Under the same token: a look may miss rows that are stored (an insert goes on after its client
    /// left, a replica that died after it committed is not asked). A batch is one block, so what a shard
    /// has of it on one day is stored as a whole or not at all, and the token is known for each of those.
    async fn insert_once(
        &self,
        table: Table,
        batch: &RowBatch,
        may_be_stored: bool,
    ) -> Result<(), SinkError> {
        let (first, end, name) = (batch.from, batch.next, table.name());
        let body = table.of(&batch.rows);
        let token = format!("{}-{first}-{end}-{name}", self.wal.collector_id());
        let mut stored = HashSet::new();
        if may_be_stored {
            stored = self.stored_of(name, batch).await?;
        }
        if stored.is_empty() {
            return self.sink.insert_body(name, body, Some(&token)).await;
        }
        if stored.len() >= body.n_rows {
            return Ok(());
        }
        let missing = self.read_without(batch, stored).await;
        self.sink
            .insert_body(name, table.of(&missing), Some(&token))
            .await
    }

    /// The rows of a batch that a table has, by their place in the WAL.
    async fn stored_of(
        &self,
        table: &'static str,
        batch: &RowBatch,
    ) -> Result<HashSet<u64>, SinkError> {
        let buckets = &batch.rows.buckets;
        let Some((oldest, newest)) = buckets.first().zip(buckets.last()) else {
            return Ok(HashSet::new());
        };
        let sql = format!(
            "SELECT wal_offset FROM {table} WHERE collector_id = {} \
             AND wal_offset >= {} AND wal_offset < {} \
             AND toDate(received_at) BETWEEN toDate(toDateTime({oldest}, 'UTC')) \
             AND toDate(toDateTime({newest}, 'UTC')) + 1",
            self.collector_id(),
            batch.from,
            batch.next,
        );
        let stored = self.sink.fetch::<OffsetRow>(table, &sql).await?;
        Ok(stored.into_iter().map(|row| row.wal_offset).collect())
    }

    /// Reads a batch again, without the rows at these places.
    async fn read_without(&self, batch: &RowBatch, stored: HashSet<u64>) -> EncodedBatch {
        let limits = BatchLimits {
            end: batch.next,
            max_records: usize::MAX,
            max_bytes: usize::MAX,
        };
        self.read(batch.from, limits, Arc::new(stored)).await.rows
    }

    fn collector_id(&self) -> u64 {
        self.wal.collector_id().short()
    }
}

fn note_disk_failure(error: &WalError) {
    let error = error as &(dyn std::error::Error + 'static);
    tracing::error!(error, "the log's disk failed, trying again");
}

/// Runs what blocks away from the threads that serve.
async fn on_disk<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(run).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Only a runtime that is shutting down cancels; then nobody waits for us either.
        Err(_) => std::future::pending().await,
    }
}
