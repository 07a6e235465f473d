//! Sessions of another runtime than ONNX Runtime on a desktop JVM, by the app's word. The class path has none of ONNX Runtime's.

use std::collections::BTreeMap;

use epwatch_proto::{Accelerator, PlacementSource, ReasonCode};
use epwatch_runtimes::is_nightly;

use crate::{
    c::{KEY, crate_file},
    jvm::{Receiver, built, class_path, java},
};

#[test]
fn kotlin_places_and_measures_a_session_of_another_runtime() {
    if !is_nightly("the Kotlin library with another runtime (Maven)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    // In the place of ONNX Runtime's jar.
    let nothing = folder.path().join("none.jar");
    let receiver = Receiver::start();
    let printed = java(
        &class_path(folder.path(), &nothing),
        "checks.OtherRuntimeApp",
        |command| {
            command
                .args([&receiver.endpoint, KEY])
                .arg(folder.path().join("data"))
                .arg(crate_file("../../tests/fixtures/gate/context_sm8650.onnx"));
        },
    );
    assert_eq!(printed.line("passed_on"), "of the app");
    assert_eq!(printed.line("problem"), "null");
    assert_eq!(printed.line("compiled_57"), "null");
    assert_eq!(printed.line("compiled_68"), "PREFER_RECOMPILATION");
    for (case, problem) in [
        ("missing", "failed to open model_file"),
        ("unasked", "no requested EP"),
        ("number", "runtime is \"2.3.0\"; expected"),
        ("nameless", "runtime is \"\"; expected"),
    ] {
        let said = printed.line(&format!("problem_{case}"));
        assert!(said.contains(problem), "{case}: {said}");
    }
    assert_eq!(printed.line("missing"), "null");
    // Regression test: the version counted as ONNX Runtime's, and the ops on the CPU as ops of an accelerator.
    assert_eq!(printed.line("number"), "{}");
    assert_eq!(printed.line("nameless"), "{}");
    let explained = printed.json("session");
    assert_eq!(explained["source"], "host");
    assert_eq!(explained["runtime"], "LiteRT 2.3.0");

    let reports = receiver.reports();
    let sessions = reports.iter().flat_map(|report| &report.sessions);
    let sessions: BTreeMap<_, _> = sessions.map(|s| (&*s.model.id, s)).collect();
    let placed = sessions["segmenter"];
    let placement = &placed.placement;
    assert_eq!(placement.source, PlacementSource::Host);
    let asked = placement.asked().map(|asked| asked.accelerator);
    assert_eq!(asked, Some(Accelerator::of_ep("GPU")));
    let counts = (
        placement.n_npu_nodes(),
        placement.n_npu_partitions(),
        placement.n_cpu_nodes(),
    );
    assert_eq!(counts, (3, 2, 1));
    assert_eq!(placement.cpu_ops(), ["CUMSUM"]);
    assert_eq!(placed.creation_us, Some(1_000));
    let untold = &sessions["early"].placement;
    assert_eq!(untold.source, PlacementSource::Unavailable);
    assert_eq!(untold.reasons, [ReasonCode::RuntimeNotKnown]);
    let runs = |uid| -> u64 {
        let series = reports.iter().flat_map(|report| &report.series);
        let own = series.filter(|series| series.session_uid == uid);
        own.map(|series| series.n).sum()
    };
    assert_eq!((runs(placed.uid), runs(sessions["early"].uid)), (6, 1));
    let errors = reports.iter().flat_map(|report| &report.run_errors);
    assert_eq!(errors.map(|error| error.count).sum::<u64>(), 1);
    let failures = reports.iter().flat_map(|report| &report.start_failures);
    let failures: Vec<_> = failures.map(|failure| &*failure.model.id).collect();
    assert_eq!(failures, ["bad"]);
}
