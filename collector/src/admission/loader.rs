//! Loads known installations and the usual numbers of new ones, from the store's reports and from reports that the WAL
//! still holds. `collector.rs` starts it; it writes to neither.
//!
//! The store keeps raw rows for some weeks. An installation that was silent for longer is new again. On the oldest day
//! every installation looks new, which moves a median little.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clickhouse::Row;
use epwatch_proto::{ReportKey, hex};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::network::NetworkKey;
use super::{Admission, DAY_US, HOUR_US, KnownInstallation, day_of};
use crate::context::Context;
use crate::join_task::join_task;
use crate::store::{FIRST_PAUSE, SinkError, note_failure};
use crate::wal::{WalError, WalOffset};
use crate::wal_record::ReportRecord;
use epwatch_server::{Backoff, new_installation_quota::AdmittedHistory};

/// The number of apps whose installations are loaded, starting with the apps that have the most new ones.
const MAX_APPS: usize = 4_096;
/// Rows are still loaded if another collector stores them this late.
const LATE_US: u64 = 3_600_000_000;
/// The longest pause after a failed try.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Limits of one read of the WAL.
const CHUNK_RECORDS: usize = 20_000;
const CHUNK_BYTES: usize = 16 << 20;

/// Fills one collector's [`Admission`].
#[derive(Debug, Clone)]
pub(crate) struct Loader {
    pub(crate) context: Arc<Context>,
    pub(crate) admission: Arc<Admission>,
    /// The writer's checkpoint at start.
    pub(crate) checkpoint: WalOffset,
}

/// Admitted installations of an app by the day of their first report.
type NewOnDay = (String, u16, u64);

/// The key for the hashes of networks, with the time at which it was made, in microseconds.
#[derive(Row, Serialize)]
struct NetworkKeyRow {
    created_at: i64,
    key: String,
}

#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("failed to read known installations of the store")]
    Store(#[from] SinkError),
    #[error("failed to read known installations of the WAL")]
    Wal(#[from] WalError),
    #[error("failed to make the key of networks' hashes")]
    Random(#[from] std::io::Error),
}

/// Loads everything, then what is new every `refresh`, until `stop` is cancelled. Sends to `first_try` once the first
/// load succeeded or failed.
pub(crate) async fn keep_loading(
    loader: Loader,
    first_try: Option<oneshot::Sender<()>>,
    stop: CancellationToken,
) {
    tokio::select! {
        () = loader.load_forever(first_try) => {}
        () = stop.cancelled() => {}
    }
}

/// Range of the last load.
#[derive(Debug, Clone, Copy)]
struct Loaded {
    /// Reports received up to this time are loaded.
    until_us: u64,
    /// The day whose usual numbers are set.
    day: u16,
}

impl Loader {
    async fn load_forever(self, mut first_try: Option<oneshot::Sender<()>>) {
        let mut backoff = Backoff::new(FIRST_PAUSE, MAX_BACKOFF);
        let mut last = None;
        loop {
            let pause = match self.load(last).await {
                Ok(now) => {
                    last = Some(now);
                    self.admission.set_ready();
                    backoff.reset();
                    self.context.config.new_installations.refresh.0
                }
                Err(LoadError::Store(error)) => {
                    note_failure(&self.context.metrics, "known_installations", &error);
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
        let now_us = self.context.clock.now_us();
        let today = day_of(now_us);
        if self.admission.network_key.get().is_none() {
            let key = self.network_key().await?;
            let _ = self.admission.network_key.set(key);
        }
        if !self.admission.is_on {
            return Ok(Loaded {
                until_us: now_us,
                day: today,
            });
        }
        // The checkpoint is taken before the store is read, so that a report stored in between is found in one of the
        // two.
        let stored = WalOffset(self.context.metrics.progress.checkpoint.load(Relaxed));
        let since_us = last.map_or(0, |last| last.until_us.saturating_sub(LATE_US));
        let apps = match last.filter(|last| last.day == today) {
            Some(_) => self.apps_since(since_us).await?,
            None => self.load_history(today).await?,
        };
        for app in &apps {
            let sql = self.installations_sql(app, since_us);
            let known = self.context.sink.fetch("reports", &sql).await?;
            self.admission.add_known(app, &known, now_us);
        }
        if last.is_none() {
            self.load_wal(stored.max(self.checkpoint), now_us).await?;
        }
        Ok(Loaded {
            until_us: now_us,
            day: today,
        })
    }

    /// Returns the store's key for the hashes of networks. The key that a collector made first counts.
    async fn network_key(&self) -> Result<NetworkKey, LoadError> {
        let sink = &self.context.sink;
        let sql = "SELECT key FROM network_key ORDER BY created_at, key LIMIT 1";
        for is_last in [false, true] {
            let found = sink.first::<String>("network_key", sql).await?;
            if let Some(key) = found.as_deref().and_then(NetworkKey::from_hex) {
                return Ok(key);
            }
            if !is_last {
                let row = NetworkKeyRow {
                    created_at: i64::try_from(self.context.clock.now_us()).unwrap_or(i64::MAX),
                    key: NetworkKey::random()?.to_hex(),
                };
                sink.insert::<NetworkKeyRow>("network_key", &[row], None)
                    .await?;
            }
        }
        // Without a key that can be read networks stay unknown, as they are without a proxy's header.
        Ok(NetworkKey::random()?)
    }

    /// Sets the usual numbers; returns all apps.
    async fn load_history(&self, today: u16) -> Result<Vec<String>, SinkError> {
        let sql = format!(
            "SELECT toString(app_id) AS app_id, toUInt16(first_day) AS day, count() AS n \
             FROM (SELECT app_id, installation, toDate(min(received_at)) AS first_day \
             FROM reports WHERE NOT (is_unproven OR is_own) GROUP BY app_id, installation) \
             GROUP BY app_id, day ORDER BY n DESC LIMIT {} \
             SETTINGS max_bytes_before_external_group_by = 1073741824",
            MAX_APPS * 32
        );
        let mut history = AdmittedHistory::default();
        let mut n_by_app: HashMap<String, u64> = HashMap::new();
        let rows = self.context.sink.fetch::<NewOnDay>("reports", &sql).await?;
        for (app_id, day, n) in rows {
            *n_by_app.entry(app_id.clone()).or_default() += n;
            history.add(app_id, day, n);
        }
        self.admission.set_history(&history, today);
        let mut apps: Vec<(u64, String)> = n_by_app.into_iter().map(|(app, n)| (n, app)).collect();
        apps.sort_unstable_by(|a, b| b.cmp(a));
        apps.truncate(MAX_APPS);
        Ok(apps.into_iter().map(|(_, app)| app).collect())
    }

    async fn apps_since(&self, since_us: u64) -> Result<Vec<String>, SinkError> {
        let sql = format!(
            "SELECT toString(app_id) AS app_id, toUInt16(0) AS day, count() AS n FROM reports \
             WHERE NOT (is_unproven OR is_own) AND {} \
             GROUP BY app_id ORDER BY n DESC LIMIT {MAX_APPS}",
            received_since(since_us)
        );
        let rows = self.context.sink.fetch::<NewOnDay>("reports", &sql).await?;
        Ok(rows.into_iter().map(|(app, ..)| app).collect())
    }

    /// Selects one app's proven installations, those seen last first.
    fn installations_sql(&self, app_id: &str, since_us: u64) -> String {
        format!(
            "SELECT installation, toUInt16(toDate(max(received_at))) AS last_day, \
             toUInt32(intDiv(toUnixTimestamp(min(received_at)), 3600)) AS proven_hour, \
             argMin(network, received_at) AS network, argMin(network_wide, received_at) AS network_wide \
             FROM reports WHERE app_id = {} AND NOT (is_unproven OR is_own) AND {} \
             GROUP BY installation ORDER BY last_day DESC LIMIT {} \
             SETTINGS max_bytes_before_external_group_by = 1073741824",
            literal(app_id),
            received_since(since_us),
            self.context.config.new_installations.known.max(1),
        )
    }

    /// Adds the proven installations whose reports wait for the store.
    async fn load_wal(&self, from: WalOffset, now_us: u64) -> Result<(), LoadError> {
        let (admission, wal) = (self.admission.clone(), self.context.wal.clone());
        let mut reading = tokio::task::spawn_blocking(move || {
            let end = *wal.durable().borrow();
            let mut from = from;
            while from < end {
                let chunk = wal.read(from, end, CHUNK_RECORDS, CHUNK_BYTES)?;
                if chunk.next <= from {
                    break;
                }
                from = chunk.next;
                let mut by_app: HashMap<String, Vec<KnownInstallation>> = HashMap::new();
                for record in &chunk.records {
                    let at_us = record.received_at_us;
                    if let Some((app, installation)) = known_installation(&record.payload, at_us) {
                        by_app.entry(app).or_default().push(installation);
                    }
                }
                for (app, known) in by_app {
                    admission.add_known(&app, &known, now_us);
                }
            }
            Ok::<(), WalError>(())
        });
        Ok(join_task(&mut reading).await?)
    }
}

/// `None` if the installation is unproven, its key is `own`, or a newer version wrote the record.
fn known_installation(payload: &[u8], at_us: u64) -> Option<(String, KnownInstallation)> {
    let record = ReportRecord::parse(payload).ok()?;
    let votes_by_room = !(record.mark.is_unproven || record.mark.is_own);
    let key = ReportKey::peek(record.report).filter(|_| votes_by_room)?;
    let [network, network_wide] = record.mark.network;
    let installation = KnownInstallation {
        installation: *key.installation.as_bytes(),
        last_day: day_of(at_us),
        proven_hour: u32::try_from(at_us / HOUR_US).unwrap_or(u32::MAX),
        network,
        network_wide,
    };
    Some((record.app_id.to_owned(), installation))
}

/// The condition on the bucket prunes parts: the bucket is in the table's sorting key, and at most a day long.
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
