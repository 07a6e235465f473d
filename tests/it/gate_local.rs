//! `epwatch gate --local`: launches on this machine, with QNN's emulator as the board.

use std::{fs, path::Path};

use serde_json::Value;

use crate::support::{check_fails, epwatch};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

/// A policy of few and short launches.
fn policy(folder: &Path, launches: u32) -> String {
    let path = folder.join("gate.toml");
    let text = format!("[latency]\nlaunches = {launches}\nruns = 21\nwarmup = 1\n");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The document of a gate that measures here, whatever it found.
fn measured(model: &str, words: &str) -> Value {
    let words = format!("gate {MODELS}/{model}.onnx --local --json {words}");
    let ended = epwatch(&words).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    let code = ended.status.code();
    assert!(matches!(code, Some(0 | 1 | 3)), "{code:?}: {told}");
    let found: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let expected = match found["result"].as_str().unwrap() {
        "pass" => 0,
        "fail" => 1,
        _ => 3,
    };
    assert_eq!(code, Some(expected), "{found:#}");
    found
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn launches_have_the_placement_that_the_emulator_shows() {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 1);
    for (model, soc) in [
        ("a_cnn.qu8", "SM8650"),
        ("e_mixed.q8head32", "SM8635"),
        ("c_cnn_hardmax.fp32", "SM8650"),
        ("e_topk.qu8", "SM8650"),
    ] {
        let found = measured(model, &format!("--soc {soc} --policy {policy}"));
        let [seen, launched] = &found["targets"].as_array().unwrap()[..] else {
            panic!("{found:#}");
        };
        assert_eq!(seen["source"], "emulator");
        assert_eq!(launched["source"], "run");
        assert_eq!(seen["placement"], launched["placement"], "{model}");
        // Its run times keep no limit.
        let mistakes = launched["mistakes"].to_string();
        assert!(mistakes.contains("cpu_latency"), "{mistakes}");
    }
}

#[test]
fn a_session_that_cannot_be_made_fails_without_a_launch() {
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().join("launches");
    let words = format!(
        "--soc SM8635 --policy {} --keep {}",
        policy(folder.path(), 2),
        keep.display()
    );
    let found = measured("c_cnn_hardmax.fp32", &words);
    assert_eq!(found["result"], "fail");
    let launched = &found["targets"][1];
    assert_eq!(launched["checks"][0]["id"], "session");
    assert_eq!(launched["checks"][0]["result"], "fail");
    assert_eq!(files(&keep), ["candidate-001.json", "candidate-look.json"]);
}

#[test]
fn two_models_take_turns_and_a_second_command_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().join("launches");
    let words = |launches| {
        let policy = policy(folder.path(), launches);
        let (keep, old) = (keep.display(), format!("{MODELS}/mixed_v1.int8.onnx"));
        format!("--baseline {old} --policy {policy} --keep {keep}")
    };
    // On the CPU of this machine, where two launches decide nothing.
    let found = measured("mixed_v2.head32", &words(1));
    assert_eq!(found["targets"].as_array().unwrap().len(), 1, "{found:#}");
    // No node is expected on an NPU, so that the run times are compared.
    let checks = found["targets"][0]["checks"].as_array().unwrap();
    let ids: Vec<&str> = checks
        .iter()
        .map(|check| check["id"].as_str().unwrap())
        .collect();
    assert!(!ids.contains(&"npu_used"), "{found:#}");
    let is_regression = |check: &&Value| check["id"] == "regression";
    let regression = checks.iter().find(is_regression).unwrap();
    assert_ne!(regression["result"], "skip", "{found:#}");
    // Without --baseline the launches of one are not judged.
    let alone = format!(
        "--policy {} --keep {}",
        policy(folder.path(), 1),
        keep.display()
    );
    let alone = measured("mixed_v2.head32", &alone)["targets"].to_string();
    assert!(!alone.contains("regression"), "{alone}");
    let first = fs::read(keep.join("baseline-001.json")).unwrap();
    measured("mixed_v2.head32", &words(2));
    assert_eq!(
        files(&keep),
        [
            "baseline-001.json",
            "baseline-002.json",
            "baseline-look.json",
            "candidate-001.json",
            "candidate-002.json",
            "candidate-look.json",
        ]
    );
    assert_eq!(fs::read(keep.join("baseline-001.json")).unwrap(), first);
    let began = |name: &str| -> i64 {
        let document: Value = serde_json::from_slice(&fs::read(keep.join(name)).unwrap()).unwrap();
        document["started_unix_ms"].as_i64().unwrap()
    };
    // A B B A.
    assert!(began("candidate-001.json") < began("baseline-001.json"));
    assert!(began("baseline-002.json") < began("candidate-002.json"));
}

/// Together they would be judged as launches of one model.
#[test]
fn a_folder_of_another_model_or_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (keep, policy) = (folder.path().join("launches"), policy(folder.path(), 1));
    let words = format!("--policy {policy} --keep {}", keep.display());
    measured("mixed_v2.head32", &words);
    let gate = |model: &str| epwatch(&format!("gate {MODELS}/{model}.onnx --local {words}"));
    let other = "candidate-look.json is of another model or of other options; give another --out";
    check_fails(&mut gate("a_cnn.qu8"), 2, other);
    let held = fs::File::open(&keep).unwrap();
    held.lock().unwrap();
    check_fails(&mut gate("mixed_v2.head32"), 2, "is in use by another run");
}

#[test]
fn what_cannot_be_measured_is_told_before_a_launch() {
    let model = format!("{MODELS}/a_cnn.qu8.onnx");
    for (words, code, told) in [
        (
            format!("gate {model} --local --soc SM8650,SM8635"),
            2,
            "one chipset",
        ),
        ("gate --local".to_owned(), 2, "give MODEL"),
        (
            format!("gate {model} --local --inputs no/such"),
            2,
            "expected noise, zeros, ones, ramp",
        ),
        (
            format!("gate {model} --local --ort /no/such.so"),
            2,
            "--ort /no/such.so",
        ),
        (
            format!("run {model} --ort {model} --out /dev/null/x"),
            3,
            "failed to make --out",
        ),
    ] {
        check_fails(&mut epwatch(&words), code, told);
    }
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 2);
    let words = format!("gate {model} --soc SM8650 --policy {policy}");
    check_fails(
        &mut epwatch(&words),
        2,
        "give --local, --ssh or --adb, or take it out",
    );
}
