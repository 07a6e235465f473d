//! Closes buckets. Once every collector's checkpoint has passed a bucket's end, no further report falls into it. Then
//! its summary is built from rows counted once. `collector.rs` calls it on a timer; the workers of rebuilds and of
//! deletions call it to build summaries again.
//!
//! The order of steps makes an interrupted build and two builders at once harmless. First the bucket's surplus copies
//! are listed. Then the summary is written under a new revision, the revision is published, and the watermark moves.
//! Readers use the latest published revision. Finally the builder checks for rows that arrived during the build, and
//! records the check. If that record is missing, the next builder rebuilds those buckets, one at a time.
//!
//! If a bucket cannot be built even alone, it holds up the others for [`TRIES`] attempts only. Then it is closed
//! without a summary, and its rebuild is requested as after a backlog. Until then the views of summaries lack it, and
//! an alert says so.
//!
//! A collector that comes back with a backlog writes into closed buckets. Its writer requests their rebuild before its
//! checkpoint moves, and [`crate::rebuilds`] carries it out.
//!
//! A replica may show rows late, and a summary lacks rows that its builder could not see. So a step that reads rows of
//! the step before waits until they are visible. And [`recheck`] compares each build with its rows once more after
//! `rollup.recheck_after`.

mod recheck;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::context::Context;
use crate::rebuild_requests;
use crate::store::{CollectorCheckpoint, SinkError, note_failure};

/// Number of buckets closed in one build, so that a build after a long pause stays small.
pub(crate) const MAX_BUCKETS: usize = 48;

/// Failed builds of one bucket before it is closed without a summary. A store that is overloaded only for a moment does
/// not leave a bucket without one.
const TRIES: u32 = 3;

/// For each bucket that is to be closed, how often its build failed.
pub(crate) type FailedBuilds = BTreeMap<u32, u32>;

/// Inputs of the decision how many buckets can be closed; times in seconds since 1970.
#[derive(Debug)]
struct ClosingState {
    /// Buckets that start before this are closed.
    closed_until: u64,
    /// Start of the first open bucket with reports.
    first_open: Option<u64>,
    collectors: Vec<CollectorCheckpoint>,
}

/// Returns the buckets that can be closed, as a range of start times in seconds.
fn closable(
    state: &ClosingState,
    now_us: u64,
    bucket: Duration,
    collector_timeout: Duration,
) -> Option<Range<u64>> {
    let now_ms = i64::try_from(now_us / 1000).unwrap_or(i64::MAX);
    let timeout_ms = i64::try_from(collector_timeout.as_millis()).unwrap_or(i64::MAX);
    // The latest rows may not be visible yet, so a collector's silence is measured from the latest visible row of any
    // collector.
    let heard = state.collectors.iter().map(|c| c.updated_at).max()?;
    let silent = now_ms.min(heard).saturating_sub(timeout_ms);
    let is_waited_for = |c: &&CollectorCheckpoint| c.updated_at > silent;
    let passed = state
        .collectors
        .iter()
        .filter(is_waited_for)
        .map(|c| c.passed_until)
        .min()?;
    let length = bucket.as_secs();
    // A collector that drained and stopped has passed all times, so the present is the limit then.
    let passed_secs = u64::try_from(passed.min(now_ms)).ok()? / 1000;
    let end = passed_secs - passed_secs % length;
    // Empty buckets need no summary: the range begins at the first reports.
    let start = state.first_open.unwrap_or(end).max(state.closed_until);
    let start = start - start % length;
    let end = end.min(start.saturating_add(length * MAX_BUCKETS as u64));
    (end > state.closed_until && end >= start).then_some(start..end)
}

/// Returns a revision above the latest one and above `last_ms`, even if the clock was set back: readers use the highest
/// revision. The collector's id keeps revisions of two collectors apart.
fn revision_after(last_ms: u64, now_ms: u64, latest: u64, collector_id: u64) -> u64 {
    let ms = now_ms.max((latest >> 16) + 1).max(last_ms + 1);
    (ms << 16) | (collector_id & 0xffff)
}

/// Time of this process's latest revision. The workers may build the same bucket in the same millisecond,
/// and rows of two builds under one revision would count twice.
static LAST_MS: AtomicU64 = AtomicU64::new(0);

/// Returns a [`revision_after`] all earlier revisions of this process.
fn next_revision(now_ms: u64, latest: u64, collector_id: u64) -> u64 {
    let after = |last_ms| revision_after(last_ms, now_ms, latest, collector_id);
    let last_ms = LAST_MS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last_ms| {
        Some(after(last_ms) >> 16)
    });
    after(last_ms.expect("there is always a next one"))
}

/// Result of the check of closed buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckProgress {
    /// All closed buckets are checked.
    Done,
    /// One bucket was rebuilt; others may remain.
    GoesOn,
    /// The check failed and is to be tried again.
    Failed,
}

/// Slices of buckets that were built again.
#[derive(Debug)]
pub(crate) struct Rebuilt {
    pub(crate) slices: u64,
    /// Slices that could not be built: the bucket, the slice and the reason.
    pub(crate) failed: Vec<(u32, u8, SinkError)>,
}

/// Builds the summaries of one collector.
#[derive(Debug, Clone)]
pub(crate) struct RollUp {
    pub(crate) context: Arc<Context>,
}

/// A condition in SQL: one of these buckets, by start time in seconds.
pub(crate) fn among(buckets: impl IntoIterator<Item = u32>) -> String {
    let times = buckets
        .into_iter()
        .map(|bucket| format!("toDateTime({bucket}, 'UTC')"));
    format!("bucket IN ({})", times.collect::<Vec<_>>().join(", "))
}

impl RollUp {
    /// Buckets that start before this time (seconds since 1970) may have lost reports, and keep their summary. It is a
    /// day less than the retention, because whole days expire at once. A shorter retention of the store also counts,
    /// and so does an earlier TTL that may have removed reports ([`crate::schema::retention`]).
    pub(crate) async fn raw_since(&self) -> Result<u64, SinkError> {
        const DAY: Duration = Duration::from_secs(86_400);
        let sql = "SELECT argMax(raw_retention.raw_days, changed_at) AS raw_days, \
                   toUInt32(max(raw_retention.whole_since)) AS whole_since \
                   FROM raw_retention HAVING count() > 0";
        let changed = self.first::<(u16, u32)>("raw_retention", sql).await?;
        let mut kept = self.context.config.raw_retention.0;
        let mut whole_since = 0;
        if let Some((raw_days, since)) = changed {
            kept = kept.min(DAY * u32::from(raw_days));
            whole_since = u64::from(since);
        }
        let now = self.context.clock.now_us() / 1_000_000;
        let since = now.saturating_sub(kept.saturating_sub(DAY).as_secs());
        Ok(since.max(whole_since))
    }

    /// Closes buckets. Returns whether more may be closable at once.
    pub(crate) async fn close_buckets(&self, failed: &mut FailedBuilds) -> Result<bool, SinkError> {
        if let Err(error) = self.recheck().await {
            note_failure(&self.context.metrics, "rollup_recheck", &error);
        }
        let state = self.state().await?;
        let look = self
            .check(state.closed_until)
            .await
            .unwrap_or_else(|error| {
                // A failed check must not stop the next buckets.
                note_failure(&self.context.metrics, "rollup_check", &error);
                CheckProgress::Failed
            });
        let now_us = self.context.clock.now_us();
        let rollup = &self.context.config.rollup;
        let bucket = rollup.bucket.0;
        let Some(mut range) = closable(&state, now_us, bucket, rollup.collector_timeout()) else {
            return Ok(look == CheckProgress::GoesOn);
        };
        // The condition begins at the watermark, because the buckets before the range's first report are empty.
        let since = format!("bucket >= toDateTime({}, 'UTC')", state.closed_until);
        let until = |end: u64| format!("{since} AND bucket < toDateTime({end}, 'UTC')");
        let has_reports = state.first_open.is_some_and(|first| first < range.end);
        let mut within = until(range.end);
        let mut rows_before = Some(self.n_rows(&within).await?);
        self.note_build(state.closed_until, range.end, rows_before.unwrap_or(0))
            .await?;
        let mut unbuilt = BTreeSet::new();
        if !range.is_empty() && has_reports {
            self.name_surplus(&within, range.end).await?;
            if let Err(error) = self.build(&within, "closed").await {
                note_failure(&self.context.metrics, "rollup", &error);
                let all = range.end;
                (range.end, unbuilt) = self.build_each(range.clone(), failed).await?;
                if range.end < all {
                    within = until(range.end);
                    // For this smaller range the number of rows before the build is unknown, so its buckets are rebuilt
                    // below.
                    rows_before = None;
                }
            }
        }
        failed.retain(|bucket, _| u64::from(*bucket) >= range.end);
        let sql = format!(
            "INSERT INTO rollup_watermark (closed_until, closed_at) \
             SELECT toDateTime({}, 'UTC'), fromUnixTimestamp64Milli(toInt64({}), 'UTC')",
            range.end,
            now_us / 1000
        );
        self.context.sink.execute("rollup_watermark", &sql).await?;
        if !unbuilt.is_empty() {
            // Requests the rebuilds before the buckets count as checked, so that a crash here loses none.
            rebuild_requests::request(&self.context, &unbuilt).await?;
        }
        // A silent collector may have stored reports here during the build. It reads the watermark after its insert.
        // Either it finds this watermark and rebuilds the buckets itself, or its rows are found now.
        if Some(self.n_rows(&within).await?) != rows_before {
            let sql =
                format!("SELECT DISTINCT toUInt32(bucket) AS seconds FROM reports WHERE {within}");
            let buckets = self.context.sink.fetch::<u32>("reports", &sql).await?;
            let buckets = BTreeSet::from_iter(buckets);
            let raw_since = self.raw_since().await?;
            self.build_again(&buckets, raw_since, "check").await?;
        }
        // The record would also cover earlier buckets, so it is written only if they are checked.
        if look == CheckProgress::Done {
            self.note_checked(range.end).await?;
        }
        let n_buckets = (range.end - range.start) / bucket.as_secs();
        self.context.metrics.buckets_closed.inc_by(n_buckets);
        Ok(n_buckets == MAX_BUCKETS as u64 || look == CheckProgress::GoesOn)
    }

    /// Builds the buckets of a range one by one, after the attempt to build them together failed. Returns the end of
    /// the buckets that can be closed, and the buckets that close without a summary because their builds failed too
    /// often.
    ///
    /// # Errors
    /// The first bucket cannot be built, and is tried again.
    async fn build_each(
        &self,
        range: Range<u64>,
        failed: &mut FailedBuilds,
    ) -> Result<(u64, BTreeSet<u32>), SinkError> {
        let mut unbuilt = BTreeSet::new();
        let length = self.context.bucket().as_secs();
        let mut at = range.start;
        while at < range.end {
            let bucket = u32::try_from(at).unwrap_or(u32::MAX);
            if let Err(error) = self.build(&among([bucket]), "closed").await {
                let tries = failed.entry(bucket).or_insert(0);
                *tries += 1;
                if *tries < TRIES && at == range.start {
                    return Err(error);
                }
                note_failure(&self.context.metrics, "rollup", &error);
                if *tries < TRIES {
                    break;
                }
                tracing::error!(
                    bucket,
                    "the summary of a bucket cannot be built: charts lack its reports; it is tried again"
                );
                unbuilt.insert(bucket);
            }
            at += length;
        }
        Ok((at.min(range.end), unbuilt))
    }

    /// Rebuilds a bucket whose builder stopped, or may stop, before it checked for rows that arrived during the build.
    /// It rebuilds one bucket per call, so that closing goes on.
    async fn check(&self, closed_until: u64) -> Result<CheckProgress, SinkError> {
        let sql = "SELECT toUInt32(max(checked_until)) AS seconds FROM rollup_checks \
                   HAVING count() > 0";
        let recorded = self.first::<u32>("rollup_checks", sql).await?;
        // Without a record, closed buckets count as checked.
        let checked = recorded.map_or(closed_until, u64::from);
        let raw_since = self.raw_since().await?;
        let since = checked.max(raw_since);
        if let Some(bucket) = self.first_with_reports(since, closed_until).await? {
            let alone = BTreeSet::from([bucket]);
            self.build_or_request(&alone, raw_since, "check").await?;
            self.note_checked(u64::from(bucket) + 1).await?;
            return Ok(CheckProgress::GoesOn);
        }
        if recorded.is_none() || checked < closed_until {
            self.note_checked(closed_until).await?;
        }
        Ok(CheckProgress::Done)
    }

    /// The first bucket with reports in a range of start times.
    async fn first_with_reports(&self, since: u64, end: u64) -> Result<Option<u32>, SinkError> {
        if since >= end {
            return Ok(None);
        }
        let sql = format!(
            "SELECT toUInt32(min(bucket)) AS seconds FROM reports \
             WHERE bucket >= toDateTime({since}, 'UTC') AND bucket < toDateTime({end}, 'UTC') \
             HAVING count() > 0"
        );
        self.first("reports", &sql).await
    }

    async fn first<T>(&self, what: &str, sql: &str) -> Result<Option<T>, SinkError>
    where
        T: clickhouse::RowOwned + clickhouse::RowRead,
    {
        self.context.sink.first(what, sql).await
    }

    async fn note_checked(&self, until: u64) -> Result<(), SinkError> {
        let sql = format!(
            "INSERT INTO rollup_checks (checked_until, checked_at) \
             SELECT toDateTime({until}, 'UTC'), fromUnixTimestamp64Milli(toInt64({}), 'UTC')",
            self.context.now_ms()
        );
        self.context.sink.execute("rollup_checks", &sql).await
    }

    async fn n_rows(&self, within: &str) -> Result<u64, SinkError> {
        let sql = format!("SELECT count() AS n FROM reports WHERE {within}");
        Ok(self.first("reports", &sql).await?.unwrap_or(0))
    }

    /// Rebuilds the closed buckets that a backlog's reports in `buckets` (start times in seconds) change. A bucket
    /// whose reports may have expired keeps its summary, and is counted and logged.
    pub(crate) async fn rebuild(&self, buckets: &BTreeSet<u32>) -> Result<(), SinkError> {
        let raw_since = self.raw_since().await?;
        self.build_again(buckets, raw_since, "backlog").await?;
        let is_too_old = |bucket: &&u32| u64::from(**bucket) < raw_since;
        let too_old = buckets.iter().filter(is_too_old).count();
        if too_old > 0 {
            let metrics = &self.context.metrics;
            metrics.buckets_incomplete.inc_by(too_old as u64);
            tracing::error!(
                buckets = too_old,
                "a backlog came too late for the summaries of its buckets: some of their reports have expired"
            );
        }
        Ok(())
    }

    /// Does the same as [`Self::build_again`]. If that fails, requests the rebuild, so that these buckets hold up no
    /// others.
    ///
    /// # Errors
    /// The store did not take the request.
    async fn build_or_request(
        &self,
        buckets: &BTreeSet<u32>,
        raw_since: u64,
        reason: &'static str,
    ) -> Result<(), SinkError> {
        let Err(error) = self.build_again(buckets, raw_since, reason).await else {
            return Ok(());
        };
        note_failure(&self.context.metrics, "rollup_check", &error);
        rebuild_requests::request(&self.context, buckets).await
    }

    /// Rebuilds the closed buckets among `buckets`, and buckets that so far counted another copy of their reports.
    /// Buckets before `raw_since` keep their summaries, because their reports may have expired.
    async fn build_again(
        &self,
        buckets: &BTreeSet<u32>,
        raw_since: u64,
        reason: &'static str,
    ) -> Result<(), SinkError> {
        let closed_until = self.closed_until().await?;
        let is_closed = |bucket: &u32| u64::from(*bucket) < closed_until;
        if !buckets.iter().any(is_closed) {
            return Ok(());
        }
        let is_whole = |bucket: &u32| is_closed(bucket) && u64::from(*bucket) >= raw_since;
        let within = among(buckets.iter().copied().filter(is_closed));
        self.name_surplus(&within, closed_until).await?;
        let sql = format!(
            "SELECT DISTINCT toUInt32(bucket) AS seconds FROM report_copies \
             WHERE bucket < toDateTime({closed_until}, 'UTC') \
             AND bucket >= toDateTime({raw_since}, 'UTC') \
             AND (app_id, installation, stream_id, sequence) IN \
             (SELECT app_id, installation, stream_id, sequence FROM report_copies WHERE {within}) \
             ORDER BY seconds"
        );
        let sink = &self.context.sink;
        let affected = sink.fetch::<u32>("affected buckets", &sql).await?;
        // The buckets are added themselves, because their reports may not be visible yet.
        let own = buckets.iter().copied().filter(is_whole);
        let affected = BTreeSet::from_iter(affected.into_iter().chain(own));
        let affected = Vec::from_iter(affected);
        for some in affected.chunks(MAX_BUCKETS) {
            self.note_builds(some).await?;
            self.build(&among(some.iter().copied()), reason).await?;
        }
        tracing::info!(
            buckets = affected.len(),
            reason,
            "built closed buckets again"
        );
        Ok(())
    }

    /// Rebuilds every slice of a bucket that counted one of `installations` (SQL), unless its reports may have expired.
    /// A slice that cannot be built does not hold up the others.
    ///
    /// This includes open buckets. A bucket that is just being closed may have been read before they were hidden, under
    /// an older revision.
    pub(crate) async fn rebuild_without(&self, installations: &str) -> Result<Rebuilt, SinkError> {
        let raw_since = self.raw_since().await?;
        let sql = format!(
            "SELECT DISTINCT toUInt32(bucket) AS seconds, epwatch_slice(installation) AS slice \
             FROM report_copies WHERE installation IN ({installations}) \
             AND bucket >= toDateTime({raw_since}, 'UTC') ORDER BY slice, seconds"
        );
        let sink = &self.context.sink;
        let affected = sink.fetch::<(u32, u8)>("affected slices", &sql).await?;
        let mut failed = Vec::new();
        for same_slice in affected.chunk_by(|a, b| a.1 == b.1) {
            for some in same_slice.chunks(MAX_BUCKETS) {
                let some_buckets: Vec<u32> = some.iter().map(|(bucket, _)| *bucket).collect();
                self.note_builds(&some_buckets).await?;
                let slice = some[0].1;
                let within = |buckets| format!("{} AND slice = {slice}", among(buckets));
                let Err(error) = self.build(&within(some_buckets.clone()), "deletion").await else {
                    continue;
                };
                note_failure(&self.context.metrics, "tombstones", &error);
                for bucket in some_buckets {
                    if let Err(error) = self.build(&within(vec![bucket]), "deletion").await {
                        failed.push((bucket, slice, error));
                    }
                }
            }
        }
        Ok(Rebuilt {
            slices: (affected.len() - failed.len()) as u64,
            failed,
        })
    }

    async fn state(&self) -> Result<ClosingState, SinkError> {
        let closed_until = self.closed_until().await?;
        let sql = format!(
            "SELECT toUInt32(min(bucket)) AS seconds FROM report_copies \
             WHERE bucket >= toDateTime({closed_until}, 'UTC') HAVING count() > 0"
        );
        let first_open = self.first::<u32>("first open bucket", &sql).await?;
        let sql = "SELECT collector_id, argMax(collector_checkpoints.passed_until, \
                   collector_checkpoints.updated_at) \
                   AS passed_until, max(collector_checkpoints.updated_at) AS updated_at \
                   FROM collector_checkpoints GROUP BY collector_id";
        Ok(ClosingState {
            closed_until,
            first_open: first_open.map(u64::from),
            collectors: self
                .context
                .sink
                .fetch("collector_checkpoints", sql)
                .await?,
        })
    }

    /// Buckets that start before this time (seconds since 1970) are closed.
    pub(crate) async fn closed_until(&self) -> Result<u64, SinkError> {
        let sql = "SELECT toUInt32(max(closed_until)) AS seconds FROM rollup_watermark";
        let until = self.first::<u32>("rollup_watermark", sql).await?;
        Ok(until.map_or(0, u64::from))
    }

    /// Lists the surplus copies of every key with a copy `within`, in buckets that start before `end`. Then lists the
    /// rows `within` that repeat an earlier row of their copy.
    pub(crate) async fn name_surplus(&self, within: &str, end: u64) -> Result<(), SinkError> {
        let surplus = format!(
            "WITH keys AS (SELECT app_id, installation, stream_id, sequence FROM report_copies \
                           WHERE {within}) \
             SELECT bucket, collector_id, wal_offset FROM report_copies \
             WHERE bucket < toDateTime({end}, 'UTC') \
             AND (app_id, installation, stream_id, sequence) IN keys \
             AND (app_id, installation, stream_id, sequence, received_at, collector_id, wal_offset) NOT IN \
             (SELECT app_id, installation, stream_id, sequence, \
                     (min((received_at, collector_id, wal_offset)) AS first).1, first.2, first.3 \
              FROM report_copies WHERE (app_id, installation, stream_id, sequence) IN keys \
              GROUP BY app_id, installation, stream_id, sequence)"
        );
        let columns = "bucket, collector_id, wal_offset";
        self.list("surplus_copies", columns, &surplus).await?;
        let repeated = format!(
            "SELECT bucket, collector_id, wal_offset, _block_number AS block_number, \
                    _block_offset AS block_offset FROM reports \
             WHERE {within} AND (collector_id, wal_offset) IN (\
                 SELECT collector_id, wal_offset FROM reports WHERE {within} \
                 GROUP BY collector_id, wal_offset HAVING count() > 1) \
             ORDER BY _block_number, _block_offset LIMIT 1, 1000000 BY collector_id, wal_offset"
        );
        let columns = "bucket, collector_id, wal_offset, block_number, block_offset";
        self.list("repeated_rows", columns, &repeated).await
    }

    /// Inserts the selected rows into a table that the next statement reads, and returns once the table shows all of
    /// them. Rows that become visible meanwhile may belong there too, so the insert is repeated.
    async fn list(&self, table: &str, columns: &str, select: &str) -> Result<(), SinkError> {
        let sink = &self.context.sink;
        let any = format!("SELECT count() AS n FROM ({select})");
        if self.first::<u64>(table, &any).await? == Some(0) {
            return Ok(());
        }
        let lacking = format!(
            "FROM ({select}) WHERE ({columns}) NOT IN (\
             SELECT {columns} FROM {table} WHERE ({columns}) IN ({select}))"
        );
        let insert = format!("INSERT INTO {table} ({columns}) SELECT {columns} {lacking}");
        let n_lacking = format!("SELECT count() AS n {lacking}");
        sink.repeat_until_none(table, &insert, &n_lacking).await
    }

    /// Writes and publishes the summary of the buckets `within`. A deletion meanwhile builds them too, by another
    /// clock, and either summary may have the higher revision. So slices with newly hidden installations are rebuilt.
    async fn build(&self, within: &str, reason: &str) -> Result<(), SinkError> {
        let mut before = self.hidden().await?;
        self.build_once(within, reason).await?;
        loop {
            let after = self.hidden().await?;
            let touched = after.difference(&before);
            let touched: Vec<String> = touched.map(|(slice, _)| slice.to_string()).collect();
            if touched.is_empty() {
                return Ok(());
            }
            let slices = format!("{within} AND slice IN ({})", touched.join(", "));
            self.build_once(&slices, "deletion").await?;
            before = after;
        }
    }

    /// The hidden installations of each slice, as one number that changes with them.
    async fn hidden(&self) -> Result<BTreeSet<(u8, u64)>, SinkError> {
        let sql = "SELECT epwatch_slice(installation) AS slice, \
                   sum(DISTINCT cityHash64(installation)) AS n \
                   FROM hidden_installations GROUP BY slice";
        let what = "hidden_installations";
        let rows = self.context.sink.fetch::<(u8, u64)>(what, sql).await?;
        Ok(rows.into_iter().collect())
    }

    async fn build_once(&self, within: &str, reason: &str) -> Result<(), SinkError> {
        let sink = &self.context.sink;
        let now_ms = self.context.clock.now_us() / 1000;
        let sql = format!("SELECT max(revision) AS n FROM bucket_revisions WHERE {within}");
        let latest = self.first("bucket_revisions", &sql).await?.unwrap_or(0);
        // The revision contains the collector's id, so that two collectors' revisions of the same millisecond differ.
        let revision = next_revision(now_ms, latest, self.context.collector_id());
        for (table, columns) in SUMMARIES {
            let sql = format!(
                "INSERT INTO {table} ({columns}, revision) \
                 SELECT {columns}, toUInt64({revision}) FROM {table}_fresh_v1 WHERE {within}"
            );
            sink.execute(table, &sql).await?;
        }
        // The slices are read from the reports, because the summary's rows may not be visible yet. A slice whose last
        // report was erased has no reports now, and also needs a new revision.
        let slice = "app_id, environment, bucket, slice";
        let sql = format!(
            "INSERT INTO bucket_revisions ({slice}, revision, reason, built_at) \
             SELECT DISTINCT {slice}, toUInt64({revision}), '{reason}', \
                    fromUnixTimestamp64Milli(toInt64({now_ms}), 'UTC') FROM (\
             SELECT {slice} FROM (SELECT app_id, environment, bucket, epwatch_slice(installation) AS slice \
                                  FROM reports) WHERE {within} \
             UNION ALL \
             SELECT {slice} FROM bucket_revisions WHERE {within})"
        );
        sink.execute("bucket_revisions", &sql).await
    }
}

/// The summary tables, and the columns that their `_fresh_v1` views have too.
const SUMMARIES: [(&str, &str); 2] = [
    (
        "cohort_buckets",
        "app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, \
         app_version, runtime, shape_key, fingerprint_normalised, context, hist_scheme, algo, \
         devices, n, sum_us, m2_us2, device_square, min_us, max_us, hist",
    ),
    (
        "cohort_sessions",
        "app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, \
         app_version, runtime, requests_npu, graph_kind, placement_source, \
         fingerprint_algorithm, fingerprint_exact, fingerprint_normalised, algo, sessions, \
         devices, n_nodes, npu_nodes, cpu_nodes, cpu_benign_nodes, npu_partitions, npu_macs_share, \
         macs_attributed, requested_eps, selection_policy, ep_devices, directed_sessions, reasons",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const TIMEOUT: Duration = Duration::from_secs(600);

    /// Collectors as (passed until, updated at) in seconds; the time is 10,000 s.
    #[track_caller]
    fn check(
        closed_until: u64,
        first_open: Option<u64>,
        collectors: &[(i64, i64)],
        expected: Option<Range<u64>>,
    ) {
        let collectors = collectors
            .iter()
            .zip(1..)
            .map(|(&(passed, heard), collector_id)| CollectorCheckpoint {
                collector_id,
                passed_until: passed * 1000,
                updated_at: heard * 1000,
            });
        let state = ClosingState {
            closed_until,
            first_open,
            collectors: collectors.collect(),
        };
        assert_eq!(closable(&state, 10_000_000_000, MINUTE, TIMEOUT), expected);
    }

    #[test]
    fn the_slowest_collector_decides() {
        check(
            0,
            Some(9_000),
            &[(9_990, 9_995), (9_550, 9_990)],
            Some(9_000..9_540),
        );
    }

    #[test]
    fn a_bucket_is_closed_only_when_its_end_is_passed() {
        check(9_540, Some(9_540), &[(9_599, 9_995)], None);
        check(9_540, Some(9_540), &[(9_600, 9_995)], Some(9_540..9_600));
    }

    #[test]
    fn a_collector_that_went_silent_is_not_waited_for() {
        check(
            0,
            Some(9_000),
            &[(9_990, 9_995), (100, 9_300)],
            Some(9_000..9_960),
        );
    }

    /// The store does not show the rows of the last ten minutes.
    #[test]
    fn silence_is_measured_by_the_latest_row_of_any_collector() {
        let late = [(9_290, 9_300), (8_990, 9_295)];
        check(0, Some(8_040), &late, Some(8_040..8_940));
        check(0, Some(9_000), &[(9_290, 9_300)], Some(9_000..9_240));
        // A collector whose clock is ahead does not make other collectors look silent.
        let ahead = [(9_990, 99_999), (9_550, 9_990)];
        check(0, Some(9_000), &ahead, Some(9_000..9_540));
    }

    #[test]
    fn without_collectors_nothing_closes_and_the_future_never_does() {
        check(0, Some(9_000), &[], None);
        check(9_900, Some(9_900), &[(99_999, 9_999)], Some(9_900..9_960));
    }

    #[test]
    fn revisions_grow_whatever_the_clock_says() {
        let first = revision_after(0, 1_000, 0, 7);
        let set_back = revision_after(0, 10, first, 7);
        assert!(set_back > first);
        assert!(revision_after(0, 2_000, set_back, 7) > set_back);
    }

    /// Two builds of the same bucket in the same millisecond.
    #[test]
    fn revisions_tell_builders_apart() {
        let of = |last_ms, collector_id| revision_after(last_ms, 1_000, 0, collector_id);
        assert_ne!(of(999, 7), of(999, 8));
        assert_ne!(of(999, 7), of(1_000, 7));
        assert_ne!(next_revision(1_000, 0, 7), next_revision(1_000, 0, 7));
    }

    #[test]
    fn empty_time_is_closed_without_a_build_and_long_time_in_steps() {
        check(60, None, &[(9_990, 9_995)], Some(9_960..9_960));
        check(0, Some(60), &[(9_990, 9_995)], Some(60..60 + 48 * 60));
    }
}
