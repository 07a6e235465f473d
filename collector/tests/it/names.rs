//! Names beyond an app's limit are stored as `__other__`, counted, and stay so after a restart.

use epwatch_collector::config::NamesConfig;
use epwatch_proto::v1;
use epwatch_test_support::until;

use crate::support::{ROWS, Store, config, connect, metric, report, start_with, store_all};

fn named(sequence: u64, model: &str, version: &str) -> v1::Report {
    let mut report = report(1, 10, sequence);
    let model_of = report.sessions[0].model.as_mut().unwrap();
    model_of.id = model.to_owned();
    model_of.version = version.to_owned();
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn names_beyond_the_limit_are_other_and_known_ones_go_on_after_a_restart() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.names = NamesConfig { models: 2 };
    let collector = start_with(&store, config.clone()).await;
    let mut device = connect(&collector).await;
    let sent: Vec<v1::Report> = (1..=5)
        .map(|n| named(n, &format!("model-{n}"), "1"))
        .collect();
    store_all(&mut device, &sent).await;
    store.eventually(ROWS, 5).await;
    // Names are counted once the batch is in the store, and a stop waits for this.
    let metrics = collector.metrics().clone();
    collector.stop().await;
    let text = metrics.encode();
    let line = "epwatch_collector_cardinality_limited_total{dimension=\"model\"} 3";
    assert!(text.contains(line), "no {line} in\n{text}");

    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    let sent = [named(6, "model-9", "1"), named(7, "model-2", "1")];
    store_all(&mut device, &sent).await;
    store.eventually(ROWS, 7).await;
    collector.stop().await;
    for (sql, expected) in [
        ("SELECT uniqExact(model_id) AS n FROM device_sessions_v1", 3),
        (
            "SELECT count() AS n FROM device_sessions_v1 WHERE model_id = '__other__'",
            4,
        ),
        (
            "SELECT count() AS n FROM device_sessions_v1 WHERE model_id = 'model-2'",
            2,
        ),
        (
            "SELECT count() AS n FROM placements WHERE model_id NOT IN ('__other__', 'model-1', 'model-2')",
            0,
        ),
        (
            "SELECT toUInt64(sum(models)) AS n FROM cardinality_limited_daily_v1",
            4,
        ),
    ] {
        assert_eq!(store.number(sql).await, expected, "{sql}");
    }
    store.engine.stop().await;
}

/// The case of a WAL's folder that was lost or set aside, and of an additional collector.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_folder_knows_the_names_of_the_store() {
    let store = Store::start().await;
    let config = |wal: &str| {
        let mut config = config(&store.dir.path().join(wal));
        config.names = NamesConfig { models: 2 };
        config
    };
    let collector = start_with(&store, config("wal")).await;
    let mut device = connect(&collector).await;
    let sent = [named(1, "model-1", "1"), named(2, "model-2", "1")];
    store_all(&mut device, &sent).await;
    collector.stop().await;

    let collector = start_with(&store, config("other wal")).await;
    let mut device = connect(&collector).await;
    let sent = [named(3, "made up", "1"), named(4, "model-2", "1")];
    store_all(&mut device, &sent).await;
    collector.stop().await;
    let models = "SELECT countIf(model_id = 'model-2') * 100 + countIf(model_id = '__other__') * 10 \
                  + countIf(model_id = 'made up') AS n FROM device_sessions_v1";
    assert_eq!(store.number(models).await, 210);
    store.engine.stop().await;
}

/// Names from a collector whose clock is ahead do not count yet among the names of the store's last days.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_cannot_be_read_hold_the_writer_and_those_of_the_future_take_no_room() {
    let store = Store::start().await;
    store
        .run(
            "INSERT INTO reports (installation, stream_id, sequence, received_at, collector_id, wal_offset, bucket, \
             app_id, environment, chipset, session_uid, session_model_id, session_model_version) \
             SELECT unhex(leftPad(hex(number), 32, '0')), 1, 1, now64(3) + INTERVAL 20 DAY, 9, number, \
             toStartOfHour(now()) + INTERVAL 20 DAY, 'com.example.camera', 'production', 'SM8635', [7], ['ahead'], ['1'] FROM numbers(20)",
        )
        .await;
    store.run("RENAME TABLE reports TO reports_away").await;
    let mut config = config(&store.dir.path().join("wal"));
    config.names = NamesConfig { models: 1 };
    let collector = start_with(&store, config).await;
    let failed = || {
        metric(
            &collector,
            "epwatch_collector_store_errors_total{call=\"names\"}",
        ) > 0.0
    };
    until("the names cannot be read", async || failed()).await;
    let mut device = connect(&collector).await;
    store_all(&mut device, &[named(1, "model-1", "1")]).await;
    assert_eq!(metric(&collector, "epwatch_collector_store_up"), 0.0);
    store.run("RENAME TABLE reports_away TO reports").await;
    let models = "SELECT countIf(model_id = 'model-1') AS n FROM device_sessions_v1";
    store.eventually(models, 1).await;
    assert_eq!(metric(&collector, "epwatch_collector_store_up"), 1.0);
    collector.stop().await;
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_is_a_metric() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = epwatch_server::Period(std::time::Duration::from_millis(10));
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    // The third report of the stream never arrives.
    let sent = [report(1, 10, 1), report(1, 10, 2), report(1, 10, 4)];
    store_all(&mut device, &sent).await;
    let expected = |metric: &str, entry: &str, n: u64| {
        format!(
            "epwatch_collector_loss_ledger_{metric}{{app=\"com.example.camera\",\
             environment=\"production\",day=\"today\",entry=\"{entry}\"}} {n}"
        )
    };
    let lines = [
        expected("reports", "recorded", 4),
        expected("reports", "stored", 3),
        expected("reports", "missing", 1),
        expected("runs", "recorded", 24),
        expected("runs", "stored", 18),
        expected("runs", "missing", 6),
    ];
    let are_there = || {
        let text = collector.metrics().encode();
        // Midnight may pass meanwhile.
        let text = text.replace("\"yesterday\"", "\"today\"");
        lines.iter().all(|line| text.contains(line))
    };
    until("the ledger is on the page", async || are_there()).await;
    store.end(collector).await;
}
