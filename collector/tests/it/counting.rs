//! A report counts once in every view, however often and wherever it was sent.

use std::time::Duration;

use epwatch_collector::Collector;
use epwatch_collector::config::CollectorConfig;
use epwatch_collector::schema::{DATABASE, Retention, retention, single_server};
use epwatch_proto::v1::Outcome;
use epwatch_server::Period;

use crate::support::{
    COUNTED, OPEN, ROWS, Store, TIMEOUT, config, connect, report, send, start, start_at,
    start_with, started, store_all,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_report_sent_thrice_in_batches_and_through_two_collectors_counts_once() {
    let store = Store::start().await;
    let first = start(&store, "wal-1").await;
    let mut quiet = config(&store.dir.path().join("wal-2"));
    // This collector forgets every key at once, as if it was restarted between calls.
    quiet.seen_keys = 0;
    let second = start_with(&store, quiet).await;
    let (mut to_first, mut to_second) = (connect(&first).await, connect(&second).await);

    let sent = [report(1, 10, 1)];
    store_all(&mut to_first, &sent).await;
    store.eventually(ROWS, 1).await;
    store_all(&mut to_second, &sent).await;
    store.eventually(ROWS, 2).await;
    store_all(&mut to_second, &sent).await;
    store.eventually(ROWS, 3).await;
    store_all(&mut to_first, &[report(1, 10, 2)]).await;
    store.eventually(ROWS, 4).await;

    store.check_views_show(2).await;
    store.eventually(OPEN, 0).await;
    store.check_views_show(2).await;
    let surplus = "SELECT toUInt64(sum(duplicate)) AS n FROM duplicates_v1";
    assert_eq!(store.number(surplus).await, 2);
    first.stop().await;
    second.stop().await;
    store.check_views_show(2).await;
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_ack_is_answered_as_duplicate_and_counted() {
    let (store, collector, mut device) = started().await;
    let sent = [report(1, 10, 1), report(1, 10, 2)];
    store_all(&mut device, &sent).await;
    let again = send(&mut device, &sent).await;
    let outcomes: Vec<Outcome> = again.iter().map(|result| result.outcome()).collect();
    assert_eq!(outcomes, [Outcome::Duplicate; 2]);
    assert_eq!(again[1].key.as_ref().unwrap().sequence, 2);
    collector.stop().await;
    store.check_views_show(2).await;
    let duplicates = "SELECT toUInt64(sum(duplicate)) AS n FROM duplicates_v1";
    assert_eq!(store.number(duplicates).await, 2);
    store.engine.stop().await;
}

/// The collector that has the first copy in memory refuses another report with its key. Another or a restarted
/// collector stores it. It counts nowhere, and the ledger shows the same in both cases.
#[tokio::test(flavor = "multi_thread")]
async fn another_report_with_a_known_key_is_a_conflict_on_every_collector() {
    let store = Store::start().await;
    let first = start(&store, "wal-1").await;
    let second = start(&store, "wal-2").await;
    let sent = report(1, 10, 1);
    let mut other = sent.clone();
    other.interval_length_ms += 1;
    // Keys of another app are independent.
    let mut elsewhere = other.clone();
    elsewhere.app.as_mut().unwrap().id = "com.example.other".to_owned();
    let (mut to_first, mut to_second) = (connect(&first).await, connect(&second).await);
    store_all(&mut to_first, &[sent.clone(), elsewhere]).await;
    store.eventually(ROWS, 2).await;
    let refused = send(&mut to_first, &[other.clone()]).await;
    assert_eq!(refused[0].outcome(), Outcome::RefusedConflict);
    store_all(&mut to_second, &[other.clone()]).await;
    store.eventually(ROWS, 3).await;
    first.stop().await;
    let first = start(&store, "wal-1").await;
    store_all(&mut connect(&first).await, &[other]).await;
    store.eventually(ROWS, 4).await;
    first.stop().await;
    let first = start(&store, "wal-1").await;
    store_all(&mut connect(&first).await, std::slice::from_ref(&sent)).await;
    store.eventually(ROWS, 5).await;

    let of_app = |column: &str| {
        let app = &sent.app.as_ref().unwrap().id;
        format!(
            "SELECT toUInt64(sum({column})) AS n FROM loss_ledger_daily_v1 WHERE app_id = '{app}'"
        )
    };
    let counted = format!(
        "SELECT count() AS n FROM counted_reports_v1 WHERE interval_length_ms = {}",
        sent.interval_length_ms
    );
    for closed in [false, true] {
        if closed {
            store.eventually(OPEN, 0).await;
        }
        for (column, n) in [
            ("stored", 1),
            ("missing", 0),
            ("conflict", 3),
            ("duplicate", 1),
        ] {
            store.eventually(&of_app(column), n).await;
        }
        assert_eq!(store.number(COUNTED).await, 2, "one of each app");
        assert_eq!(store.number(&counted).await, 1, "the first one");
    }
    let answered = of_app("answered_by_outcome['refused_conflict']");
    assert_eq!(store.number(&answered).await, 1);
    first.stop().await;
    store.end(second).await;
}

/// The collector that was gone received its copy first, so this copy counts. The bucket that counted the later copy is
/// built again without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_in_closed_buckets_is_counted_once() {
    let (store, other) = with_backlog(|_| (), async |_| ()).await;
    store.eventually(OPEN, 0).await;
    // A closed bucket may still wait for its summary to be built again.
    let runs = "SELECT toUInt64(sum(n)) AS n FROM cohort_buckets_v1";
    store.eventually(runs, 12).await;
    store.check_views_show(2).await;
    let rebuilt = "SELECT count() AS n FROM bucket_revisions WHERE reason = 'backlog'";
    assert!(store.number(rebuilt).await > 0);
    store.end(other).await;
}

/// Some of the bucket's reports may have expired, so a new summary would lack them.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_whose_reports_may_be_gone_keeps_its_summary() {
    // Reports are kept for one day here, so a day's reports may expire at any time.
    let day = Period(Duration::from_secs(86_400));
    let (store, other) = with_backlog(|gone| gone.raw_retention = day, async |_| ()).await;
    check_not_built_again(&store).await;
    store.end(other).await;
}

async fn check_not_built_again(store: &Store) {
    let rebuilt = "SELECT count() AS n FROM bucket_revisions WHERE reason = 'backlog'";
    assert_eq!(store.number(rebuilt).await, 0);
    let runs = "SELECT toUInt64(sum(n)) AS n FROM cohort_buckets_v1";
    assert_eq!(store.number(runs).await, 6);
    assert_eq!(store.number(COUNTED).await, 2);
}

/// Reports that an earlier TTL may have removed do not come back with a longer TTL.
#[tokio::test(flavor = "multi_thread")]
async fn a_longer_retention_does_not_trust_what_the_shorter_one_left() {
    let change = async |store: &Store| {
        for raw_days in [1, 14] {
            let target = store.engine.target(DATABASE);
            let retention = Retention {
                raw_days,
                ..Retention::default()
            };
            let changed = retention::apply(&target, &single_server(retention)).await;
            assert!(!changed.unwrap().is_empty());
        }
    };
    let (store, other) = with_backlog(|_| (), change).await;
    check_not_built_again(&store).await;
    store.end(other).await;
}

/// A day's reports expire together, so the first of them stay until the last one has expired.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_does_not_count_stays_hidden_until_it_is_gone() {
    let store = Store::start().await;
    let day = "toDateTime(toDate(now('UTC') - INTERVAL 14 DAY), 'UTC')";
    // Inserts two copies of a report in the first seconds of a day, and another report in its last seconds.
    let insert = |table: &str, app: &str, app_id: &str| {
        format!(
            "INSERT INTO {table} ({app}received_at, bucket, collector_id, wal_offset, installation, stream_id, \
             sequence) SELECT {app_id}at, at, number, 1, unhex(repeat('01', 16)), 10, if(number = 2, 2, 1) \
             FROM (SELECT number, {day} + toIntervalSecond(if(number = 2, 86399, number)) AS at FROM numbers(3))"
        )
    };
    for sql in [
        insert("report_copies", "", ""),
        insert("reports", "app_id, ", "'app', "),
        format!("INSERT INTO surplus_copies SELECT {day} + INTERVAL 1 SECOND, 1, 1"),
        "INSERT INTO rollup_watermark SELECT now('UTC'), now64(3, 'UTC')".to_owned(),
        "OPTIMIZE TABLE surplus_copies FINAL".to_owned(),
    ] {
        store.client.query_raw(&sql).execute().await.unwrap();
    }
    assert_eq!(store.number(ROWS).await, 3);
    assert_eq!(store.number(COUNTED).await, 2);
    store.engine.stop().await;
}

/// Makes a store and a collector with a backlog of two reports of one device. Another collector has one of the two as
/// well, received later. That report's bucket is closed when the first collector, unknown until then, comes back.
///
/// `before` runs before the first collector comes back.
async fn with_backlog(
    set: impl FnOnce(&mut CollectorConfig),
    before: impl AsyncFnOnce(&Store),
) -> (Store, Collector) {
    let store = Store::start().await;
    let mut gone = config(&store.dir.path().join("wal-gone"));
    set(&mut gone);
    gone.batch.drain_timeout = Period(Duration::from_millis(1));
    // The collector's store is away from the start, so the store does not know the collector.
    let away = store.engine.client("no_such_database");
    let collector = start_at(gone.clone(), away).await;
    let mut device = connect(&collector).await;
    store_all(&mut device, &[report(1, 10, 1), report(1, 10, 2)]).await;
    collector.stop().await;

    let other = start(&store, "wal-other").await;
    let mut device = connect(&other).await;
    store_all(&mut device, &[report(1, 10, 1)]).await;
    store.eventually(ROWS, 1).await;
    store.eventually(OPEN, 0).await;
    store.check_views_show(1).await;
    before(&store).await;

    gone.batch.drain_timeout = Period(TIMEOUT);
    let back = start_with(&store, gone).await;
    store.eventually(ROWS, 3).await;
    store.eventually(COUNTED, 2).await;
    // The checkpoint does not wait for summaries, so the test waits for them here.
    store
        .eventually("SELECT count() AS n FROM open_rebuilds_v1", 0)
        .await;
    back.stop().await;
    (store, other)
}
