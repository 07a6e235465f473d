//! Writer and roll-up are held between two of their steps. Changes that others make in this time are neither lost nor
//! repeated, and do not block.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use epwatch_collector::Collector;
use epwatch_server::{ByteSize, Period};
use epwatch_test_support::until;
use prost::Message;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::gate::{Gate, Held};
use crate::support::{
    OPEN, ROWS, Store, TIMEOUT, config, connect, report, send, start_at, start_with, store_all,
};

/// Sessions in closed buckets, read from the summaries alone.
const SESSIONS: &str = "SELECT toUInt64(sum(sessions)) AS n FROM cohort_sessions_v1";
const BUILT_AGAIN: &str = "SELECT count() AS n FROM bucket_revisions WHERE reason != 'closed'";
const ALL_LOOKED_AT: &str = "SELECT toUInt64(ifNull(max(checked_until) >= \
                             (SELECT max(closed_until) FROM rollup_watermark), 0)) AS n FROM rollup_checks";

/// Returns the statement that a gate held back.
async fn in_time(held: oneshot::Receiver<Held>) -> Held {
    let held = tokio::time::timeout(TIMEOUT, held).await;
    held.unwrap().unwrap()
}

fn now_secs() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// The time up to which a watermark's statement closes buckets, if the text contains such a statement.
fn closes_until(text: &str) -> Option<u64> {
    let (_, statement) = text.split_once("INSERT INTO rollup_watermark")?;
    let (_, from) = statement.split_once("SELECT toDateTime(")?;
    let (number, _) = from.split_once(',')?;
    number.parse().ok()
}

/// A collector for which no roll-up waits stores a report while another collector closes the report's bucket. This
/// happens after the summary was built and before the watermark moves. Neither collector sees the other's work by
/// itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_stored_while_its_bucket_is_being_closed_is_in_the_summary() {
    stored_while_its_bucket_is_being_closed(false).await;
}

/// The same case, but the closer ends right after it has written the watermark, before it checks the bucket once more.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_closer_that_ended_did_not_look_for_the_next_one_finds() {
    stored_while_its_bucket_is_being_closed(true).await;
}

async fn stored_while_its_bucket_is_being_closed(closer_ends: bool) {
    let store = Store::start().await;
    let (of_closer, of_other) = (
        Gate::before(store.socket()).await,
        Gate::before(store.socket()).await,
    );
    let wal = |name: &str| config(&store.dir.path().join(name));
    let mut writes_only = wal("other");
    writes_only.rollup.enabled = false;
    let other = start_at(writes_only, of_other.client()).await;
    let closer = start_at(wal("closer"), of_closer.client()).await;
    store_all(&mut connect(&other).await, &[report(2, 20, 1)]).await;
    let after = now_secs() + 1;
    store_all(&mut connect(&closer).await, &[report(1, 10, 1)]).await;

    let closing = of_closer
        .hold_back(move |text| closes_until(text).is_some_and(|until| until >= after))
        .await;
    of_closer.open();
    let held = in_time(closing).await;
    of_other.open();
    until("the other collector's report is stored", async || {
        other.is_drained()
    })
    .await;
    let closer = if closer_ends {
        let looking = of_closer
            .hold_back(|text| text.contains("SELECT count() AS n FROM reports WHERE"))
            .await;
        drop(held);
        let held = tokio::time::timeout(TIMEOUT, looking).await.unwrap();
        closer.stop().await;
        drop(held);
        start_with(&store, wal("closer")).await
    } else {
        drop(held);
        closer
    };

    store.eventually(OPEN, 0).await;
    store.eventually(SESSIONS, 2).await;
    other.stop().await;
    closer.stop().await;
    assert_eq!(store.number(SESSIONS).await, 2);
    store.engine.stop().await;
}

/// Another collector's deletion comes when the summary's rows were read and the summary is not published yet. By the
/// clocks, that collector's summary without the installation is the older one.
#[tokio::test(flavor = "multi_thread")]
async fn an_installation_deleted_while_its_bucket_is_being_closed_is_not_in_the_summary() {
    let store = Store::start().await;
    let gate = Gate::before(store.socket()).await;
    let wal = config(&store.dir.path().join("wal"));
    let closer = start_at(wal, gate.client()).await;
    let both = [report(1, 10, 1), report(2, 20, 1)];
    store_all(&mut connect(&closer).await, &both).await;
    let publishing = gate
        .hold_back(|text| text.contains("INSERT INTO bucket_revisions"))
        .await;
    gate.open();
    let held = in_time(publishing).await;
    let deletion = "INSERT INTO hidden_installations (installation, tombstoned_at) \
                    SELECT unhex(repeat('02', 16)), now64(3, 'UTC')";
    store.run(deletion).await;
    drop(held);
    store.eventually(ROWS, 2).await;
    store.eventually(OPEN, 0).await;
    assert_eq!(store.number(SESSIONS).await, 1);
    store.end(closer).await;
}

/// Makes a store with `n` reports, each in a closed bucket of its own. Also returns the buckets' start times.
async fn closed_buckets(n: u64) -> (Store, Vec<u64>) {
    let store = Store::start().await;
    let collector = start_with(&store, config(&store.dir.path().join("wal"))).await;
    let mut device = connect(&collector).await;
    let mut buckets = Vec::new();
    for sequence in 1..=n {
        store_all(&mut device, &[report(1, 10, sequence)]).await;
        store.eventually(ROWS, sequence).await;
        store.eventually(OPEN, 0).await;
        let latest = "SELECT toUInt64(toUInt32(max(bucket))) AS n FROM reports";
        buckets.push(store.number(latest).await);
    }
    collector.stop().await;
    assert_eq!(store.number(SESSIONS).await, n);
    assert_eq!(store.number(BUILT_AGAIN).await, 0);
    (store, buckets)
}

/// Sets the time until which closed buckets were checked.
async fn set_looked_until(store: &Store, seconds: u64) {
    let insert =
        format!("INSERT INTO rollup_checks SELECT toDateTime({seconds}, 'UTC'), now64(3, 'UTC')");
    for sql in ["TRUNCATE TABLE rollup_checks", &insert] {
        store.run(sql).await;
    }
}

/// Summaries that earlier versions built are accepted as they are.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_knows_of_no_look_is_not_built_again() {
    let (store, _) = closed_buckets(1).await;
    store.run("TRUNCATE TABLE rollup_checks").await;
    let upgraded = start_with(&store, config(&store.dir.path().join("wal"))).await;
    store.eventually(ALL_LOOKED_AT, 1).await;
    upgraded.stop().await;
    assert_eq!(store.number(BUILT_AGAIN).await, 0);
    store.engine.stop().await;
}

/// The closer had closed a long idle time at once, and ended. There may be reports at the beginning of that time.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_looked_at_is_built_bucket_by_bucket_from_its_beginning() {
    let (store, buckets) = closed_buckets(2).await;
    let [first, second] = buckets[..] else {
        panic!("two buckets: {buckets:?}")
    };
    assert!(first < second, "{buckets:?}");
    for table in ["cohort_buckets", "cohort_sessions", "bucket_revisions"] {
        let sql = format!("TRUNCATE TABLE {table}");
        store.run(&sql).await;
    }
    set_looked_until(&store, first).await;
    let closed = format!(
        "INSERT INTO rollup_watermark SELECT toDateTime({}, 'UTC'), now64(3, 'UTC')",
        second + 1_000
    );
    store.run(&closed).await;
    assert_eq!(store.number(SESSIONS).await, 0);

    let gate = Gate::before(store.socket()).await;
    let wal = config(&store.dir.path().join("wal"));
    let next = Collector::start(wal, gate.client(), CancellationToken::new());
    let is_second = format!("bucket IN (toDateTime({second}, 'UTC'))");
    let building = gate.hold_back(move |text| text.contains(&is_second)).await;
    gate.open();
    let next = next.await.unwrap();
    let held = in_time(building).await;
    let looked_until = "SELECT toUInt64(toUInt32(max(checked_until))) AS n FROM rollup_checks";
    assert_eq!(store.number(looked_until).await, first + 1);
    assert_eq!(store.number(SESSIONS).await, 1);
    drop(held);
    store.eventually(ALL_LOOKED_AT, 1).await;
    next.stop().await;
    assert_eq!(store.number(SESSIONS).await, 2);
    store.engine.stop().await;
}

/// The reports of these buckets may have expired, and no report came late.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_looked_at_for_long_stays_and_is_no_backlog() {
    let (store, _) = closed_buckets(1).await;
    set_looked_until(&store, 0).await;
    let mut config = config(&store.dir.path().join("wal"));
    // A day's reports may expire at any time.
    config.raw_retention = Period(Duration::from_secs(86_400));
    let next = start_with(&store, config).await;
    store.eventually(ALL_LOOKED_AT, 1).await;
    let metrics = next.metrics().encode();
    assert!(
        metrics.contains("epwatch_collector_buckets_incomplete_total 0\n"),
        "{metrics}"
    );
    next.stop().await;
    assert_eq!(store.number(BUILT_AGAIN).await, 0);
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_fails_keeps_no_bucket_from_being_closed() {
    let store = Store::start().await;
    store.run("DROP TABLE rollup_checks").await;
    let collector = start_with(&store, config(&store.dir.path().join("wal"))).await;
    let sent = send(&mut connect(&collector).await, &[report(1, 10, 1)]).await;
    assert!(sent.is_empty());
    store.eventually(ROWS, 1).await;
    store.eventually(OPEN, 0).await;
    let metrics = collector.metrics().encode();
    let is_noted = |line: &str| line.contains("call=\"rollup_check\"") && !line.ends_with(" 0");
    assert!(metrics.lines().any(is_noted), "{metrics}");
    collector.stop().await;
    assert_eq!(store.number(SESSIONS).await, 1);
    store.engine.stop().await;
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

const COPY_ROWS: &str = "SELECT count() AS n FROM report_copies";

/// Stores a batch of twenty reports. Returns a copy of the WAL as of a crash. The batch was sent, and the collector had
/// not yet saved that the store has it.
async fn stored_and_not_written_down(store: &Store) -> PathBuf {
    let gate = Gate::before(store.socket()).await;
    let wal = store.dir.path().join("wal");
    let mut before = config(&wal);
    before.batch.drain_timeout = Period(Duration::from_millis(1));
    let reports: Vec<_> = (1..=20).map(|n| report(1, 10, n)).collect();
    // A folder that already has names, so that the writer does not read them from the store first.
    let other = Store::start().await;
    let of_other = other.dir.path().join("wal");
    let collector = start_with(&other, config(&of_other)).await;
    store_all(&mut connect(&collector).await, &reports).await;
    other.eventually(ROWS, 20).await;
    std::fs::create_dir(&wal).unwrap();
    std::fs::copy(of_other.join("names"), wal.join("names")).unwrap();
    other.end(collector).await;

    let collector = start_at(before, gate.client()).await;
    store_all(&mut connect(&collector).await, &reports).await;
    // The batch's end is saved before the insert, and the insert was tried.
    let metrics = collector.metrics().clone();
    until("the batch was begun", async || {
        metrics
            .encode()
            .lines()
            .any(|line| line.contains("call=\"batch\"") && !line.ends_with(" 0"))
    })
    .await;
    collector.stop().await;
    let at_the_crash = store.dir.path().join("wal-at-the-crash");
    copy_dir(&wal, &at_the_crash);

    let first = start_with(store, config(&wal)).await;
    store.eventually(ROWS, 20).await;
    first.stop().await;
    at_the_crash
}

async fn forget_tokens(store: &Store) {
    for table in ["reports", "report_copies"] {
        let forget =
            format!("ALTER TABLE {table} MODIFY SETTING non_replicated_deduplication_window = 0");
        store.run(&forget).await;
    }
}

async fn takes_as_stored(store: &Store, wal: &Path) {
    let collector = start_with(store, config(wal)).await;
    until("the batch is taken as stored", async || {
        collector.is_drained()
    })
    .await;
    collector.stop().await;
}

async fn comes_back_with(store: &Store, wal: &Path) {
    takes_as_stored(store, wal).await;
    assert_eq!(store.number(ROWS).await, 20);
    assert_eq!(store.number(COPY_ROWS).await, 20);
    assert_eq!(store.number(ROWS).await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_token_the_store_forgot_is_not_stored_again() {
    let store = Store::start().await;
    let at_the_crash = stored_and_not_written_down(&store).await;
    forget_tokens(&store).await;
    comes_back_with(&store, &at_the_crash).await;
    store.engine.stop().await;
}

/// The state is as if one of several shards was away.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_batch_that_is_stored_in_part_the_rest_is_stored() {
    let store = Store::start().await;
    let at_the_crash = stored_and_not_written_down(&store).await;
    forget_tokens(&store).await;
    for (table, odd) in [("report_copies", 0), ("reports", 1)] {
        let lose = format!(
            "ALTER TABLE {table} DELETE WHERE sequence % 2 = {odd} SETTINGS mutations_sync = 2"
        );
        store.run(&lose).await;
    }
    assert_eq!(store.number(COPY_ROWS).await, 10);
    assert_eq!(store.number(ROWS).await, 10);
    comes_back_with(&store, &at_the_crash).await;
    store.engine.stop().await;
}

/// The state is as if a shard's replica committed its rows and died, and the other replica does not have them yet.
/// Masked rows stand for rows that no query shows. Each stored row exists once, whether it is shown or not.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_stored_and_not_seen_are_not_stored_again() {
    let store = Store::start().await;
    let at_the_crash = stored_and_not_written_down(&store).await;
    for (table, odd) in [("report_copies", 0), ("reports", 1)] {
        let hide = format!("DELETE FROM {table} WHERE sequence % 2 = {odd}");
        store.run(&hide).await;
    }
    assert_eq!(store.number(COPY_ROWS).await, 10);
    assert_eq!(store.number(ROWS).await, 10);
    takes_as_stored(&store, &at_the_crash).await;
    for rows in [COPY_ROWS, ROWS] {
        let all = format!("{rows} SETTINGS apply_deleted_mask = 0");
        assert_eq!(store.number(&all).await, 20, "{rows}");
    }
    store.engine.stop().await;
}

/// A batch's period applies to a first report that waits alone, not to the rest of a backlog.
#[tokio::test(flavor = "multi_thread")]
async fn what_waited_behind_a_full_batch_is_written_at_once() {
    let store = Store::start().await;
    let gate = Gate::before(store.socket()).await;
    let mut config = config(&store.dir.path().join("wal"));
    config.batch.max_bytes = ByteSize(1 << 20);
    config.batch.max_reports = 100;
    // The longest period that is allowed. The test waits for one such pause at most, although there are many batches.
    let period = Duration::from_secs(60);
    config.batch.period = Period(period);
    let collector = start_at(config, gate.client()).await;
    let mut device = connect(&collector).await;
    // Sends more bytes than a full batch has, because the first batch waits until it is full.
    let (mut n_sent, mut n_bytes) = (0, 0);
    while n_bytes < 5 << 18 {
        let reports: Vec<_> = (1..=150).map(|n| report(1, 10, n_sent + n)).collect();
        store_all(&mut device, &reports).await;
        n_sent += 150;
        n_bytes += reports.iter().map(Message::encoded_len).sum::<usize>();
    }
    // The last batch is not full.
    store_all(&mut device, &[report(1, 10, n_sent + 1)]).await;
    gate.open();
    let written = store.eventually(ROWS, n_sent + 1);
    tokio::time::timeout(2 * period, written).await.unwrap();
    store.end(collector).await;
}
