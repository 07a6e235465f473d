//! The writer's rows about its own collector: progress (`collector_checkpoints`) and refused reports
//! (`report_outcomes`).

use std::time::Duration;

use clickhouse::Row;
use serde::Serialize;
use tokio::time::Instant;

use super::Writer;
use crate::refusal_counts::RefusalKey;
use crate::store::{CollectorCheckpoint, SinkError, note_failure};

/// Progress of a collector that drained and stops. It is the latest time that fits the store's type (the year 2200), so
/// no roll-up waits for it.
const PASSED_FOR_EVER_MS: i64 = 7_258_118_400_000;
/// The longest pause between two rows of an idle collector.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// The progress published last.
#[derive(Debug)]
pub(crate) struct PublishedProgress {
    bucket: u64,
    at: Instant,
}

/// A row of `report_outcomes`: the number of reports with an outcome, in a bucket (seconds since 1970).
#[derive(Debug, Clone, Default, PartialEq, Row, Serialize)]
pub(crate) struct RefusalCountRow {
    bucket: u32,
    collector_id: u64,
    app_id: String,
    environment: String,
    outcome: String,
    reports: u64,
}

impl RefusalCountRow {
    fn of(key: RefusalKey, collector_id: u64, reports: u64) -> Self {
        Self {
            bucket: key.bucket,
            collector_id,
            app_id: key.app_id,
            environment: key.environment,
            outcome: key.outcome.to_owned(),
            reports,
        }
    }
}

impl Writer {
    /// Publishes progress if it is due, and counts of refused reports. A failure does not stop the writer: the next
    /// round repeats it.
    pub(super) async fn publish_state(&mut self, is_leaving: bool) {
        let context = &self.context;
        let bucket = self.checkpoint.time_us / 1_000_000 / context.bucket().as_secs().max(1);
        let heartbeat = HEARTBEAT.min(context.config.rollup.collector_timeout() / 4);
        let is_due = |published: &PublishedProgress| {
            published.bucket != bucket || published.at.elapsed() >= heartbeat
        };
        if is_leaving || self.published.as_ref().is_none_or(is_due) {
            match self.publish(is_leaving).await {
                Ok(()) => {
                    context.metrics.store_up.set(1);
                    self.published = Some(PublishedProgress {
                        bucket,
                        at: Instant::now(),
                    });
                }
                Err(error) => {
                    context.metrics.store_up.set(0);
                    note_failure(&context.metrics, "collector_checkpoints", &error);
                }
            }
        }
        if let Err(error) = self.flush_refusals().await {
            note_failure(&self.context.metrics, "report_outcomes", &error);
        }
    }

    /// Publishes this collector's progress before its first report. If the store is away, this happens later. Reports
    /// that fall into a closed bucket then lead to its rebuild.
    pub(crate) async fn begin(&mut self) {
        let (complete_until_us, mark) = self.context.wal.watermark();
        if self.checkpoint.offset >= mark {
            self.checkpoint.time_us = self.checkpoint.time_us.max(complete_until_us);
        }
        self.show_progress();
        self.publish_state(false).await;
    }

    async fn publish(&self, is_leaving: bool) -> Result<(), SinkError> {
        let passed = i64::try_from(self.checkpoint.time_us / 1000).unwrap_or(i64::MAX);
        let row = CollectorCheckpoint {
            collector_id: self.context.collector_id(),
            passed_until: if is_leaving {
                PASSED_FOR_EVER_MS
            } else {
                passed
            },
            updated_at: self.context.now_ms(),
        };
        let sink = &self.context.sink;
        sink.insert::<CollectorCheckpoint>("collector_checkpoints", &[row], None)
            .await
    }

    /// Sends the rows that the store did not take last time, under their token, then the counts since then. It sends
    /// both, because after a stop no round follows.
    async fn flush_refusals(&mut self) -> Result<(), SinkError> {
        self.send_refusals().await?;
        let counts = self.context.refusals.take();
        let collector_id = self.context.collector_id();
        let rows: Vec<RefusalCountRow> = counts
            .into_iter()
            .map(|(key, reports)| RefusalCountRow::of(key, collector_id, reports))
            .collect();
        let (id, now_us) = (self.context.wal.collector_id(), self.context.clock.now_us());
        let token = format!("{id}-outcomes-{now_us}");
        self.pending_refusals = (!rows.is_empty()).then_some((token, rows));
        self.send_refusals().await
    }

    async fn send_refusals(&mut self) -> Result<(), SinkError> {
        if let Some((token, rows)) = &self.pending_refusals {
            let sink = &self.context.sink;
            sink.insert::<RefusalCountRow>("report_outcomes", rows, Some(token))
                .await?;
            self.pending_refusals = None;
        }
        Ok(())
    }
}
