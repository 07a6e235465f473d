//! The Kotlin library at a slow start, and with answers that are not from the collector.

use std::collections::BTreeMap;
use std::path::PathBuf;

use epwatch_proto::PlacementSource;
use epwatch_runtimes::is_nightly;
use tempfile::TempDir;

use crate::{
    c::{KEY, crate_file, n_runs},
    jvm::{Printed, Receiver, built, class_path, http, java},
};

/// The programs of `sdk/android/checks` with the Kotlin library, ONNX Runtime 1.29.0 and a collector.
struct App {
    folder: TempDir,
    classes: Vec<PathBuf>,
    receiver: Receiver,
}

impl App {
    fn built() -> Self {
        let folder = tempfile::tempdir().unwrap();
        built(folder.path());
        let jar = folder.path().join("jars/onnxruntime-1.29.0.jar");
        Self {
            classes: class_path(folder.path(), &jar),
            receiver: Receiver::start(),
            folder,
        }
    }

    /// Runs a program, which takes ENDPOINT KEY FOLDER MODEL.
    fn run(&self, program: &str) -> Printed {
        let model = crate_file("../../tests/fixtures/models/cnn.qu8.onnx");
        java(&self.classes, program, |command| {
            command
                .args([&self.receiver.endpoint, KEY])
                .args([&self.folder.path().join("data"), &model]);
        })
    }
}

/// Regression test: sessions and runs before loading were lost without a notice. Describing a phone can take four
/// seconds at a cold start.
#[test]
fn sessions_and_runs_before_the_library_is_loaded_are_kept() {
    if !is_nightly("a slow start of the Kotlin library (Maven)") {
        return;
    }
    let app = App::built();
    let printed = app.run("checks.SlowStartApp");
    let loading = printed.json("loading")["host_problem"].to_string();
    assert!(loading.contains("being loaded"), "{loading}");
    // The session's first call after the start read the placement.
    assert_eq!(printed.json("used")["source"], "assignment_api");
    // Regression test: the library followed the pointer of a session that was closed meanwhile, and crashed the app.
    for closed in ["explained", "ended", "late"] {
        assert_eq!(printed.json(closed)["source"], "unavailable", "{closed}");
    }
    assert_eq!(printed.line("tested"), "null");
    // Of 30 and 1,100 runs 1,024 were kept.
    assert_eq!(printed.json("flushed")["host_missed_runs"], 106);
    let reports = app.receiver.reports();
    let mut runs = BTreeMap::new();
    let mut sources = BTreeMap::new();
    for report in &reports {
        let sessions = report.sessions.iter();
        let models: BTreeMap<_, _> = sessions.map(|s| (s.uid, s.model.id.as_str())).collect();
        for session in &report.sessions {
            sources.insert(session.model.id.as_str(), session.placement.source);
        }
        for series in &report.series {
            *runs.entry(models[&series.session_uid]).or_default() += series.n;
        }
    }
    let expected = [
        ("closed", 7),
        ("ended", 2),
        ("explained", 1),
        ("idle", 1_024),
        ("tested", 1),
        ("used", 201),
    ];
    assert_eq!(runs, expected.into());
    assert_eq!(n_runs(&reports), 1_236);
    assert_eq!(sources["used"], PlacementSource::AssignmentApi);
    assert_eq!(sources["closed"], PlacementSource::Unavailable);
}

/// Regression test: calls on an interrupted thread threw, and took the app's result and the kept runs with them.
#[test]
fn calls_on_an_interrupted_thread_do_not_throw() {
    if !is_nightly("the Kotlin library on an interrupted thread (Maven)") {
        return;
    }
    let app = App::built();
    let printed = app.run("checks.InterruptedApp");
    // Whatever the SDK does, the thread stays interrupted.
    for call in [
        "early", "run", "observe", "create", "of", "compare", "plan", "stop",
    ] {
        assert_eq!(printed.line(call), "true", "{call}");
    }
    assert_eq!(printed.json("first")["source"], "assignment_api");
    assert_eq!(n_runs(&app.receiver.reports()), 3 + 1 + 1);
}

/// Regression test: `upload` was `SENT` and `stop` true although the runs were lost. A stop during an upload that hangs
/// sealed nothing.
#[test]
fn runs_that_cannot_be_kept_are_told_and_a_stop_seals_first() {
    if !is_nightly(
        "the Kotlin library in a folder that cannot be used, and a stop during an upload (Maven)",
    ) {
        return;
    }
    const MOST_SESSIONS: u64 = 4_096;
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let classes = class_path(
        folder.path(),
        &folder.path().join("jars/onnxruntime-1.29.0.jar"),
    );
    let model = crate_file("../../tests/fixtures/models/cnn.qu8.onnx");
    // Not even root may create a folder there.
    let unusable = "/proc/epwatch";
    let printed = java(&classes, "checks.LostApp", |command| {
        command.args([KEY, unusable]).arg(&model);
        command.arg((MOST_SESSIONS + 9).to_string());
    });
    assert_eq!(printed.line("upload"), "WAITING");
    assert_eq!(printed.line("stopped"), "false");
    let explained = printed.json("explain");
    let problem = explained["host_problem"].to_string();
    assert!(problem.contains(unusable), "{problem}");
    assert_eq!(explained["host_missed_runs"], 9);

    let data = folder.path().join("data");
    let printed = java(&classes, "checks.HangingApp", |command| {
        command.arg(KEY).args([&data, &model]);
    });
    // The thread waits for the answer; nothing is lost all the same.
    assert_eq!(printed.line("stopped"), "false");
    let receiver = Receiver::start();
    java(&classes, "checks.PortalApp", |command| {
        command
            .args([&receiver.endpoint, KEY])
            .args([&data, &model]);
    });
    assert_eq!(n_runs(&receiver.reports()), 10 + 20 + 10);
}

/// Regression test: an empty answer counted as an acknowledgement, and an endless body filled the app's memory.
#[test]
fn answers_of_captive_portals_acknowledge_nothing() {
    if !is_nightly("the Kotlin library behind a captive portal (Maven)") {
        return;
    }
    let app = App::built();
    let run = || app.run("checks.PortalApp").json("flushed");
    let page = b"<html>Welcome</html>".as_slice();
    let endless = vec![0; 5 << 20];
    for (n, (answer, problem)) in [
        (http("200 OK", "text/html", page), "a captive portal?"),
        (
            http("200 OK", "application/proto", b""),
            "n_reports: expected",
        ),
        (http("200 OK", "application/proto", &endless), "longer than"),
        (http("302 Found", "text/html", page), "HTTP 302"),
        (http("404 Not Found", "text/html", &endless), "HTTP 404"),
    ]
    .into_iter()
    .enumerate()
    {
        app.receiver.answer_as_stranger(answer);
        let explained = run();
        let said = explained["last_problem"].to_string();
        assert!(said.contains(problem), "{said}");
        assert_eq!(explained["spool_reports"], n + 1);
        assert!(app.receiver.reports().is_empty());
    }
    assert_eq!(run()["spool_reports"], 0);
    assert_eq!(n_runs(&app.receiver.reports()), 60);
}
