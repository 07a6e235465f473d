//! The range of a store's days and buckets in which reports and summaries are complete.

use clickhouse::{Client, Row};
use serde::Deserialize;

use super::finding::CheckError;

#[derive(Debug, Row, Deserialize)]
pub(super) struct Limits {
    pub(super) horizon: String,
    pub(super) from: u32,
    pub(super) until: u32,
    pub(super) n_deletions_under_way: u64,
}

/// The check begins at the first day of the store that no TTL has touched.
const LIMITS: &str = "
    SELECT
        toString(toDate(now('UTC')) - {raw_days} + 1) AS horizon,
        assumeNotNull(greatest(toUInt32(toUnixTimestamp(toDateTime(toDate(now('UTC')) - {raw_days} + 1, 'UTC'))),
            (SELECT toUInt32(max(whole_since)) FROM raw_retention))) AS from,
        assumeNotNull(least((SELECT toUInt32(max(closed_until)) FROM rollup_watermark),
            (SELECT toUInt32(max(checked_until)) FROM rollup_checks))) AS until,
        assumeNotNull((SELECT uniqExact(installation) FROM hidden_installations
            WHERE installation NOT IN (SELECT installation FROM deletion_log WHERE step = 'hidden'
                AND installation IN (SELECT installation FROM hidden_installations)))) AS n_deletions_under_way";

pub(super) fn unread_days(source: clickhouse::error::Error) -> CheckError {
    CheckError::Store {
        what: "the days of reports",
        source,
    }
}

pub(super) async fn limits(client: &Client, raw_days: u16) -> Result<Limits, CheckError> {
    let sql = LIMITS.replace("{raw_days}", &raw_days.to_string());
    client.query(&sql).fetch_one().await.map_err(unread_days)
}
