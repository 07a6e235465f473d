//! A sender above its limit is refused with a delay; other senders are not affected.

use epwatch_collector::config::{AppKeyConfig, NewKey};
use epwatch_proto::v1::{self, Outcome};
use tonic::{Code, Request};

use crate::support::{Store, config, connect, report, request, send, start_with};

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
    assert!(send(&mut device, &[report(2, 1, 1)]).await.is_empty());
    // What is known already costs nothing.
    let again = send(&mut device, &[report(1, 1, 1)]).await;
    assert_eq!(again[0].outcome(), Outcome::Duplicate);
    store
        .eventually("SELECT count() AS n FROM counted_reports_v1", 3)
        .await;
    collector.stop().await;
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_with_a_key_above_its_limit_are_refused_as_a_whole() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.limits.reports_per_key = 1;
    config.limits.bursts.reports_per_key = 2;
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    assert!(
        send(&mut device, &[report(1, 1, 1), report(2, 1, 1)])
            .await
            .is_empty()
    );
    let status = device
        .upload(request(&[report(3, 1, 1)]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let pushback = status.metadata().get("grpc-retry-pushback-ms").unwrap();
    let millis: u64 = pushback.to_str().unwrap().parse().unwrap();
    assert!((1..=120_000).contains(&millis), "{millis}");
    collector.stop().await;
    // The key is for all apps: nothing says whose the refused ones are.
    let answered = "SELECT toUInt64(sum(answered_by_outcome['refused_quota'])) AS n \
                    FROM loss_ledger_daily_v1 WHERE app_id = '' AND environment = ''";
    assert_eq!(store.number(answered).await, 1);
    store.engine.stop().await;
}

/// Whoever has a key, which is public, makes up secrets: he takes no deletion from another app.
#[tokio::test(flavor = "multi_thread")]
async fn deletions_with_a_key_above_its_limit_are_refused_and_another_app_s_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let keys = [NewKey::random().unwrap(), NewKey::random().unwrap()];
    let collector = crate::hostile::start(&dir, |config| {
        config.keys = keys
            .iter()
            .zip(["com.example.camera", "com.example.other"])
            .map(|(key, app)| AppKeyConfig {
                sha256: key.sha256.clone(),
                app: app.to_owned(),
                ..AppKeyConfig::default()
            })
            .collect();
        config.limits.deletions_per_key = 1;
        config.limits.bursts.deletions_per_key = 2;
    })
    .await;
    let mut device = connect(&collector).await;
    let mut delete = async |key: &NewKey, secret: u8| {
        let mut call = Request::new(v1::DeleteInstallationRequest {
            secret: vec![secret; 32].into(),
        });
        let value = format!("Bearer {}", key.secret).parse().unwrap();
        call.metadata_mut().insert("authorization", value);
        device.delete_installation(call).await
    };
    delete(&keys[0], 1).await.unwrap();
    delete(&keys[0], 2).await.unwrap();
    let status = delete(&keys[0], 3).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.metadata().contains_key("grpc-retry-pushback-ms"));
    delete(&keys[0], 1).await.expect("it is done already");
    delete(&keys[1], 3).await.unwrap();
    let metrics = collector.metrics().encode();
    for line in [
        "epwatch_collector_requests_refused_total{reason=\"quota\"} 1\n",
        "epwatch_collector_deletions_pending 3\n",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    collector.stop().await;
}
