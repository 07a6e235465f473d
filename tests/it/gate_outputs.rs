//! Outputs of launches that are a NaN or an infinity: they have no distance, so that a cosine alone would hide them.

use serde_json::Value;

use crate::gate_local::measured_file;

const GATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gate");

/// Judges a launch of a model, with a limit for its outputs or without.
fn measured(model: &str, words: &str, limit: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("gate.toml");
    let text = format!(
        "preset = 'macs-only'\n[latency]\nlaunches = 1\nruns = 21\nwarmup = 1\nmedian_ms = 60000.0\n[outputs]\n{limit}\n\
         [placement]\nmin_npu_macs = 0.0\n"
    );
    std::fs::write(&policy, text).unwrap();
    let words = format!("--policy {} {words}", policy.display());
    measured_file(&format!("{GATE}/{model}.onnx"), &words)
}

/// The check of the outputs of the launches, which are the last target.
fn outputs(found: &Value) -> Option<&Value> {
    let launched = found["targets"].as_array().unwrap().last().unwrap();
    let mut checks = launched["checks"].as_array().unwrap().iter();
    checks.find(|check| check["id"] == "outputs")
}

#[track_caller]
fn check_note(found: &Value, told: &str) {
    let mistakes = found["targets"].as_array().unwrap().last().unwrap()["mistakes"]
        .as_array()
        .unwrap();
    let note = mistakes.iter().find(|one| one["id"] == "not_finite");
    let why = note.unwrap_or_else(|| panic!("{found:#}"))["why"].as_str();
    assert!(why.unwrap().contains(told), "{found:#}");
}

#[test]
fn outputs_that_are_a_nan_on_the_cpu_too_are_named() {
    let some = measured("nan_some", "", "min_cosine = 0.9");
    check_note(&some, "as on the CPU; a cosine is without them");
    // On the CPU there is nothing to compare them with.
    assert_eq!(outputs(&some).unwrap()["result"], "skip", "{some:#}");
    let told = "the launches ran on the CPU, and outputs are compared with the CPU's own";
    let mut not_checked = some["not_checked"].as_array().unwrap().iter();
    let part = not_checked.find(|part| part["id"] == "outputs");
    assert_eq!(part.unwrap()["why"], told, "{some:#}");
    let all = measured("nan_all", "", "min_cosine = 0.9");
    check_note(
        &all,
        "the output z has 16 NaNs or infinities in 16 elements",
    );
    assert_eq!(outputs(&all).unwrap()["result"], "skip", "{all:#}");
    // Without a limit it is a note.
    let without = measured("nan_all", "", "");
    check_note(&without, "the output z has 16");
    assert_eq!(outputs(&without), None, "{without:#}");
    // The NPU takes the root of a negative number for a number. The CPU's NaN says nothing of it.
    let fewer = measured("nan_some", "--soc SM8650", "min_cosine = 0.9");
    let told = "the output y has 0 NaNs or infinities in 16 elements, and ";
    check_note(&fewer, told);
    assert_eq!(outputs(&fewer).unwrap()["result"], "undecided", "{fewer:#}");
}
