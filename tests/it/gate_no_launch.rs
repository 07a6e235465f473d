//! `epwatch gate --local` if a launch cannot be made: a crash, inputs that are not tensors, an old runtime, half a look.

use std::{fs, path::Path};

use epwatch_engines::{Engine, ensure};
use serde_json::Value;

use crate::{
    gate_local::{measured_file, policy},
    support::{check_ends, check_fails, check_succeeds, epwatch},
};

/// Keeps the op off the NPU that crashes it.
const AFFINITY: &str = r#"{"op_type":{"STFT":"cpu"}}"#;
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The model has no session in the app either, so the gate fails, as it does without launches.
#[test]
fn a_crash_of_qnn_fails_the_gate_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let model = format!("{FIXTURES}/gate/crash_stft.onnx");
    let policy = policy(folder.path(), 1);
    let words = format!("gate {model} --local --soc SM8650 --policy {policy}");
    let (table, told) = check_ends(&mut epwatch(&words), 1);
    let why = "QNN crashed (SIGSEGV) while it made the session or ran the model";
    assert!(table.contains(why), "{table}");
    let launch = "SIGSEGV ended the placement's launch of the candidate (crash_stft.onnx)";
    assert!(told.contains(launch), "{told}");
    // A reader can tell the row with launches from the other one.
    for row in ["SM8650  ", "SM8650, launches  "] {
        assert!(table.lines().any(|line| line.starts_with(row)), "{table}");
    }
    let (ort, qnn) = (
        ensure(Engine::OnnxRuntime).unwrap(),
        ensure(Engine::OnnxRuntimeQnn).unwrap(),
    );
    let report = folder.path().join("report.json");
    let mut run = epwatch(&format!("run {model} --soc-model 57 --chipset SM8650"));
    run.arg("--ort").arg(ort.ort_library());
    run.arg("--qnn-provider").arg(qnn.qnn_provider_library());
    run.arg("--qnn-backend").arg(qnn.qnn_htp_library());
    run.arg("--out").arg(folder.path().join("launches"));
    check_succeeds(run.arg("--report").arg(&report));
    let mut verify = epwatch("verify");
    verify.arg(&report).arg("--key");
    verify.arg(folder.path().join("report.json.pub"));
    let (printed, _) = check_ends(&mut verify, 0);
    let seen: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(seen["models"][0]["session"], "failed", "{seen:#}");
}

#[test]
fn inputs_that_a_launch_cannot_have_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 1);
    for (model, told) in [
        (
            "sequence_in",
            "input s is a sequence, and a launch takes tensors only",
        ),
        (
            "optional_in",
            "input o is optional, and a launch takes tensors only",
        ),
        (
            "empty_cache",
            "input past has the shape [1,4,0,16], so that it has no elements",
        ),
    ] {
        let words =
            format!("gate {FIXTURES}/gate/{model}.onnx --local --soc SM8635 --policy {policy}");
        check_fails(&mut epwatch(&words), 3, told);
    }
}

/// `ort` gives each session a policy for its EP, for which this runtime aborts the process.
#[test]
fn a_runtime_that_is_too_old_is_named_with_the_least_version() {
    if !epwatch_runtimes::is_nightly("launches with ONNX Runtime 1.22.1") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (policy, old) = (
        policy(folder.path(), 1),
        epwatch_runtimes::onnxruntime("1.22.1"),
    );
    let model = format!("{FIXTURES}/models/mixed_v2.head32.onnx");
    let mut gate = epwatch(&format!("gate {model} --local --policy {policy}"));
    let told = "ONNX Runtime 1.22.1 is too old for launches; give 1.23 or later";
    check_fails(gate.arg("--ort").arg(&old), 2, told);
}

/// A full disk may leave a look without its profile. The next call adds it.
#[test]
fn a_look_without_a_profile_gets_one_in_the_next_call() {
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().join("launches");
    let words = format!(
        "--policy {} --keep {}",
        policy(folder.path(), 1),
        keep.display()
    );
    let model = format!("{FIXTURES}/models/mixed_v2.head32.onnx");
    measured_file(&model, &words);
    let (look, profile) = (
        keep.join("candidate-look.json"),
        keep.join("candidate-ort-profile.json"),
    );
    let whole = read(&look);
    let mut without = whole.clone();
    assert!(without.as_object_mut().unwrap().remove("profile").is_some());
    fs::write(&look, without.to_string()).unwrap();
    fs::remove_file(&profile).unwrap();
    let launch = fs::read(keep.join("candidate-001.json")).unwrap();
    measured_file(&model, &words);
    let again = read(&look);
    assert_eq!(again["profile"]["files"], whole["profile"]["files"]);
    assert!(profile.is_file());
    // Nothing else was made again.
    assert_eq!(again["started_unix_ms"], whole["started_unix_ms"]);
    assert_eq!(fs::read(keep.join("candidate-001.json")).unwrap(), launch);
}

/// Otherwise launches of other weights, or with other nodes on the CPU, would be judged as launches of this model.
#[test]
fn a_folder_of_other_data_or_another_affinity_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["forms_outside.fp32.onnx", "forms_outside.fp32.data"] {
        fs::copy(format!("{FIXTURES}/models/{name}"), at(name)).unwrap();
    }
    let policy = policy(folder.path(), 1);
    let gate = |words: &str| {
        let mut gate = epwatch(&format!("gate --local --policy {policy} {words}"));
        gate.current_dir(folder.path());
        gate
    };
    let outside = "forms_outside.fp32.onnx --keep outside";
    check_succeeds(&mut gate(outside));
    let data = at("forms_outside.fp32.data");
    let mut bytes = fs::read(&data).unwrap();
    bytes[0] ^= 1;
    fs::write(&data, bytes).unwrap();
    check_fails(&mut gate(outside), 2, "the model's data: ");
    // QNN reads the file, whose path is relative to the folder of the caller.
    let crashing = format!("{FIXTURES}/gate/crash_stft.onnx");
    let words =
        format!("{crashing} --soc SM8650 --ep-option op_affinity=aff.json --keep affinity --json");
    fs::write(at("aff.json"), AFFINITY).unwrap();
    let ended = gate(&words).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    let found: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let [seen, launched] = &found["targets"].as_array().unwrap()[..] else {
        panic!("{found:#}: {told}");
    };
    assert_eq!(seen["placement"], launched["placement"], "{told}");
    assert!(seen["placement"].is_object(), "{found:#}");
    fs::write(at("aff.json"), format!("{AFFINITY} ")).unwrap();
    check_fails(&mut gate(&words), 2, "op_affinity's file: ");
}
