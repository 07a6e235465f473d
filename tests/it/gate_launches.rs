//! The gate with measured launches, and with profiles, which are also launches.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::{
    gate::{check, launches},
    support::{EPWATCH, check_ends, check_fails, check_succeeds, epwatch, json},
};

#[test]
fn measured_launches_are_judged_against_a_baseline() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let judged = |candidate: String, n: usize| {
        let baseline = launches(dir, "base", 8_000, 0, n);
        epwatch(&format!("gate --runs{candidate} --baseline{baseline}"))
    };
    let same = launches(dir, "same", 8_050, 0, 6);
    let (table, _) = check_ends(&mut judged(same.clone(), 6), 0);
    assert!(table.starts_with("not checked: placement"), "{table}");
    let found = json(&mut judged(same, 6));
    let against = &found["targets"][0]["against"];
    assert_eq!(against["pairs"], 6);
    assert!((1.0..1.01).contains(&against["ratio"].as_f64().unwrap()));
    assert_eq!(
        (&against["origin"], &against["chance"]),
        (&"launches".into(), &1.0_f64.into())
    );
    // Six launches far beyond the limit fail.
    let far = launches(dir, "far", 23_440, 0, 6);
    check_fails(
        &mut judged(far, 6),
        1,
        "2.92 times the baseline over 6 pairs",
    );
    // Six launches near the limit need six more, and then all twelve are judged.
    let slower = launches(dir, "slower", 9_500, 0, 6);
    check_fails(&mut judged(slower, 6), 3, "12 pairs in total would decide");
    let slower = launches(dir, "slower", 9_500, 0, 12);
    check_fails(
        &mut judged(slower, 12),
        1,
        "1.19 times the baseline over 12 pairs",
    );
    // The median stays within its limit, and slow phases are found.
    let phases = launches(dir, "phases", 8_050, 4, 12);
    check_fails(
        &mut judged(phases, 12),
        1,
        "slow phases in 12 of 12 launches",
    );
    for n in [1, 3, 5] {
        let few = launches(dir, "few", 24_000, 0, n);
        check_fails(&mut judged(few, n), 3, "6 pairs in total");
    }
}

#[test]
fn measured_launches_keep_limits() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let policy = dir.join("gate.toml");
    let with = |files: &str, text: &str| {
        fs::write(&policy, text).unwrap();
        epwatch(&format!("gate --policy {} --runs{files}", policy.display()))
    };
    let healthy = launches(dir, "healthy", 8_000, 0, 6);
    let spiked = launches(dir, "spiked", 8_000, 3, 6);
    let limits = "[latency]\nmedian_ms = 10.0\np95_ms = 14.0\ndeadline_ms = 20.0\ncv_max = 0.08";
    check_succeeds(&mut with(&healthy, limits));
    let short = |words: &str| epwatch(&format!("gate {words} --runs{healthy}"));
    check_succeeds(&mut short(
        "--median-ms 10 --p95-ms 14 --deadline-ms 20 --cv 8%",
    ));
    check_fails(&mut short("--median-ms 7"), 1, "median");
    check_fails(&mut short("--median-ms 0"), 2, "latency.median_ms is 0");
    // A tenth of the runs takes 24 ms, so the median stays within its limit.
    let (table, stderr) = check_ends(&mut with(&spiked, limits), 1);
    assert!(table.contains("pass      median"), "{table}");
    for id in ["p95", "late", "cv"] {
        assert!(stderr.contains(&format!("measured: {id}: ")), "{stderr}");
    }
    let (found, _) = check_ends(with(&spiked, limits).arg("--json"), 1);
    let found: Value = serde_json::from_str(&found).unwrap();
    let target = &found["targets"][0];
    // Three of the 27 runs after the warm-up are late.
    let late = target["latency"]["late"].as_f64().unwrap();
    assert!((late - 3.0 / 27.0).abs() < 1e-9, "{late}");
    let units = ["p95", "late", "cv"].map(|id| check(target, id)["unit"].clone());
    assert_eq!(units, ["ms", "share", "ratio"]);
    let one = launches(dir, "one", 8_007, 0, 1);
    let (table, _) = check_ends(&mut with(&one, limits), 0);
    assert!(
        table.contains("1 launch, whose number decides alone"),
        "{table}"
    );
    let three = launches(dir, "three", 8_000, 0, 3);
    check_fails(&mut with(&three, limits), 3, "6 launches in total");

    let csv = dir.join("a.csv");
    let line = |ms: &str| format!("run,latency_ms\n{}", format!("1,{ms}\n").repeat(30));
    fs::write(&csv, line("8.21")).unwrap();
    let file = format!(" {}", csv.display());
    check_succeeds(&mut with(&file, limits));
    for (text, words) in [
        (line("x"), "line 2"),
        ("time,value\n1,2".to_owned(), "latency_ms"),
        ("latency_us\n8000\n8000".to_owned(), "measure 23 or more"),
        (String::new(), "a.csv"),
    ] {
        fs::write(&csv, text).unwrap();
        check_fails(&mut with(&file, limits), 2, words);
    }
    check_fails(&mut with(&one, "[placement]"), 2, "give --baseline");
    check_fails(&mut with(&one.repeat(2), limits), 2, "are the same launch");
    let pairs = format!("{healthy} --baseline{one}");
    check_fails(&mut with(&pairs, limits), 2, "do not pair up");
    check_ends(&mut with(&format!("{one} --soc SM8650"), limits), 2);
}

/// Writes a profile with 30 runs of the given time, whose nodes ran on this EP.
fn profile(path: &Path, ep: &str, us: u64) -> String {
    let node =
        format!(r#"{{"cat" : "Node","dur" :9,"name" :"n","args" : {{"provider" : "{ep}"}}}}"#);
    let run = |i: u64| {
        format!(
            r#"{{"cat" : "Session","dur" :{},"name" :"model_run","args" : {{}}}}"#,
            us + i % 7
        )
    };
    let runs: Vec<String> = (0..30).map(run).collect();
    fs::write(path, format!("[\n{node},\n{}\n]", runs.join(",\n"))).unwrap();
    format!(" {}", path.display())
}

#[test]
fn profiles_are_launches_and_name_their_eps() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let policy = dir.join("gate.toml");
    fs::write(&policy, "[latency]\nmedian_ms = 10.0").unwrap();
    let with = |files: &str| epwatch(&format!("gate --policy {} --runs{files}", policy.display()));
    let npu = profile(&dir.join("npu.json"), "QNNExecutionProvider", 8_000);
    let (table, _) = check_ends(&mut with(&npu), 0);
    assert!(table.contains("pass      npu_used"), "{table}");
    assert!(table.contains("8.003 ms over 1 launch"), "{table}");
    let cpu = profile(&dir.join("cpu.json"), "CPUExecutionProvider", 8_000);
    check_fails(
        &mut with(&cpu),
        1,
        "npu_used: 1 of 1 launches have no node on the NPU",
    );
    let gpu = profile(&dir.join("gpu.json"), "XnnpackExecutionProvider", 8_000);
    check_fails(&mut with(&gpu), 1, "no node on the NPU");
    let none = format!(" {}", dir.join("none.json").display());
    fs::write(
        dir.join("none.json"),
        format!("[{}]", [r#"{"name":"model_run","dur":8000}"#; 30].join(",")),
    )
    .unwrap();
    check_fails(&mut with(&none), 3, "1 of 1 profiles name no EP");
    let plain = launches(dir, "plain", 8_000, 0, 1);
    check_fails(
        &mut with(&format!("{npu}{plain}")),
        2,
        "give one kind for all",
    );
    // A pipe is read once.
    let piped = format!(
        "cat {npu} | {EPWATCH} gate --json --policy {} --runs /dev/stdin",
        policy.display()
    );
    let (stdout, _) = check_ends(Command::new("sh").args(["-c", &piped]), 0);
    let found: Value = serde_json::from_str(&stdout).unwrap();
    let target = &found["targets"][0];
    assert_eq!(target["source"], "ort_profile");
    let (stdout, _) = check_ends(with(&npu).arg("--json"), 0);
    let whole: Value = serde_json::from_str(&stdout).unwrap();
    let sha256 = |of: &Value| of["targets"][0]["runs"][0]["sha256"].clone();
    assert_eq!(sha256(&found), sha256(&whole));
    // A baseline may have run on the CPU.
    check_fails(
        &mut with(&format!("{npu} --baseline{cpu}")),
        3,
        "regression",
    );
    let whole = fs::read(dir.join("npu.json")).unwrap();
    fs::write(dir.join("npu.json"), &whole[..whole.len() - 9]).unwrap();
    check_fails(&mut with(&npu), 2, "end_profiling");
}

/// The graph's file is the same for any weights next to it. So its hash alone would let launches of other weights pass as
/// evidence for these.
#[test]
fn launches_of_other_weights_are_refused_by_the_file_of_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [graph, data] = ["forms_outside.fp32.onnx", "forms_outside.fp32.data"];
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");
    for version in ["old", "new"] {
        fs::create_dir(at(version)).unwrap();
        for name in [graph, data] {
            fs::copy(format!("{models}/{name}"), at(version).join(name)).unwrap();
        }
    }
    let mut weights = fs::read(at("old").join(data)).unwrap();
    weights[0] ^= 1;
    fs::write(at("new").join(data), &weights).unwrap();
    let gate = |words: &str| {
        let limits = "[latency]\nlaunches = 1\nruns = 21\nwarmup = 1\nmedian_ms = 60000.0\n[placement]\nmin_npu_macs = 0.0";
        fs::write(at("gate.toml"), format!("preset = 'macs-only'\n{limits}")).unwrap();
        fs::write(
            at("runs.toml"),
            "preset = 'macs-only'\n[latency]\nmedian_ms = 60000.0\n[placement]\nmin_npu_macs = 0.0",
        )
        .unwrap();
        let mut gate = epwatch(&format!("gate {words}"));
        gate.current_dir(folder.path());
        gate
    };
    // Two versions of a model may differ in their weights alone.
    let local =
        format!("new/{graph} --baseline old/{graph} --local --policy gate.toml --keep kept");
    let ended = gate(&local).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(
        ended.status.code(),
        Some(3),
        "one pair decides nothing: {told}"
    );
    let runs = format!("new/{graph} --policy runs.toml --runs kept/candidate-001.json");
    let judged = gate(&runs).output().unwrap();
    let told = String::from_utf8_lossy(&judged.stderr);
    assert!(matches!(judged.status.code(), Some(0 | 1 | 3)), "{told}");
    // As after an export over the weights that were measured.
    fs::write(at("new").join(data), [&weights[..], &[0]].concat()).unwrap();
    let told = format!("kept/candidate-001.json was measured with another {data} (SHA-256 ");
    check_fails(&mut gate(&runs), 2, &told);
    fs::remove_file(at("new").join(data)).unwrap();
    check_fails(&mut gate(&runs), 2, "the file is missing");
    fs::write(at("new").join(data), &weights).unwrap();
    // A document of another program may leave the weights out: the report names that.
    let mut launch: Value =
        serde_json::from_slice(&fs::read(at("kept/candidate-001.json")).unwrap()).unwrap();
    let model = launch["model"].as_object_mut().unwrap();
    assert_eq!(model["data"].as_object().unwrap().len(), 1);
    model.remove("data");
    fs::write(at("kept/candidate-001.json"), launch.to_string()).unwrap();
    let silent = gate(&runs).output().unwrap();
    let table = String::from_utf8_lossy(&silent.stdout);
    assert!(
        table.contains("a file does not say which data of MODEL it was measured with"),
        "{table}"
    );
}
