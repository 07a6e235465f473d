//! Deletions on their way into the store: which installations they hide, and that the cost of views does not depend on
//! their number.

use std::time::{Duration, Instant};

use epwatch_collector::Collector;
use epwatch_proto::{InstallationId, v1};
use epwatch_server::Period;
use epwatch_test_support::until;

use crate::calls::{SECRET, check_views_show, deletion, doomed};
use crate::gate::{Change, Gate};
use crate::support::{
    OPEN, ROWS, Store, TIMEOUT, config, connect, metric, report, start_alone, start_at, start_with,
    store_all,
};

/// Waits until `n` deletions are in the state `pending` or `waiting`.
async fn shows(collector: &Collector, state: &str, n: u64) {
    let name = format!("epwatch_collector_deletions_{state}");
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let expected = n as f64;
    let what = format!("{n} deletions {state}");
    until(&what, async || metric(collector, &name) == expected).await;
}

/// The calls are like those from a holder of a public key who makes up installations. An installation that sent a
/// report is still deleted.
#[tokio::test(flavor = "multi_thread")]
async fn deletions_of_installations_that_sent_nothing_leave_nothing_in_the_store() {
    const MADE_UP: u64 = 300;
    let store = Store::start().await;
    let mut first = config(&store.dir.path().join("wal"));
    first.refresh = Period(Duration::from_millis(50));
    first.limits.deletions_per_key = 0;
    let collector = start_with(&store, first.clone()).await;
    let mut device = connect(&collector).await;
    store_all(&mut device, &[doomed(1), report(1, 1, 1)]).await;
    for n in 0..MADE_UP {
        let secret = [n.to_le_bytes(); 4].concat().into();
        let made_up = v1::DeleteInstallationRequest { secret };
        device.delete_installation(made_up).await.unwrap();
    }
    device.delete_installation(deletion()).await.unwrap();
    let hidden = "SELECT count() AS n FROM deletions_v1 WHERE toYear(hidden_at) > 1970";
    store.eventually(hidden, 1).await;
    check_views_show(&store, 1).await;
    shows(&collector, "waiting", MADE_UP).await;
    shows(&collector, "pending", 0).await;
    for table in ["tombstones", "hidden_installations", "deletions_v1"] {
        let sql = format!("SELECT count() AS n FROM {table}");
        assert_eq!(store.number(&sql).await, 1, "{table}");
    }
    collector.stop().await;

    // The promises survive a restart. They are forgotten once they have waited for as long as the store keeps reports.
    let collector = start_with(&store, first.clone()).await;
    shows(&collector, "waiting", MADE_UP).await;
    collector.stop().await;
    first.raw_retention = Period(Duration::from_millis(1));
    let collector = start_with(&store, first).await;
    shows(&collector, "waiting", 0).await;
    shows(&collector, "pending", 0).await;
    assert_eq!(store.number("SELECT count() AS n FROM tombstones").await, 1);
    store.end(collector).await;
}

/// The report was in another collector's WAL when the deletion was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_waits_for_reports_of_other_collectors() {
    let store = Store::start().await;
    let mut first = config(&store.dir.path().join("wal-1"));
    first.refresh = Period(Duration::from_millis(50));
    let mut second = first.clone();
    second.wal.dir = store.dir.path().join("wal-2");
    let first = start_with(&store, first).await;
    let second = start_with(&store, second).await;
    let mut device = connect(&first).await;
    device.delete_installation(deletion()).await.unwrap();
    shows(&first, "waiting", 1).await;
    store_all(&mut connect(&second).await, &[doomed(1), report(1, 1, 1)]).await;
    let hidden = "SELECT count() AS n FROM deletions_v1 WHERE toYear(hidden_at) > 1970";
    store.eventually(hidden, 1).await;
    store.eventually(OPEN, 0).await;
    check_views_show(&store, 1).await;
    shows(&first, "waiting", 0).await;
    first.stop().await;
    store.end(second).await;
}

/// When this collector's backlog came, the installation's earlier rows were erased, and views no longer hid it.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_of_an_installation_that_was_deleted_long_ago_is_in_no_view() {
    let dir = tempfile::tempdir().unwrap();
    let mut away = config(&dir.path().join("wal"));
    away.batch.drain_timeout = Period(Duration::from_millis(1));
    let collector = start_alone(&dir, away.clone()).await;
    store_all(
        &mut connect(&collector).await,
        &[doomed(1), report(1, 1, 1)],
    )
    .await;
    collector.stop().await;

    let store = Store::start_in(dir).await;
    let id = InstallationId::from_secret(&SECRET).to_hex();
    let deleted = format!("INSERT INTO tombstones SELECT unhex('{id}'), now64(3)");
    store.run(&deleted).await;
    let collector = start_with(&store, away).await;
    store.eventually(ROWS, 2).await;
    let hidden =
        format!("SELECT count() AS n FROM hidden_installations WHERE installation = unhex('{id}')");
    assert_eq!(store.number(&hidden).await, 1);
    store.eventually(OPEN, 0).await;
    check_views_show(&store, 1).await;
    store.end(collector).await;
}

/// A summary that counts one installation cannot be written. The deletion of another installation is carried out to its
/// end. The counted one's deletion waits until the summary can be built without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_that_cannot_be_built_holds_up_no_other_deletion() {
    const OTHER: [u8; 32] = [43; 32];
    let of = |secret: [u8; 32]| v1::DeleteInstallationRequest {
        secret: secret.to_vec().into(),
    };
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = Period(Duration::from_millis(50));
    config.erase_period = Period(Duration::from_millis(50));
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    // Another installation is in the same slice, so the slice's summary is not empty without the deleted one.
    let slice = InstallationId::from_secret(&SECRET).as_bytes()[0] % 4;
    store_all(&mut device, &[doomed(1), report(4 + slice, 1, 1)]).await;
    store.eventually(ROWS, 2).await;
    store.eventually(OPEN, 0).await;
    let broken = "SELECT toUInt64(toUnixTimestamp(max(bucket))) AS n FROM reports";
    let broken = store.number(broken).await;
    let mut other = doomed(1);
    let id = InstallationId::from_secret(&OTHER);
    other.key.as_mut().unwrap().installation_id = id.as_bytes().to_vec().into();
    store_all(&mut device, &[other]).await;
    store.eventually(ROWS, 3).await;
    store.eventually(OPEN, 0).await;
    let constraint = format!(
        "ALTER TABLE cohort_sessions ADD CONSTRAINT broken CHECK toUnixTimestamp(bucket) != {broken}"
    );
    store.run(&constraint).await;

    device.delete_installation(deletion()).await.unwrap();
    device.delete_installation(of(OTHER)).await.unwrap();
    let erased = "SELECT count() AS n FROM deletions_v1 WHERE toYear(erased_at) > 1970";
    store.eventually(erased, 1).await;
    shows(&collector, "pending", 1).await;
    let hidden = "SELECT count() AS n FROM deletions_v1 WHERE toYear(hidden_at) > 1970";
    assert_eq!(store.number(hidden).await, 1);
    let mended = "ALTER TABLE cohort_sessions DROP CONSTRAINT broken";
    store.run(mended).await;
    store.eventually(erased, 2).await;
    shows(&collector, "pending", 0).await;
    check_views_show(&store, 1).await;
    store.end(collector).await;
}

/// A lagging replica still shows hidden rows after their removal. The pass over them ends, and the worker goes on.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_do_not_go_hold_up_no_deletion() {
    let store = Store::start().await;
    let gate = Gate::before(store.socket()).await;
    gate.change(Change {
        when: "ALTER TABLE hidden_installations DELETE",
        from: "hidden_at <",
        to: "hidden_at >",
    })
    .await;
    gate.open();
    for erased in [
        "INSERT INTO hidden_installations (installation, tombstoned_at, hidden_at) \
         SELECT unhex(repeat('ee', 16)), now64(3) - INTERVAL 1 DAY, now64(3) - INTERVAL 1 DAY",
        "INSERT INTO deletion_log (installation, step, collector_id, at, buckets, reports) \
         SELECT unhex(repeat('ee', 16)), arrayJoin(['hidden', 'erased']), 9, now64(3) - INTERVAL 1 DAY, 0, 0",
    ] {
        store.run(erased).await;
    }
    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = Period(Duration::from_millis(50));
    let removing = gate
        .hold_back(|text| text.contains("ALTER TABLE hidden_installations DELETE"))
        .await;
    let collector = start_at(config, gate.client()).await;
    drop(tokio::time::timeout(TIMEOUT, removing).await.unwrap());
    let mut device = connect(&collector).await;
    store_all(&mut device, &[doomed(1)]).await;
    store.eventually(ROWS, 1).await;
    device.delete_installation(deletion()).await.unwrap();
    let id = InstallationId::from_secret(&SECRET).to_hex();
    let hidden = format!(
        "SELECT count() AS n FROM deletions_v1 WHERE toYear(hidden_at) > 1970 AND installation = unhex('{id}')"
    );
    store.eventually(&hidden, 1).await;
    let stays = "SELECT count() AS n FROM hidden_installations WHERE installation = unhex(repeat('ee', 16))";
    assert_eq!(store.number(stays).await, 1);
    store.end(collector).await;
}

async fn views(store: &Store, condition: &str) -> Vec<String> {
    let sql = format!(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'View' \
         AND {condition} ORDER BY name"
    );
    store
        .client
        .query_raw(&sql)
        .fetch_all::<String>()
        .await
        .unwrap()
}

/// A set of all tombstones, made for each query, took seconds once there were millions.
#[tokio::test(flavor = "multi_thread")]
async fn no_view_reads_all_tombstones() {
    let store = Store::start().await;
    let reading = views(&store, "as_select LIKE '%tombstones%'").await;
    assert_eq!(reading, [""; 0]);
    let hiding = views(&store, "as_select LIKE '%hidden_installations%'").await;
    assert!(hiding.len() >= 4, "{hiding:?}");
    store.engine.stop().await;
}

/// Measures every view without tombstones and with ten million. Runs for minutes, and alone.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn views_cost_the_same_with_ten_million_tombstones() {
    const TOMBSTONES: u64 = 10_000_000;
    let store = Store::start().await;
    let collector = start_with(&store, config(&store.dir.path().join("wal"))).await;
    let mut device = connect(&collector).await;
    for sequence in 1..=8 {
        let reports: Vec<_> = (1..=250).map(|n| report(n, 1, sequence)).collect();
        store_all(&mut device, &reports).await;
    }
    store.eventually(ROWS, 2_000).await;
    store.eventually(OPEN, 0).await;
    collector.stop().await;

    let names = views(&store, "name LIKE '%_v1'").await;
    let mut before = Vec::new();
    for name in &names {
        before.push(seconds_of(&store, name).await);
    }
    let sql = format!(
        "INSERT INTO tombstones SELECT sipHash128(number), now64(3) FROM numbers({TOMBSTONES})"
    );
    store.run(&sql).await;
    let n = "SELECT count() AS n FROM tombstones";
    assert_eq!(store.number(n).await, TOMBSTONES);
    let (mut sum, mut sum_before) = (0.0, 0.0);
    for (name, before) in names.iter().zip(before) {
        let after = seconds_of(&store, name).await;
        println!("{name}: {before:.3} s, then {after:.3} s");
        sum += after;
        sum_before += before;
    }
    println!("all views: {sum_before:.3} s, then {sum:.3} s");
    assert!(sum <= 1.2 * sum_before);
    // A collector reads all tombstones when it starts, and finds the few that a batch needs.
    let began = Instant::now();
    let collector = start_with(&store, config(&store.dir.path().join("wal"))).await;
    store_all(&mut connect(&collector).await, &[report(251, 1, 1)]).await;
    store.eventually(ROWS, 2_001).await;
    println!(
        "a collector's first report is stored after {:?}",
        began.elapsed()
    );
    store.end(collector).await;
}

/// Returns the shortest time of several runs.
async fn seconds_of(store: &Store, view: &str) -> f64 {
    let sql = format!("SELECT * FROM {view} FORMAT Null");
    let mut least = f64::INFINITY;
    for _ in 0..7 {
        let began = Instant::now();
        store.run(&sql).await;
        least = least.min(began.elapsed().as_secs_f64());
    }
    least
}
