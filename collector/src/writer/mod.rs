//! Writes durable reports from the WAL to the store, in batches that a crash does not change. `collector.rs` runs it on a
//! thread of its own; it never decides whether a report counts.
//!
//! A batch is a range of the WAL. Its end is saved before the insert. So after a crash the same range is inserted again
//! under the same token, and the store keeps it once. Rows of `report_copies` are inserted first, so that a reader in
//! between misses a report for a moment, and never counts it twice. The checkpoint moves once all tables have the
//! batch. While the store takes a full batch, the next one is read and encoded. If the store is away, the writer
//! retries without end, and the WAL fills.

mod arrivals;
mod batch;
mod progress;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use self::arrivals::ArrivalLog;
use self::batch::{BatchLimits, ReadAhead, RowBatch};
use self::progress::{PublishedProgress, RefusalCountRow};
use crate::context::Context;
use crate::deletions::Deletions;
use crate::encode::{Dimension, EncodedBatch, EncodedBlock, Encoder, StoredName, stored_names_sql};
use crate::join_task::join_task;
use crate::rebuilds;
use crate::report_path::REPORT_PATH;
use crate::rollup::RollUp;
use crate::store::{FIRST_PAUSE, SinkError, note_failure};
use crate::wal::{Checkpoint, WalError, WalOffset};
use epwatch_server::Backoff;

/// The writer of one WAL.
#[derive(Debug)]
pub(crate) struct Writer {
    context: Arc<Context>,
    rollup: RollUp,
    deletions: Arc<Deletions>,
    encoder: Arc<Mutex<Encoder>>,
    checkpoint: Checkpoint,
    /// Records below this offset were in the WAL at the start. Any of them may be stored already, because the
    /// checkpoint may be lost or an old copy.
    in_doubt_until: u64,
    /// Bytes of the WAL in a full batch.
    full_bytes: u64,
    /// True if the last batch was full.
    was_full: bool,
    ahead: Option<ReadAhead>,
    /// The next batch, which is read and whose end is saved.
    begun: Option<RowBatch>,
    published: Option<PublishedProgress>,
    arrivals: ArrivalLog,
    pending_refusals: Option<(String, Vec<RefusalCountRow>)>,
}

/// The drain timed out; the remaining reports stay in the WAL.
#[derive(Debug)]
struct TimeUp;

impl Writer {
    pub(crate) fn new(
        context: Arc<Context>,
        deletions: Arc<Deletions>,
        encoder: Encoder,
        checkpoint: Checkpoint,
    ) -> Self {
        Self {
            deletions,
            rollup: RollUp {
                context: context.clone(),
            },
            encoder: Arc::new(Mutex::new(encoder)),
            checkpoint,
            in_doubt_until: context.wal.stats().end,
            full_bytes: context.config.batch.max_bytes.0,
            was_full: false,
            ahead: None,
            begun: None,
            published: None,
            arrivals: ArrivalLog::default(),
            pending_refusals: None,
            context,
        }
    }

    /// Writes until `stop` is cancelled, then drains the WAL for at most `drain_timeout`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let drain_timeout = self.context.config.batch.drain_timeout.0;
        let deadline = async {
            stop.cancelled().await;
            sleep(drain_timeout).await;
        };
        let outcome = tokio::select! {
            outcome = self.write(&stop) => outcome,
            () = deadline => Err(TimeUp),
        };
        let end = self.context.wal.stats().end;
        let left = end.saturating_sub(self.checkpoint.offset.0);
        match outcome {
            Ok(()) => tracing::info!("log drained into the store"),
            Err(TimeUp) => tracing::warn!(bytes = left, "left in the log for the next start"),
        }
    }

    async fn write(&mut self, stop: &CancellationToken) -> Result<(), TimeUp> {
        tokio::select! {
            () = self.begin_names() => {}
            () = self.stopped_with_nothing_left(stop) => {}
        }
        if let Some(end) = self.checkpoint.batch_end {
            // The end was saved before a crash, so exactly this range must be inserted again.
            let limits = BatchLimits::up_to(end);
            let batch = self.read_batch(self.checkpoint.offset, limits).await;
            self.begin_batch(&batch).await;
            self.store_batch(batch, true).await;
        }
        loop {
            self.wait_for_batch(stop).await;
            let (complete_until_us, mark) = self.context.wal.watermark();
            let batch = match self.begun.take() {
                Some(begun) => begun,
                None => {
                    let batch = self.read_batch(self.checkpoint.offset, self.limits()).await;
                    self.begin_batch(&batch).await;
                    batch
                }
            };
            self.read_ahead(&batch);
            let may_be_stored = self.checkpoint.offset.0 < self.in_doubt_until;
            self.store_batch(batch, may_be_stored).await;
            if self.checkpoint.offset >= mark {
                self.checkpoint.time_us = self.checkpoint.time_us.max(complete_until_us);
            }
            self.show_progress();
            self.arrivals.write(&[]);
            // This is decided once, before the publication. A report may be acknowledged in between, just before the
            // stop, and still has to be drained. After the stop no report arrives.
            let is_leaving = stop.is_cancelled()
                && self.checkpoint.offset >= *self.context.wal.durable().borrow();
            self.publish_state(is_leaving).await;
            if is_leaving {
                self.save(self.checkpoint).await;
                return Ok(());
            }
        }
    }

    /// Returns once `stop` is cancelled, if all reports are stored by then. After the stop no report arrives.
    async fn stopped_with_nothing_left(&self, stop: &CancellationToken) {
        stop.cancelled().await;
        if self.checkpoint.offset < *self.context.wal.durable().borrow() {
            std::future::pending().await
        }
    }

    /// Admits the names of the store's last days if the WAL's folder has none. Retries without end. Otherwise made-up
    /// names could fill the limits of a new folder before the names that devices use.
    async fn begin_names(&self) {
        if !self.encoder.lock().names().is_empty() {
            return;
        }
        let mut backoff = self.backoff();
        let names = loop {
            let sql = stored_names_sql(self.context.now_ms());
            match self.context.sink.fetch::<StoredName>("reports", &sql).await {
                Ok(names) => break names,
                Err(error) => {
                    self.context.metrics.store_up.set(0);
                    note_failure(&self.context.metrics, "names", &error);
                }
            }
            sleep(backoff.pause()).await;
        };
        self.context.metrics.store_up.set(1);
        loop {
            let dir = &self.context.config.wal.dir;
            match self.encoder.lock().names().admit_stored(dir, &names) {
                Ok(()) => break,
                Err(error) => tracing::error!(
                    error = &error as &(dyn std::error::Error + 'static),
                    "failed to write down names of the store, trying again"
                ),
            }
            sleep(backoff.pause()).await;
        }
        if !names.is_empty() {
            tracing::info!(
                names = names.len(),
                "names of the store's last days are known"
            );
        }
    }

    fn limits(&self) -> BatchLimits {
        BatchLimits {
            end: WalOffset(u64::MAX),
            max_records: self.context.config.batch.max_reports,
            max_bytes: usize::try_from(self.context.config.batch.max_bytes.0).unwrap_or(usize::MAX),
        }
    }

    /// Waits until a batch is full, its first report is `period` old, or `period` passed without a report.
    async fn wait_for_batch(&self, stop: &CancellationToken) {
        // Reports behind a full batch have waited long enough.
        if self.begun.is_some() || self.was_full {
            return;
        }
        let mut durable = self.context.wal.durable();
        let period = self.context.config.batch.period.0;
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

    /// Reads and encodes the batch that begins at `from`.
    fn read_batch(
        &self,
        from: WalOffset,
        limits: BatchLimits,
    ) -> impl Future<Output = RowBatch> + Send + 'static {
        self.read(from, limits, Arc::default())
    }

    /// Does the same as [`Self::read_batch`], without the records at these offsets.
    fn read(
        &self,
        from: WalOffset,
        limits: BatchLimits,
        without: Arc<HashSet<u64>>,
    ) -> impl Future<Output = RowBatch> + Send + 'static {
        let (wal, encoder) = (self.context.wal.clone(), self.encoder.clone());
        let mut backoff = self.backoff();
        async move {
            loop {
                let (wal, encoder, without) = (wal.clone(), encoder.clone(), without.clone());
                let read = on_disk(move || {
                    let mut chunk =
                        wal.read(from, limits.end, limits.max_records, limits.max_bytes)?;
                    chunk
                        .records
                        .retain(|record| !without.contains(&record.offset.0));
                    let rows = encoder.lock().encode_and_persist_names(&chunk.records);
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

    /// Starts to read the next batch while the store takes a full one, if the WAL already has at least a quarter of it.
    fn read_ahead(&mut self, batch: &RowBatch) {
        self.was_full = batch.is_full;
        if !batch.is_full {
            return;
        }
        let n_bytes = batch.next.0 - batch.from.0;
        self.full_bytes = n_bytes.min(self.context.config.batch.max_bytes.0);
        let waiting = self.context.wal.stats().end.saturating_sub(batch.next.0);
        if waiting >= n_bytes / 4 {
            let reading = self.read_batch(batch.next, self.limits());
            self.ahead = Some(ReadAhead::begin(reading));
        }
    }

    /// Saves the end of a batch, before its insert.
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

    /// Stores the batch at the checkpoint, and moves the checkpoint. The same write saves the end of the next batch if
    /// it was read ahead. `may_be_stored` means that an earlier process may have stored all or a part of the batch.
    async fn store_batch(&mut self, batch: RowBatch, may_be_stored: bool) {
        let span = tracing::debug_span!(
            target: REPORT_PATH,
            "batch",
            from = %batch.from,
            end = %batch.next
        );
        let storing = self.store_rows(batch, may_be_stored);
        storing.instrument(span).await;
    }

    async fn store_rows(&mut self, batch: RowBatch, may_be_stored: bool) {
        if batch.next <= self.checkpoint.offset {
            return;
        }
        if batch.skipped_bytes > 0 {
            let metrics = &self.context.metrics;
            metrics.wal_skipped_bytes.inc_by(batch.skipped_bytes);
            let bytes = batch.skipped_bytes;
            tracing::error!(bytes, from = %self.checkpoint.offset, "wal is damaged, bytes skipped");
        }
        for error in &batch.rows.unreadable {
            self.context.metrics.wal_unreadable_reports.inc();
            tracing::error!(error, "a report of the log cannot be read by this version");
        }
        if let Some(newest_us) = batch.newest_us {
            self.insert(&batch, may_be_stored).await;
            self.arrivals.write(&batch.rows.first_reports);
            for (dimension, n) in Dimension::ALL.iter().zip(batch.rows.limited) {
                self.context.metrics.limited(*dimension).inc_by(n);
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

    /// Saves the checkpoint, with retries without end, because otherwise a batch could have another end after a crash.
    async fn save(&mut self, checkpoint: Checkpoint) {
        let mut backoff = self.backoff();
        loop {
            let wal = self.context.wal.clone();
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

    /// Updates the metrics of progress, also after an empty round.
    fn show_progress(&self) {
        let Checkpoint {
            offset, time_us, ..
        } = self.checkpoint;
        let progress = &self.context.metrics.progress;
        progress.checkpoint.store(offset.0, Relaxed);
        progress.complete_until_us.store(time_us, Relaxed);
    }

    /// Inserts a batch into every table, with retries without end.
    async fn insert(&self, batch: &RowBatch, may_be_stored: bool) {
        let metrics = &self.context.metrics;
        let mut backoff = self.backoff();
        let mut may_be_stored = may_be_stored;
        while let Err(error) = self.try_insert(batch, may_be_stored).await {
            metrics.store_up.set(0);
            note_failure(metrics, "batch", &error);
            sleep(backoff.pause()).await;
            may_be_stored = true;
        }
        metrics.store_up.set(1);
        let rows = &batch.rows;
        for (table, body) in [("reports", &rows.reports), ("placements", &rows.placements)] {
            let counter = metrics.rows.get_or_create(&[("table", table)]);
            counter.inc_by(body.n_rows as u64);
            tracing::debug!(target: REPORT_PATH, table, rows = body.n_rows, "rows are stored");
        }
    }

    async fn try_insert(&self, batch: &RowBatch, may_be_stored: bool) -> Result<(), SinkError> {
        let (rows, sink) = (&batch.rows, &self.context.sink);
        self.insert_once("report_copies", |rows| &rows.copies, batch, may_be_stored)
            .await?;
        let installations = &rows.installations;
        self.deletions.hide_again(sink, installations).await?;
        // The insert has no token, because after a restart other placements count as new. The table merges equal rows.
        sink.insert_body("placements", &rows.placements, None)
            .await?;
        self.insert_once("reports", |rows| &rows.reports, batch, may_be_stored)
            .await?;
        // Only a request is stored here. The summary itself is built later, because a failing build must not hold up
        // the reports behind it.
        rebuilds::ask(&self.rollup, &rows.buckets).await
    }

    /// Inserts one table's rows of a batch, under a token by which the store drops a repetition. The store forgets
    /// tokens after an hour or a number of batches, and a retry may be later. So if the rows may be stored already,
    /// they are queried first. If some shards have their rows, only the missing rows are inserted.
    ///
    /// The token stays the same, because the query may miss stored rows. An insert goes on after its client left, and a
    /// replica that died after its commit does not answer. A batch is one block, so a shard stores its rows of one day
    /// as a whole or not at all. It remembers the token for each such day.
    async fn insert_once(
        &self,
        table: &'static str,
        of: fn(&EncodedBatch) -> &EncodedBlock,
        batch: &RowBatch,
        may_be_stored: bool,
    ) -> Result<(), SinkError> {
        let (first, end, sink) = (batch.from, batch.next, &self.context.sink);
        let body = of(&batch.rows);
        let token = format!("{}-{first}-{end}-{table}", self.context.wal.collector_id());
        let mut stored = HashSet::new();
        if may_be_stored {
            stored = self.stored_of(table, batch).await?;
        }
        if stored.is_empty() {
            return sink.insert_body(table, body, Some(&token)).await;
        }
        // Comparing counts is not enough, because the store may have reports whose records are no longer in the WAL.
        let limits = BatchLimits::up_to(end);
        let missing = self.read(first, limits, Arc::new(stored)).await.rows;
        sink.insert_body(table, of(&missing), Some(&token)).await
    }

    /// Returns the WAL offsets of the batch's rows that a table has.
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
            self.context.collector_id(),
            batch.from,
            batch.next,
        );
        let stored = self.context.sink.fetch::<u64>(table, &sql).await?;
        Ok(stored.into_iter().collect())
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(FIRST_PAUSE, self.context.config.batch.max_backoff())
    }
}

fn note_disk_failure(error: &WalError) {
    let error = error as &(dyn std::error::Error + 'static);
    tracing::error!(error, "the log's disk failed, trying again");
}

/// Runs a blocking function on a thread for blocking work.
async fn on_disk<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    join_task(&mut tokio::task::spawn_blocking(run)).await
}
