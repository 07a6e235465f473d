//! Reports of one load in the store, read from the public views.

use std::time::{Duration, Instant};

use clickhouse::{Client, Row};
use epwatch_fleet::load::LoadOptions;
use serde::{Deserialize, Serialize};

/// Reports of the load in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Row)]
pub(super) struct Stored {
    /// Reports in the views.
    pub(super) reports: u64,
    /// Distinct reports in the views.
    pub(super) distinct: u64,
    /// Rows, including copies that do not count.
    pub(super) copies: u64,
}

/// Counts of the store's loss ledger for the load's app and environment during the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Row)]
pub(super) struct StoreLedger {
    pub(super) recorded: i64,
    pub(super) stored: i64,
    pub(super) dropped: i64,
    pub(super) refused: i64,
    pub(super) duplicate: i64,
    pub(super) missing: i64,
    /// Reports of other senders with this app and environment, which are also in the sums.
    pub(super) others: i64,
}

impl StoreLedger {
    fn since(self, before: Self) -> Self {
        Self {
            recorded: self.recorded - before.recorded,
            stored: self.stored - before.stored,
            dropped: self.dropped - before.dropped,
            refused: self.refused - before.refused,
            duplicate: self.duplicate - before.duplicate,
            missing: self.missing - before.missing,
            others: self.others - before.others,
        }
    }

    /// Whether all sent reports are recorded and stored, except the `open` ones, which were not acknowledged. Always
    /// true if others sent too.
    pub(super) fn closes(&self, sent: u64, distinct: u64, open: u64) -> bool {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX / 2);
        let [sent, distinct, open] = [sent, distinct, open].map(signed);
        let accounted = self.stored + self.dropped + self.refused + self.missing;
        self.others > 0
            || self.recorded == accounted
                && (distinct..=distinct + open).contains(&self.stored)
                && (sent - open..=sent).contains(&self.recorded)
                && (0..=open).contains(&self.missing)
    }
}

/// Leaves out days before the load, since their rows may expire meanwhile.
const LEDGER: &str = "
SELECT
    sum(l.recorded) AS recorded, sum(l.stored) AS stored, sum(l.dropped) AS dropped,
    sum(l.refused) AS refused, sum(l.duplicate) AS duplicate, sum(l.missing) AS missing,
    assumeNotNull((SELECT toInt64(count()) FROM counted_reports_v1
        WHERE app_id = {app: String} AND environment = {environment: String}
            AND app_version != {mark: String} AND toDate(received_at) >= toDate({since: String}))) AS others
FROM loss_ledger_daily_v1 AS l
WHERE l.app_id = {app: String} AND l.environment = {environment: String}
  AND l.day >= toDate({since: String})";

/// The store's ledger at the start of a load.
#[derive(Debug)]
pub(super) struct LedgerBefore {
    since: String,
    ledger: StoreLedger,
}

impl LedgerBefore {
    pub(super) async fn read(
        store: &Client,
        options: &LoadOptions,
    ) -> clickhouse::error::Result<Self> {
        let today = "SELECT toString(toDate(now('UTC')))";
        let since: String = store.query(today).fetch_one().await?;
        let ledger = ledger_since(store, options, &since).await?;
        Ok(Self { since, ledger })
    }

    /// Returns the counts since the start. Waits up to `max_wait` for an unreachable store.
    pub(super) async fn until_now(
        &self,
        store: &Client,
        options: &LoadOptions,
        max_wait: Duration,
    ) -> clickhouse::error::Result<StoreLedger> {
        let until = Instant::now() + max_wait;
        let now = read_until(until, async || {
            ledger_since(store, options, &self.since).await
        })
        .await?;
        Ok(now.since(self.ledger))
    }
}

async fn ledger_since(
    store: &Client,
    options: &LoadOptions,
    day: &str,
) -> clickhouse::error::Result<StoreLedger> {
    let query = store
        .query(LEDGER)
        .param("app", &options.app_id)
        .param("environment", &options.environment)
        .param("mark", &options.mark)
        .param("since", day);
    query.fetch_one().await
}

/// Counts reports of the load by its app version.
const STORED: &str = "
SELECT
    sum(counted) AS reports,
    uniqExactIf((installation, stream_id, sequence), counted) AS distinct,
    countIf(NOT counted) AS copies
FROM (
    SELECT installation, stream_id, sequence, true AS counted FROM counted_reports_v1
    WHERE app_id = {app: String} AND app_version = {mark: String}
    UNION ALL
    SELECT installation, stream_id, sequence, false AS counted FROM reports
    WHERE app_id = {app: String} AND app_version = {mark: String}
)";

/// Reads, and again after each failure until a time: a server may be restarting.
async fn read_until<T>(
    until: Instant,
    read: impl AsyncFn() -> clickhouse::error::Result<T>,
) -> clickhouse::error::Result<T> {
    loop {
        match read().await {
            Err(_) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
}

/// Between two readings.
const PAUSE: Duration = Duration::from_millis(200);

/// Waits until the store has `acked` reports or `max_wait` is over, and reads.
pub(super) async fn settled(
    store: &Client,
    options: &LoadOptions,
    acked: u64,
    max_wait: Duration,
) -> clickhouse::error::Result<Stored> {
    let until = Instant::now() + max_wait;
    let read = async || {
        let query = store
            .query(STORED)
            .param("app", &options.app_id)
            .param("mark", &options.mark);
        query.fetch_one::<Stored>().await
    };
    loop {
        let stored = read_until(until, read).await?;
        if stored.distinct >= acked || Instant::now() > until {
            return Ok(stored);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten reports were sent, and all were stored except `missing` ones.
    fn ledger(recorded: i64, stored: i64, missing: i64) -> StoreLedger {
        StoreLedger {
            recorded,
            stored,
            dropped: 0,
            refused: 0,
            duplicate: 0,
            missing,
            others: 0,
        }
    }

    #[test]
    fn a_ledger_closes_over_what_was_sent() {
        assert!(ledger(10, 10, 0).closes(10, 10, 0));
        assert!(!ledger(10, 9, 1).closes(10, 10, 0), "acknowledged, missing");
        assert!(!ledger(11, 11, 0).closes(10, 10, 0), "counted twice");
        assert!(!ledger(9, 9, 0).closes(10, 9, 0), "never recorded");
        assert!(!ledger(10, 9, 0).closes(10, 9, 1), "does not add up");
        assert!(ledger(10, 9, 1).closes(10, 9, 1), "given up in between");
        assert!(ledger(9, 9, 0).closes(10, 9, 1), "given up at the end");
        let others = StoreLedger {
            others: 1,
            ..ledger(20, 19, 1)
        };
        assert!(others.closes(10, 10, 0), "others' reports are in it");
    }

    #[tokio::test]
    async fn a_store_that_is_started_again_is_read_again() {
        let failures = std::cell::Cell::new(0);
        let read = async || {
            failures.set(failures.get() + 1);
            match failures.get() {
                3 => Ok(7),
                _ => Err(clickhouse::error::Error::TimedOut),
            }
        };
        let patient = Instant::now() + Duration::from_secs(300);
        assert_eq!(read_until(patient, read).await.unwrap(), 7);
        assert!(read_until(Instant::now(), read).await.is_err());
        assert_eq!(failures.get(), 4);
    }
}
