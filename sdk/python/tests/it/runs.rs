//! Runs of every kind arrive unchanged, and nothing arrives without consent.

use std::{collections::BTreeMap, path::Path};

use epwatch_proto::{PlacementSource, ReasonCode, Report};
use epwatch_runtimes::{has_telemetry, is_nightly, with_telemetry};

use crate::environment::{
    KEY, command, crate_file, environment, environment_of, model, n_runs, run, run_in,
};

/// Runs by model and shape.
fn by_shape(reports: &[Report]) -> BTreeMap<(&str, &str), u64> {
    let mut runs = BTreeMap::new();
    for report in reports {
        for series in &report.series {
            let session = report.session(series.session_uid).unwrap();
            let key = (&*session.model.id, &*series.stratum.shape_key);
            *runs.entry(key).or_default() += series.n;
        }
    }
    runs
}

fn check_runs(reports: &[Report]) {
    let expected = [
        (("attached", "static"), 1),
        (("chosen", "static"), 1),
        (("dropped", "static"), 1),
        (("early", "static"), 3),
        (("free", "x:1x3x32x32"), 1),
        (("free", "x:2x3x32x32"), 2),
        (("free", "x:3x3x32x32"), 1),
        (("free", "x:4x3x32x32"), 1),
        // Runs by each call of onnxruntime, the block, the function, one that the app measured, four threads, and one
        // after `set_providers`.
        (("mlp", "static"), 12),
    ];
    assert_eq!(by_shape(reports), BTreeMap::from(expected));
    let [report] = reports else {
        panic!("{} reports", reports.len())
    };
    assert_eq!(report.sdk.language, "python");
    assert_eq!(report.app.version, "3.2.1");
    assert_eq!(
        report.app.rollout_labels,
        [("wave".to_owned(), "1".to_owned())]
    );
    assert_eq!(report.device.chipset.as_str(), "SM8650");
    let errors = report.run_errors.iter();
    let errors: Vec<_> = errors.map(|e| (e.ort_status_code, e.count)).collect();
    assert_eq!(errors, [(2, 2)]);
    let [failure] = &report.start_failures[..] else {
        panic!("{:?}", report.start_failures)
    };
    assert_eq!((&*failure.model.id, failure.ort_status_code), ("broken", 7));
    let sessions = || report.sessions.iter();
    let mlp = sessions().filter(|s| s.model.id == "mlp");
    assert_eq!(mlp.count(), 2);
    // onnxruntime itself made the second session, so its creation was not timed.
    let mlp = sessions().filter(|s| s.model.id == "mlp");
    let (hashed, timed) = mlp.fold((0, 0), |(hashed, timed), s| {
        assert_eq!(s.model.version, "7");
        let is_hashed = usize::from(s.model.sha256.is_some());
        (
            hashed + is_hashed,
            timed + usize::from(s.creation_us.is_some()),
        )
    });
    // A session that is closed at once may be gone before its file is read.
    assert!(hashed >= 1 && timed == 1, "{hashed} {timed}");
}

#[test]
fn every_way_to_run_arrives_as_it_was() {
    let (printed, reports) = run("runs.py", &[&model("")]);
    assert!(printed.ends_with("as expected\n"), "{printed}");
    check_runs(&reports);
    let of = |id: &str| {
        let mut sessions = reports[0].sessions.iter();
        let session = sessions.find(|s| s.model.id == id).unwrap();
        (session.placement.source, session.placement.reasons.clone())
    };
    assert_eq!(of("mlp").0, PlacementSource::AssignmentApi);
    let not_recorded = vec![ReasonCode::AssignmentNotRecorded];
    assert_eq!(of("attached"), (PlacementSource::Unavailable, not_recorded));
    assert_eq!(of("dropped").1, [ReasonCode::EpNotAvailable]);
}

/// Below 1.24 everything works except the placement, and the explanation has the reason.
#[test]
fn an_older_onnxruntime_is_measured_without_placement() {
    if !is_nightly("onnxruntime 1.23.2 under the Python package") {
        return;
    }
    let (printed, reports) = run_in(
        &environment_of("onnxruntime", "1.23.2"),
        "runs.py",
        &[&model("")],
    );
    assert!(printed.ends_with("as expected\n"), "{printed}");
    check_runs(&reports);
    for session in &reports[0].sessions {
        let reason = session.placement.reasons[0];
        assert_eq!(reason, ReasonCode::AssignmentApiUnavailable);
    }
    assert_eq!(reports[0].runtime.ort_version, "1.23.2");
}

#[test]
fn nothing_is_recorded_without_consent() {
    let model = model("d_mlp.fp32.onnx");
    let (printed, reports) = run("consent.py", &[&model]);
    assert_eq!(printed, "as expected\n");
    assert_eq!(n_runs(&reports), 7);
}

#[test]
fn a_function_of_the_apps_gets_the_problem() {
    let (printed, _) = run("health.py", &[&model("d_mlp.fp32.onnx")]);
    assert_eq!(printed, "as expected\n");
}

/// Regression test: `seal` and `stop` reported success although the runs were lost.
#[test]
fn an_app_is_told_of_runs_that_cannot_be_kept() {
    let (printed, _) = run("lost.py", &[&model("d_mlp.fp32.onnx")]);
    assert_eq!(printed, "as expected\n");
}

/// Regression test: Python had no setting for it.
#[test]
fn reports_beyond_a_days_budget_wait() {
    let (printed, reports) = run("budget.py", &[&model("d_mlp.fp32.onnx")]);
    assert_eq!(printed, "as expected\n");
    assert_eq!(n_runs(&reports), 1);
}

/// `cargo test --release -p epwatch-python --test it costs -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn costs_beside_a_bare_run() {
    println!("{}", run("cost.py", &[]).0);
}

#[test]
fn a_program_that_ends_sends_its_runs() {
    let (printed, reports) = run("exit.py", &[&model("d_mlp.fp32.onnx")]);
    assert_eq!(printed, "");
    assert_eq!(n_runs(&reports), 7);
}

/// Regression test: each run of a refused session read the placement, and logged a traceback.
#[test]
fn a_session_that_the_sdk_refuses_is_told_once() {
    let (printed, reports) = run("refused.py", &[&model("d_mlp.fp32.onnx")]);
    assert_eq!(printed, "as expected\n");
    // Of the three files with odd names, of the session that is made again without a wrong reason, and of two with side-cars.
    assert_eq!(n_runs(&reports), 4 + 10);
}

/// An app without onnxruntime, or one that loads it later, may import the package.
#[test]
fn the_package_imports_without_onnxruntime() {
    let ran = command(&environment().program("python"))
        .args(["-S", "-c"])
        .arg(format!(
            "import sys; sys.path.insert(0, {:?}); import epwatch; assert 'onnxruntime' not in sys.modules; \
             assert 'numpy' not in sys.modules; print(epwatch.__version__)",
            installed()
        ))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "0.1.0\n");
}

/// The folder of the installed packages.
fn installed() -> String {
    let ran = command(&environment().program("python"))
        .args(["-c", "import epwatch; print(epwatch.__path__[0])"])
        .output()
        .unwrap();
    let package = String::from_utf8(ran.stdout).unwrap();
    let folder = Path::new(package.trim()).parent().unwrap();
    folder.display().to_string()
}

/// Only one of the two programs leaves an id of the device, which onnxruntime's import writes.
#[test]
fn onnxruntimes_own_telemetry_is_off_on_request() {
    for (words, expected) in [
        (&["off"][..], "switched_off\n"),
        (&[], "not_switched_off\n"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let mut program = command(&environment().program("python"));
        with_telemetry(&mut program, &cache);
        let ran = program
            .arg(crate_file("tests/programs/telemetry.py"))
            .args(words)
            .env("EPWATCH_APP", "com.example.robot")
            .env("EPWATCH_ENDPOINT", "http://127.0.0.1:1")
            .env("EPWATCH_KEY", KEY)
            .env("EPWATCH_FOLDER", folder.path().join("data"))
            .env("EPWATCH_CONSENT", "yes")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(String::from_utf8_lossy(&ran.stdout), expected, "{said}");
        assert_eq!(has_telemetry(&cache), words.is_empty());
    }
}
