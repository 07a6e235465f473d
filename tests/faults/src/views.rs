//! The answer that each view should give for a number of reports, and the one that it gives.

use clickhouse::{Client, Row};
use serde::{Deserialize, Serialize};

use crate::report::{Key, RUNS};

/// One number of one view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ViewCount {
    /// The view and its column.
    pub view: String,
    /// The expected answer.
    pub expected: u64,
    pub found: u64,
}

#[derive(Debug, Row, Deserialize)]
struct Number {
    n: u64,
}

#[derive(Debug, Row, Deserialize)]
struct CountedKey {
    installation: [u8; 16],
    stream_id: u64,
    sequence: u64,
    n: u64,
}

/// A number of a view. The fields are the view, the number's name if the view has several, its SQL, and the
/// contribution of one report.
const VIEWS: &[(&str, &str, &str, u64)] = &[
    ("counted_reports_v1", "", "count()", 1),
    ("device_sessions_v1", "", "count()", 1),
    ("device_series_v1", "", "count()", 1),
    ("device_buckets_v1", "", "sum(n)", RUNS),
    ("device_placements_v1", "", "sum(sessions)", 1),
    ("cohort_sessions_v1", "", "sum(sessions)", 1),
    ("cohort_buckets_v1", "", "sum(n)", RUNS),
    (
        "cohort_buckets_v1",
        ", histograms",
        "arraySum(mapValues(sumMap(hist)))",
        RUNS,
    ),
    ("loss_ledger_v1", ", recorded", "sum(recorded)", 1),
    ("loss_ledger_v1", ", stored", "sum(stored)", 1),
    (
        "loss_ledger_v1",
        ", missing, dropped and refused",
        "sum(abs(missing) + dropped + refused)",
        0,
    ),
];

/// Queries every view.
pub(crate) async fn ask(store: &Client, reports: u64) -> clickhouse::error::Result<Vec<ViewCount>> {
    let mut counts = Vec::with_capacity(VIEWS.len());
    for (view, number, sql, each) in VIEWS {
        let sql = format!("SELECT toUInt64({sql}) AS n FROM {view}");
        counts.push(ViewCount {
            view: format!("{view}{number}"),
            expected: reports * each,
            found: store.query(&sql).fetch_one::<Number>().await?.n,
        });
    }
    Ok(counts)
}

/// Returns every report that counts, and how often it counts.
pub(crate) async fn keys(store: &Client) -> clickhouse::error::Result<Vec<(Key, u64)>> {
    let sql = "SELECT installation, stream_id, sequence, count() AS n FROM counted_reports_v1 \
               GROUP BY installation, stream_id, sequence";
    let rows = store.query(sql).fetch_all::<CountedKey>().await?;
    let key = |row: CountedKey| ((row.installation, row.stream_id, row.sequence), row.n);
    Ok(rows.into_iter().map(key).collect())
}

/// Returns the number of reports in open buckets. Until it is 0, the views read raw rows.
pub(crate) async fn open_reports(store: &Client) -> clickhouse::error::Result<u64> {
    let sql = "SELECT count() AS n FROM report_copies \
               WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)";
    Ok(store.query(sql).fetch_one::<Number>().await?.n)
}

/// Returns the number of rows of `reports` that came from the same position of a WAL: a batch that was written twice.
pub(crate) async fn rows_twice(store: &Client) -> clickhouse::error::Result<u64> {
    let sql = "SELECT count() AS n FROM (SELECT collector_id, wal_offset FROM reports \
               GROUP BY collector_id, wal_offset HAVING count() > 1)";
    Ok(store.query(sql).fetch_one::<Number>().await?.n)
}
