//! `epwatch gate` and `inspect` on models of public reports (`tests/fixtures/gate`), and on exports that are healthy
//! (`tests/fixtures/healthy`). If the folder of all reports exists next to the repository, it is tested too.

use std::{fs, path::PathBuf};

use serde_json::Value;

use crate::support::{check_ends, check_fails, epwatch};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
/// Material that is too large for the repository.
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared");

/// Runs a gate on this file that must end with this code, and returns its document.
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
        // LayerNormalization has no MACs, so their share does not show the problem.
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
        assert!(why(target, "crossings").contains(": 3 tensors to the CPU"));
    }
    // This preset judges like earlier versions of the gate.
    let found = document(path, "--soc SM8650 --preset macs-only", 0);
    assert_eq!(check(&found["targets"][0], "cpu_ops")["result"], "warn");
}

/// A quantised detector has three LayerNormalizations that the NPU refuses. It once passed with 100.0 % of the MACs.
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
    // By its default the plugin keeps this op off the NPU. Its MACs are counted, so the gate decides.
    let found = case("gqa_static", "--soc SM8650", 1);
    assert_eq!(check(&found["targets"][0], "npu_macs")["result"], "fail");
}

/// ONNX Runtime's transformer optimiser makes ops that no chipset accepts. The ops that they replace are accepted.
#[test]
fn fused_ops_have_a_proven_alternative_or_are_said_to_have_none() {
    let found = case("fused_norms", "--soc SM8650", 1);
    let checks = found["targets"][0]["checks"].as_array().unwrap();
    let nodes = checks
        .iter()
        .flat_map(|check| check["nodes"].as_array().unwrap());
    let mut ways_out: Vec<(&str, &str)> = nodes
        .map(|node| {
            let way_out = node["alternative"].as_str().or(node["fix"].as_str());
            (node["op_type"].as_str().unwrap(), way_out.unwrap())
        })
        .collect();
    ways_out.sort_unstable();
    let expected = [
        (
            "BiasGelu",
            "Taken by SM8650 instead of BiasGelu (fused) (float): Add, Gelu (opset 20).",
        ),
        (
            "EmbedLayerNormalization",
            "No alternative to EmbedLayerNormalization is proven for SM8650. Replace the op by supported ones, or move it out of \
             the model.",
        ),
        (
            "FastGelu",
            "Taken by SM8650 instead of FastGelu with a bias (fused) (float): Add, Gelu with approximate tanh (opset 20).",
        ),
        (
            "SkipLayerNormalization",
            "Taken by SM8650 instead of SkipLayerNormalization (fused) (float): Add, LayerNormalization.",
        ),
    ];
    assert_eq!(ways_out, expected);
}

/// With an earlier bound of one turn, the first case was green or red by the size of the body. The text was "99.0 % of
/// the MACs on the NPU".
#[test]
fn loops_with_an_unknown_number_of_turns_have_no_share() {
    for (name, words) in [
        (
            "loop_turns_given",
            "is not a constant of the model; one turn has 4096 MACs",
        ),
        (
            "loop_large_body",
            "is not a constant of the model; one turn has 4194304 MACs",
        ),
        ("loop_until", "a condition may end it before its last turn"),
        (
            "scan_open_length",
            "the length of what it scans has no fixed shape",
        ),
    ] {
        let found = case(name, "--soc SM8650", 3);
        let target = &found["targets"][0];
        assert_eq!(
            check(target, "npu_macs")["result"],
            "undecided",
            "{target:#}"
        );
        assert!(why(target, "npu_macs").contains(words), "{target:#}");
        let placement = &target["placement"];
        for number in [
            &placement["npu_macs"],
            &placement["eps"]["QNNExecutionProvider"]["macs_share"],
            &placement["cpu_time"],
        ] {
            assert_eq!(*number, Value::Null, "{placement:#}");
        }
        let path = format!("{FIXTURES}/gate/{name}.onnx");
        let inspect = format!("inspect {path} --soc SM8650");
        let (table, _) = check_ends(&mut epwatch(&inspect), 0);
        assert!(!table.contains(" %") && table.contains(words), "{table}");
        for limit in ["2%", "100%"] {
            let rule = format!("{inspect} --fail-on macs={limit}");
            check_fails(&mut epwatch(&rule), 3, "the share of the CPU is not known");
        }
        let folder = tempfile::tempdir().unwrap();
        let side_car = folder.path().join("m.macs.json");
        let manifest = format!("manifest {path} --out {}", side_car.display());
        let (text, _) = check_ends(&mut epwatch(&manifest), 3);
        assert!(!text.contains(" %") && text.contains(words), "{text}");
        assert!(!side_car.exists());
    }
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

/// A public report: the command over its files, the exit code, and words that the answer must and must not have.
struct Case {
    /// Name of its folder among all reports.
    report: &'static str,
    /// `{}` is the folder of the fixtures.
    command: &'static str,
    code: i32,
    says: &'static [&'static str],
    lacks: &'static [&'static str],
}

const CASES: [Case; 27] = [
    Case {
        report: "invalid-config-log",
        command: "logs {}/logs/cases/skel4000.logcat",
        code: 0,
        says: &["skel_library_missing"],
        lacks: &["\n  soc_model_unknown"],
    },
    Case {
        report: "invalid-config-log",
        command: "logs {}/logs/cases/retry_cpu.txt",
        code: 0,
        says: &["device_creation_failed"],
        lacks: &["\n  soc_model_unknown"],
    },
    Case {
        report: "kv-cache-attention",
        command: "gate {}/gate/mha_past.onnx --soc SM8650",
        code: 1,
        says: &["20.0 % of the MACs on the NPU", "self_attn"],
        lacks: &["99.6 %"],
    },
    Case {
        report: "kv-cache-attention",
        command: "inspect {}/gate/mha_past.onnx --soc SM8650 --fail-on macs=2%",
        code: 1,
        says: &["80.0 % of the MACs are on the CPU"],
        lacks: &[],
    },
    Case {
        report: "kv-cache-attention",
        command: "gate {}/gate/mha_past.onnx --runs {}/gate/mha_past.profile.json",
        code: 1,
        says: &["20.0 % of the MACs on the NPU"],
        lacks: &["99.6 %"],
    },
    Case {
        report: "loop-one-turn",
        command: "gate {}/gate/enc_loop.onnx --soc SM8650",
        code: 1,
        says: &["20.0 % of the MACs on the NPU"],
        lacks: &["99.0 %"],
    },
    Case {
        report: "loop-one-turn",
        command: "gate {}/gate/enc_scan.onnx --soc SM8650",
        code: 1,
        says: &["50.0 % of the MACs on the NPU"],
        lacks: &["99.0 %"],
    },
    Case {
        report: "loop-one-turn",
        command: "inspect {}/gate/enc_loop.onnx --soc SM8650 --fail-on macs=2%",
        code: 1,
        says: &["80.0 % of the MACs are on the CPU"],
        lacks: &[],
    },
    Case {
        report: "no-macs-share",
        command: "inspect {}/gate/tanh_clip.onnx --soc SM8650",
        code: 0,
        says: &[" - "],
        lacks: &["0.0 %"],
    },
    Case {
        report: "no-macs-share",
        command: "inspect {}/gate/tanh_clip.onnx --soc SM8635 --fail-on macs=2%",
        code: 2,
        says: &["use --fail-on cpu"],
        lacks: &[],
    },
    Case {
        report: "no-macs-share",
        command: "inspect {}/gate/resize_ac.onnx --soc SM8650",
        code: 0,
        says: &[" - "],
        lacks: &["0.0 %"],
    },
    Case {
        report: "plugin-registered-as-QNN",
        command: "gate {}/gate/ext.onnx --runs {}/gate/ext.profile.json",
        code: 0,
        says: &["100.0 % of the MACs on the NPU"],
        lacks: &["the whole graph is on the CPU"],
    },
    Case {
        report: "qnn-own-counts-log",
        command: "logs {}/logs/cases/all_qnn.txt",
        code: 0,
        says: &["233"],
        lacks: &["is missing or not whole"],
    },
    Case {
        report: "qnn-own-counts-log",
        command: "logs {}/logs/cases/capability_only.txt",
        code: 0,
        says: &["190", "43"],
        lacks: &["is missing or not whole"],
    },
    Case {
        report: "qnn-own-counts-log",
        command: "logs {}/logs/cases/capability_zero.txt",
        code: 0,
        says: &["233"],
        lacks: &["is missing or not whole"],
    },
    Case {
        report: "run-errors-log",
        command: "logs {}/logs/cases/run6031.txt",
        code: 0,
        says: &["run_failed", "6031"],
        lacks: &["log at VERBOSE"],
    },
    Case {
        report: "run-errors-log",
        command: "logs {}/logs/cases/run1100.txt",
        code: 0,
        says: &["run_failed", "1100"],
        lacks: &["log at VERBOSE"],
    },
    Case {
        report: "run-errors-log",
        command: "logs {}/logs/cases/ssr.txt",
        code: 0,
        says: &["dsp_restarted", "1007"],
        lacks: &["log at VERBOSE"],
    },
    Case {
        report: "strict-unsupported-log",
        command: "logs {}/logs/cases/strict_unsupported.txt",
        code: 0,
        says: &[
            "BatchNormalization",
            "seg/dec2/bn_41/FusedBN",
            "ArgMax",
            "seg/head/argmax",
            "cpu_fallback_forbidden",
        ],
        lacks: &["log at VERBOSE"],
    },
    Case {
        report: "strict-unsupported-log",
        command: "logs {}/logs/cases/strict_only.txt",
        code: 0,
        says: &["cpu_fallback_forbidden"],
        lacks: &[],
    },
    Case {
        report: "three-models-one-log",
        command: "logs {}/logs/cases/three_cpu.txt",
        code: 0,
        says: &["session 3", "nodes 120", "nodes 30", "nodes 4"],
        lacks: &["154", "ep_not_requested"],
    },
    Case {
        report: "utf16-logcat",
        command: "logs {}/logs/cases/utf16.logcat",
        code: 0,
        says: &["TopK", "/head/TopK"],
        lacks: &["log at VERBOSE"],
    },
    Case {
        report: "weight-dq-on-cpu",
        command: "gate {}/gate/block_int4.onnx --soc SM8650 --policy {}/gate/weight_dq.toml",
        code: 1,
        says: &["DequantizeLinear dqw", "12288 bytes a run"],
        lacks: &["no node computes on the CPU"],
    },
    Case {
        report: "weight-dq-on-cpu",
        command: "gate {}/gate/wprep.onnx --soc SM8650 --policy {}/gate/weight_dq.toml",
        code: 1,
        says: &["DequantizeLinear", "262144 bytes a run"],
        lacks: &["no node computes on the CPU"],
    },
    Case {
        report: "weight-dq-on-cpu",
        command: "inspect {}/gate/block_int4.onnx --soc SM8650",
        code: 0,
        says: &["dqw"],
        lacks: &["at the edges"],
    },
    Case {
        report: "impossible-share",
        command: "gate {}/gate/sequence_in.onnx --runs {}/gate/sequence_in.profile.json",
        code: 1,
        says: &[],
        lacks: &["102400.0 %"],
    },
    Case {
        report: "sequence-hint",
        command: "gate {}/gate/sequence_in.onnx --soc SM8650",
        code: 3,
        says: &[],
        lacks: &["100.0 % of the MACs"],
    },
];

#[test]
fn public_reports_get_the_right_answer() {
    let mut wrong = Vec::new();
    for case in CASES {
        let command = case.command.replace("{}", FIXTURES);
        let out = epwatch(&command).output().unwrap();
        let text = [out.stdout, out.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let missing = case.says.iter().filter(|words| !text.contains(**words));
        let strange = case.lacks.iter().filter(|words| text.contains(**words));
        let words: Vec<&&str> = missing.chain(strange).collect();
        if out.status.code() != Some(case.code) || !words.is_empty() {
            wrong.push(format!(
                "{}: {}: {} in place of {}, {words:?}:\n{text}",
                case.report, case.command, out.status, case.code
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Reports that other tests cover, about files that are refused or read in another way.
const OF_OTHER_TESTS: [&str; 10] = [
    "custom-op-library",
    "empty-cache-input",
    "empty-profile",
    "epcontext-other-chipset",
    "free-dimensions",
    "gqa-affinity",
    "hf-cache-symlinks",
    "native-crash",
    "ort-format",
    "two-gigabytes",
];

#[test]
fn each_report_has_a_test() {
    let folder = format!("{SHARED}/cases");
    if !fs::exists(&folder).unwrap() {
        return;
    }
    for report in fs::read_dir(folder).unwrap() {
        let name = report.unwrap().file_name().into_string().unwrap();
        let is_held = CASES.iter().any(|case| case.report == name);
        assert!(is_held || OF_OTHER_TESTS.contains(&name.as_str()), "{name}");
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
    for node in nodes {
        let fix = node["fix"].as_str().unwrap();
        assert!(fix.contains("where nodes ran, and not why"), "{fix}");
    }
}
