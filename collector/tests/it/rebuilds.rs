//! A backlog in closed buckets: which steps wait for summaries, and which do not.

use epwatch_test_support::until;

use crate::gate::Gate;
use crate::support::{
    COUNTED, OPEN, ROWS, Store, config, connect, metric, report, start, start_at, start_with,
    store_all,
};

const SESSIONS: &str = "SELECT toUInt64(sum(sessions)) AS n FROM cohort_sessions_v1";
const OPEN_REBUILDS: &str = "SELECT count() AS n FROM open_rebuilds_v1";
const OLDEST: &str = "epwatch_collector_rebuild_oldest_seconds";

/// The summaries cannot be written. Reports are still stored, and the request for the rebuild survives the process. The
/// summary is right once it can be written again.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_that_cannot_be_rebuilt_holds_up_no_report() {
    let store = Store::start().await;
    let gate = Gate::before(store.socket()).await;
    let mut late = config(&store.dir.path().join("late"));
    late.rollup.enabled = false;
    let collector = start_at(late.clone(), gate.client()).await;
    let mut device = connect(&collector).await;
    store_all(&mut device, &[report(2, 20, 1)]).await;
    let closer = start(&store, "wal").await;
    store_all(&mut connect(&closer).await, &[report(1, 10, 1)]).await;
    store.eventually(ROWS, 1).await;
    store.eventually(OPEN, 0).await;
    closer.stop().await;
    assert_eq!(store.number(SESSIONS).await, 1);

    store.run("RENAME TABLE cohort_sessions TO away").await;
    gate.open();
    store.eventually(ROWS, 2).await;
    until("the checkpoint moves", async || collector.is_drained()).await;
    store_all(&mut device, &[report(2, 20, 2)]).await;
    store.eventually(ROWS, 3).await;
    until("the checkpoint moves again", async || {
        collector.is_drained()
    })
    .await;
    let failed = || {
        let of = "epwatch_collector_store_errors_total{call=\"rebuild\"}";
        metric(&collector, of) > 0.0
    };
    until("the rebuild fails", async || failed()).await;
    assert!(metric(&collector, OLDEST) > 0.0);
    assert_eq!(metric(&collector, "epwatch_collector_store_up"), 1.0);
    assert_eq!(store.number(OPEN_REBUILDS).await, 1);
    collector.stop().await;
    assert_eq!(store.number(OPEN_REBUILDS).await, 1);

    store.run("RENAME TABLE away TO cohort_sessions").await;
    let collector = start_with(&store, late).await;
    store.eventually(OPEN_REBUILDS, 0).await;
    let is_shown = || metric(&collector, OLDEST) == 0.0;
    until("nothing waits", async || is_shown()).await;
    store.eventually(SESSIONS, 3).await;
    store.end(collector).await;
}

/// One bucket's summary cannot be written. Later buckets are still closed with their summaries, and this bucket's
/// summary is built once it can be written.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_cannot_be_built_holds_up_no_later_bucket() {
    let store = Store::start().await;
    let mut open = config(&store.dir.path().join("wal"));
    open.rollup.enabled = false;
    let collector = start_with(&store, open.clone()).await;
    let mut device = connect(&collector).await;
    store_all(&mut device, &[report(1, 10, 1)]).await;
    store.eventually(ROWS, 1).await;
    let broken = store.number("SELECT toUInt64(toUnixTimestamp(min(bucket))) AS n FROM reports");
    let broken = broken.await;
    let later = format!("SELECT countIf(toUnixTimestamp(bucket) > {broken}) AS n FROM reports");
    let mut sequence = 1;
    while store.number(&later).await == 0 {
        sequence += 1;
        store_all(&mut device, &[report(1, 10, sequence)]).await;
        store.eventually(ROWS, sequence).await;
    }
    collector.stop().await;

    let constraint = format!(
        "ALTER TABLE cohort_sessions ADD CONSTRAINT broken CHECK toUnixTimestamp(bucket) != {broken}"
    );
    store.run(&constraint).await;
    open.rollup.enabled = true;
    let collector = start_with(&store, open).await;
    store.eventually(OPEN, 0).await;
    store.eventually(OPEN_REBUILDS, 1).await;
    let in_broken = format!("SELECT countIf(toUnixTimestamp(bucket) = {broken}) AS n FROM reports");
    let in_broken = store.number(&in_broken).await;
    store.eventually(SESSIONS, sequence - in_broken).await;
    assert_eq!(store.number(COUNTED).await, sequence);
    until("it is shown", async || metric(&collector, OLDEST) > 0.0).await;

    let mended = "ALTER TABLE cohort_sessions DROP CONSTRAINT broken";
    store.run(mended).await;
    store.eventually(OPEN_REBUILDS, 0).await;
    store.eventually(SESSIONS, sequence).await;
    store.end(collector).await;
}
