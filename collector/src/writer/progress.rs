//! What a collector says to the store about itself: how far it is, and how many reports it refused.

use std::time::Duration;

use tokio::time::Instant;

use super::Writer;
use crate::encode::OutcomeRow;
use crate::store::{CollectorCheckpoint, SinkError, note_failure};

/// How long a collector that is leaving says it will not hold anyone up: for ever, as the store's
/// time type has it (the year 2200).
const PASSED_FOR_EVER_MS: i64 = 7_258_118_400_000;
/// The longest silence of a collector that has nothing to say.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// What was last said of this collector's progress.
#[derive(Debug)]
pub(crate) struct PublishedProgress {
    bucket: u64,
    at: Instant,
}

impl Writer {
    /// Says how far the store is, and what was refused meanwhile. Failures are no reason to hold
    /// up reports: the next round says it again.
    pub(super) async fn tell_store(&mut self, is_leaving: bool) {
        let bucket = self.checkpoint.time_us / 1_000_000 / self.bucket.as_secs().max(1);
        let heartbeat = HEARTBEAT.min(self.collector_timeout / 4);
        let is_due = |published: &PublishedProgress| {
            published.bucket != bucket || published.at.elapsed() >= heartbeat
        };
        if is_leaving || self.published.as_ref().is_none_or(is_due) {
            let told = self.publish(is_leaving).await;
            match told {
                Ok(()) => {
                    self.metrics.store_up.set(1);
                    self.published = Some(PublishedProgress {
                        bucket,
                        at: Instant::now(),
                    });
                }
                Err(error) => {
                    self.metrics.store_up.set(0);
                    note_failure(&self.metrics, "collector_checkpoints", &error);
                }
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
        self.show_progress();
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

    /// Sends what the store did not take the last time, under its token, and then what was counted since:
    /// after a stop there is no next round.
    async fn flush_outcomes(&mut self) -> Result<(), SinkError> {
        self.send_outcomes().await?;
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
        self.send_outcomes().await
    }

    async fn send_outcomes(&mut self) -> Result<(), SinkError> {
        if let Some((token, rows)) = &self.pending_outcomes {
            self.sink
                .insert::<OutcomeRow>("report_outcomes", rows, Some(token))
                .await?;
            self.pending_outcomes = None;
        }
        Ok(())
    }
}
