//! Carries out deletions in the store. Inserts the tombstone of an installation that the store has reports of, and
//! hides it from every view. Then rebuilds summaries that counted it, adds a row to `deletion_log`, and periodically
//! erases the rows. Once the rows are gone for good, views need not hide the installation any more. Each step may be
//! repeated.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clickhouse::Row;
use epwatch_proto::hex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::known::{HiddenRow, IDS_AT_ONCE, IdRow, id_list, received};
use super::{Deletions, Promise, Tombstone};
use crate::context::Context;
use crate::rollup::{Rebuilt, RollUp};
use crate::store::{FIRST_PAUSE, SinkError, note_failure};
use epwatch_server::Backoff;

/// Number of deletions carried out together; the query's text holds their ids.
const AT_ONCE: usize = 500;
/// Number of promises of unknown installations that a refresh looks up again: a million of them in half an hour.
const LOOKED_UP_AGAIN: usize = 20_000;
/// How long a stop tries to hide pending deletions.
const LAST_TRY: Duration = Duration::from_secs(5);

/// Hidden installations whose rows are not erased yet.
const NOT_ERASED: &str = "SELECT DISTINCT installation FROM hidden_installations \
     WHERE installation IN (SELECT installation FROM deletion_log WHERE step = 'hidden' \
        AND installation IN (SELECT installation FROM hidden_installations)) \
     AND installation NOT IN (SELECT installation FROM deletion_log WHERE step = 'erased' \
        AND installation IN (SELECT installation FROM hidden_installations))";
/// Erased installations with new rows, from another collector's later backlog.
const CAME_LATE: &str = "SELECT DISTINCT installation FROM (\
     SELECT installation FROM report_copies \
     WHERE installation IN (SELECT installation FROM hidden_installations) \
     UNION ALL SELECT installation FROM reports \
     WHERE installation IN (SELECT installation FROM hidden_installations)) \
     WHERE installation IN (SELECT installation FROM deletion_log WHERE step = 'erased')";
/// An installation stays hidden at least this long. It is longer than any insert that began before, and longer than a
/// writer may be unaware of the deletion.
const HIDDEN_FOR_MS: i64 = 2 * 3_600_000;

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) context: Arc<Context>,
    pub(crate) deletions: Arc<Deletions>,
    pub(crate) rollup: RollUp,
}

#[derive(Debug, Row, Serialize)]
struct LogRow {
    installation: [u8; 16],
    step: &'static str,
    collector_id: u64,
    at: i64,
    buckets: u64,
    reports: u64,
}

#[derive(Debug, Row, Deserialize)]
struct Counted {
    installation: [u8; 16],
    reports: u64,
}

impl Worker {
    /// Runs until `stop` is cancelled, then tries once more to hide installations. The rest follows after the next
    /// start.
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.work_until(&stop).await;
        let last = async {
            self.hide_pending().await?;
            self.look_up_again().await?;
            self.hide_pending().await
        };
        match timeout(LAST_TRY, last).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => note_failure(&self.context.metrics, "tombstones", &error),
            Err(_elapsed) => tracing::warn!("deletions are left for the next start"),
        }
    }

    async fn work_until(&self, stop: &CancellationToken) {
        self.show_pending();
        let mut next_refresh = Instant::now();
        let mut next_erase = Instant::now();
        let mut backoff = Backoff::new(FIRST_PAUSE, self.context.config.refresh.0);
        loop {
            let working = self.work(&mut next_refresh, &mut next_erase);
            let pause = tokio::select! {
                worked = working => match worked {
                    Ok(()) => {
                        backoff.reset();
                        self.pause_until(next_refresh.min(next_erase))
                    }
                    Err(error) => {
                        note_failure(&self.context.metrics, "tombstones", &error);
                        backoff.pause()
                    }
                },
                () = stop.cancelled() => return,
            };
            let asked = self.deletions.asked.notified();
            tokio::select! {
                () = asked => {}
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Shortens the pause if promises wait for reports in the WAL, so that they are looked up again soon.
    fn pause_until(&self, next: Instant) -> Duration {
        let pause = next.saturating_duration_since(Instant::now());
        match self.deletions.n_open() {
            (0, _) => pause,
            _ => pause.min(self.context.config.batch.period.0),
        }
    }

    async fn work(
        &self,
        next_refresh: &mut Instant,
        next_erase: &mut Instant,
    ) -> Result<(), SinkError> {
        let config = &self.context.config;
        // An installation that cannot be hidden from a summary must not hold up the others.
        let mut hidden = self.hide_pending().await;
        if Instant::now() >= *next_refresh {
            let known = &self.deletions.known;
            known.catch_up(&self.context.sink, Duration::ZERO).await?;
            if self.look_up_again().await? {
                hidden = hidden.and(self.hide_pending().await);
            }
            *next_refresh = Instant::now() + config.refresh.0;
        }
        if Instant::now() >= *next_erase {
            // It is enough if one of several collectors erases rows.
            if config.rollup.enabled {
                let sql = "SELECT toUnixTimestamp64Milli(now64(3)) AS now";
                let now_ms = self.context.sink.first::<i64>("the time", sql).await?;
                for which in [NOT_ERASED, CAME_LATE] {
                    let mut after = None;
                    while let Some(last) = self.erase(which, after).await? {
                        after = Some(last);
                    }
                }
                self.end_hiding(now_ms.unwrap_or(0) - HIDDEN_FOR_MS).await?;
            }
            *next_erase = Instant::now() + config.erase_period.0;
        }
        hidden
    }

    /// Hides pending installations from which the store has reports. The others are moved to the waiting ones, once all
    /// reports that this collector received before the promise are in the store.
    ///
    /// # Errors
    /// The store did not answer, or a summary still counts some installations; these are tried again.
    async fn hide_pending(&self) -> Result<(), SinkError> {
        let context = &self.context;
        let mut result = Ok(());
        for some in self.deletions.pending().chunks(AT_ONCE) {
            // The checkpoint is read before the store is queried.
            let stored = context.metrics.progress.checkpoint.load(Relaxed);
            let tombstones: Vec<Tombstone> = some.iter().map(|one| one.tombstone).collect();
            let found = received(&context.sink, &tombstones).await?;
            let is_found = |one: &Tombstone| found.contains(one.installation.as_bytes());
            let found: Vec<Tombstone> = tombstones.into_iter().filter(is_found).collect();
            if !found.is_empty() {
                let (hidden, error) = self.hide(&found).await?;
                self.deletions.note_hidden(&hidden).await;
                result = result.and(error.map_or(Ok(()), Err));
            }
            let is_unknown = |one: &&Promise| one.wal_end.0 <= stored && !is_found(&one.tombstone);
            let unknown = some.iter().filter(is_unknown).map(|one| one.tombstone);
            self.deletions.wait_for(&unknown.collect::<Vec<_>>());
            self.show_pending();
        }
        result
    }

    /// Looks up some of the waiting promises, because another collector's WAL may have had reports of their
    /// installations. Forgets promises that waited for as long as the store keeps reports. Returns whether some
    /// installations can be hidden now.
    async fn look_up_again(&self) -> Result<bool, SinkError> {
        let taken = self.deletions.take_waiting(LOOKED_UP_AGAIN);
        if taken.is_empty() {
            return Ok(false);
        }
        let found = match received(&self.context.sink, &taken).await {
            Ok(found) => found,
            Err(error) => {
                self.deletions.give_back(taken);
                return Err(error);
            }
        };
        let kept_ms = self.context.config.raw_retention.0.as_millis();
        let kept_ms = i64::try_from(kept_ms).unwrap_or(i64::MAX);
        let oldest_ms = self.context.now_ms().saturating_sub(kept_ms);
        let is_found = |one: &Tombstone| found.contains(one.installation.as_bytes());
        let (received, unknown): (Vec<_>, Vec<_>) = taken.into_iter().partition(is_found);
        let (over, waiting): (Vec<_>, Vec<_>) =
            unknown.into_iter().partition(|one| one.at_ms < oldest_ms);
        let is_any = !received.is_empty();
        self.deletions.found(received);
        self.deletions.give_back(waiting);
        if !over.is_empty() {
            self.deletions.forget(over).await;
        }
        Ok(is_any)
    }

    fn show_pending(&self) {
        self.deletions.show_open(&self.context.metrics);
    }

    /// Hides installations. Returns the installations that no view or summary shows any more, and why a summary still
    /// counts the others.
    async fn hide(
        &self,
        some: &[Tombstone],
    ) -> Result<(Vec<Tombstone>, Option<SinkError>), SinkError> {
        let rows: Vec<HiddenRow> = some.iter().map(HiddenRow::from).collect();
        let sink = &self.context.sink;
        // Tombstones are kept for ever; views read only `hidden_installations`.
        for table in ["tombstones", "hidden_installations"] {
            sink.insert::<HiddenRow>(table, &rows, None).await?;
        }
        let list = id_list(rows.iter().map(|row| &row.installation));
        // A summary that is built before they are visible would count them.
        let n = rows.len();
        let unseen = format!(
            "SELECT toUInt64({n} - uniqExact(installation)) AS n FROM hidden_installations \
             WHERE installation IN ({list})"
        );
        sink.wait_until_none("hidden_installations", &unseen)
            .await?;
        let rebuilt = self.rollup.rebuild_without(&list).await?;
        let counted = self.still_counted(&list, &rebuilt).await?;
        let is_done = |one: &&Tombstone| !counted.contains(one.installation.as_bytes());
        let done: Vec<Tombstone> = some.iter().filter(is_done).copied().collect();
        let n_buckets = rebuilt.slices;
        let hidden_at = self.context.now_ms();
        let rows = rows
            .iter()
            .filter(|row| !counted.contains(&row.installation));
        let steps = rows.flat_map(|tombstone| {
            let row = |step, at, buckets| self.step(tombstone.installation, step, at, (buckets, 0));
            [
                row("requested", tombstone.tombstoned_at, 0),
                row("hidden", hidden_at, n_buckets),
            ]
        });
        let steps: Vec<LogRow> = steps.collect();
        sink.insert::<LogRow>("deletion_log", &steps, None).await?;
        self.context.metrics.deletions.inc_by(done.len() as u64);
        tracing::info!(
            installations = done.len(),
            buckets = n_buckets,
            "deletions are hidden from every view"
        );
        let failed = rebuilt.failed;
        if !counted.is_empty() {
            tracing::error!(
                installations = counted.len(),
                summaries = failed.len(),
                "deletions wait for summaries that cannot be built without them; they are tried again"
            );
        }
        let error = failed.into_iter().next().map(|(_, _, error)| error);
        Ok((done, error))
    }

    /// Returns the installations in `list` (SQL) that a summary still counts because its rebuild failed. Their deletion
    /// has to wait.
    async fn still_counted(
        &self,
        list: &str,
        rebuilt: &Rebuilt,
    ) -> Result<HashSet<[u8; 16]>, SinkError> {
        if rebuilt.failed.is_empty() {
            return Ok(HashSet::new());
        }
        let slices = rebuilt.failed.iter();
        let slices = slices.map(|(bucket, slice, _)| format!("({bucket}, {slice})"));
        let slices: Vec<String> = slices.collect();
        let sql = format!(
            "SELECT DISTINCT installation FROM report_copies WHERE installation IN ({list}) \
             AND (toUInt32(bucket), toUInt8(epwatch_slice(installation))) IN ({})",
            slices.join(", ")
        );
        let sink = &self.context.sink;
        let found = sink.fetch::<IdRow>("report_copies", &sql).await?;
        Ok(found.into_iter().map(|row| row.installation).collect())
    }

    fn step(
        &self,
        installation: [u8; 16],
        step: &'static str,
        at: i64,
        (buckets, reports): (u64, u64),
    ) -> LogRow {
        LogRow {
            installation,
            step,
            collector_id: self.context.collector_id(),
            at,
            buckets,
            reports,
        }
    }

    /// Erases the rows of the next installations that `which` selects, in order, beginning after the installation
    /// `after`. Returns the last of them if there may be more.
    async fn erase(
        &self,
        which: &'static str,
        after: Option<[u8; 16]>,
    ) -> Result<Option<[u8; 16]>, SinkError> {
        let sink = &self.context.sink;
        let sql = next_ids(which, after, AT_ONCE);
        let found = sink.fetch::<IdRow>("tombstones", &sql).await?;
        if found.is_empty() {
            return Ok(None);
        }
        let list = id_list(found.iter().map(|row| &row.installation));
        // Adds the count of earlier erasures, because this row replaces their row.
        let sql = format!(
            "SELECT installation, sum(n) AS reports FROM (\
             SELECT installation, count() AS n FROM reports \
             WHERE installation IN ({list}) GROUP BY installation \
             UNION ALL \
             SELECT installation, reports AS n FROM deletion_log FINAL \
             WHERE step = 'erased' AND collector_id = {} AND installation IN ({list})) \
             GROUP BY installation",
            self.context.collector_id()
        );
        let counted = sink.fetch::<Counted>("reports", &sql).await?;
        let counted: HashMap<[u8; 16], u64> = counted
            .into_iter()
            .map(|row| (row.installation, row.reports))
            .collect();
        // Erases all rows that have an installation id, as `docs/privacy.md` promises. Views hide them before and
        // during the erasure.
        for table in ["reports", "report_copies"] {
            let condition = format!("installation IN ({list})");
            sink.delete(table, &condition).await?;
        }
        let at = self.context.now_ms();
        let rows = found.iter().map(|row| {
            let n_reports = counted.get(&row.installation).copied().unwrap_or(0);
            self.step(row.installation, "erased", at, (0, n_reports))
        });
        let rows: Vec<LogRow> = rows.collect();
        sink.insert::<LogRow>("deletion_log", &rows, None).await?;
        tracing::info!(installations = rows.len(), "deleted installations erased");
        Ok(last_of(&found, AT_ONCE))
    }

    /// Ends the hiding of installations whose rows were erased, so that views stay quick however much is deleted.
    /// Before the writer inserts a late row, it hides the installation again.
    async fn end_hiding(&self, before_ms: i64) -> Result<(), SinkError> {
        let sink = &self.context.sink;
        let before = format!("hidden_at < fromUnixTimestamp64Milli(toInt64({before_ms}), 'UTC')");
        let which = format!(
            "SELECT DISTINCT installation FROM hidden_installations WHERE {before} \
             AND installation IN (SELECT installation FROM deletion_log WHERE step = 'erased' \
             AND installation IN (SELECT installation FROM hidden_installations))"
        );
        let mut after = None;
        loop {
            let sql = next_ids(&which, after, IDS_AT_ONCE);
            let found = sink.fetch::<IdRow>("hidden_installations", &sql).await?;
            if found.is_empty() {
                return Ok(());
            }
            let list = id_list(found.iter().map(|row| &row.installation));
            let condition = format!("installation IN ({list}) AND {before}");
            sink.delete("hidden_installations", &condition).await?;
            after = last_of(&found, IDS_AT_ONCE);
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

/// Returns the query of the next installations that `which` selects. Each call of one pass goes on after the last
/// installation. So a pass ends even if a deletion of rows is not visible yet or had no effect. The next pass is hours
/// later.
fn next_ids(which: &str, after: Option<[u8; 16]>, at_most: usize) -> String {
    let after = after.map_or_else(String::new, |last| {
        format!("WHERE installation > unhex('{}') ", hex(&last))
    });
    format!("SELECT installation FROM ({which}) {after}ORDER BY installation LIMIT {at_most}")
}

/// Returns the last installation if the page is full.
fn last_of(found: &[IdRow], at_most: usize) -> Option<[u8; 16]> {
    let last = found.last().filter(|_| found.len() == at_most);
    last.map(|row| row.installation)
}
