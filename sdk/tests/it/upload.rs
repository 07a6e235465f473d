//! The whole SDK against a strict collector in this process: which reports arrive, how often, with which bytes.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use epwatch_proto::{DropReason, Outcome, Thermal, UploadFailureKind, v1};
use epwatch_sdk::{Conditions, FlushError, RequestKind, UploadError, Watch};
use tonic::Status;

use crate::support::{
    self, KEY, NOWHERE, TIMEOUT, app,
    collector::{Answer, Collector},
    config, run, session, until,
};

fn start(dir: &Path, endpoint: &str) -> Watch {
    support::start(config(dir, endpoint))
}

fn n_runs(collector: &Collector) -> u64 {
    let reports = collector.reports();
    reports.iter().flat_map(|r| &r.series).map(|s| s.n).sum()
}

#[test]
fn runs_arrive_with_their_conditions() {
    let (_dir, collector, watch) = app();
    let conditions = Conditions::unknown().with_thermal(Thermal::None.into());
    let session = session(&watch);
    for _ in 0..10 {
        session.record(Duration::from_millis(8), "static", &conditions);
    }
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].key.stream, watch.stream());
    assert_eq!(reports[0].app.id, "app");
    assert_eq!(n_runs(&collector), 10);
    let series = &reports[0].series;
    assert!(series.iter().all(|s| s.stratum.thermal == Thermal::None));
    support::check_explains(&watch, "spool: 0 reports");
}

#[test]
fn a_lost_ack_brings_the_same_key_with_the_same_bytes() {
    let (_dir, collector, watch) = app();
    collector.answer([Answer::StoreAndFail(Status::unavailable("gone"))]);
    run(&session(&watch), 10);
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Upload(_)), "{error}");
    watch.flush(TIMEOUT).unwrap();
    let calls = collector.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
    let failures = watch.health().upload_failures;
    assert_eq!(failures.values().sum::<u64>(), 1, "{failures:?}");
}

#[test]
fn the_next_process_sends_the_reports_left_by_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    collector.answer([Answer::Fail(Status::unavailable("down"))]);
    let first = start(dir.path(), &collector.endpoint());
    run(&session(&first), 10);
    first.flush(TIMEOUT).unwrap_err();
    run(&session(&first), 5);
    first.stop(TIMEOUT).unwrap();

    let second = start(dir.path(), &collector.endpoint());
    run(&session(&second), 3);
    second.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let streams: BTreeSet<_> = reports.iter().map(|r| r.key.stream).collect();
    assert_eq!(streams, [first.stream(), second.stream()].into());
    let ended: Vec<_> = reports.iter().flat_map(|r| &r.ended_streams).collect();
    assert!(!ended.is_empty());
    assert!(ended.iter().all(|e| e.stream == first.stream()));
    assert!(
        ended
            .iter()
            .all(|e| (e.last_sequence, e.unsealed_runs) == (Some(2), Some(0)))
    );
    // Sequence 10 came twice, the first time with the failed call.
    assert_eq!(n_runs(&collector), 10 + 18);
    let installations: BTreeSet<_> = reports.iter().map(|r| r.key.installation).collect();
    assert_eq!(installations.len(), 1);
    second.stop(TIMEOUT).unwrap();

    // All reports are acked and the ended stream is named, so the folder holds no report.
    let left = std::fs::read_dir(dir.path().join("streams"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

fn answer(outcome: v1::Outcome, retryable: bool, detail: &str) -> Answer {
    Answer::Ok(v1::UploadResponse {
        results: vec![v1::ReportResult {
            index: 0,
            outcome: outcome.into(),
            retryable,
            detail: detail.to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    })
}

#[test]
fn a_refused_report_is_an_error_of_the_flush_and_counted() {
    let (_dir, collector, watch) = app();
    let detail = "the key is for com.example.camera";
    collector.answer([answer(v1::Outcome::RefusedWrongApp, false, detail)]);
    run(&session(&watch), 10);
    let error = watch.flush(TIMEOUT).unwrap_err();
    let problem = format!("1 report refused: wrong_app: {detail}");
    assert_eq!(error.to_string(), format!("failed to flush: {problem}"));
    let FlushError::Refused(refusal) = error else {
        panic!("{error}");
    };
    assert_eq!(refusal.outcome, Some(Outcome::RefusedWrongApp.into()));
    support::check_explains(&watch, " s ago: 1 report, 1 of them refused");
    assert_eq!(watch.explain().last_problem, Some(problem));
    watch.flush(TIMEOUT).unwrap();
    assert_eq!(watch.explain().last_problem, None);
    let reports = collector.reports();
    assert_eq!(reports.len(), 2);
    let dropped = reports[1].health.dropped[&DropReason::Refused];
    assert_eq!((dropped.reports, dropped.runs), (1, 10));
}

/// The listener is called while no lock of the SDK is held, and its panics do not affect the SDK.
#[test]
fn a_health_listener_gets_each_problem_and_its_end() {
    let told: Arc<Mutex<Vec<[Option<String>; 2]>>> = Arc::default();
    let explaining: Arc<OnceLock<Watch>> = Arc::default();
    let (tells, explained) = (Arc::clone(&told), Arc::clone(&explaining));
    let (_dir, collector, watch) = support::app_with(|config| {
        config.with_health_listener(move |problem| {
            let explained = explained.get().expect("no problem yet").explain();
            let both = [problem.map(str::to_owned), explained.last_problem];
            tells.lock().unwrap().push(both);
            panic!("a fault of the app");
        })
    });
    assert!(explaining.set(watch.clone()).is_ok());
    run(&session(&watch), 10);
    let down = |message| Answer::Fail(Status::unavailable(message));
    collector.answer(["down", "down", "still down"].map(down));
    // In a slow test the schedule may send some of the reports.
    while watch.flush(TIMEOUT).is_err() {}
    watch.flush(TIMEOUT).unwrap();
    let told = told.lock().unwrap().clone();
    assert!(told.iter().all(|[told, explained]| told == explained));
    let [[Some(first), _], [Some(second), _], [None, _]] = &told[..] else {
        panic!("{told:?}");
    };
    assert!(first.contains("down") && second.contains("still down"));
    assert_eq!(watch.explain().internal_errors, 0);
}

#[test]
fn a_report_over_quota_waits() {
    let (_dir, collector, watch) = app();
    collector.answer([answer(v1::Outcome::RefusedQuota, true, "")]);
    run(&session(&watch), 10);
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Kept { reports: 1 }), "{error}");
    watch.flush(TIMEOUT).unwrap();
    let calls = collector.calls();
    assert_eq!(calls[0], calls[1]);
}

#[test]
fn a_wrong_key_and_a_pushback_are_counted_by_kind() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start("another key");
    let watch = start(dir.path(), &collector.endpoint());
    run(&session(&watch), 1);
    watch.flush(TIMEOUT).unwrap_err();
    let failures = watch.health().upload_failures;
    assert_eq!(failures[&UploadFailureKind::Unauthenticated], 1);
    // A person has to register the key or ship another one, so the fleet waits for at least an hour, and the
    // explanation says so.
    assert!(watch.explain().next_upload_seconds > 3500.0);
    let problem = watch.explain().last_problem.unwrap();
    for part in [
        "the collector does not admit this app key",
        "register it there",
        "it is tried again in ",
        " min, or at once by a flush",
    ] {
        assert!(problem.contains(part), "no {part:?} in {problem}");
    }

    let (_dir, collector, watch) = app();
    let mut busy = Status::resource_exhausted("log is full");
    let delay = "600000".parse().unwrap();
    busy.metadata_mut().insert("grpc-retry-pushback-ms", delay);
    collector.answer([Answer::Fail(busy)]);
    run(&session(&watch), 1);
    watch.flush(TIMEOUT).unwrap_err();
    let failures = watch.health().upload_failures;
    assert_eq!(failures[&UploadFailureKind::PushedBack], 1);
    let wait = watch.explain().next_upload_seconds;
    assert!((500.0..=600.0).contains(&wait), "{wait}");
}

#[test]
fn an_absent_collector_is_an_error_and_the_report_stays() {
    let dir = tempfile::tempdir().unwrap();
    // A port without a listener, which was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let watch = start(dir.path(), &format!("http://127.0.0.1:{port}"));
    run(&session(&watch), 1);
    watch.flush(TIMEOUT).unwrap_err();
    let failures = watch.health().upload_failures;
    assert_eq!(failures[&UploadFailureKind::Unreachable], 1, "{failures:?}");
    support::check_explains(&watch, "spool: 1 report,");
}

/// The crypto provider and the roots are available, and an unsecured connection is not used.
#[test]
fn a_connection_that_cannot_be_secured_is_counted_by_its_kind() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let secured = collector.endpoint().replace("http://", "https://");
    let watch = start(dir.path(), &secured);
    run(&session(&watch), 1);
    watch.flush(TIMEOUT).unwrap_err();
    let failures = watch.health().upload_failures;
    assert_eq!(
        failures,
        [(UploadFailureKind::Tls, 1)].into(),
        "{}",
        watch.explain()
    );
    assert!(collector.calls().is_empty());
}

#[test]
fn reports_are_sent_on_schedule() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let config = config(dir.path(), &collector.endpoint())
        .with_report_interval(Duration::from_millis(20))
        .with_upload_interval(Duration::from_millis(20));
    let watch = support::start(config);
    let session = session(&watch);
    run(&session, 10);
    until("the runs", || n_runs(&collector) == 10);
    run(&session, 10);
    until("the later runs", || n_runs(&collector) == 20);
    let mut sequences: Vec<_> = collector
        .reports()
        .iter()
        .map(|r| r.key.sequence.get())
        .collect();
    sequences.dedup();
    let expected: Vec<_> = (1..=sequences.len() as u64).collect();
    assert_eq!(sequences, expected);
}

#[test]
fn two_processes_of_an_app_share_the_folder() {
    let (dir, collector, one) = app();
    let other = start(dir.path(), &collector.endpoint());
    run(&session(&one), 10);
    run(&session(&other), 20);
    one.flush(TIMEOUT).unwrap();
    other.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let installations: BTreeSet<_> = reports.iter().map(|r| r.key.installation).collect();
    let streams: BTreeSet<_> = reports.iter().map(|r| r.key.stream).collect();
    assert_eq!((installations.len(), streams.len()), (1, 2));
    assert!(reports.iter().all(|r| r.ended_streams.is_empty()));
    assert_eq!(n_runs(&collector), 30);
}

#[test]
fn a_host_can_send_the_bytes_itself() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), NOWHERE).with_uploads_by_host();
    let watch = support::start(config);
    run(&session(&watch), 10);
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Kept { reports: 1 }), "{error}");
    let batch = watch.next_upload().unwrap();
    assert_eq!(batch.n_reports(), 1);
    assert_eq!(batch.kind(), RequestKind::Upload);
    let sent: v1::UploadRequest = prost::Message::decode(&batch.encoded()[..]).unwrap();
    assert_eq!(sent.reports.len(), 1);
    let answer = support::acknowledged(&batch);
    watch.upload_result(&batch, Ok(&answer)).unwrap();
    assert!(watch.next_upload().is_none());
    let again: Vec<Bytes> = sent.reports;
    assert!(epwatch_proto::Report::parse(&again[0]).is_ok());
}

/// Answers that a captive portal or a proxy may give with status 200.
#[test]
fn an_answer_that_is_not_the_collectors_to_this_request_acknowledges_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let watch = support::start(config(dir.path(), NOWHERE).with_uploads_by_host());
    run(&session(&watch), 10);
    watch.seal().unwrap();
    let before = watch.next_upload().unwrap();
    let of_another_call = support::acknowledged(&watch.next_upload().unwrap());
    let alike = v1::UploadResponse {
        server_time_unix_ms: 1_800_000_000_000,
        n_reports: 1,
        ..Default::default()
    };
    let strangers: [&[u8]; 4] = [
        b"",
        &prost::Message::encode_to_vec(&alike),
        &of_another_call,
        &before.encoded(),
    ];
    for stranger in strangers {
        let error = watch.upload_result(&before, Ok(stranger)).unwrap_err();
        assert_eq!(error.kind(), UploadFailureKind::Server.into());
        assert!(error.to_string().contains("bad answer"), "{error}");
        support::check_explains(&watch, "spool: 1 report,");
    }
    let answer = support::acknowledged(&before);
    watch.upload_result(&before, Ok(&answer)).unwrap();
    support::check_explains(&watch, "spool: 0 reports");
}

/// The same over gRPC: status 0, with the answer to another request.
#[test]
fn the_sdk_takes_no_strangers_answer_for_an_acknowledgement() {
    let (dir, collector, watch) = app();
    run(&session(&watch), 10);
    collector.answer([Answer::Stranger(v1::UploadResponse::default())]);
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Upload(_)), "{error}");
    support::check_explains(&watch, "a captive portal");
    watch.flush(TIMEOUT).unwrap();
    assert_eq!(n_runs(&collector), 20, "it came twice");
    assert_eq!(collector.stored().len(), 1);

    collector.answer_deletion_as_stranger(v1::DeleteInstallationResponse {
        tombstoned_at_unix_ms: 1_800_000_000_000,
        ..Default::default()
    });
    watch.set_consent(false);
    support::until("the stranger's answer", || {
        collector.n_deletion_calls() == 1
    });
    support::until("a deletion that waits", || {
        watch
            .explain()
            .last_problem
            .is_some_and(|p| p.contains("installation_id"))
    });
    assert_eq!(watch.explain().deletions_waiting, 1);
    // The deletion survives the process.
    watch.stop(TIMEOUT).unwrap();
    let next = start(dir.path(), &collector.endpoint());
    support::until("the deletion", || collector.deleted().len() == 1);
    support::until("its end", || next.explain().deletions_waiting == 0);
}

/// The stream has ended, and the next process may take it over. Its state file must not hold sequence 0 again.
#[test]
fn a_stopped_sdk_hands_out_nothing_and_leaves_its_stream_alone() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), NOWHERE).with_uploads_by_host();
    let watch = support::start(config);
    run(&session(&watch), 10);
    watch.stop(TIMEOUT).unwrap();
    let stream = dir.path().join("streams").join(watch.stream().to_string());
    let state = std::fs::read(stream.join("state")).unwrap();
    assert!(watch.next_upload().is_none());
    assert_eq!(std::fs::read(stream.join("state")).unwrap(), state);
}

#[test]
fn a_host_that_sends_the_bytes_gets_the_same_pushback() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), NOWHERE).with_uploads_by_host();
    let watch = support::start(config);
    run(&session(&watch), 10);
    watch.flush(TIMEOUT).unwrap_err();
    let batch = watch.next_upload().unwrap();
    let busy = UploadError::new(UploadFailureKind::PushedBack.into(), "busy")
        .with_retry_after(Duration::from_secs(600));
    watch.upload_result(&batch, Err(busy)).unwrap_err();
    assert!(watch.next_upload().is_none());
    support::check_explains(&watch, "spool: 1 report,");
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error_of_the_flush_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let watch = start(&file.join("sub"), NOWHERE);
    run(&session(&watch), 10);
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Spool(_)), "{error}");
    support::check_explains(&watch, "last problem");
    // Once there is space again, the runs recorded meanwhile are still kept.
    std::fs::remove_file(&file).unwrap();
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Upload(_)), "{error}");
    assert_eq!(watch.health().runs_recorded, 10);
}

#[test]
fn a_stopped_sdk_returns_an_error_and_drops_later_runs() {
    let dir = tempfile::tempdir().unwrap();
    let watch = start(dir.path(), NOWHERE);
    let session = session(&watch);
    watch.stop(TIMEOUT).unwrap();
    run(&session, 10);
    until("the end of the thread", || {
        matches!(watch.flush(TIMEOUT), Err(FlushError::Stopped))
    });
    watch.stop(TIMEOUT).unwrap();
}

/// A collector behind a network that loses everything: it accepts, and never answers.
#[test]
fn a_stop_seals_first_and_breaks_off_a_call_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let black_hole = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let watch = start(
        dir.path(),
        &format!("http://{}", black_hole.local_addr().unwrap()),
    );
    let sessions = session(&watch);
    run(&sessions, 10);
    let error = watch.flush(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, FlushError::Timeout), "{error}");
    let _held = black_hole.accept().unwrap();
    run(&sessions, 20);
    // There is no time to wait for the thread, and still nothing is lost.
    let _ = watch.stop(Duration::ZERO);
    assert_eq!(watch.health().runs_recorded, 30);
    watch.stop(TIMEOUT).unwrap();
    let collector = Collector::start(KEY);
    let next = start(dir.path(), &collector.endpoint());
    next.flush(TIMEOUT).unwrap();
    assert_eq!(n_runs(&collector), 30);
}
