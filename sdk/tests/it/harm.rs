//! Faults around the SDK. The host continues, and every loss is counted.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use bytes::Bytes;
use epwatch_proto::{DropReason, InstallationId, Outcome, Report, placement::QNN_EP, v1};
use epwatch_sdk::{
    FlushError, ModelInfo, Watch,
    simulation::{Core, CoreConfig, Now, SessionInfo, random_stream, simulated_device},
    types::{self, StartPhase},
};
use proptest::prelude::*;
use tonic::{Code, Status};

use crate::support::{
    self, KEY, NOWHERE, TIMEOUT, app,
    collector::{Answer, Collector},
    command, config, emit, emitted_by, files, is_alone, placement, role, run, session,
};

fn start(dir: &Path, endpoint: &str) -> Watch {
    support::start(config(dir, endpoint))
}

#[track_caller]
fn is_unharmed(watch: &Watch) {
    assert_eq!(watch.explain().internal_errors, 0);
}

/// The child process. Its files may not grow beyond a few KiB, so writes fail in the middle of a report as on a full
/// disk.
fn fill_the_disk(dir: &Path) {
    let watch = start(dir, NOWHERE);
    let session = session(&watch);
    for _ in 0..20 {
        run(&session, 10);
        // No collector listens yet.
        watch.flush(TIMEOUT).unwrap_err();
    }
    is_unharmed(&watch);
    let health = watch.health();
    let lost = health.dropped[&DropReason::SpoolIo];
    assert_eq!(health.runs_recorded, 200);
    crate::support::check_explains(&watch, "last problem");
    emit(lost.reports);
    emit(lost.runs);
    // There is also no space for the report that counts the losses.
    let _ = watch.stop(TIMEOUT);
}

/// This program as a child whose files are limited to a few KiB.
fn with_small_files(child: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited
        // The child inherits ignored signals, so a write beyond the limit is an error.
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""])
        .arg(child.get_program())
        .args(child.get_args())
        .envs(
            child
                .get_envs()
                .filter_map(|(key, value)| Some((key, value?))),
        );
    limited
}

#[cfg(unix)]
#[test]
fn on_a_full_disk_every_report_is_there_or_counted() {
    if let Some(dir) = role() {
        return fill_the_disk(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let test = on_a_full_disk_every_report_is_there_or_counted;
    let child = command(test, dir.path().to_str().unwrap());
    let emitted = emitted_by(with_small_files(&child));
    let emitted: Vec<u64> = emitted
        .iter()
        .map(|number| number.parse().unwrap())
        .collect();
    let [lost_reports, lost_runs] = emitted[..] else {
        panic!("{emitted:?}");
    };
    assert!(lost_reports > 0);

    let collector = Collector::start(KEY);
    let watch = start(dir.path(), &collector.endpoint());
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let arrived: Vec<_> = reports.iter().filter(|r| !r.series.is_empty()).collect();
    let runs: u64 = arrived.iter().flat_map(|r| &r.series).map(|s| s.n).sum();
    assert!(!arrived.is_empty());
    assert_eq!(runs + lost_runs, 200);
    assert_eq!(arrived.len() as u64 + lost_reports, 20);
}

/// The child process. Regression test: the answer to earlier reports hid that the last report was lost.
fn lose_the_last_report(dir: &Path) {
    let collector = Collector::start(KEY);
    let watch = start(dir, &collector.endpoint());
    let session = session(&watch);
    // After this refusal only a flush sends, for an hour.
    collector.answer([Answer::Fail(Status::new(Code::Unauthenticated, "no"))]);
    run(&session, 10);
    watch.flush(TIMEOUT).unwrap_err();
    let mut kept = 0;
    loop {
        run(&session, 10);
        match watch.seal() {
            Ok(()) => kept += 10,
            Err(error) => break assert!(matches!(error, FlushError::Spool(_)), "{error}"),
        }
        assert!(kept < 100_000, "the disk is never full");
    }
    run(&session, 10);
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Spool(_)), "{error}");
    let arrived = || {
        let reports = collector.reports();
        let series = reports.iter().flat_map(|report| &report.series);
        series.map(|series| series.n).sum::<u64>()
    };
    // The first 10 runs arrived twice, the first time with the refused call.
    assert_eq!(arrived(), kept + 20);
    // The earlier reports are gone, so there is space again.
    run(&session, 10);
    watch.flush(TIMEOUT).unwrap();
    assert_eq!(arrived(), kept + 30);
    assert_eq!(watch.health().dropped[&DropReason::SpoolIo].runs, 20);
    watch.stop(TIMEOUT).unwrap();
    emit(kept);
}

#[cfg(unix)]
#[test]
fn a_flush_that_loses_a_report_says_so_although_others_arrive() {
    if let Some(dir) = role() {
        return lose_the_last_report(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let test = a_flush_that_loses_a_report_says_so_although_others_arrive;
    let child = command(test, dir.path().to_str().unwrap());
    assert_eq!(emitted_by(with_small_files(&child)).len(), 1);
}

#[test]
fn in_a_folder_that_cannot_be_written_the_host_goes_on() {
    // Not even root may create a folder there.
    let watch = start(Path::new("/proc/epwatch"), NOWHERE);
    let session = session(&watch);
    for _ in 0..5 {
        run(&session, 10);
        let error = watch.flush(TIMEOUT).unwrap_err();
        assert!(matches!(error, FlushError::Spool(_)), "{error}");
    }
    watch.set_consent(false);
    let _ = watch.flush(TIMEOUT);
    watch.set_consent(true);
    let _ = watch.flush(TIMEOUT);
    run(&session, 10);
    is_unharmed(&watch);
    // Regression test: the last runs are lost, but both calls returned OK.
    for lost in [watch.seal(), watch.stop(TIMEOUT)] {
        let error = lost.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, FlushError::Spool(_)), "{text}");
        assert!(text.contains("/proc/epwatch"), "{text}");
    }
}

#[test]
fn a_clock_that_jumps_back_a_day_makes_reports_that_are_accepted() {
    let day = 86_400_000;
    let walls = [
        1_800_000_000_000,
        1_800_000_000_000 - day,
        1_800_000_000_000 + day,
        0,
    ];
    let config = CoreConfig::new("app", simulated_device("SM8650")).unwrap();
    let at = |n: usize| Now::simulated(Duration::from_secs(60 * n as u64), walls[n % walls.len()]);
    let mut core = Core::new(config, random_stream(), at(0));
    core.set_installation(InstallationId::from_secret(b"device"));
    let model = ModelInfo::new("m", "1").unwrap();
    let recorder = core.open_session(SessionInfo::new(model, placement()), at(0));
    for n in 1..12 {
        recorder.record(at(n).mono, Duration::from_millis(8), "static");
        let sealed = core.seal(at(n));
        assert_eq!(sealed.len(), 1);
        let report = Report::parse(&sealed[0].bytes).unwrap();
        assert_eq!(report.series[0].n, 1);
        assert_eq!(report.interval_length_ms, 60_000);
    }
}

#[test]
fn every_refusal_ends_in_a_report_that_is_kept_or_counted() {
    let (_dir, collector, watch) = app();
    let session = session(&watch);
    let mut refused = 0;
    let unknown = [(99, false), (99, true)];
    let known = Outcome::ALL.iter().flat_map(|outcome| {
        let outcome = outcome.to_wire();
        [(outcome, false), (outcome, true)]
    });
    for (outcome, retryable) in known.chain(unknown) {
        run(&session, 1);
        let result = v1::ReportResult {
            index: 0,
            outcome,
            retryable,
            ..Default::default()
        };
        collector.answer([Answer::Ok(v1::UploadResponse {
            results: vec![result],
            ..Default::default()
        })]);
        let is_ack = [v1::Outcome::Stored.into(), v1::Outcome::Duplicate.into()].contains(&outcome);
        let flushed = watch.flush(TIMEOUT);
        if retryable && !is_ack {
            assert!(
                matches!(flushed, Err(FlushError::Kept { reports: 1 })),
                "{outcome}"
            );
            watch.flush(TIMEOUT).unwrap();
        } else {
            refused += u64::from(!is_ack);
            if outcome == i32::from(v1::Outcome::RefusedDeleted) {
                // The SDK continues as a new installation, which has lost nothing.
                refused = 0;
            }
            match flushed {
                Ok(()) => assert!(is_ack || refused == 0, "{outcome}"),
                Err(FlushError::Refused(refusal)) => assert_eq!(refusal.reports, 1, "{outcome}"),
                Err(error) => panic!("{outcome}: {error}"),
            }
        }
        let dropped = watch.health().dropped.get(&DropReason::Refused).copied();
        assert_eq!(
            dropped.map_or(0, |d| d.reports),
            refused,
            "{outcome} {retryable}"
        );
    }
    is_unharmed(&watch);
}

#[test]
fn every_status_keeps_the_reports_and_is_counted() {
    let (_dir, collector, watch) = app();
    run(&session(&watch), 10);
    let codes = 1..=16;
    for code in codes.clone() {
        collector.answer([Answer::Fail(Status::new(Code::from_i32(code), "no"))]);
        watch.flush(TIMEOUT).unwrap_err();
    }
    // An answer about reports that were not sent.
    let beyond = v1::ReportResult {
        index: 7,
        ..Default::default()
    };
    collector.answer([Answer::Ok(v1::UploadResponse {
        results: vec![beyond],
        ..Default::default()
    })]);
    watch.flush(TIMEOUT).unwrap_err();
    let failures = watch.health().upload_failures;
    assert_eq!(failures.values().sum::<u64>(), 17, "{failures:?}");
    watch.flush(TIMEOUT).unwrap();
    assert!(watch.health().dropped.is_empty());
    let first: Bytes = collector.calls()[0][0].clone();
    assert!(collector.calls().iter().all(|call| call[0] == first));
    is_unharmed(&watch);
}

#[derive(Debug, Clone)]
enum Damage {
    Flip(prop::sample::Index, prop::sample::Index, u8),
    Cut(prop::sample::Index, prop::sample::Index),
    Grow(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (index(), index(), 1_u8..).prop_map(|(file, at, with)| Damage::Flip(file, at, with)),
        (index(), index()).prop_map(|(file, at)| Damage::Cut(file, at)),
        (index(), prop::collection::vec(any::<u8>(), 1..100))
            .prop_map(|(file, bytes)| Damage::Grow(file, bytes)),
        index().prop_map(Damage::Remove),
    ]
}

fn apply(damage: &Damage, files: &[PathBuf]) {
    let read = |file: &prop::sample::Index| {
        let path = &files[file.index(files.len())];
        (path, fs::read(path).unwrap_or_default())
    };
    match damage {
        Damage::Flip(file, at, with) => {
            let (path, mut bytes) = read(file);
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= with;
                fs::write(path, bytes).unwrap();
            }
        }
        Damage::Cut(file, at) => {
            let (path, mut bytes) = read(file);
            bytes.truncate(at.index(bytes.len() + 1));
            fs::write(path, bytes).unwrap();
        }
        Damage::Grow(file, more) => {
            let (path, mut bytes) = read(file);
            bytes.extend(more);
            fs::write(path, bytes).unwrap();
        }
        Damage::Remove(file) => {
            let _ = fs::remove_file(&files[file.index(files.len())]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// After any damage to the folder the next process works, reports arrive as they were sealed, and new runs arrive.
    #[test]
    fn a_damaged_folder_brings_whole_reports_or_none(
        damages in prop::collection::vec(damage(), 1..6),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut sealed = BTreeSet::new();
        for _ in 0..2 {
            let config = config(dir.path(), NOWHERE).with_uploads_by_host();
            let watch = support::start(config);
            let session = session(&watch);
            for _ in 0..3 {
                run(&session, 10);
                let _ = watch.flush(TIMEOUT);
            }
            let batch = watch.next_upload().unwrap();
            let request: v1::UploadRequest = prost::Message::decode(&batch.encoded()[..]).unwrap();
            sealed.extend(request.reports);
            watch.stop(TIMEOUT).unwrap();
        }
        let files: Vec<_> = files(dir.path()).iter().map(|file| dir.path().join(file)).collect();
        for damage in &damages {
            apply(damage, &files);
        }
        let collector = Collector::start(KEY);
        let watch = start(dir.path(), &collector.endpoint());
        run(&session(&watch), 7);
        watch.flush(TIMEOUT).unwrap();
        is_unharmed(&watch);
        let own = watch.stream();
        let (new, old): (Vec<_>, Vec<_>) = collector
            .calls()
            .into_iter()
            .flatten()
            .partition(|bytes| Report::parse(bytes).unwrap().key.stream == own);
        let runs: u64 = new.iter().flat_map(|b| Report::parse(b).unwrap().series).map(|s| s.n).sum();
        prop_assert_eq!(runs, 7);
        prop_assert!(old.iter().all(|bytes| sealed.contains(bytes)));
        let old: BTreeSet<_> = old.into_iter().collect();
        // A missing report is counted, unless the stored sequence is lost too.
        let lost = sealed.len() - old.len();
        let whole_files = damages.iter().any(|d| !matches!(d, Damage::Flip(..)));
        let is_counted = watch.health().dropped.contains_key(&DropReason::SpoolCorrupt);
        prop_assert!(lost == 0 || is_counted || whole_files, "{} lost", lost);
    }
}

/// Without its library `ort` panics in the host's own call, before the SDK is called.
#[test]
fn without_onnx_runtime_the_host_gets_an_error_and_the_sdk_works() {
    if !is_alone(without_onnx_runtime_the_host_gets_an_error_and_the_sdk_works) {
        return;
    }
    let missing = "/nowhere/libonnxruntime.so";
    let error = ort::init_from(missing).err().unwrap();
    assert!(error.to_string().contains(missing), "{error}");
    let (_dir, collector, watch) = app();
    let model = ModelInfo::new("m", "1").unwrap();
    watch.start_failed(
        model,
        &[QNN_EP],
        StartPhase::SessionCreation,
        types::ReasonCode::UNKNOWN,
        &error.to_string(),
    );
    crate::support::check_explains(&watch, "(version not known)");
    watch.flush(TIMEOUT).unwrap();
    assert_eq!(collector.reports()[0].start_failures.len(), 1);
    is_unharmed(&watch);
}

/// The log subscriber is the only code of the host that the SDK calls.
#[test]
fn a_host_whose_log_panics_keeps_its_sdk() {
    if !is_alone(a_host_whose_log_panics_keeps_its_sdk) {
        return;
    }
    struct Panicking;
    impl tracing::Subscriber for Panicking {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target().starts_with("epwatch")
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            panic!("the host's log");
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    tracing::subscriber::set_global_default(Panicking).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let watch = start(&file.join("sub"), NOWHERE);
    let session = session(&watch);
    for _ in 0..5 {
        run(&session, 10);
        let error = watch.flush(TIMEOUT).unwrap_err();
        assert!(matches!(error, FlushError::Spool(_)), "{error}");
    }
    fs::remove_file(&file).unwrap();
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Upload(_)), "{error}");
    assert_eq!(watch.health().runs_recorded, 50);
}
