//! Refusals of reports name the field and the reason, are counted, and do not affect other reports of the call.

use std::io::Write;
use std::time::{Duration, Instant};

use epwatch_collector::Collector;
use epwatch_collector::config::NewKey;
use epwatch_proto::v1::{self, Outcome};
use epwatch_server::{ByteSize, Period};
use epwatch_test_support::until;
use prost::Message;
use tonic::Code;

use crate::gate::Gate;
use crate::http::{Answer, post};
use crate::support::{
    COUNTED, ROWS, Store, TIMEOUT, check_metrics, config, connect, hears_its_store, key_for,
    metric, report, request, send, start, start_at, start_with, started, store_all, with_key,
};

/// Reads one of the operator's pages.
fn page(collector: &Collector, path: &str) -> Answer {
    crate::http::send(collector.http_listen(), "GET", path, &[], b"")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_report_is_refused_by_field_and_its_neighbours_are_stored() {
    let (store, collector, mut device) = started().await;

    let mut no_model = report(1, 1, 2);
    no_model.sessions[0].model = None;
    let mut newer_scheme = report(1, 1, 3);
    newer_scheme.series[1].hist_scheme = 99;
    let mut too_large = report(1, 1, 4);
    too_large.boot_id = "b".repeat(300 << 10);
    let mut message = request(&[
        report(1, 1, 1),
        no_model,
        newer_scheme,
        too_large,
        report(1, 1, 5),
    ]);
    message
        .reports
        .push(b"\xff\xff not protobuf".to_vec().into());
    let results = device.upload(message).await.unwrap().into_inner().results;

    let found: Vec<(u32, Outcome, bool)> = results
        .iter()
        .map(|result| (result.index, result.outcome(), result.retryable))
        .collect();
    assert_eq!(
        found,
        [
            (1, Outcome::RefusedMalformed, false),
            (2, Outcome::RefusedUnsupported, false),
            (3, Outcome::RefusedTooLarge, false),
            (5, Outcome::RefusedMalformed, false),
        ]
    );
    assert!(
        results[0].detail.contains("sessions[0].model"),
        "{}",
        results[0].detail
    );
    assert!(
        results[1].detail.contains("series[1].hist_scheme"),
        "{}",
        results[1].detail
    );
    assert_eq!(results[0].key.as_ref().unwrap().sequence, 2);

    store.eventually(COUNTED, 2).await;
    let metrics = String::from_utf8(page(&collector, "/metrics").body).unwrap();
    for (outcome, n) in [
        ("stored", 2),
        ("refused_malformed", 2),
        ("refused_unsupported", 1),
        ("refused_too_large", 1),
    ] {
        let line = format!("epwatch_collector_reports_total{{outcome=\"{outcome}\"}} {n}\n");
        assert!(metrics.contains(&line), "no {line} in\n{metrics}");
    }
    collector.stop().await;
    let refused = "SELECT toUInt64(sum(reports)) AS n FROM report_outcomes \
                   WHERE outcome LIKE 'refused%'";
    assert_eq!(store.number(refused).await, 4);
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_with_other_bytes_is_a_conflict() {
    let (store, collector, mut device) = started().await;
    let mut other = report(1, 1, 1);
    other.interval_length_ms += 1;
    store_all(&mut device, &[report(1, 1, 1)]).await;
    let results = send(&mut device, &[other.clone()]).await;
    assert_eq!(results[0].outcome(), Outcome::RefusedConflict);
    // The same holds within one call.
    let (two, mut other_two) = (report(1, 1, 2), report(1, 1, 2));
    other_two.interval_length_ms += 1;
    let results = send(&mut device, &[two.clone(), two, other_two]).await;
    let outcomes: Vec<Outcome> = results.iter().map(|result| result.outcome()).collect();
    assert_eq!(outcomes, [Outcome::Duplicate, Outcome::RefusedConflict]);
    collector.stop().await;
    assert_eq!(store.number(COUNTED).await, 2);
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_refused_as_a_whole_without_a_key_or_with_too_many_reports() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    // SHA-256 of `abc`, from FIPS 180-2.
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned();
    let secret = "abc".to_owned();
    config.keys = vec![key_for(&NewKey { secret, sha256 }, "com.example.other")];
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;

    let status = device
        .upload(request(&[report(1, 1, 1)]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let answer = device
        .upload(with_key(request(&[report(1, 1, 1)]), "abc"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.results[0].outcome(), Outcome::RefusedWrongApp);
    for n_reports in [0, 1_001] {
        let reports = vec![report(1, 1, 1).encode_to_vec().into(); n_reports];
        let message = v1::UploadRequest {
            reports,
            ..request(&[])
        };
        let status = device.upload(with_key(message, "abc")).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("reports"), "{status}");
    }
    let line = "epwatch_collector_requests_refused_total{reason=\"unauthenticated\"} 1";
    check_metrics(&collector, &[line]);
    store.end(collector).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_say_whether_the_collector_is_ready() {
    let store = Store::start().await;
    let collector = start(&store, "wal").await;
    assert_eq!(page(&collector, "/healthz").status, 200);
    hears_its_store(&collector).await;
    assert_eq!(page(&collector, "/readyz").status, 200);
    store.engine.stop().await;
    let says_why = || {
        let answer = page(&collector, "/readyz");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        answer.status == 503 && text.contains("store does not answer")
    };
    until("the page says that the store is away", async || says_why()).await;
    assert_eq!(page(&collector, "/healthz").status, 200);
    collector.stop().await;
}

/// A store call that reports do not need, such as the call for directives, may fail while the collector stays ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_beside_the_writer_that_fails_leaves_the_collector_ready() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = Period(Duration::from_millis(20));
    let collector = start_with(&store, config).await;
    hears_its_store(&collector).await;
    store
        .run("RENAME TABLE directives TO directives_aside")
        .await;
    let failed = "epwatch_collector_store_errors_total{call=\"directives\"}";
    until("directives are asked for", async || {
        check_metrics(&collector, &["epwatch_collector_store_up 1"]);
        metric(&collector, failed) >= 20.0
    })
    .await;
    assert_eq!(page(&collector, "/readyz").status, 200);
    store.end(collector).await;
}

/// A WAL that is full refuses a call as a whole. Its malformed reports are sent again with the others, and are counted
/// when the call is answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_counted_once_however_often_its_call_came() {
    let store = Store::start().await;
    let gate = Gate::before(store.socket()).await;
    let mut config = config(&store.dir.path().join("wal"));
    config.wal.max_bytes = ByteSize(4 << 20);
    let key = NewKey::random().unwrap();
    config.keys = vec![key_for(&key, "com.example.camera")];
    let collector = start_at(config, gate.client()).await;
    let mut device = connect(&collector).await;
    let mut sequence = 0;
    // The last free bytes have space for a single report at most.
    for n_reports in [100, 1] {
        loop {
            let reports: Vec<_> = (1..=n_reports)
                .map(|n| report(1, 1, sequence + n))
                .collect();
            if let Err(status) = device
                .upload(with_key(request(&reports), &key.secret))
                .await
            {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                break;
            }
            sequence += n_reports;
        }
    }
    let mut malformed = report(1, 1, sequence + 2);
    malformed.sessions[0].model = None;
    let call = request(&[report(1, 1, sequence + 1), malformed]);
    let counted = |outcome| collector.n_reports(outcome);
    let (overloaded, n_calls) = (counted(epwatch_proto::Outcome::RefusedOverloaded), 3);
    for _ in 0..n_calls {
        device
            .upload(with_key(call.clone(), &key.secret))
            .await
            .unwrap_err();
    }
    assert_eq!(counted(epwatch_proto::Outcome::RefusedMalformed), 0);
    assert_eq!(
        counted(epwatch_proto::Outcome::RefusedOverloaded),
        overloaded + 2 * n_calls
    );

    gate.open();
    let deadline = Instant::now() + TIMEOUT;
    let answer = loop {
        match device.upload(with_key(call.clone(), &key.secret)).await {
            Ok(answer) => break answer.into_inner(),
            Err(status) => assert!(Instant::now() < deadline, "never taken: {status}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(answer.results.len(), 1, "{answer:?}");
    assert_eq!(counted(epwatch_proto::Outcome::RefusedMalformed), 1);
    let overloaded = counted(epwatch_proto::Outcome::RefusedOverloaded);
    collector.stop().await;
    let answered = "SELECT toUInt64(sum(answered_by_outcome['refused_overloaded'])) AS n \
                    FROM loss_ledger_daily_v1 WHERE app_id = 'com.example.camera' AND environment = ''";
    assert_eq!(store.number(answered).await, overloaded);
    let refused = "SELECT toUInt64(sum(reports)) AS n FROM report_outcomes \
                   WHERE outcome = 'refused_malformed'";
    assert_eq!(store.number(refused).await, 1);
    assert_eq!(store.number(ROWS).await, sequence + 1);
    store.engine.stop().await;
}

/// The metric shows the reason of each refused call, not only unknown keys.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_refused_as_a_whole_is_counted_by_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (key, shipped) = (NewKey::random().unwrap(), NewKey::random().unwrap());
    let collector = crate::hostile::start(&dir, |config| {
        config.keys = vec![key_for(&key, "*"), key_for(&shipped, "*")];
        config.max_request_bytes = ByteSize(1 << 20);
        config.connections.max_body_bytes = ByteSize(1 << 20);
        config.limits.reports_per_key = 1;
        config.limits.bursts.reports_per_key = 1;
    })
    .await;
    let address = collector.listen();
    let bearer = |key: &NewKey| format!("Bearer {}", key.secret);
    let (by_key, by_shipped) = (bearer(&key), bearer(&shipped));
    let auth = ("Authorization", by_key.as_str());
    let sound = request(&[report(1, 1, 1)]).encode_to_vec();
    let status = |call: &str, headers: &[(&str, &str)], body: &[u8]| {
        post(address, call, headers, body).status
    };

    assert_eq!(status("Upload", &[], &sound), 401);
    let shipped_auth = ("Authorization", by_shipped.as_str());
    assert_eq!(status("PutModelManifest", &[shipped_auth], b""), 403);
    assert_eq!(status("Nothing", &[auth], b""), 404);
    assert_eq!(
        status("Upload", &[auth, ("Content-Encoding", "br")], b""),
        501
    );
    assert_eq!(status("Upload", &[auth], b"\xff\xff"), 400);
    assert_eq!(status("Upload", &[auth], b""), 400);
    assert_eq!(status("Upload", &[auth], &vec![0; (1 << 20) + 1]), 413);
    let bomb = crate::protocols::gzip(&vec![0; 1 << 20]);
    assert_eq!(
        status("Upload", &[auth, ("Content-Encoding", "gzip")], &bomb),
        400
    );
    // Refusals by tonic count too.
    let (sender, messages) = tokio::sync::mpsc::channel(2);
    let headers = [("authorization", by_key.as_str())];
    let calling = crate::hostile::half_a_grpc_call(address, "Upload", &headers, messages).await;
    let no_message = b"\0\0\0\0\x02\xff\xff".as_slice();
    sender.send(Ok(no_message.into())).await.unwrap();
    drop(sender);
    assert_eq!(calling.await.unwrap().as_deref(), Some("13"));
    let (_sender, messages) = tokio::sync::mpsc::channel(2);
    let calling = crate::hostile::half_a_grpc_call(address, "Nothing", &headers, messages).await;
    assert_eq!(calling.await.unwrap().as_deref(), Some("12"));
    let mut device = connect(&collector).await;
    let mut message = request(&[]);
    message.reports = vec![vec![7; 1 << 20].into()];
    let call = with_key(message, &key.secret);
    let refused = device.upload(call).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert_eq!(status("Upload", &[auth], &sound), 200);
    assert_eq!(status("Upload", &[auth], &sound), 429);
    for (reason, n) in [
        ("unauthenticated", 1.0),
        ("forbidden", 1.0),
        ("unsupported", 3.0),
        ("malformed", 3.0),
        ("too_large", 2.0),
        ("bomb", 1.0),
        ("quota", 1.0),
        ("body_budget", 0.0),
    ] {
        assert_eq!(n_refused(&collector, reason), n, "{reason}");
    }
    check_metrics(&collector, &["epwatch_collector_requests_total 13"]);

    // A body that never ends takes the budget of other bodies. If another body comes first, the endless one has to be
    // sent again. If both come at once, both have to.
    let mut waiting = crate::http::open(address);
    write!(
        waiting,
        "POST {}/Upload HTTP/1.1\r\nHost: test\r\nContent-Type: application/proto\r\n\
         Authorization: {by_key}\r\nContent-Length: 1000000\r\n\r\n",
        crate::http::SERVICE
    )
    .unwrap();
    waiting.write_all(&[0; 900_000]).unwrap();
    let n_full = || n_refused(&collector, "body_budget");
    let deadline = Instant::now() + TIMEOUT;
    let mut last = 0;
    while n_full() == 0.0 {
        assert!(Instant::now() < deadline, "the room is never full");
        last = status("Upload", &[auth], &[0; 200_000]);
    }
    let n_waiting = n_full() - f64::from(u8::from(last == 429));
    assert!(n_waiting <= 1.0, "{n_waiting} of one body");
    if n_waiting > 0.0 {
        assert_eq!(crate::http::read_answer(waiting).status, 429);
    }
    collector.stop().await;
}

/// Calls that were refused for this reason.
fn n_refused(collector: &Collector, reason: &str) -> f64 {
    let name = format!("epwatch_collector_requests_refused_total{{reason=\"{reason}\"}}");
    metric(collector, &name)
}

async fn eventually_refused(collector: &Collector, reason: &str, n: u32) {
    let what = format!("{n} are {reason}");
    until(&what, async || n_refused(collector, reason) == f64::from(n)).await;
}

/// A phone that loses its network in the middle of an upload did not send a malformed call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_client_goes_away_is_cancelled_and_not_malformed() {
    let dir = tempfile::tempdir().unwrap();
    let collector = crate::hostile::start(&dir, |_| {}).await;
    let (sender, messages) = tokio::sync::mpsc::channel(2);
    let calling =
        crate::hostile::half_a_grpc_call(collector.listen(), "Upload", &[], messages).await;
    // The start of a message of 64 bytes, of which only one byte comes.
    let begun = b"\0\0\0\0\x40\x0a".as_slice();
    sender.send(Ok(begun.into())).await.unwrap();
    // The server counts a call only if it read a part of it before the reset.
    let n_calls = || metric(&collector, "epwatch_collector_requests_total");
    until("the call arrives", async || n_calls() == 1.0).await;
    let gone = std::io::ErrorKind::ConnectionReset.into();
    sender.send(Err(gone)).await.unwrap();
    assert_eq!(calling.await.unwrap(), None);
    eventually_refused(&collector, "cancelled", 1).await;
    eventually_refused(&collector, "malformed", 0).await;
    collector.stop().await;
}

/// A disk that is filling up is not an overload. Refused calls and their reports are counted under the same cause.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_disk_has_no_room_for_is_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let collector = crate::hostile::start(&dir, |config| {
        config.wal.min_free_bytes = ByteSize(1 << 60);
    })
    .await;
    let body = request(&[report(1, 1, 1)]).encode_to_vec();
    assert_eq!(post(collector.listen(), "Upload", &[], &body).status, 429);
    eventually_refused(&collector, "unavailable", 1).await;
    eventually_refused(&collector, "overloaded", 0).await;
    let storage = epwatch_proto::Outcome::RefusedStorage;
    assert_eq!(collector.n_reports(storage), 1);
    collector.stop().await;
}

/// The store is away from the first start on, so the writer has not read the names that it admits.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_with_nothing_to_store_waits_for_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let collector = crate::hostile::start(&dir, |config| {
        config.batch.drain_timeout = Period(Duration::from_secs(3_600));
    })
    .await;
    let stopping = tokio::time::timeout(TIMEOUT, collector.stop());
    stopping.await.expect("waited for drain_timeout");
}

/// The store refused the earlier counts. When the collector stops, it sends them together with the later counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_stores_the_last_refusals_too() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    // The writer sends counts only with a full batch, and at the stop.
    config.batch.period = Period(Duration::from_secs(60));
    config.batch.max_bytes = ByteSize(1 << 20);
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    store
        .run("RENAME TABLE report_outcomes TO outcomes_aside")
        .await;
    let mut no_model = report(1, 1, 1);
    no_model.sessions[0].model = None;
    send(&mut device, &[no_model]).await;
    for first in [2, 1_002] {
        let full: Vec<_> = (first..first + 1_000).map(|n| report(1, 1, n)).collect();
        store_all(&mut device, &full).await;
    }
    store.eventually(ROWS, 2_000).await;
    let failed = "epwatch_collector_store_errors_total{call=\"report_outcomes\"}";
    until("the counts are sent", async || {
        metric(&collector, failed) > 0.0
    })
    .await;
    let mut newer_scheme = report(1, 1, 2_002);
    newer_scheme.series[0].hist_scheme = 99;
    send(&mut device, &[newer_scheme]).await;
    store
        .run("RENAME TABLE outcomes_aside TO report_outcomes")
        .await;
    collector.stop().await;
    for outcome in ["refused_malformed", "refused_unsupported"] {
        let told = format!(
            "SELECT toUInt64(sum(reports)) AS n FROM report_outcomes WHERE outcome = '{outcome}'"
        );
        assert_eq!(store.number(&told).await, 1, "{outcome}");
    }
    store.engine.stop().await;
}
