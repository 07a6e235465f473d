//! Loads known installations and the usual numbers of new ones, from the store's reports and from reports that the WAL
//! still holds. `collector.rs` starts it; it writes to neither.
//!
//! The store keeps raw rows for some weeks. An installation that was silent for longer is new again. On the oldest day
//! every installation looks new, which moves a median little.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use epwatch_proto::{ReportKey, hex};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::daily_quota::{AppName, History};
use super::{Admission, DAY_US, KnownInstallation, day_of};
use crate::joined::joined;
use crate::parts::Parts;
use crate::store::{FIRST_PAUSE, SinkError, note_failure};
use crate::wal::{WalError, WalOffset};
use crate::wal_record::ReportRecord;
use epwatch_server::Backoff;

/// Apps whose installations are loaded, those with most new ones first.
const MAX_APPS: usize = 4_096;
/// Rows that another collector stores this late are still loaded.
const LATE_US: u64 = 3_600_000_000;
/// The longest pause after a failed try.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Limits of one read of the WAL.
const CHUNK_RECORDS: usize = 20_000;
const CHUNK_BYTES: usize = 16 << 20;

/// Fills one collector's [`Admission`].
#[derive(Debug)]
pub(crate) struct Loader {
    pub(crate) parts: Arc<Parts>,
    pub(crate) admission: Arc<Admission>,
    /// The writer's checkpoint at start.
    pub(crate) checkpoint: WalOffset,
}

/// New installations of an app, environment and day.
type NewOnDay = (String, String, u16, u64);

#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("failed to read known installations of the store")]
    Store(#[from] SinkError),
    #[error("failed to read known installations of the WAL")]
    Wal(#[from] WalError),
}

/// Loads everything, then what is new every `refresh`, until `stop` is cancelled. Sends to `first_try` once the first
/// load succeeded or failed.
pub(crate) async fn keep_loading(
    loader: Loader,
    first_try: oneshot::Sender<()>,
    stop: CancellationToken,
) {
    if !loader.admission.is_on {
        return;
    }
    tokio::select! {
        () = loader.load_forever(first_try) => {}
        () = stop.cancelled() => {}
    }
}

/// Range of the last load.
#[derive(Debug, Clone, Copy)]
struct Loaded {
    /// Receive times up to this.
    until_us: u64,
    /// The day whose usual numbers are set.
    day: u16,
}

impl Loader {
    async fn load_forever(self, first_try: oneshot::Sender<()>) {
        let mut first_try = Some(first_try);
        let mut backoff = Backoff::new(FIRST_PAUSE, MAX_BACKOFF);
        let mut last = None;
        loop {
            let pause = match self.load(last).await {
                Ok(now) => {
                    last = Some(now);
                    self.admission.set_ready();
                    backoff.reset();
                    self.parts.config.new_installations.refresh.0
                }
                Err(LoadError::Store(error)) => {
                    note_failure(&self.parts.metrics, "known_installations", &error);
                    backoff.pause()
                }
                Err(error) => {
                    let error = &error as &(dyn std::error::Error + 'static);
                    tracing::error!(error, "failed to load known installations, trying again");
                    backoff.pause()
                }
            };
            if let Some(first_try) = first_try.take() {
                let _ = first_try.send(());
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn load(&self, last: Option<Loaded>) -> Result<Loaded, LoadError> {
        let now_us = self.parts.clock.now_us();
        let today = day_of(now_us);
        // Taken before the store is read: a report stored in between is found in the store or in the WAL.
        let stored = WalOffset(self.parts.metrics.progress.checkpoint.load(Relaxed));
        let since_us = last.map_or(0, |last| last.until_us.saturating_sub(LATE_US));
        let apps = match last.filter(|last| last.day == today) {
            Some(_) => self.apps_since(since_us).await?,
            None => self.load_history(today).await?,
        };
        for app in &apps {
            let sql = self.installations_sql(app, since_us);
            let known = self.parts.sink.fetch("reports", &sql).await?;
            self.admission.add_known(app, &known, today);
        }
        if last.is_none() {
            self.load_wal(stored.max(self.checkpoint), today).await?;
        }
        Ok(Loaded {
            until_us: now_us,
            day: today,
        })
    }

    /// Sets the usual numbers; returns all apps.
    async fn load_history(&self, today: u16) -> Result<Vec<AppName>, SinkError> {
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
        let rows = self.parts.sink.fetch::<NewOnDay>("reports", &sql).await?;
        for (app_id, environment, day, n) in rows {
            let app = (app_id, environment);
            *n_by_app.entry(app.clone()).or_default() += n;
            history.add(app, day, n);
        }
        self.admission.set_history(&history, today);
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
        let rows = self.parts.sink.fetch::<NewOnDay>("reports", &sql).await?;
        let apps = rows
            .into_iter()
            .map(|(app, environment, ..)| (app, environment));
        Ok(apps.collect())
    }

    /// Selects one app's proven installations, those seen last first.
    fn installations_sql(&self, (app_id, environment): &AppName, since_us: u64) -> String {
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
            self.parts.config.new_installations.known.max(1),
        )
    }

    /// Adds the proven installations whose reports wait for the store.
    async fn load_wal(&self, from: WalOffset, today: u16) -> Result<(), LoadError> {
        let (admission, wal) = (self.admission.clone(), self.parts.wal.clone());
        let mut reading = tokio::task::spawn_blocking(move || {
            let end = *wal.durable().borrow();
            let mut from = from;
            while from < end {
                let chunk = wal.read(from, end, CHUNK_RECORDS, CHUNK_BYTES)?;
                if chunk.next <= from {
                    break;
                }
                from = chunk.next;
                let mut by_app: HashMap<AppName, Vec<KnownInstallation>> = HashMap::new();
                for record in &chunk.records {
                    let day = day_of(record.received_at_us);
                    if let Some((app, installation)) = known_installation(&record.payload, day) {
                        by_app.entry(app).or_default().push(installation);
                    }
                }
                for (app, known) in by_app {
                    admission.add_known(&app, &known, today);
                }
            }
            Ok::<(), WalError>(())
        });
        Ok(joined(&mut reading).await?)
    }
}

/// `None` if the installation is unproven or a newer version wrote the record.
fn known_installation(payload: &[u8], day: u16) -> Option<(AppName, KnownInstallation)> {
    let record = ReportRecord::parse(payload).ok()?;
    let key = ReportKey::peek(record.report).filter(|_| !record.is_unproven)?;
    let app = (record.app_id.to_owned(), record.environment.to_owned());
    let installation = KnownInstallation {
        installation: *key.installation.as_bytes(),
        last_day: day,
        proven_day: day,
    };
    Some((app, installation))
}

/// The bucket prunes: it is in the table's sorting key, and at most a day long.
fn received_since(since_us: u64) -> String {
    let bucket_s = since_us.saturating_sub(DAY_US) / 1_000_000;
    format!(
        "received_at >= fromUnixTimestamp64Milli({}, 'UTC') AND bucket >= toDateTime({bucket_s}, 'UTC')",
        since_us / 1_000
    )
}

/// Text that a sender chose, as SQL.
fn literal(text: &str) -> String {
    format!("unhex('{}')", hex(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_senders_text_is_no_sql() {
        assert_eq!(literal("a' OR 1"), "unhex('6127204f522031')");
        assert_eq!(literal(""), "unhex('')");
    }
}
