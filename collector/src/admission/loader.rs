//! Reads who is known, and how many new ones are usual, from the store and from what the WAL still
//! holds.
//!
//! The store keeps raw rows for some weeks: whoever was silent for longer is new again, and on its
//! oldest day everyone looks new, which a median bears.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clickhouse::Row;
use epwatch_proto::{ReportKey, hex};
use serde::Deserialize;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::daily_quota::{AppName, History};
use super::{DAY_US, Learnt, Standings, day_of};
use crate::config::NewInstallationsConfig;
use crate::metrics::Metrics;
use crate::store::{FIRST_PAUSE, Sink, SinkError, note_failure};
use crate::wal::{Wal, WalError, WalOffset};
use crate::wal_record::ReportRecord;
use epwatch_server::{Backoff, Clock};

/// Apps whose installations are read, those with most new ones first.
const MAX_APPS: usize = 4_096;
/// Rows of another collector may be this late and are read all the same.
const LATE_US: u64 = 3_600_000_000;
/// The longest pause after a failed try.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// What is read of the WAL at once.
const CHUNK_RECORDS: usize = 20_000;
const CHUNK_BYTES: usize = 16 << 20;

/// Reads for one collector's [`Standings`].
#[derive(Debug)]
pub(crate) struct Learner {
    pub(crate) standings: Arc<Standings>,
    pub(crate) sink: Sink,
    pub(crate) wal: Wal,
    /// Where the writer was at start.
    pub(crate) checkpoint: WalOffset,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) config: NewInstallationsConfig,
}

#[derive(Debug, Row, Deserialize)]
struct NewOnDay {
    app_id: String,
    environment: String,
    day: u16,
    n: u64,
}

#[derive(Debug, Row, Deserialize)]
struct KnownRow {
    installation: [u8; 16],
    last_day: u16,
    proven_day: u16,
}

#[derive(Debug, thiserror::Error)]
enum LearnError {
    #[error("failed to read known installations of the store")]
    Store(#[from] SinkError),
    #[error("failed to read known installations of the WAL")]
    Wal(#[from] WalError),
}

/// Reads everything, says so to `first_try` when that worked or failed, and then goes on reading
/// what is new every `refresh`, until `stop` is cancelled.
pub(crate) async fn keep_learning(
    learner: Learner,
    first_try: oneshot::Sender<()>,
    stop: CancellationToken,
) {
    if !learner.standings.is_on {
        return;
    }
    tokio::select! {
        () = learner.learn_for_ever(first_try) => {}
        () = stop.cancelled() => {}
    }
}

/// How far a learner is.
#[derive(Debug, Clone, Copy)]
struct Read {
    /// Receive times up to this were read.
    until_us: u64,
    /// The day for which the usual numbers were taken.
    day: u16,
}

impl Learner {
    async fn learn_for_ever(self, first_try: oneshot::Sender<()>) {
        let mut first_try = Some(first_try);
        let mut backoff = Backoff::new(FIRST_PAUSE, MAX_BACKOFF);
        let mut read = None;
        loop {
            let pause = match self.learn(read).await {
                Ok(now) => {
                    read = Some(now);
                    self.standings.set_ready();
                    backoff.reset();
                    self.config.refresh.0
                }
                Err(LearnError::Store(error)) => {
                    note_failure(&self.metrics, "known_installations", &error);
                    backoff.pause()
                }
                Err(error) => {
                    let error = &error as &(dyn std::error::Error + 'static);
                    tracing::error!(error, "known installations are not all known, trying again");
                    backoff.pause()
                }
            };
            if let Some(first_try) = first_try.take() {
                let _ = first_try.send(());
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn learn(&self, read: Option<Read>) -> Result<Read, LearnError> {
        let now_us = self.clock.now_us();
        let today = day_of(now_us);
        // Before the store is read: what the writer stores meanwhile is seen here or there.
        let stored = WalOffset(self.metrics.progress.checkpoint.load(Relaxed));
        let since_us = read.map_or(0, |read| read.until_us.saturating_sub(LATE_US));
        let apps = match read.filter(|read| read.day == today) {
            Some(_) => self.apps_since(since_us).await?,
            None => self.learn_history(today).await?,
        };
        for app in &apps {
            let sql = self.known_sql(app, since_us);
            let rows = self.sink.fetch::<KnownRow>("reports", &sql).await?;
            let known: Vec<Learnt> = rows.into_iter().map(Learnt::from).collect();
            self.standings.learn_all(app, &known, today);
        }
        if read.is_none() {
            self.learn_log(stored.max(self.checkpoint), today).await?;
        }
        Ok(Read {
            until_us: now_us,
            day: today,
        })
    }

    /// Reads the usual numbers, and returns all apps.
    async fn learn_history(&self, today: u16) -> Result<Vec<AppName>, SinkError> {
        let sql = format!(
            "SELECT toString(app_id) AS app_id, toString(environment) AS environment, \
             toUInt16(first_day) AS day, count() AS n \
             FROM (SELECT app_id, environment, installation, toDate(min(received_at)) AS first_day \
             FROM reports GROUP BY app_id, environment, installation) \
             GROUP BY app_id, environment, day ORDER BY n DESC LIMIT {} \
             SETTINGS max_bytes_before_external_group_by = 1073741824",
            MAX_APPS * 32
        );
        let mut history = History::default();
        let mut n_by_app: HashMap<AppName, u64> = HashMap::new();
        for row in self.sink.fetch::<NewOnDay>("reports", &sql).await? {
            let app = (row.app_id, row.environment);
            *n_by_app.entry(app.clone()).or_default() += row.n;
            history.add(app, row.day, row.n);
        }
        self.standings.set_history(&history, today);
        let mut apps: Vec<(u64, AppName)> = n_by_app.into_iter().map(|(app, n)| (n, app)).collect();
        apps.sort_unstable_by(|a, b| b.cmp(a));
        apps.truncate(MAX_APPS);
        Ok(apps.into_iter().map(|(_, app)| app).collect())
    }

    async fn apps_since(&self, since_us: u64) -> Result<Vec<AppName>, SinkError> {
        let sql = format!(
            "SELECT toString(app_id) AS app_id, toString(environment) AS environment, \
             toUInt16(0) AS day, count() AS n FROM reports WHERE {} \
             GROUP BY app_id, environment ORDER BY n DESC LIMIT {MAX_APPS}",
            received_since(since_us)
        );
        let rows = self.sink.fetch::<NewOnDay>("reports", &sql).await?;
        let apps = rows.into_iter().map(|row| (row.app_id, row.environment));
        Ok(apps.collect())
    }

    /// Those of one app that were let in, whoever was heard of last first.
    fn known_sql(&self, (app_id, environment): &AppName, since_us: u64) -> String {
        format!(
            "SELECT installation, toUInt16(toDate(max(received_at))) AS last_day, \
             toUInt16(toDate(minIf(received_at, NOT is_unproven))) AS proven_day \
             FROM reports WHERE app_id = {} AND environment = {} AND {} \
             GROUP BY installation HAVING countIf(NOT is_unproven) > 0 \
             ORDER BY last_day DESC LIMIT {} \
             SETTINGS max_bytes_before_external_group_by = 1073741824",
            literal(app_id),
            literal(environment),
            received_since(since_us),
            self.config.known.max(1),
        )
    }

    /// Learns of those whose reports wait for the store.
    async fn learn_log(&self, from: WalOffset, today: u16) -> Result<(), LearnError> {
        let (standings, wal) = (self.standings.clone(), self.wal.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let end = *wal.durable().borrow();
            let mut from = from;
            while from < end {
                let chunk = wal.read(from, end, CHUNK_RECORDS, CHUNK_BYTES)?;
                if chunk.next <= from {
                    break;
                }
                from = chunk.next;
                let mut by_app: HashMap<AppName, Vec<Learnt>> = HashMap::new();
                for record in &chunk.records {
                    let day = day_of(record.received_at_us);
                    if let Some((app, learnt)) = learnt_of(&record.payload, day) {
                        by_app.entry(app).or_default().push(learnt);
                    }
                }
                for (app, learnt) in by_app {
                    standings.learn_all(&app, &learnt, today);
                }
            }
            Ok::<(), WalError>(())
        });
        match reading.await {
            Ok(read) => Ok(read?),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Only a runtime that is shutting down cancels; then nobody waits for us either.
            Err(_) => std::future::pending().await,
        }
    }
}

impl From<KnownRow> for Learnt {
    fn from(row: KnownRow) -> Self {
        Self {
            installation: row.installation,
            last_day: row.last_day,
            proven_day: row.proven_day,
        }
    }
}

/// `None` for reports of unproven ones, and for what a newer version wrote.
fn learnt_of(payload: &[u8], day: u16) -> Option<(AppName, Learnt)> {
    let record = ReportRecord::parse(payload).ok()?;
    let key = ReportKey::peek(record.report).filter(|_| !record.is_unproven)?;
    let app = (record.app_id.to_owned(), record.environment.to_owned());
    let learnt = Learnt {
        installation: *key.installation.as_bytes(),
        last_day: day,
        proven_day: day,
    };
    Some((app, learnt))
}

/// The bucket narrows what is read: it is in the table's order, and at most a day long.
fn received_since(since_us: u64) -> String {
    let bucket_s = since_us.saturating_sub(DAY_US) / 1_000_000;
    format!(
        "received_at >= fromUnixTimestamp64Milli({}, 'UTC') AND bucket >= toDateTime({bucket_s}, 'UTC')",
        since_us / 1_000
    )
}

/// A text that a stranger chose, as SQL.
fn literal(text: &str) -> String {
    format!("unhex('{}')", hex(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_strangers_are_no_sql() {
        assert_eq!(literal("a' OR 1"), "unhex('6127204f522031')");
        assert_eq!(literal(""), "unhex('')");
    }
}
