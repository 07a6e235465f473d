//! Consent withheld, given and withdrawn, and a byte budget that survives restarts.

use std::{collections::BTreeSet, fs, net::TcpListener, path::Path};

use epwatch_proto::{DropReason, InstallationId, UploadFailureKind, v1};
use epwatch_sdk::{FlushError, NetworkKind, RequestKind, SdkConfig, UploadError};
use tonic::Status;

use crate::support::{
    self, KEY, NOWHERE, TIMEOUT, app, app_with,
    collector::{Answer, Collector},
    config, files, run, session, start, until,
};

fn secret(dir: &Path) -> InstallationId {
    InstallationId::from_secret(&fs::read(dir.join("secret")).unwrap())
}

#[test]
fn withheld_consent_leaves_no_trace_and_giving_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let never = dir.path().join("never");
    let collector = Collector::start(KEY);
    let watch = start(config(&never, &collector.endpoint()).with_consent(false));
    let session = session(&watch);
    run(&session, 10);
    // Hosts that store the choice repeat it at each start. There is nothing to forget.
    watch.set_consent(false);
    watch.flush(TIMEOUT).unwrap();
    assert!(watch.next_upload().is_none());
    crate::support::check_explains(&watch, "consent: withheld");
    assert!(!never.exists());
    assert_eq!(watch.health().runs_observed, 0);

    watch.set_consent(true);
    run(&session, 3);
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let runs: u64 = reports.iter().flat_map(|r| &r.series).map(|s| s.n).sum();
    assert_eq!(runs, 3);
    assert_eq!(reports[0].health.consent_changes, 1);
    assert!(reports[0].health.dropped.is_empty());
}

#[test]
fn a_watch_without_consent_that_ends_has_touched_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let never = dir.path().join("never");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    // The builder's default: consent is off until it is given.
    let watch = start(SdkConfig::builder("app", &endpoint, KEY, &never));
    run(&session(&watch), 10);
    watch.stop(TIMEOUT).unwrap();
    assert!(!never.exists());
    let nobody_came = listener.accept().unwrap_err();
    assert_eq!(nobody_came.kind(), std::io::ErrorKind::WouldBlock);
}

/// Support deleted the installation for the user, or a backup restored the folder. A tombstone is never removed.
#[test]
fn an_installation_that_the_collector_deleted_goes_on_as_another_one_once() {
    let (dir, collector, watch) = app();
    let session = session(&watch);
    run(&session, 2);
    watch.flush(TIMEOUT).unwrap();
    let old = secret(dir.path());

    collector.delete(old);
    run(&session, 3);
    // This flush may or may not include the new installation's first reports.
    let _ = watch.flush(TIMEOUT);
    until("a new installation", || {
        dir.path().join("secret").exists() && secret(dir.path()) != old
    });
    let new = secret(dir.path());
    run(&session, 4);
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let runs_of = |id: InstallationId| -> u64 {
        let its = reports.iter().filter(|r| r.key.installation == id);
        its.flat_map(|r| &r.series).map(|s| s.n).sum()
    };
    assert_eq!((runs_of(old), runs_of(new)), (5, 4));
    // The reports of the new installation contain nothing from the reports of the old one.
    let uids = |id: InstallationId| -> BTreeSet<_> {
        let its = reports.iter().filter(|r| r.key.installation == id);
        its.flat_map(|r| &r.sessions).map(|s| s.uid).collect()
    };
    assert!(uids(old).is_disjoint(&uids(new)) && !uids(new).is_empty());

    // If the collector refuses this installation too, the SDK keeps it and counts the refused reports.
    collector.delete(new);
    run(&session, 6);
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Refused(_)), "{error}");
    assert_eq!(secret(dir.path()), new);
    let health = watch.health();
    assert_eq!(health.dropped[&DropReason::Refused].runs, 6, "{health:?}");
}

#[test]
fn withdrawing_wipes_and_deletes_and_giving_again_is_another_installation() {
    let (dir, collector, watch) = app_with(|config| config.with_settled_runs(1));
    let session = session(&watch);
    run(&session, 10);
    watch.flush(TIMEOUT).unwrap();
    collector.answer([Answer::Fail(Status::unavailable("down"))]);
    run(&session, 20);
    watch.flush(TIMEOUT).unwrap_err();
    run(&session, 5);
    let old = secret(dir.path());
    let old_stream = watch.stream();
    assert!(dir.path().join("baselines").exists());

    watch.set_consent(false);
    until("the deletion", || collector.deleted() == [old]);
    // The answer arrives a moment later.
    until("the wipe", || files(dir.path()) == ["lock".into()].into());
    run(&session, 100);
    watch.flush(TIMEOUT).unwrap();
    assert_eq!(files(dir.path()), ["lock".into()].into());
    let n_calls = collector.calls().len();

    watch.set_consent(true);
    run(&session, 7);
    watch.flush(TIMEOUT).unwrap();
    let new = secret(dir.path());
    assert_ne!(new, old);
    assert_ne!(watch.stream(), old_stream);
    let later: Vec<_> = collector.reports().into_iter().skip(2).collect();
    assert_eq!(collector.calls().len(), n_calls + 1);
    assert_eq!(later.len(), 1);
    let report = &later[0];
    assert_eq!(
        (report.key.installation, report.key.sequence.get()),
        (new, 1)
    );
    let runs: u64 = report.series.iter().map(|s| s.n).sum();
    assert_eq!(runs, 7);
    // 20 runs in the spool and 5 unsealed runs are lost, and no trace of the old installation's sessions is left.
    let lost = report.health.dropped[&DropReason::Consent];
    assert_eq!((lost.reports, lost.runs), (0, 25));
    assert_eq!(report.health.consent_changes, 2);
    let uids: BTreeSet<_> = collector
        .reports()
        .iter()
        .map(|r| r.sessions[0].uid)
        .collect();
    assert_eq!(uids.len(), 2);
    assert!(report.ended_streams.is_empty());
    assert_eq!(collector.deleted(), [old]);
}

#[test]
fn a_deletion_outlives_the_process_and_goes_also_without_consent() {
    let dir = tempfile::tempdir().unwrap();
    let watch = start(config(dir.path(), NOWHERE));
    run(&session(&watch), 10);
    watch.flush(TIMEOUT).unwrap_err();
    let old = secret(dir.path());
    watch.set_consent(false);
    watch.flush(TIMEOUT).unwrap_err();
    let waiting = Path::new("deletions").join(old.to_hex());
    assert_eq!(files(dir.path()), ["lock".into(), waiting].into());
    crate::support::check_explains(&watch, "deletions that wait: 1");
    watch.stop(TIMEOUT).unwrap();

    let collector = Collector::start(KEY);
    let down = Status::unavailable("down");
    let not_yet = Status::unimplemented("not yet");
    collector.answer_deletions([down, not_yet]);
    let again = start(config(dir.path(), &collector.endpoint()).with_consent(false));
    until("an attempt", || collector.n_deletion_calls() == 1);
    again.flush(TIMEOUT).unwrap_err();
    again.flush(TIMEOUT).unwrap();
    assert_eq!(collector.deleted(), [old]);
    assert_eq!(files(dir.path()), ["lock".into()].into());
    assert!(collector.calls().is_empty());
}

/// The process was killed before its thread reached the wipe, so the folder is unchanged.
#[test]
fn a_withdrawal_that_a_kill_lost_is_repeated_in_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let watch = start(config(dir.path(), NOWHERE));
    run(&session(&watch), 10);
    watch.flush(TIMEOUT).unwrap_err();
    let old = secret(dir.path());
    watch.stop(TIMEOUT).unwrap();
    let kept = files(dir.path());

    // Hosts that read the choice later start like this, and continue as before.
    let collector = Collector::start(KEY);
    let asks = start(config(dir.path(), &collector.endpoint()).with_consent(false));
    asks.flush(TIMEOUT).unwrap();
    assert_eq!(files(dir.path()), kept);
    asks.set_consent(true);
    asks.flush(TIMEOUT).unwrap();
    assert_eq!(collector.reports()[0].key.installation, old);
    asks.stop(TIMEOUT).unwrap();

    let next = start(config(dir.path(), &collector.endpoint()).with_consent(false));
    next.set_consent(false);
    next.flush(TIMEOUT).unwrap();
    assert_eq!(collector.deleted(), [old]);
    assert_eq!(files(dir.path()), ["lock".into()].into());
}

#[test]
fn a_deletion_that_fails_keeps_no_report_back() {
    let (dir, collector, watch) = app();
    let session = session(&watch);
    run(&session, 10);
    watch.flush(TIMEOUT).unwrap();
    let old = secret(dir.path());
    collector.answer_deletions([Status::unimplemented(""), Status::unimplemented("")]);
    watch.reset_installation();
    until("an attempt", || collector.n_deletion_calls() == 1);
    run(&session, 4);
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Upload(_)), "{error}");
    let reports = collector.reports();
    let last = reports.last().unwrap();
    assert_eq!(last.key.installation, secret(dir.path()));
    assert_ne!(last.key.installation, old);
    assert_eq!(last.health.consent_changes, 0);
    watch.flush(TIMEOUT).unwrap();
    assert_eq!(collector.deleted(), [old]);
}

#[test]
fn a_host_that_sends_is_handed_the_deletion_under_its_own_path() {
    let dir = tempfile::tempdir().unwrap();
    let watch = start(config(dir.path(), NOWHERE).with_uploads_by_host());
    run(&session(&watch), 10);
    watch.flush(TIMEOUT).unwrap_err();
    let in_flight = watch.next_upload().unwrap();
    let old = secret(dir.path());
    watch.set_consent(false);
    let request = watch.next_upload().unwrap();
    assert_eq!(request.kind(), RequestKind::DeleteInstallation);
    assert_eq!(
        request.kind().path(),
        "/epwatch.v1.CollectorService/DeleteInstallation"
    );
    let sent: v1::DeleteInstallationRequest =
        prost::Message::decode(&request.encoded()[..]).unwrap();
    assert_eq!(InstallationId::from_secret(&sent.secret), old);
    // The answer to the request under way changes nothing.
    let answer = support::acknowledged(&in_flight);
    watch.upload_result(&in_flight, Ok(&answer)).unwrap();

    let error = UploadError::new(UploadFailureKind::Unreachable.into(), "no network");
    watch.upload_result(&request, Err(error)).unwrap_err();
    assert!(watch.next_upload().is_none(), "it is held back");
    // The answer of a captive portal.
    watch.upload_result(&request, Ok(&[])).unwrap_err();
    assert_eq!(watch.explain().deletions_waiting, 1);
    let answer = support::acknowledged(&request);
    watch.upload_result(&request, Ok(&answer)).unwrap();
    assert_eq!(files(dir.path()), ["lock".into()].into());
    assert!(watch.next_upload().is_none());
}

#[test]
fn another_process_notices_a_withdrawal() {
    let (dir, collector, one) = app();
    let other = start(config(dir.path(), &collector.endpoint()));
    let others = session(&other);
    run(&others, 10);
    other.flush(TIMEOUT).unwrap();
    one.flush(TIMEOUT).unwrap();
    run(&others, 10);
    one.set_consent(false);
    until("the deletion", || collector.deleted().len() == 1);
    // The folder's installation is gone. No report is kept, and no new installation is made.
    let _ = other.flush(TIMEOUT);
    crate::support::check_explains(&other, "withdrawn by another process");
    assert!(!dir.path().join("secret").exists());
    assert_eq!(collector.reports().len(), 1);

    other.set_consent(true);
    run(&others, 3);
    other.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    assert_eq!(reports.len(), 2);
    assert_ne!(reports[0].key.installation, reports[1].key.installation);
    assert_eq!(reports[1].health.dropped[&DropReason::Consent].runs, 10);
}

/// A cleanup job (`tmpfiles.d`) or a person removes the folder of a robot's program.
#[test]
fn a_folder_that_is_emptied_ends_recording_and_is_told_and_counted() {
    let (dir, collector, watch) = app();
    let session = session(&watch);
    run(&session, 2);
    watch.flush(TIMEOUT).unwrap();
    run(&session, 3);
    fs::remove_dir_all(dir.path()).unwrap();
    // The flush checks the folder, whatever it returns.
    let _ = watch.flush(TIMEOUT);
    run(&session, 4);
    let _ = watch.flush(TIMEOUT);
    support::check_explains(&watch, "the folder was emptied");
    support::check_explains(&watch, "lost: 3 runs and 0 reports: consent");

    watch.set_consent(true);
    run(&session, 5);
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let runs: u64 = reports.iter().flat_map(|r| &r.series).map(|s| s.n).sum();
    assert_eq!(runs, 2 + 5);
    let lost = &reports.last().unwrap().health.dropped[&DropReason::Consent];
    assert_eq!(lost.runs, 3);
}

#[test]
fn a_days_budget_ends_the_days_uploads() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let one = config(dir.path(), &collector.endpoint()).with_unmetered_bytes_per_day(3_000);
    let watch = start(one);
    let sessions = session(&watch);
    run(&sessions, 10);
    watch.flush(TIMEOUT).unwrap();
    let mut refused = None;
    for _ in 0..20 {
        run(&sessions, 10);
        if let Err(error) = watch.flush(TIMEOUT) {
            refused = Some(error);
            break;
        }
    }
    let Some(FlushError::Upload(error)) = refused else {
        panic!("20 reports within 3,000 bytes")
    };
    assert_eq!(error.kind(), UploadFailureKind::Budget.into());
    assert_eq!(
        watch.health().upload_failures[&UploadFailureKind::Budget],
        1
    );
    let n_calls = collector.calls().len();
    watch.stop(TIMEOUT).unwrap();

    // A restart does not renew the budget.
    let two = config(dir.path(), &collector.endpoint()).with_unmetered_bytes_per_day(3_000);
    let watch = start(two);
    watch.flush(TIMEOUT).unwrap_err();
    assert_eq!(collector.calls().len(), n_calls);
    watch.stop(TIMEOUT).unwrap();
    let three = start(config(dir.path(), &collector.endpoint()));
    three.flush(TIMEOUT).unwrap();
}

#[test]
fn metered_networks_are_used_where_it_is_allowed_and_none_is_none() {
    let (dir, collector, watch) = app();
    watch.set_network(NetworkKind::Metered);
    run(&session(&watch), 10);
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(
        matches!(&error, FlushError::Upload(e) if e.kind() == UploadFailureKind::Budget.into())
    );
    watch.set_network(NetworkKind::Offline);
    watch.flush(TIMEOUT).unwrap_err();
    assert!(collector.calls().is_empty());
    let failures = watch.health().upload_failures;
    assert_eq!(failures, [(UploadFailureKind::Budget, 1)].into());
    // On a free network uploads resume without a call.
    watch.set_network(NetworkKind::Unmetered);
    until("the report", || collector.calls().len() == 1);
    watch.stop(TIMEOUT).unwrap();

    let n_calls = collector.calls().len();
    let allowed = config(dir.path(), &collector.endpoint()).with_metered_bytes_per_day(100_000);
    let watch = start(allowed);
    watch.set_network(NetworkKind::Metered);
    run(&session(&watch), 10);
    watch.flush(TIMEOUT).unwrap();
    let metered = watch.explain().sent_metered_bytes;
    // A slow machine seals a report of the session before the runs, and each call has HTTP/2's overhead.
    let calls = collector.calls().split_off(n_calls);
    let payload: usize = calls.iter().flatten().map(|report| report.len()).sum();
    let (least, most) = (payload as u64, (payload + 1_000 * calls.len()) as u64);
    assert!(
        (least..most).contains(&metered),
        "{metered} bytes for {} calls with {payload}",
        calls.len()
    );
}
