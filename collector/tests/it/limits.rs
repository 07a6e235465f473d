//! A sender above its limit is refused with a delay; other senders are not affected.

use epwatch_collector::config::{AppKeyConfig, KeyKind, NewKey};
use epwatch_proto::samples;
use epwatch_proto::v1::{self, Outcome};
use epwatch_server::ByteSize;
use epwatch_test_support::until;
use tonic::Code;

use crate::calls::manifest;
use crate::support::{
    COUNTED, ROWS, Store, check_metrics, config, connect, key_for, metric, report, request, send,
    start_alone, start_with, store_all, with_key,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_above_its_limit_is_refused_for_now() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.limits.reports_per_installation = 1;
    config.limits.bursts.reports_per_installation = 2;
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    let reports: Vec<_> = (1..=4).map(|n| report(1, 1, n)).collect();
    let answer = device.upload(request(&reports)).await.unwrap().into_inner();
    let refused: Vec<_> = answer
        .results
        .iter()
        .map(|result| (result.index, result.outcome(), result.retryable))
        .collect();
    assert_eq!(
        refused,
        [
            (2, Outcome::RefusedQuota, true),
            (3, Outcome::RefusedQuota, true)
        ]
    );
    assert!(answer.retry_after_ms.is_some());
    store_all(&mut device, &[report(2, 1, 1)]).await;
    // A repeated report takes nothing from the quota.
    let again = send(&mut device, &[report(1, 1, 1)]).await;
    assert_eq!(again[0].outcome(), Outcome::Duplicate);
    store.eventually(COUNTED, 3).await;
    store.end(collector).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_with_a_key_above_its_limit_are_refused_as_a_whole() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.limits.reports_per_key = 1;
    config.limits.bursts.reports_per_key = 2;
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    store_all(&mut device, &[report(1, 1, 1), report(2, 1, 1)]).await;
    let status = device
        .upload(request(&[report(3, 1, 1)]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let pushback = status.metadata().get("grpc-retry-pushback-ms").unwrap();
    let millis: u64 = pushback.to_str().unwrap().parse().unwrap();
    assert!((1..=120_000).contains(&millis), "{millis}");
    collector.stop().await;
    // The key admits all apps, so the refused reports are counted without an app.
    let answered = "SELECT toUInt64(sum(answered_by_outcome['refused_quota'])) AS n \
                    FROM loss_ledger_daily_v1 WHERE app_id = '' AND environment = ''";
    assert_eq!(store.number(answered).await, 1);
    store.engine.stop().await;
}

/// The device sends a call again that the WAL refused. So only reports that were kept count against quotas.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_wal_refused_takes_nothing_from_quotas() {
    const BURST: u32 = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir.path().join("wal"));
    config.wal.max_bytes = ByteSize(256 << 10);
    config.batch.drain_timeout = epwatch_server::Period(std::time::Duration::ZERO);
    config.limits.reports_per_key = 1;
    config.limits.bursts.reports_per_key = BURST;
    config.limits.reports_per_installation = 1;
    config.limits.bursts.reports_per_installation = BURST;
    let collector = start_alone(&dir, config).await;
    let mut device = connect(&collector).await;
    let mut send = async |call: u64| {
        let reports: Vec<_> = (1..=50).map(|n| report(1, 1, 50 * call + n)).collect();
        device.upload(request(&reports)).await
    };
    let mut n_calls = 0;
    while send(n_calls).await.is_ok() {
        n_calls += 1;
        assert!(n_calls * 50 < u64::from(BURST), "the WAL fills before");
    }
    for _ in 0..2 * u64::from(BURST) / 50 {
        let status = send(n_calls).await.unwrap_err();
        assert!(
            status.message().starts_with("refused_overloaded"),
            "{status}"
        );
    }
    collector.stop().await;
}

/// The report is sent again because its ack was lost.
#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_series_is_counted_once_however_often_it_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start_alone(&dir, config(&dir.path().join("wal"))).await;
    let mut device = connect(&collector).await;
    let key = samples::key([1; 16], 1, 1);
    let mut impossible = samples::report(key, samples::session_uid(1));
    impossible.series[0].max_us = 1.7e308;
    let impossible = v1::Report::from(&impossible);
    store_all(&mut device, std::slice::from_ref(&impossible)).await;
    for _ in 0..3 {
        let again = send(&mut device, std::slice::from_ref(&impossible)).await;
        assert_eq!(again[0].outcome(), Outcome::Duplicate);
    }
    check_metrics(&collector, &["epwatch_collector_series_dropped_total 1"]);
    collector.stop().await;
}

/// A stolen key of a release pipeline cannot fill the store faster than the limit; other keys go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_s_key_stores_so_many_manifests_a_minute() {
    let store = Store::start().await;
    let keys = [NewKey::random().unwrap(), NewKey::random().unwrap()];
    let mut config = config(&store.dir.path().join("wal"));
    config.keys = keys
        .iter()
        .zip(["com.example.camera", "com.example.other"])
        .map(|(key, app)| AppKeyConfig {
            kind: KeyKind::Pipeline,
            ..key_for(key, app)
        })
        .collect();
    config.limits.manifests_per_key = 1;
    config.limits.bursts.manifests_per_key = 2;
    let collector = start_with(&store, config).await;
    let mut pipeline = connect(&collector).await;
    let mut put = async |key: &NewKey, model: &str| {
        let call = with_key(manifest(model), &key.secret);
        pipeline.put_model_manifest(call).await
    };
    put(&keys[0], "a").await.unwrap();
    put(&keys[0], "b").await.unwrap();
    let status = put(&keys[0], "c").await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.metadata().contains_key("grpc-retry-pushback-ms"));
    put(&keys[1], "c").await.unwrap();
    let stored = "SELECT count() AS n FROM model_manifests_v1";
    assert_eq!(store.number(stored).await, 3);
    store.end(collector).await;
}

/// A key is public, so its holders can make up secrets. Their deletions do not use up another app's limit.
#[tokio::test(flavor = "multi_thread")]
async fn deletions_with_a_key_above_its_limit_are_refused_and_another_app_s_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let keys = [NewKey::random().unwrap(), NewKey::random().unwrap()];
    let collector = crate::hostile::start(&dir, |config| {
        config.keys = keys
            .iter()
            .zip(["com.example.camera", "com.example.other"])
            .map(|(key, app)| key_for(key, app))
            .collect();
        config.limits.deletions_per_key = 1;
        config.limits.bursts.deletions_per_key = 2;
    })
    .await;
    let mut device = connect(&collector).await;
    let mut delete = async |key: &NewKey, secret: u8| {
        let secret = vec![secret; 32].into();
        let message = v1::DeleteInstallationRequest { secret };
        let call = with_key(message, &key.secret);
        device.delete_installation(call).await
    };
    delete(&keys[0], 1).await.unwrap();
    delete(&keys[0], 2).await.unwrap();
    let status = delete(&keys[0], 3).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.metadata().contains_key("grpc-retry-pushback-ms"));
    delete(&keys[0], 1).await.expect("it is done already");
    delete(&keys[1], 3).await.unwrap();
    check_metrics(
        &collector,
        &[
            "epwatch_collector_requests_refused_total{reason=\"quota\"} 1",
            "epwatch_collector_deletions_pending 3",
        ],
    );
    collector.stop().await;
}

/// A key is public, so its holders can fill the WAL while the store is away. Other apps still have space.
#[tokio::test(flavor = "multi_thread")]
async fn an_app_that_fills_the_wal_leaves_room_for_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let keys = [NewKey::random().unwrap(), NewKey::random().unwrap()];
    let apps = ["com.example.camera", "com.example.other"];
    let mut config = config(&dir.path().join("wal"));
    config.wal.max_bytes = ByteSize(1 << 20);
    config.keys = std::iter::zip(&keys, apps)
        .map(|(key, app)| key_for(key, app))
        .collect();
    let collector = start_alone(&dir, config).await;
    let mut device = connect(&collector).await;
    let mut upload = async |n: usize, first: u64| {
        let reports: Vec<_> = (first..first + 50)
            .map(|sequence| {
                let mut report = report(1, 1, sequence);
                report.app.as_mut().unwrap().id = apps[n].to_owned();
                report
            })
            .collect();
        let call = with_key(request(&reports), &keys[n].secret);
        device.upload(call).await
    };
    let mut next = 1;
    let status = loop {
        match upload(0, next).await {
            Ok(_) => next += 50,
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let share = "refused_overloaded: com.example.camera holds its share of the WAL";
    assert!(status.message().starts_with(share), "{status}");
    assert!(status.metadata().contains_key("grpc-retry-pushback-ms"));
    assert!(next > 500, "one app alone gets most of it: {next}");
    upload(1, 1).await.expect("the other app has room");
    check_metrics(
        &collector,
        &[
            "epwatch_collector_share_refused_reports_total{of=\"wal\"} 50",
            "epwatch_collector_share_refused_reports_total{of=\"store\"} 0",
            "epwatch_collector_wal_writable 1",
        ],
    );
    // The share is free again once the store has the reports.
    let store = Store::start_in(dir).await;
    store.eventually(ROWS, next - 1 + 50).await;
    let waiting = || metric(&collector, "epwatch_collector_wal_lag_bytes");
    until("the store has all of it", async || waiting() == 0.0).await;
    upload(0, next).await.unwrap();
    store.end(collector).await;
}
