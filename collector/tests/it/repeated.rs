//! The store may have several rows for one position of a log. No view counts them more than once.

use std::collections::BTreeMap;

use clickhouse::Row;
use serde::Deserialize;

use crate::support::{OPEN, ROWS, Store, config, connect, report, start_with, store_all};

#[derive(Debug, Row, Deserialize)]
struct Text {
    text: String,
}

async fn texts(store: &Store, sql: &str) -> Vec<String> {
    let rows = store.client.query_raw(sql).fetch_all::<Text>();
    let rows = rows.await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    rows.into_iter().map(|row| row.text).collect()
}

/// Returns all rows of every view, in a fixed order.
async fn answers(store: &Store) -> BTreeMap<String, Vec<String>> {
    let views = "SELECT name AS text FROM system.tables WHERE database = currentDatabase() AND engine = 'View'";
    let mut answers = BTreeMap::new();
    for view in texts(store, views).await {
        let rows =
            format!("SELECT toValidUTF8(toString(tuple(*))) AS text FROM {view} ORDER BY text");
        let rows = texts(store, &rows).await;
        answers.insert(view, rows);
    }
    answers
}

/// Adds three rows in both raw tables for each position that `which` selects: two in one insert, and one in another.
async fn repeat(store: &Store, which: &str) {
    for table in ["report_copies", "reports"] {
        for times in ["[1, 2]", "[1]"] {
            let rows = format!(
                "INSERT INTO {table} SELECT rows.* FROM (\
                 SELECT * FROM {table} WHERE {which} LIMIT 1 BY collector_id, wal_offset) AS rows \
                 ARRAY JOIN {times} AS times SETTINGS insert_deduplicate = 0"
            );
            store.run(&rows).await;
        }
    }
}

#[track_caller]
fn check_same(
    before: &BTreeMap<String, Vec<String>>,
    after: &BTreeMap<String, Vec<String>>,
    is_asked: impl Fn(&str) -> bool,
) {
    for (view, rows) in before.iter().filter(|(view, _)| is_asked(view)) {
        let now = &after[view];
        assert!(rows == now, "{view}: {} and {} rows", rows.len(), now.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_view_counts_a_position_of_a_log_twice() {
    let store = Store::start().await;
    let wal = |name: &str| {
        let mut config = config(&store.dir.path().join(name));
        // All buckets stay open.
        config.rollup.enabled = false;
        config
    };
    let one = start_with(&store, wal("one")).await;
    let two = start_with(&store, wal("two")).await;
    let mut other = report(2, 20, 1);
    other.interval_length_ms += 1;
    let sent: Vec<_> = (1..=6).map(|n| report(n, 10 * u64::from(n), 1)).collect();
    store_all(&mut connect(&one).await, &sent).await;
    store.eventually(ROWS, 6).await;
    // A copy and a conflict.
    store_all(&mut connect(&two).await, &[sent[0].clone(), other]).await;
    one.stop().await;
    two.stop().await;
    let whole = answers(&store).await;
    assert_eq!(whole["counted_reports_v1"].len(), 6);
    assert_eq!(whole["conflicting_copies_v1"].len(), 1);

    repeat(
        &store,
        "substring(installation, 1, 1) IN (unhex('01'), unhex('02'), unhex('03'))",
    )
    .await;
    assert_eq!(store.number(ROWS).await, 8 + 5 * 3);
    // Two views may differ: one lists repeated rows, and the other returns all rows of settled reports.
    let is_asked = |view: &str| !view.contains("repeated_rows") && view != "settled_reports_v1";
    check_same(&whole, &answers(&store).await, is_asked);
    store.run("OPTIMIZE TABLE reports FINAL").await;
    check_same(&whole, &answers(&store).await, is_asked);

    // Summaries are built without the repeated rows, and the list of repeated rows in closed buckets contains them.
    let closer = start_with(&store, config(&store.dir.path().join("closer"))).await;
    store.eventually(OPEN, 0).await;
    closer.stop().await;
    // Leaves out views that must differ. They show only closed or only open buckets, copies in such buckets, progress,
    // or readings that a collector made meanwhile.
    let is_asked = |view: &str| {
        let others = [
            "closed",
            "open_",
            "settled",
            "progress",
            "read_",
            "daily_counts",
            "repeated",
        ];
        !others.iter().any(|word| view.contains(word))
    };
    let closed = answers(&store).await;
    check_same(&whole, &closed, is_asked);
    // If a bucket was built again, its repeated rows are twice in the list.
    let mut listed = closed["repeated_rows_v1"].clone();
    listed.dedup();
    assert_eq!(listed.len(), 5 * 3);
    assert_eq!(
        closed["cohort_buckets_v1"],
        closed["cohort_buckets_closed_v1"]
    );

    // Repeated rows that come into a closed bucket later do not change its summaries.
    repeat(&store, "substring(installation, 1, 1) = unhex('05')").await;
    let is_summary = |view: &str| view.starts_with("cohort_") && !view.contains("fresh");
    check_same(&closed, &answers(&store).await, is_summary);
    store.engine.stop().await;
}
