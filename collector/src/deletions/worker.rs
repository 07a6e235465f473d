//! Carries out deletions in the store: inserts the tombstone, which hides the installation from every view, rebuilds
//! summaries that counted it, adds a row to `deletion_log`, and periodically erases the rows. Each step may be repeated.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use clickhouse::Row;
use epwatch_proto::InstallationId;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Deletions, Tombstone};
use crate::parts::Parts;
use crate::rollup::RollUp;
use crate::store::{FIRST_PAUSE, SinkError, note_failure};
use epwatch_server::Backoff;

/// Deletions carried out together; the query's text holds their ids.
const AT_ONCE: usize = 500;
/// Tombstones are read again from this long before the newest one, because collectors' clocks differ.
const OVERLAP_MS: i64 = 3_600_000;
/// Time for pending deletions at a stop.
const LAST_TRY: Duration = Duration::from_secs(5);

/// Hidden installations whose rows are not erased yet.
const NOT_ERASED: &str = "SELECT DISTINCT installation FROM tombstones \
     WHERE installation IN (SELECT installation FROM deletion_log WHERE step = 'hidden') \
     AND installation NOT IN (SELECT installation FROM deletion_log WHERE step = 'erased')";
/// Erased installations with new rows, from another collector's later backlog.
const CAME_LATE: &str = "SELECT DISTINCT installation FROM (\
     SELECT installation FROM report_copies \
     WHERE installation IN (SELECT installation FROM deletion_log WHERE step = 'erased') \
     UNION ALL SELECT installation FROM reports \
     WHERE installation IN (SELECT installation FROM deletion_log WHERE step = 'erased'))";

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) parts: Arc<Parts>,
    pub(crate) deletions: Arc<Deletions>,
    pub(crate) rollup: RollUp,
}

#[derive(Debug, Row, Serialize, Deserialize)]
struct TombstoneRow {
    installation: [u8; 16],
    tombstoned_at: i64,
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
struct Erasable {
    installation: [u8; 16],
}

#[derive(Debug, Row, Deserialize)]
struct Counted {
    installation: [u8; 16],
    reports: u64,
}

impl Worker {
    /// Runs until `stop` is cancelled, then tries once more to hide pending installations. The rest follows after
    /// the next start.
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.work_until(&stop).await;
        match timeout(LAST_TRY, self.hide_pending()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => note_failure(&self.parts.metrics, "tombstones", &error),
            Err(_elapsed) => tracing::warn!("deletions are left for the next start"),
        }
    }

    async fn work_until(&self, stop: &CancellationToken) {
        self.show_pending();
        let mut newest_ms = 0;
        let mut next_refresh = Instant::now();
        let mut next_erase = Instant::now();
        let mut backoff = Backoff::new(FIRST_PAUSE, self.parts.config.refresh.0);
        loop {
            let working = self.work(&mut newest_ms, &mut next_refresh, &mut next_erase);
            let pause = tokio::select! {
                worked = working => match worked {
                    Ok(()) => {
                        backoff.reset();
                        next_refresh.min(next_erase).saturating_duration_since(Instant::now())
                    }
                    Err(error) => {
                        note_failure(&self.parts.metrics, "tombstones", &error);
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

    async fn work(
        &self,
        newest_ms: &mut i64,
        next_refresh: &mut Instant,
        next_erase: &mut Instant,
    ) -> Result<(), SinkError> {
        let config = &self.parts.config;
        self.hide_pending().await?;
        if Instant::now() >= *next_refresh {
            *newest_ms = self.refresh(*newest_ms).await?;
            *next_refresh = Instant::now() + config.refresh.0;
        }
        if Instant::now() >= *next_erase {
            for which in [NOT_ERASED, CAME_LATE] {
                // One of several collectors is enough.
                while config.rollup.enabled && self.erase(which).await? {}
            }
            *next_erase = Instant::now() + config.erase_period.0;
        }
        Ok(())
    }

    async fn hide_pending(&self) -> Result<(), SinkError> {
        for some in self.deletions.pending().chunks(AT_ONCE) {
            self.hide(some).await?;
            self.deletions.note_hidden(some).await;
            self.show_pending();
        }
        Ok(())
    }

    fn show_pending(&self) {
        let gauge = &self.parts.metrics.deletions_pending;
        gauge.set(self.deletions.n_pending());
    }

    /// Loads other collectors' tombstones; returns the newest one's time.
    async fn refresh(&self, newest_ms: i64) -> Result<i64, SinkError> {
        let sql = format!(
            "SELECT installation, tombstoned_at FROM tombstones \
             WHERE tombstoned_at >= fromUnixTimestamp64Milli(toInt64({}), 'UTC') \
             ORDER BY tombstoned_at DESC LIMIT {}",
            newest_ms.saturating_sub(OVERLAP_MS).max(0),
            super::MAX_IN_MEMORY
        );
        let sink = &self.parts.sink;
        let rows = sink.fetch::<TombstoneRow>("tombstones", &sql).await?;
        let tombstones: Vec<Tombstone> = rows
            .iter()
            .map(|row| Tombstone {
                installation: InstallationId::from_bytes(row.installation),
                at_ms: row.tombstoned_at,
            })
            .collect();
        self.deletions.learn(&tombstones);
        let newest = tombstones.iter().map(|tombstone| tombstone.at_ms).max();
        // A tombstone from a clock ahead must not exclude later ones.
        Ok(newest.unwrap_or(newest_ms).min(self.parts.now_ms()))
    }

    async fn hide(&self, some: &[Tombstone]) -> Result<(), SinkError> {
        let rows: Vec<TombstoneRow> = some
            .iter()
            .map(|tombstone| TombstoneRow {
                installation: *tombstone.installation.as_bytes(),
                tombstoned_at: tombstone.at_ms,
            })
            .collect();
        let sink = &self.parts.sink;
        sink.insert::<TombstoneRow>("tombstones", &rows, None)
            .await?;
        let list = id_list(rows.iter().map(|row| &row.installation));
        let n_buckets = self.rollup.rebuild_without(&list).await?;
        let hidden_at = self.parts.now_ms();
        let steps = rows.iter().flat_map(|tombstone| {
            let row = |step, at, buckets| self.step(tombstone.installation, step, at, (buckets, 0));
            [
                row("requested", tombstone.tombstoned_at, 0),
                row("hidden", hidden_at, n_buckets),
            ]
        });
        let steps: Vec<LogRow> = steps.collect();
        sink.insert::<LogRow>("deletion_log", &steps, None).await?;
        self.parts.metrics.deletions.inc_by(some.len() as u64);
        tracing::info!(
            installations = some.len(),
            buckets = n_buckets,
            "deletions are hidden from every view"
        );
        Ok(())
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
            collector_id: self.parts.collector_id(),
            at,
            buckets,
            reports,
        }
    }

    /// Erases the rows of some installations that `which` selects. Returns whether there may be more.
    async fn erase(&self, which: &'static str) -> Result<bool, SinkError> {
        let sink = &self.parts.sink;
        let sql = format!("{which} LIMIT {AT_ONCE}");
        let found = sink.fetch::<Erasable>("tombstones", &sql).await?;
        if found.is_empty() {
            return Ok(false);
        }
        let list = id_list(found.iter().map(|row| &row.installation));
        // Plus the count of earlier erasures, because this row replaces theirs.
        let sql = format!(
            "SELECT installation, sum(n) AS reports FROM (\
             SELECT installation, count() AS n FROM reports \
             WHERE installation IN ({list}) GROUP BY installation \
             UNION ALL \
             SELECT installation, reports AS n FROM deletion_log FINAL \
             WHERE step = 'erased' AND collector_id = {} AND installation IN ({list})) \
             GROUP BY installation",
            self.parts.collector_id()
        );
        let counted = sink.fetch::<Counted>("reports", &sql).await?;
        let counted: HashMap<[u8; 16], u64> = counted
            .into_iter()
            .map(|row| (row.installation, row.reports))
            .collect();
        // All rows with an id, as `docs/privacy.md` promises. Views hide them before and during the erasure.
        for table in ["reports", "report_copies"] {
            let condition = format!("installation IN ({list})");
            sink.delete(table, &condition).await?;
        }
        let at = self.parts.now_ms();
        let rows = found.iter().map(|row| {
            let n_reports = counted.get(&row.installation).copied().unwrap_or(0);
            self.step(row.installation, "erased", at, (0, n_reports))
        });
        let rows: Vec<LogRow> = rows.collect();
        sink.insert::<LogRow>("deletion_log", &rows, None).await?;
        tracing::info!(installations = rows.len(), "deleted installations erased");
        Ok(found.len() == AT_ONCE)
    }
}

/// Ids as a list in SQL.
fn id_list<'a>(ids: impl Iterator<Item = &'a [u8; 16]>) -> String {
    let quoted = ids.map(|id| {
        let hex = InstallationId::from_bytes(*id).to_hex();
        format!("toFixedString(unhex('{hex}'), 16)")
    });
    quoted.collect::<Vec<_>>().join(", ")
}
