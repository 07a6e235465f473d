//! Launches on QNN's emulator show the placement that the emulator shows without launches (`--soc`). They are made on this
//! machine (`--local`), and over ssh on a board (`--ssh`), which is this machine as well.

use std::fs;

use serde_json::Value;

use crate::{
    gate_local::{measured_file, policy},
    gate_ssh::Board,
};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

/// One of each kind: partitions and crossings, a share, no session, an op on the CPU, a loop with an unknown number of
/// iterations. Also graphs that were compiled for one chipset, or for an unknown one.
const EACH_RUN: [(&str, &str); 9] = [
    ("models/a_cnn.qu8.onnx", "SM8650"),
    ("models/e_mixed.q8head32.onnx", "SM8635"),
    ("models/c_cnn_hardmax.fp32.onnx", "SM8635"),
    ("models/c_cnn_hardmax.fp32.onnx", "SM8650"),
    ("models/e_topk.qu8.onnx", "SM8650"),
    ("gate/loop_turns_given.onnx", "SM8650"),
    ("gate/context_sm8650.onnx", "SM8635"),
    ("gate/context_sm8650.onnx", "SM8650"),
    ("gate/context_unnamed.onnx", "SM8650"),
];

/// The same over ssh: the files that a session needs are copied, and each launch is sent back.
const EACH_RUN_OVER_SSH: [(&str, &str); 4] = [
    ("models/e_mixed.q8head32.onnx", "SM8635"),
    ("models/c_cnn_hardmax.fp32.onnx", "SM8635"),
    ("models/e_topk.qu8.onnx", "SM8650"),
    ("gate/context_sm8650.onnx", "SM8635"),
];

/// Fixtures of the gate whose placement or session is special, in addition to all fixtures of models.
const NIGHTLY_OF_GATE: [&str; 6] = [
    "context_sm8650",
    "context_unnamed",
    "loop_large_body",
    "loop_turns_given",
    "loop_until",
    "scan_open_length",
];

/// The result of a check and its measured value. A session that ran has no check.
fn result<'a>(target: &'a Value, id: &str) -> (&'a str, &'a Value) {
    let mut checks = target["checks"].as_array().unwrap().iter();
    match checks.find(|check| check["id"] == id) {
        Some(check) => (check["result"].as_str().unwrap(), &check["value"]),
        None => ("pass", &Value::Null),
    }
}

fn check_local(model: &str, soc: &str) {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 1);
    let words = format!("--soc {soc} --policy {policy}");
    let found = measured_file(&format!("{FIXTURES}/{model}"), &words);
    check_equal(&found, &format!("{model} on {soc}"));
}

fn check_over_ssh(board: &Board, model: &str, soc: &str) {
    let found = board.measured_file(&format!("{FIXTURES}/{model}"), &format!("--soc {soc}"));
    check_equal(&found, &format!("{model} on {soc} over ssh"));
    board.check_empty();
}

fn check_equal(found: &Value, at: &str) {
    let [seen, launched] = &found["targets"].as_array().unwrap()[..] else {
        panic!("{at}: {found:#}");
    };
    assert_eq!(seen["source"], "emulator");
    assert_eq!(launched["source"], "run");
    assert_eq!(seen["placement"], launched["placement"], "{at}");
    let session = result(seen, "session");
    assert_eq!(result(launched, "session").0, session.0, "{at}: {found:#}");
    if session.0 == "pass" {
        for id in ["npu_macs", "partitions", "cpu_ops", "crossings"] {
            assert_eq!(result(launched, id), result(seen, id), "{at}: {id}");
        }
    }
    // The emulator's run times are not compared with limits.
    let mistakes = launched["mistakes"].to_string();
    assert!(mistakes.contains("cpu_latency"), "{at}: {mistakes}");
}

#[test]
fn launches_have_the_placement_that_the_emulator_shows() {
    for (model, soc) in EACH_RUN {
        check_local(model, soc);
    }
}

#[test]
fn launches_over_ssh_have_the_placement_that_the_emulator_shows() {
    let board = Board::new();
    for (model, soc) in EACH_RUN_OVER_SSH {
        check_over_ssh(&board, model, soc);
    }
}

/// Every fixture of models, and the special ones of the gate, on two chipsets.
fn all_fixtures() -> Vec<(String, &'static str)> {
    let models = fs::read_dir(format!("{FIXTURES}/models")).unwrap();
    let names = models.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let models = names.filter(|name| name.ends_with(".onnx"));
    let mut models: Vec<String> = models.map(|name| format!("models/{name}")).collect();
    assert!(models.len() >= 20, "{models:?}");
    models.extend(NIGHTLY_OF_GATE.map(|name| format!("gate/{name}.onnx")));
    models.sort();
    let on_both = |model: String| ["SM8650", "SM8635"].map(|soc| (model.clone(), soc));
    models.into_iter().flat_map(on_both).collect()
}

/// A gate of each model on each chipset takes some six seconds, most of them for the launch.
#[test]
fn launches_have_the_emulator_s_placement_of_every_fixture() {
    if !epwatch_runtimes::is_nightly("the placement of launches on all fixtures of models") {
        return;
    }
    for (model, soc) in all_fixtures() {
        check_local(&model, soc);
    }
}

#[test]
fn launches_over_ssh_have_the_emulator_s_placement_of_every_fixture() {
    if !epwatch_runtimes::is_nightly("the placement of launches over ssh on all fixtures of models")
    {
        return;
    }
    let (board, all) = (Board::new(), all_fixtures());
    for (model, soc) in &all {
        check_over_ssh(&board, model, soc);
    }
    eprintln!("{} of {} over ssh are equal", all.len(), all.len());
}
