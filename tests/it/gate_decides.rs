//! Whole gates of `--local` at the default policy, many times: over a model that did not change, and over one that is 1.2 times
//! slower. The machine's other work is the noise. `GATES` is the number of each, 200 for the figures of docs/device.md.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::Instant,
};

use epwatch_runtimes::is_nightly;
use serde_json::Value;

use crate::{
    onnx_writer::{self, floats, node, square, text},
    support::epwatch,
};

/// Number of gates of each kind in a nightly run.
const GATES: usize = 10;
/// Number of gates that run at a time, so that each disturbs the other.
const SIDE_BY_SIDE: usize = 2;
/// Rows and columns of the weight, and rows of the input: a layer takes some 50 us.
const SIZE: u64 = 128;
const ROWS: u64 = 64;
/// Layers of the model, and of one that is 1.2 times slower.
const LAYERS: usize = 50;
const SLOWER: usize = 60;

/// A chain of products with one weight, whose time grows with its length.
fn model(folder: &Path, name: &str, layers: usize) -> PathBuf {
    let mut graph = Vec::new();
    for layer in 0..layers {
        let from = match layer {
            0 => "x".to_owned(),
            n => format!("h{}", n - 1),
        };
        let to = match layer + 1 == layers {
            true => "y".to_owned(),
            false => format!("h{layer}"),
        };
        graph.extend(node("MatMul", &[&from, "w"], &to));
    }
    graph.extend(text(2, name));
    graph.extend(square("w", SIZE, 1.0 / SIZE as f32));
    graph.extend(floats(11, "x", [ROWS, SIZE]));
    graph.extend(floats(12, "y", [ROWS, SIZE]));
    let path = folder.join(format!("{name}.onnx"));
    fs::write(&path, onnx_writer::model(&[&graph])).unwrap();
    path
}

fn gates() -> usize {
    let given = env::var("GATES").ok();
    given.map_or(GATES, |number| number.parse().unwrap())
}

/// Makes so many gates, and returns how many passed, failed and were undecided.
fn made(candidate: &Path, baseline: &Path, words: &str) -> [usize; 3] {
    let (left, found) = (Mutex::new(gates()), Mutex::new([0; 3]));
    let gate = || {
        let words = format!(
            "gate {} --local --json --baseline {} {words}",
            candidate.display(),
            baseline.display()
        );
        let ended = epwatch(&words).output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        let report: Value = serde_json::from_slice(&ended.stdout).expect(&told);
        let at = match report["result"].as_str().unwrap() {
            "pass" => 0,
            "fail" => 1,
            _ => 2,
        };
        let target = &report["targets"][0];
        let checks = target["checks"].as_array().unwrap();
        let why = checks.iter().find(|check| check["id"] == "regression");
        let why = why.map_or("", |check| check["why"].as_str().unwrap());
        eprintln!("{}: {why}", report["result"]);
        found.lock().unwrap()[at] += 1;
    };
    let next = || {
        let mut left = left.lock().unwrap();
        *left = left.checked_sub(1)?;
        Some(())
    };
    thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while next().is_some() {
                    gate();
                }
            });
        }
    });
    found.into_inner().unwrap()
}

fn load() -> String {
    fs::read_to_string("/proc/loadavg").unwrap()
}

#[test]
fn an_unchanged_model_is_seldom_red() {
    if !is_nightly("whole gates over an unchanged model") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let new = model(folder.path(), "new", LAYERS);
    let old = model(folder.path(), "old", LAYERS);
    let began = Instant::now();
    let [passed, red, undecided] = made(&new, &old, "");
    eprintln!(
        "unchanged: {passed} passed, {red} red, {undecided} undecided in {:.0?}; load {}",
        began.elapsed(),
        load()
    );
    // At most 1 % of 200.
    assert!(red <= 2, "{red} of {} are red", gates());
}

#[test]
fn a_slowdown_that_calibrate_calls_decidable_is_red() {
    if !is_nightly("whole gates over a model that is 1.2 times slower") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let new = model(folder.path(), "new", SLOWER);
    let old = model(folder.path(), "old", LAYERS);
    let file = folder.path().join("calibration.json");
    // Two of them, since gates run side by side too.
    thread::scope(|scope| {
        for n in 1..=SIDE_BY_SIDE {
            let file = folder.path().join(format!("calibration-{n}.json"));
            let (old, file) = (old.display(), file.display());
            let words = format!("gate calibrate {old} --local --out {file}");
            scope.spawn(move || {
                let ended = epwatch(&words).output().unwrap();
                let told = String::from_utf8_lossy(&ended.stderr);
                assert!(ended.status.success(), "{told}");
            });
        }
    });
    fs::rename(folder.path().join("calibration-1.json"), &file).unwrap();
    let found: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    eprintln!(
        "decides {}, pairs_for {}",
        found["decides"], found["pairs_for"]
    );
    let decides = found["decides"].as_f64().is_some_and(|times| times <= 1.2);
    let policy = folder.path().join("gate.toml");
    let words = match (decides, found["pairs_for"].as_u64()) {
        (true, _) => String::new(),
        (false, Some(pairs)) => {
            fs::write(&policy, format!("[latency]\nlaunches = {pairs}\n")).unwrap();
            format!("--policy {}", policy.display())
        }
        // Nothing is promised.
        (false, None) => return,
    };
    let began = Instant::now();
    let [passed, red, undecided] = made(&new, &old, &words);
    eprintln!(
        "1.2 times slower: {passed} passed, {red} red, {undecided} undecided in {:.0?}; load {}",
        began.elapsed(),
        load()
    );
    let n = gates() as f64;
    // 95 %, less two standard errors of so many gates.
    let least = 0.95 * n - 2.0 * (0.95 * 0.05 * n).sqrt();
    assert!(red as f64 >= least, "{red} of {n} are red");
}
