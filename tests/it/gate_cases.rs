//! `epwatch gate` and `inspect` on models of public reports (`tests/fixtures/gate`), and on exports that are healthy
//! (`tests/fixtures/healthy`). The folder of all reports is walked too where it lies next to the repository.

use std::{fs, path::PathBuf};

use serde_json::Value;

use crate::support::{check_ends, check_fails, epwatch};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
/// Material that is too large for the repository.
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared");

/// The document of a gate of this file that ends with this code.
fn document(path: &str, words: &str, code: i32) -> Value {
    let (stdout, _) = check_ends(&mut epwatch(&format!("gate {path} {words} --json")), code);
    serde_json::from_str(&stdout).unwrap()
}

fn case(name: &str, words: &str, code: i32) -> Value {
    document(&format!("{FIXTURES}/gate/{name}.onnx"), words, code)
}

fn check<'a>(target: &'a Value, id: &str) -> &'a Value {
    let checks = target["checks"].as_array().unwrap();
    checks.iter().find(|check| check["id"] == id).unwrap()
}

fn why<'a>(target: &'a Value, id: &str) -> &'a str {
    check(target, id)["why"].as_str().unwrap()
}

#[track_caller]
fn check_incident(path: &str) {
    let found = document(path, "--soc SM8650,SM8635", 1);
    for target in found["targets"].as_array().unwrap() {
        // LayerNormalization has no MACs, so that their share says nothing.
        assert_eq!(check(target, "npu_macs")["result"], "pass");
        let ops = check(target, "cpu_ops");
        assert_eq!(ops["result"], "fail", "{target:#}");
        let nodes = ops["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 3, "{ops:#}");
        for node in nodes {
            assert_eq!(node["op_type"], "LayerNormalization");
            assert!(node["reason_text"].as_str().unwrap().contains("last axis"));
        }
        assert_eq!(check(target, "partitions")["value"], 4.0);
        let crossings = &target["placement"]["crossings"];
        assert_eq!(crossings["to_npu"]["count"], 3, "{crossings:#}");
        assert_eq!(crossings["to_cpu"]["count"], 3, "{crossings:#}");
        assert!(why(target, "crossings").contains("bytes a run: 3 tensors to the CPU"));
    }
    // What the gate did before.
    let found = document(path, "--soc SM8650 --preset macs-only", 0);
    assert_eq!(check(&found["targets"][0], "cpu_ops")["result"], "warn");
}

/// A quantised detector with three LayerNormalizations that the NPU refuses: it passed with 100.0 % of the MACs.
#[test]
fn the_original_incident_is_red_without_a_policy() {
    check_incident(&format!("{FIXTURES}/gate/yolo_layernorm.qu8.onnx"));
    let original = format!("{SHARED}/models/y_yolo_layernorm.qu8.onnx");
    if fs::exists(&original).unwrap() {
        check_incident(&original);
    }
}

#[test]
fn no_healthy_export_turns_red() {
    let files = fs::read_dir(format!("{FIXTURES}/healthy")).unwrap();
    let paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    assert!(paths.len() >= 30, "{}", paths.len());
    for path in paths {
        document(&path.display().to_string(), "--soc SM8650", 0);
    }
}

#[test]
fn work_without_macs_of_its_own_is_counted() {
    for (name, share) in [("mha_past", 0.2), ("enc_loop", 0.2), ("enc_scan", 0.5)] {
        let found = case(name, "--soc SM8650", 1);
        let macs = check(&found["targets"][0], "npu_macs");
        assert_eq!(macs["result"], "fail");
        assert!(
            (macs["value"].as_f64().unwrap() - share).abs() < 1e-3,
            "{macs:#}"
        );
        let path = format!("{FIXTURES}/gate/{name}.onnx");
        let rule = "--soc SM8650 --fail-on macs=2%";
        check_fails(
            &mut epwatch(&format!("inspect {path} {rule}")),
            1,
            "of the MACs are on the CPU",
        );
    }
    // Off the NPU by the plugin's default; its MACs are counted, so the gate decides.
    let found = case("gqa_static", "--soc SM8650", 1);
    assert_eq!(check(&found["targets"][0], "npu_macs")["result"], "fail");
}

#[test]
fn models_without_macs_have_no_share_of_them() {
    for name in ["tanh_clip", "resize_ac"] {
        let found = case(name, "--soc SM8650", 0);
        let text = why(&found["targets"][0], "npu_macs");
        assert!(text.contains("none of them has MACs"), "{text}");
        let path = format!("{FIXTURES}/gate/{name}.onnx");
        let (table, _) = check_ends(&mut epwatch(&format!("inspect {path} --soc SM8650")), 0);
        assert!(!table.contains("0.0 %") && table.contains(" - "), "{table}");
        let rule = format!("inspect {path} --soc SM8635 --fail-on macs=2%");
        check_fails(&mut epwatch(&rule), 2, "use --fail-on cpu");
    }
}

#[test]
fn weights_that_the_cpu_unpacks_in_each_run_are_its_work() {
    let found = case("block_int4", "--soc SM8650", 0);
    let target = &found["targets"][0];
    let ops = check(target, "cpu_ops");
    assert_eq!(
        (&ops["result"], &ops["nodes"][0]["name"]),
        (&"warn".into(), &"dqw".into())
    );
    assert!(why(target, "crossings").starts_with("12288 bytes a run"));
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("gate.toml");
    fs::write(&policy, "[placement]\nmax_crossing_bytes = 1000").unwrap();
    let words = format!("--soc SM8650 --policy {}", policy.display());
    let found = case("block_int4", &words, 1);
    assert_eq!(check(&found["targets"][0], "crossings")["result"], "fail");
}

#[test]
fn a_profile_has_no_share_of_macs_that_are_not_known() {
    let runs = format!("--runs {FIXTURES}/gate/sequence_in.profile.json");
    let found = case("sequence_in", &runs, 1);
    let nodes = check(&found["targets"][0], "npu_macs")["nodes"]
        .as_array()
        .unwrap();
    assert!(
        nodes.iter().all(|node| node["macs_share"].is_null()),
        "{nodes:#?}"
    );
    // A profile says where nodes ran, and not why.
    let notes = found["targets"][0]["mistakes"].as_array().unwrap();
    assert!(
        notes.iter().any(|note| note["id"] == "no_reasons"),
        "{notes:#?}"
    );
}
