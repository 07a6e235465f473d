//! Takes durable reports from the log to the store, in batches that a crash does not change.
//!
//! A batch is a range of the log. Its end is written down before anything of it goes out, so that
//! after a crash the same range goes out again, under the same token, and the store keeps it once.
//! Rows of the key table go first: a reader in between counts a report too few for a moment, never
//! twice. Only when all tables have the batch does the checkpoint move. The store being away means
//! waiting, for ever, while the log fills.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::BatchConfig;
use crate::metrics::Metrics;
use crate::outcomes::OutcomeLedger;
use crate::rollup::RollUp;
use crate::rows::{CopyRow, KnownPlacements, OutcomeRow, PlacementRow, Prepared, ReportRow};
use crate::store::{Backoff, CollectorCheckpoint, Sink, SinkError, note_failure};
use crate::wal::{Checkpoint, Chunk, Wal, WalError, WalOffset};

/// How long a collector that is leaving says it will not hold anyone up: for ever, as the store's
/// time type has it (the year 2200).
const PASSED_FOR_EVER_MS: i64 = 7_258_118_400_000;
/// The longest silence of a collector that has nothing to say.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// The writer of one log.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) wal: Wal,
    pub(crate) sink: Sink,
    pub(crate) config: BatchConfig,
    pub(crate) bucket: Duration,
    pub(crate) collector_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ledger: Arc<OutcomeLedger>,
    pub(crate) rollup: RollUp,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) known_placements: KnownPlacements,
    pub(crate) published: Option<Published>,
    pub(crate) pending_outcomes: Option<(String, Vec<OutcomeRow>)>,
}

/// What was last said of this collector's progress.
#[derive(Debug)]
pub(crate) struct Published {
    bucket: u64,
    at: Instant,
}

/// The drain's time was up; what is left stays in the log.
#[derive(Debug)]
struct TimeUp;

impl Writer {
    /// Writes until `stop` is cancelled, then drains the log for at most `drain_timeout`.
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
            self.store_range(end, usize::MAX, usize::MAX).await;
        }
        loop {
            self.wait_for_batch(stop).await;
            let (complete_until_us, mark) = self.wal.watermark();
            let max_bytes = usize::try_from(self.config.max_bytes.0).unwrap_or(usize::MAX);
            self.store_range(WalOffset(u64::MAX), self.config.max_reports, max_bytes)
                .await;
            if self.checkpoint.offset >= mark {
                self.checkpoint.time_us = self.checkpoint.time_us.max(complete_until_us);
            }
            let is_empty = self.checkpoint.offset >= *self.wal.durable().borrow();
            self.tell_store(stop.is_cancelled() && is_empty).await;
            if stop.is_cancelled() && is_empty {
                self.save(self.checkpoint).await;
                return Ok(());
            }
        }
    }

    /// Waits until a batch is worth writing: it is full, its first report is old enough, or it is
    /// time to say that there is none.
    async fn wait_for_batch(&self, stop: &CancellationToken) {
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
        // Roughly: what was read last time tells nothing of what comes.
        let is_full = durable.wait_for(|end| waiting(*end) >= self.config.max_bytes.0);
        tokio::select! {
            _ = timeout_at(Instant::now() + period, is_full) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Stores one batch that begins at the checkpoint, and moves the checkpoint.
    async fn store_range(&mut self, end: WalOffset, max_records: usize, max_bytes: usize) {
        let chunk = self.read(end, max_records, max_bytes).await;
        if chunk.next <= self.checkpoint.offset {
            return;
        }
        if chunk.skipped_bytes > 0 {
            self.metrics.wal_skipped_bytes.inc_by(chunk.skipped_bytes);
            let bytes = chunk.skipped_bytes;
            tracing::error!(bytes, from = %self.checkpoint.offset, "wal is damaged, bytes skipped");
        }
        self.save(Checkpoint {
            batch_end: Some(chunk.next),
            ..self.checkpoint
        })
        .await;
        let next = chunk.next;
        let newest_us = chunk.records.last().map(|record| record.received_at_us);
        if let Some(prepared) = self.prepare(chunk).await {
            self.insert(&prepared, next).await;
            self.metrics.batches.inc();
        }
        let time_us = self.checkpoint.time_us.max(newest_us.unwrap_or(0));
        self.save(Checkpoint {
            offset: next,
            time_us,
            batch_end: None,
        })
        .await;
    }

    async fn read(&self, end: WalOffset, max_records: usize, max_bytes: usize) -> Chunk {
        let mut backoff = Backoff::new(self.config.max_backoff.0);
        loop {
            let (wal, from) = (self.wal.clone(), self.checkpoint.offset);
            let read = on_disk(move || wal.read(from, end, max_records, max_bytes)).await;
            match read {
                Ok(chunk) => return chunk,
                Err(error) => note_disk_failure(&error),
            }
            sleep(backoff.pause()).await;
        }
    }

    /// Writes the checkpoint down, however long the disk refuses: going on without it would give
    /// a batch another end after a crash.
    async fn save(&mut self, checkpoint: Checkpoint) {
        let mut backoff = Backoff::new(self.config.max_backoff.0);
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
        self.metrics
            .progress
            .checkpoint
            .store(checkpoint.offset.0, Relaxed);
        self.metrics
            .progress
            .complete_until_us
            .store(checkpoint.time_us, Relaxed);
    }

    /// Turns records into rows, on a thread that may take its time.
    async fn prepare(&mut self, chunk: Chunk) -> Option<Prepared> {
        if chunk.records.is_empty() {
            return None;
        }
        let (collector_id, bucket) = (self.collector_id(), self.bucket);
        let prepared =
            on_disk(move || Prepared::from_records(chunk.records, collector_id, bucket)).await;
        for error in &prepared.unreadable {
            self.metrics.wal_unreadable_reports.inc();
            tracing::error!(error, "a report of the log cannot be read by this version");
        }
        Some(prepared)
    }

    /// Inserts a batch into every table, as often as it takes.
    async fn insert(&mut self, prepared: &Prepared, end: WalOffset) {
        let first = self.checkpoint.offset;
        let name = format!("{}-{first}-{end}", self.wal.collector_id());
        let rows = prepared.rows();
        let copies: Vec<CopyRow> = rows.iter().map(CopyRow::of).collect();
        let placements = prepared.placements(&mut self.known_placements);
        let mut backoff = Backoff::new(self.config.max_backoff.0);
        while let Err(error) = self.try_insert(&name, &copies, &placements, &rows).await {
            note_failure(&self.metrics, "batch", &error);
            sleep(backoff.pause()).await;
        }
        self.metrics.store_up.set(1);
        for (table, n) in [("reports", rows.len()), ("placements", placements.len())] {
            self.metrics
                .rows
                .get_or_create(&[("table", table)])
                .inc_by(n as u64);
        }
    }

    async fn try_insert(
        &self,
        name: &str,
        copies: &[CopyRow],
        placements: &[PlacementRow<'_>],
        rows: &[ReportRow<'_>],
    ) -> Result<(), SinkError> {
        let token = |table: &str| format!("{name}-{table}");
        let sink = &self.sink;
        sink.insert::<CopyRow>("report_copies", copies, Some(&token("report_copies")))
            .await?;
        // Without a token: what is new to this process differs after a restart, and the table
        // keeps one row of each anyway.
        sink.insert::<PlacementRow<'static>>("placements", placements, None)
            .await?;
        sink.insert::<ReportRow<'static>>("reports", rows, Some(&token("reports")))
            .await?;
        self.rollup
            .rebuild(&copies.iter().map(|copy| copy.bucket).collect())
            .await
    }

    fn collector_id(&self) -> u64 {
        self.wal.collector_id().short()
    }

    /// Says how far the store is, and what was refused meanwhile. Failures are no reason to hold
    /// up reports: the next round says it again.
    async fn tell_store(&mut self, is_leaving: bool) {
        let bucket = self.checkpoint.time_us / 1_000_000 / self.bucket.as_secs().max(1);
        let heartbeat = HEARTBEAT.min(self.collector_timeout / 4);
        let is_due = |published: &Published| {
            published.bucket != bucket || published.at.elapsed() >= heartbeat
        };
        if is_leaving || self.published.as_ref().is_none_or(is_due) {
            let told = self.publish(is_leaving).await;
            match told {
                Ok(()) => {
                    self.metrics.store_up.set(1);
                    self.published = Some(Published {
                        bucket,
                        at: Instant::now(),
                    });
                }
                Err(error) => note_failure(&self.metrics, "collector_checkpoints", &error),
            }
        }
        if let Err(error) = self.flush_outcomes().await {
            note_failure(&self.metrics, "report_outcomes", &error);
        }
    }

    /// Says that this collector is there, before it takes its first report. If the store is away
    /// it says so later: reports that fall into a closed bucket have that built again.
    pub(crate) async fn begin(&mut self) {
        let (complete_until_us, mark) = self.wal.watermark();
        if self.checkpoint.offset >= mark {
            self.checkpoint.time_us = self.checkpoint.time_us.max(complete_until_us);
        }
        self.tell_store(false).await;
    }

    async fn publish(&self, is_leaving: bool) -> Result<(), SinkError> {
        let passed = i64::try_from(self.checkpoint.time_us / 1000).unwrap_or(i64::MAX);
        let row = CollectorCheckpoint {
            collector_id: self.collector_id(),
            passed_until: if is_leaving {
                PASSED_FOR_EVER_MS
            } else {
                passed
            },
            updated_at: i64::try_from(self.clock.now_us() / 1000).unwrap_or(i64::MAX),
        };
        self.sink
            .insert::<CollectorCheckpoint>("collector_checkpoints", &[row], None)
            .await
    }

    async fn flush_outcomes(&mut self) -> Result<(), SinkError> {
        if self.pending_outcomes.is_none() {
            let counts = self.ledger.take();
            let rows: Vec<OutcomeRow> = counts
                .into_iter()
                .map(|(kind, reports)| OutcomeRow::of(kind, self.collector_id(), reports))
                .collect();
            let token = format!(
                "{}-outcomes-{}",
                self.wal.collector_id(),
                self.clock.now_us()
            );
            self.pending_outcomes = (!rows.is_empty()).then_some((token, rows));
        }
        if let Some((token, rows)) = &self.pending_outcomes {
            self.sink
                .insert::<OutcomeRow>("report_outcomes", rows, Some(token))
                .await?;
            self.pending_outcomes = None;
        }
        Ok(())
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
