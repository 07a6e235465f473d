//! `epwatch run --report`: the report that a volunteer sends, from launches on QNN's emulator.

use std::{fs, path::Path, process::Command};

use epwatch_engines::{Engine, ensure};
use serde_json::Value;

use crate::gate_local::policy;
use crate::support::{check_ends, check_fails, check_succeeds, epwatch};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

fn runner(folder: &Path, model: &Path, words: &str) -> Command {
    let (ort, qnn) = (
        ensure(Engine::OnnxRuntime).unwrap(),
        ensure(Engine::OnnxRuntimeQnn).unwrap(),
    );
    let mut run = epwatch(&format!("run --launches 2 --runs 21 --warmup 1 {words}"));
    run.arg(model).arg("--ort").arg(ort.ort_library());
    run.arg("--qnn-provider").arg(qnn.qnn_provider_library());
    run.arg("--qnn-backend").arg(qnn.qnn_htp_library());
    run.arg("--out").arg(folder.join("launches"));
    run.arg("--report").arg(folder.join("report.json"));
    run
}

#[test]
fn a_report_says_what_was_seen_and_nothing_of_its_sender() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("alice-at-home");
    fs::create_dir(&folder).unwrap();
    let model = folder.join("secret-project.onnx");
    fs::copy(format!("{MODELS}/e_mixed.q8head32.onnx"), &model).unwrap();
    let words =
        "--soc-model 68 --chipset SM8635 --device phone --ep-option profiling_file_path=alice.csv";
    check_succeeds(&mut runner(&folder, &model, words));
    let report = folder.join("report.json");
    let key = folder.join("report.json.pub");
    let verify = || {
        let mut verify = epwatch("verify");
        verify.arg(&report).arg("--key").arg(&key);
        verify
    };
    let (printed, _) = check_ends(&mut verify(), 0);
    let seen: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(seen["schema"], "epwatch.seen/1");
    assert_eq!(
        (&seen["target"]["chipset"], &seen["target"]["device"]),
        (&"SM8635".into(), &"phone".into())
    );
    let model_seen = &seen["models"][0];
    assert_eq!(
        (&model_seen["session"], &model_seen["launches"]),
        (&"ok".into(), &2.into())
    );
    assert!(
        model_seen["cpu_ops"]["Gemm"].as_u64().unwrap() >= 1,
        "{seen:#}"
    );
    assert!(
        !model_seen["reasons"].as_array().unwrap().is_empty(),
        "{seen:#}"
    );
    assert!(model_seen["median_us"].as_f64().unwrap() > 0.0);
    assert_eq!(
        (&seen["works"]["outputs"], &seen["is_broken_off"]),
        (&true.into(), &false.into())
    );
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    // The report must not have names of the file, the folder or a node, paths of options, or times of day.
    for private in [
        "secret",
        "alice",
        "head_fc1",
        "/home",
        "started",
        host.trim(),
    ] {
        assert!(!printed.contains(private), "{private}: {printed}");
    }
    let judged = "it is a report of a device, which judges nothing";
    check_fails(verify().arg("--model").arg(&model), 2, judged);
    let changed =
        fs::read_to_string(&report)
            .unwrap()
            .replacen("\"payload\":\"e", "\"payload\":\"f", 1);
    fs::write(&report, changed).unwrap();
    check_fails(&mut verify(), 1, "or was changed");
}

/// A phone has no terminal: the gate that made the launches there writes the report.
#[test]
fn a_gate_writes_the_report_of_its_launches() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let policy = policy(folder.path(), 1);
    let model = format!("{MODELS}/mixed_v2.head32.onnx");
    let words = format!("gate {model} --local --soc SM8635 --policy {policy}");
    let gate = |report: &str| {
        let mut gate = epwatch(&words);
        gate.arg("--report").arg(at(report));
        gate
    };
    check_fails(
        &mut gate("no/such/report.json"),
        2,
        "its folder does not exist; make it first",
    );
    let ended = gate("report.json").output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(
        told.contains("has what was seen here; send it with"),
        "{told}"
    );
    let mut verify = epwatch("verify");
    verify.arg(at("report.json"));
    verify.arg("--key").arg(at("report.json.pub"));
    let (printed, _) = check_ends(&mut verify, 0);
    let seen: Value = serde_json::from_str(&printed).unwrap();
    let model = &seen["models"][0];
    assert_eq!(
        (&model["session"], &model["launches"]),
        (&"ok".into(), &1.into()),
        "{seen:#}"
    );
}

/// A report must also work for a refused session, because that is its main purpose.
#[test]
fn a_session_that_cannot_be_made_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let model = format!("{MODELS}/c_cnn_hardmax.fp32.onnx");
    let words = "--soc-model 68 --chipset SM8635";
    check_succeeds(&mut runner(folder.path(), Path::new(&model), words));
    let mut verify = epwatch("verify");
    verify.arg(folder.path().join("report.json"));
    verify
        .arg("--key")
        .arg(folder.path().join("report.json.pub"));
    let (printed, _) = check_ends(&mut verify, 0);
    let seen: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(seen["models"][0]["session"], "failed", "{seen:#}");
    assert_eq!(seen["works"]["session"], false);
}
