//! What the store holds of one load, read from the views that everybody reads.

use std::time::{Duration, Instant};

use clickhouse::{Client, Row};
use epwatch_fleet::load::LoadOptions;
use serde::{Deserialize, Serialize};

/// Reports of the load in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Row)]
pub(super) struct Stored {
    /// That count in the views.
    pub(super) reports: u64,
    /// Different ones among them.
    pub(super) distinct: u64,
    /// Rows, those of copies that do not count included.
    pub(super) copies: u64,
}

/// What became of the reports: recorded = stored + dropped + refused + missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Ledger {
    pub(super) recorded: u64,
    pub(super) stored: u64,
    pub(super) dropped: u64,
    pub(super) refused: u64,
    pub(super) duplicate: u64,
    pub(super) missing: i64,
}

/// The mark of a load is its app version.
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

/// Reads once the writer has caught up with `acked`, or `patience` is over.
pub(super) async fn settled(
    store: &Client,
    options: &LoadOptions,
    acked: u64,
    patience: Duration,
) -> clickhouse::error::Result<Stored> {
    let until = Instant::now() + patience;
    loop {
        let stored = store
            .query(STORED)
            .param("app", &options.app_id)
            .param("mark", &options.mark)
            .fetch_one::<Stored>()
            .await?;
        if stored.distinct >= acked || Instant::now() > until {
            return Ok(stored);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
