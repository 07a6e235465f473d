//! The Kotlin library's answers to an app: the typed explanation, the health, the outcome of an upload, and the debug
//! lines.

use std::fs;

use epwatch_runtimes::is_nightly;
use serde_json::Value;

use crate::{
    c::{KEY, crate_file},
    jvm::{Printed, Receiver, built, class_path, http, java},
};

/// Texts as Kotlin prints them.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn list(of: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", of.into_iter().collect::<Vec<_>>().join(", "))
}

fn each(of: &Value, show: impl Fn(&Value) -> String) -> String {
    list(of.as_array().unwrap().iter().map(show))
}

#[track_caller]
fn check_typed(printed: &Printed) {
    let json = printed.json("json");
    let text = |name: &str| shown(&json[name]);
    let failure = &json["start_failures"][0];
    let (model, count, code) = (
        &failure["model"],
        &failure["count"],
        &failure["reason"]["code"],
    );
    let typed = [
        text("host_missed_runs"),
        text("ort_version"),
        text("runtime_telemetry"),
        text("installation"),
        text("endpoint"),
        text("consent"),
        text("spool_reports"),
        format!("{} {count} {}", shown(model), shown(code)),
        each(&json["failed_checks"], |check| shown(&check["code"])),
        shown(&json["last_upload"]["answer"]),
        text("last_problem"),
        each(&json["sessions"], |session| shown(&session["model"])),
    ];
    assert_eq!(printed.line("typed"), typed.join("|"));
    assert!(!json["failed_checks"].as_array().unwrap().is_empty());

    let session = printed.json("session");
    let text = |name: &str| shown(&session[name]);
    let eps = session["eps"].as_object().unwrap().iter();
    let typed = [
        text("model"),
        text("version"),
        text("runs"),
        text("p50_us"),
        text("source"),
        text("graph_kind"),
        list(eps.map(|(ep, share)| format!("{ep}={}", share["nodes"]))),
        session["cpu_nodes"].as_array().unwrap().len().to_string(),
        shown(&session["cpu_nodes"][0]["op_type"]),
        text("fingerprint_normalised"),
        each(&session["reasons"], |reason| shown(&reason["code"])),
        text("selection_policy"),
        text("device_type"),
        each(&session["devices"], shown),
        each(&session["requested_in_effect"], shown),
    ];
    assert_eq!(session["selection_policy"], "prefer_npu");
    assert_eq!(session["device_type"], "gpu");
    assert_eq!(printed.line("typed_session"), typed.join("|"));
}

/// Regression test: apps had to parse a text and poll for problems. Schedulers were told of success even if an upload
/// had failed.
#[test]
fn kotlin_explains_by_types_and_says_what_came_of_an_upload() {
    if !is_nightly("the Kotlin library's explanation, health and debug lines (Maven)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let newest_jar = folder.path().join("jars/onnxruntime-1.29.0.jar");
    let classes = class_path(folder.path(), &newest_jar);
    let model = crate_file("../../tests/fixtures/models/cnn.qu8.onnx");
    let run = |name: &str, answer: Option<&str>| {
        let receiver = Receiver::start();
        for status in answer.iter().cycle().take(4 * answer.iter().count()) {
            receiver.answer_as_stranger(http(status, "text/plain", b"not now"));
        }
        java(&classes, "checks.ExplainedApp", |command| {
            command
                .args([&receiver.endpoint, KEY])
                .args([&folder.path().join(name), &model])
                .arg("1");
        })
    };
    let good = run("good", None);
    check_typed(&good);
    let all = good.text();
    assert!(!all.contains("outcome_FAILED") && !all.contains("outcome_WAITING"));
    assert!(all.contains("outcome_SENT"));
    let health: Vec<_> = all
        .lines()
        .filter_map(|line| line.strip_prefix("health "))
        .collect();
    let first = "false|false|Epwatch.start was not called|null|";
    assert!(health[0] == first || health[0].starts_with("false|false|the native library is being"));
    assert!(health.contains(&"true|true|null|null|given"), "{all}");
    let last = "false|false|Epwatch.stop was called|null|";
    assert_eq!(health.last(), Some(&last), "{all}");
    for line in [
        "epwatch: a health listener failed: java.lang.IllegalStateException: of the app",
        "epwatch: session of segmenter 3: CPUExecutionProvider ",
        "epwatch: session of bad 1 could not be made: ai.onnxruntime.OrtException",
        "bytes: HTTP 200",
    ] {
        assert!(all.contains(line), "{line}: {all}");
    }
    let debug = all.lines().filter(|line| line.starts_with("epwatch:"));
    let mut debug = debug.peekable();
    assert!(debug.peek().is_some());
    assert!(debug.all(|line| !line.contains(KEY)), "{all}");

    for (name, status, outcome) in [
        ("busy", "503 Service Unavailable", "outcome_WAITING"),
        ("refused", "401 Unauthorized", "outcome_FAILED"),
    ] {
        let printed = run(name, Some(status));
        printed.line(outcome);
        check_typed(&printed);
        let problem = format!("HTTP {}", &status[..3]);
        let heard = printed
            .text()
            .lines()
            .any(|line| line.starts_with("health true|false|null|") && line.contains(&problem));
        assert!(heard, "{}", printed.text());
    }
}

/// Each value that Rust adds to its explanation must exist in Kotlin, too.
#[test]
fn the_typed_explanation_has_every_name_of_the_json() {
    let rust = fs::read_to_string(crate_file("../src/explain.rs")).unwrap();
    let kotlin = "../android/src/main/kotlin/dev/epwatch/Explanation.kt";
    let kotlin = fs::read_to_string(crate_file(kotlin)).unwrap();
    let (structs, _) = rust.split_once("\nimpl Explanation").unwrap();
    let fields = structs
        .lines()
        .filter_map(|line| line.strip_prefix("    pub "));
    let names: Vec<_> = fields
        .filter_map(|field| Some(field.split_once(": ")?.0))
        .collect();
    assert!(names.len() > 40, "{names:?}");
    let missing: Vec<_> = names
        .iter()
        // `FailedCheck` has its reason's members.
        .filter(|name| !kotlin.contains(&format!("\"{name}\"")))
        .collect();
    assert!(
        missing.is_empty(),
        "Explanation.kt does not read {missing:?}"
    );
}
