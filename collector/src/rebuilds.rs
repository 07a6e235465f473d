//! Builds summaries of closed buckets again. Either a collector stored a backlog in these buckets, or their summaries
//! could not be built before. The writer and the roll-up record such buckets in `rebuild_requests` and go on; the
//! writer does so before its checkpoint moves. The worker here builds them. After a failure only that bucket has a
//! pause, which grows with each failure. So a bucket that cannot be built holds up neither ingest nor another bucket.
//!
//! A collector builds its own requests at once. It builds other collectors' requests once they are old, because their
//! collector may be gone. Two builders of one bucket are harmless.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clickhouse::Row;
use serde::Deserialize;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::rebuild_requests::{RequestRow, insert, request, show_oldest};
use crate::rollup::{MAX_BUCKETS, RollUp, among};
use crate::store::{SinkError, note_failure};
use epwatch_server::Backoff;

/// The first pause after a failure of a bucket.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Pause between reads of all collectors' requests, and the longest pause while they cannot be read.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Number of requests read at once, the oldest first; the next round reads the rest.
const AT_ONCE: usize = 10_000;
/// How long a stop works on the requests that its drain left; the rest follows after the next start.
const LAST_TRY: Duration = Duration::from_secs(5);

/// A row of `open_rebuilds_v1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Row, Deserialize)]
struct OpenRequest {
    bucket: u32,
    collector_id: u64,
    asked_at: i64,
}

/// Records that the closed buckets among `buckets` (start times in seconds) have to be built again, because reports
/// were just stored in them.
///
/// # Errors
/// The store did not answer; perhaps nothing was recorded.
pub(crate) async fn ask(rollup: &RollUp, buckets: &BTreeSet<u32>) -> Result<(), SinkError> {
    // The watermark is read after the reports were stored, so a bucket that closes from now on is built with them.
    let closed_until = rollup.closed_until().await?;
    let is_closed = |bucket: &u32| u64::from(*bucket) < closed_until;
    let closed: BTreeSet<u32> = buckets.iter().copied().filter(is_closed).collect();
    if closed.is_empty() {
        return Ok(());
    }
    // Surplus copies are listed at once, because views over raw reports count such a copy of a closed bucket until it
    // is listed. If this fails, the worker lists them later.
    let within = among(closed.iter().copied());
    if let Err(error) = rollup.name_surplus(&within, closed_until).await {
        note_failure(&rollup.context.metrics, "rebuild", &error);
    }
    request(&rollup.context, &closed).await
}

/// Builds the requested summaries.
#[derive(Debug)]
pub(crate) struct RebuildWorker {
    rollup: RollUp,
    /// Buckets that could not be built, each with the pause after its next failure and the time of its next try.
    failed: BTreeMap<u32, (Backoff, Instant)>,
}

impl RebuildWorker {
    pub(crate) fn new(rollup: RollUp) -> Self {
        Self {
            rollup,
            failed: BTreeMap::new(),
        }
    }

    /// Builds requested summaries until `stop` is cancelled. Then waits for `drained`, and for a short time builds what
    /// the writer requested until then.
    pub(crate) async fn run(mut self, stop: CancellationToken, drained: CancellationToken) {
        self.work_until(&stop).await;
        drained.cancelled().await;
        match timeout(LAST_TRY, self.work()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => note_failure(&self.rollup.context.metrics, "rebuild", &error),
            Err(_elapsed) => {
                tracing::warn!("summaries are left to be rebuilt after the next start");
            }
        }
    }

    async fn work_until(&mut self, stop: &CancellationToken) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LOOK_EVERY);
        let context = self.rollup.context.clone();
        loop {
            let pause = tokio::select! {
                worked = self.work() => match worked {
                    Ok(()) => {
                        backoff.reset();
                        self.pause()
                    }
                    Err(error) => {
                        note_failure(&self.rollup.context.metrics, "rebuild", &error);
                        backoff.pause()
                    }
                },
                () = stop.cancelled() => return,
            };
            tokio::select! {
                () = context.rebuild_bell.notified() => {}
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// The time until the requests are read again, or until a failed bucket is tried again.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let next = self.failed.values().map(|(_, next)| *next).min();
        let next = next.map_or(LOOK_EVERY, |next| next.saturating_duration_since(now));
        next.min(LOOK_EVERY)
    }

    /// Builds each open request once, unless its bucket still has a pause.
    async fn work(&mut self) -> Result<(), SinkError> {
        let context = self.rollup.context.clone();
        let open = self.open().await?;
        let buckets: BTreeSet<u32> = open.iter().map(|request| request.bucket).collect();
        self.failed.retain(|bucket, _| buckets.contains(bucket));
        show_oldest(
            &context,
            open.iter().map(|request| request.asked_at).min(),
            false,
        );
        let now_ms = context.now_ms();
        // Another collector's request is due after the time for which the roll-up waits for a silent collector.
        let others_after = context.config.rollup.collector_timeout();
        let others_ms = i64::try_from(others_after.as_millis()).unwrap_or(i64::MAX);
        let is_due = |request: &&OpenRequest| {
            request.collector_id == context.collector_id()
                || request.asked_at.saturating_add(others_ms) <= now_ms
        };
        let is_rested = |bucket: &u32| match self.failed.get(bucket) {
            Some((_, next)) => *next <= Instant::now(),
            None => true,
        };
        let due = open.iter().filter(is_due).map(|request| request.bucket);
        let due: BTreeSet<u32> = due.filter(is_rested).collect();
        let due: Vec<u32> = due.into_iter().collect();
        for some in due.chunks(MAX_BUCKETS) {
            self.build(some, &open).await?;
        }
        if !due.is_empty() {
            let left = self.open().await?;
            show_oldest(
                &context,
                left.iter().map(|request| request.asked_at).min(),
                false,
            );
        }
        Ok(())
    }

    /// The open requests, the oldest first.
    async fn open(&self) -> Result<Vec<OpenRequest>, SinkError> {
        let sql = format!(
            "SELECT toUInt32(bucket) AS bucket, collector_id, toUnixTimestamp64Milli(open_rebuilds_v1.asked_at) AS asked_at \
             FROM open_rebuilds_v1 ORDER BY asked_at, bucket LIMIT {AT_ONCE}"
        );
        let sink = &self.rollup.context.sink;
        sink.fetch::<OpenRequest>("open_rebuilds_v1", &sql).await
    }

    /// Builds some buckets together; if that fails, each by itself.
    async fn build(&mut self, buckets: &[u32], open: &[OpenRequest]) -> Result<(), SinkError> {
        let all = BTreeSet::from_iter(buckets.iter().copied());
        let Err(error) = self.rollup.rebuild(&all).await else {
            return self.note_done(&all, open).await;
        };
        if let [bucket] = buckets {
            self.note_failed(*bucket, &error);
            return Ok(());
        }
        for bucket in all {
            let alone = BTreeSet::from([bucket]);
            match self.rollup.rebuild(&alone).await {
                Ok(()) => self.note_done(&alone, open).await?,
                Err(error) => self.note_failed(bucket, &error),
            }
        }
        Ok(())
    }

    fn note_failed(&mut self, bucket: u32, error: &SinkError) {
        let metrics = &self.rollup.context.metrics;
        note_failure(metrics, "rebuild", error);
        let first = || (Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), Instant::now());
        let (backoff, next) = self.failed.entry(bucket).or_insert_with(first);
        *next = Instant::now() + backoff.pause();
        tracing::error!(
            bucket,
            "the summary of a closed bucket cannot be built and lacks reports; it is tried again"
        );
    }

    /// Closes the requests that were open before the build. A request that came meanwhile stays open.
    async fn note_done(
        &mut self,
        built: &BTreeSet<u32>,
        open: &[OpenRequest],
    ) -> Result<(), SinkError> {
        let context = &self.rollup.context;
        let written_at = context.now_ms();
        let done = open
            .iter()
            .filter(|request| built.contains(&request.bucket));
        let done = done.map(|request| RequestRow {
            bucket: request.bucket,
            collector_id: request.collector_id,
            asked_at: request.asked_at,
            is_done: true,
            written_at,
        });
        insert(context, &done.collect::<Vec<_>>()).await?;
        self.failed.retain(|bucket, _| !built.contains(bucket));
        Ok(())
    }
}
