//! `epwatch gate calibrate`, and the second look of `gate --local`: on this machine, whose other work is the noise.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{
    gate_ssh::Board,
    support::{check_ends, check_fails, epwatch},
};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

fn document(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_calibration_names_limits_below_the_floor_in_later_reports() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let model = format!("{MODELS}/mixed_v2.head32.onnx");
    // No launch can keep these limits, because a run takes longer than a microsecond.
    fs::write(
        at("gate.toml"),
        "[latency]\nlaunches = 6\nruns = 21\nwarmup = 1\nmedian_ms = 0.0001\ncv_max = 0.0001\n",
    )
    .unwrap();
    let policy = at("gate.toml").display().to_string();
    let (file, keep) = (at("phone.json"), at("launches"));
    let (file_shown, keep_shown) = (file.display(), keep.display());
    let words = format!(
        "gate calibrate {model} --local --pairs 16 --policy {policy} --out {file_shown} --keep {keep_shown}"
    );
    let (stdout, stderr) = check_ends(&mut epwatch(&words), 0);
    assert!(
        stdout.contains(" pairs of launches of one model"),
        "{stdout}"
    );
    assert!(
        stdout.contains("floors of limits, over 6 launches:"),
        "{stdout}"
    );
    assert!(
        stderr.contains("latency.median_ms = 0.0001 is below this device's floor of "),
        "{stderr}"
    );
    let found = document(&file);
    assert_eq!(found["schema"], "epwatch.calibration/1");
    // Both models are the same file, each with its launches.
    let sides = ["candidate-016.json", "baseline-016.json"].map(|name| document(&keep.join(name)));
    assert_eq!(sides[0]["model"], sides[1]["model"]);

    let gate = format!("gate {model} --local --json --policy {policy} --calibration {file_shown}");
    let (stdout, _) = check_ends(&mut epwatch(&gate), 1);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let mistakes = report["targets"][0]["mistakes"].as_array().unwrap();
    let below = mistakes
        .iter()
        .filter(|mistake| mistake["id"] == "limit_below_floor");
    assert_eq!(below.count(), 2, "{report:#}");

    let mut other = found;
    other["of"]["runtime"] = "another runtime".into();
    fs::write(&file, other.to_string()).unwrap();
    let (stdout, _) = check_ends(&mut epwatch(&gate), 1);
    assert!(
        stdout.contains("other_calibration") && !stdout.contains("limit_below_floor"),
        "{stdout}"
    );

    fs::write(&file, "{}").unwrap();
    check_fails(
        &mut epwatch(&gate),
        2,
        "expected a document epwatch.calibration/1",
    );
}

/// A board's floors are its own, so that it is calibrated where it is.
#[test]
fn a_board_is_calibrated_over_ssh() {
    let (board, folder) = (Board::new(), tempfile::tempdir().unwrap());
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("gate.toml"), "[latency]\nruns = 21\nwarmup = 1\n").unwrap();
    let (reach, policy, file, keep) = (
        board.reach(),
        at("gate.toml"),
        at("board.json"),
        at("launches"),
    );
    let words = format!(
        "gate calibrate {MODELS}/d_mlp.fp32.onnx {reach} --pairs 16 --policy {policy} --out {file} --keep {keep}"
    );
    let (stdout, _) = check_ends(&mut epwatch(&words), 0);
    assert!(
        stdout.contains(" pairs of launches of one model"),
        "{stdout}"
    );
    assert_eq!(
        document(Path::new(&file))["schema"],
        "epwatch.calibration/1"
    );
    for side in ["candidate", "baseline"] {
        let last = document(&Path::new(&keep).join(format!("{side}-016.json")));
        assert_eq!(last["arm"], side);
    }
    board.check_empty();
}

#[test]
fn what_cannot_be_calibrated_is_told() {
    let model = format!("{MODELS}/a_cnn.qu8.onnx");
    for (words, told) in [
        (
            format!("gate calibrate {model}"),
            "calibrate measures on a device: give --local",
        ),
        (
            format!("gate calibrate {model} --local --pairs 3"),
            "12..=200",
        ),
        (
            "gate calibrate no/such.onnx --local".to_owned(),
            "no/such.onnx",
        ),
    ] {
        check_fails(&mut epwatch(&words), 2, told);
    }
}
