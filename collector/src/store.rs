//! The collector's calls to ClickHouse, with tokens and settings that make a repeated insert harmless. All modules of
//! the collector that reach the store use it.

use std::time::Duration;

use clickhouse::{Client, Row, RowOwned, RowWrite};
use epwatch_server::Backoff;
use epwatch_store::mutated_name;
use serde::{Deserialize, Serialize};

use crate::encode::EncodedBlock;
use crate::metrics::Metrics;

/// Time limits of one chunk, and of the answer to a whole insert.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
const END_TIMEOUT: Duration = Duration::from_secs(180);
/// First pause after a failed call; callers set the longest.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(50);
const QUERY_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a step waits for stored rows that a lagging replica does not show yet, before the step fails and is tried
/// again.
const MAX_HIDDEN: Duration = Duration::from_secs(120);
/// Longest pause between two reads while rows are not visible yet.
const MAX_READ_PAUSE: Duration = Duration::from_secs(4);

/// A failed call: the store may be away, overloaded or not migrated. Callers retry in each case, so the causes
/// are not distinguished.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing} {what}")]
pub(crate) struct SinkError {
    doing: &'static str,
    what: String,
    #[source]
    source: clickhouse::error::Error,
}

/// A store with migrations applied.
#[derive(Clone)]
pub(crate) struct Sink {
    client: Client,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").finish_non_exhaustive()
    }
}

/// Progress of one collector; times in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct CollectorCheckpoint {
    pub(crate) collector_id: u64,
    pub(crate) passed_until: i64,
    pub(crate) updated_at: i64,
}

impl Sink {
    pub(crate) fn new(client: Client) -> Self {
        // With the server's default the answer could come before the rows are stored.
        let client = client
            // A read of SharedMergeTree, or of Replicated tables with insert_quorum, then shows every acknowledged row. Other
            // engines ignore it.
            .with_setting("select_sequential_consistency", "1")
            .with_setting("async_insert", "0")
            .with_setting("insert_deduplicate", "1")
            .with_setting("deduplicate_blocks_in_dependent_materialized_views", "1");
        Self { client }
    }

    /// Inserts rows as one batch. With a token, the store keeps a repeated batch once.
    pub(crate) async fn insert<T>(
        &self,
        table: &'static str,
        rows: &[T::Value<'_>],
        token: Option<&str>,
    ) -> Result<(), SinkError>
    where
        T: Row + RowWrite,
    {
        if rows.is_empty() {
            return Ok(());
        }
        let failed = failed_to("insert into", table);
        let mut insert = self.client.insert::<T>(table).await.map_err(failed)?;
        insert = insert.with_timeouts(Some(SEND_TIMEOUT), Some(END_TIMEOUT));
        if let Some(token) = token {
            insert = insert.with_setting("insert_deduplication_token", token);
        }
        for row in rows {
            insert.write(row).await.map_err(failed)?;
        }
        insert.end().await.map_err(failed)
    }

    /// Inserts encoded rows as one batch. With a token, the store keeps a repeated batch once, while it
    /// remembers the token.
    pub(crate) async fn insert_body(
        &self,
        table: &'static str,
        body: &EncodedBlock,
        token: Option<&str>,
    ) -> Result<(), SinkError> {
        if body.n_rows == 0 {
            return Ok(());
        }
        let sql = format!("INSERT INTO {table} {} FORMAT Native", body.columns);
        let insert = self.client.insert_formatted_with(sql);
        let mut insert = insert.with_timeouts(Some(SEND_TIMEOUT), Some(END_TIMEOUT));
        if let Some(token) = token {
            insert = insert.with_setting("insert_deduplication_token", token);
        }
        let failed = failed_to("insert into", table);
        for chunk in &body.chunks {
            insert.send(chunk.clone()).await.map_err(failed)?;
        }
        insert.end().await.map_err(failed)
    }

    /// Runs a statement without a result.
    pub(crate) async fn execute(&self, what: &str, sql: &str) -> Result<(), SinkError> {
        let run = self.client.query_raw(sql).execute();
        within(QUERY_TIMEOUT, run)
            .await
            .map_err(failed_to("run", what))
    }

    /// Deletes rows on every replica before it returns.
    pub(crate) async fn delete(
        &self,
        table: &'static str,
        condition: &str,
    ) -> Result<(), SinkError> {
        let name = self.stored_name(table).await?;
        let sql =
            format!("ALTER TABLE {name} DELETE WHERE {condition} SETTINGS mutations_sync = 2");
        self.execute(table, &sql).await
    }

    /// Returns the name of the table that has the rows themselves, also on a cluster.
    pub(crate) async fn stored_name(&self, table: &'static str) -> Result<String, SinkError> {
        let sql = format!(
            "SELECT engine_full FROM system.tables WHERE database = currentDatabase() \
             AND name = '{table}'"
        );
        let engine = self.first::<String>(table, &sql).await?;
        let name = mutated_name(&engine.unwrap_or_default());
        Ok(name.unwrap_or_else(|| table.to_owned()))
    }

    /// Returns the highest offset of a collector's reports at or above `end`, received at `newest_us` or later.
    pub(crate) async fn newest_offset(
        &self,
        collector_id: u64,
        newest_us: u64,
        end: u64,
    ) -> Result<Option<u64>, SinkError> {
        let newest_ms = newest_us / 1000;
        let sql = format!(
            "SELECT max(wal_offset) FROM report_copies WHERE collector_id = {collector_id} AND wal_offset >= {end} \
             AND received_at >= fromUnixTimestamp64Milli(toInt64({newest_ms}), 'UTC')"
        );
        let newest = self.first::<u64>("report_copies", &sql).await?;
        Ok(newest.filter(|offset| *offset > 0))
    }

    /// Runs a query with few result rows.
    pub(crate) async fn fetch<T>(&self, what: &str, sql: &str) -> Result<Vec<T>, SinkError>
    where
        T: RowOwned + clickhouse::RowRead,
    {
        let run = self.client.query_raw(sql).fetch_all::<T>();
        within(QUERY_TIMEOUT, run)
            .await
            .map_err(failed_to("fetch", what))
    }

    /// Waits until the query `sql` returns 0: the number of rows that the store does not show yet.
    pub(crate) async fn wait_until_none(&self, what: &str, sql: &str) -> Result<(), SinkError> {
        self.repeat_until_none(what, "", sql).await
    }

    /// Repeats a statement until the query `count` returns 0: the number of rows that the store does not show yet. An
    /// empty statement only waits.
    pub(crate) async fn repeat_until_none(
        &self,
        what: &str,
        statement: &str,
        count: &str,
    ) -> Result<(), SinkError> {
        let deadline = tokio::time::Instant::now() + MAX_HIDDEN;
        let mut backoff = Backoff::new(FIRST_PAUSE, MAX_READ_PAUSE);
        loop {
            if !statement.is_empty() {
                self.execute(what, statement).await?;
            }
            if self.first::<u64>(what, count).await? == Some(0) {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                let late = clickhouse::error::Error::TimedOut;
                return Err(failed_to("see its own rows in", what)(late));
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    /// Runs a query and returns its first row.
    pub(crate) async fn first<T>(&self, what: &str, sql: &str) -> Result<Option<T>, SinkError>
    where
        T: RowOwned + clickhouse::RowRead,
    {
        Ok(self.fetch(what, sql).await?.into_iter().next())
    }
}

fn failed_to(
    doing: &'static str,
    what: &str,
) -> impl Fn(clickhouse::error::Error) -> SinkError + Copy {
    move |source| SinkError {
        doing,
        what: what.to_owned(),
        source,
    }
}

async fn within<T>(
    limit: Duration,
    run: impl Future<Output = Result<T, clickhouse::error::Error>>,
) -> Result<T, clickhouse::error::Error> {
    tokio::time::timeout(limit, run)
        .await
        .unwrap_or(Err(clickhouse::error::Error::TimedOut))
}

/// Counts and logs a failed call, with its chain of causes.
pub(crate) fn note_failure(metrics: &Metrics, call: &'static str, error: &SinkError) {
    metrics.store_errors.get_or_create(&[("call", call)]).inc();
    let error = error as &(dyn std::error::Error + 'static);
    tracing::warn!(error, "store call failed, trying again");
}
