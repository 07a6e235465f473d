//! `epwatch gate` against an earlier model, over several models and chipsets, and with other QNN versions. It uses real
//! sessions on the emulator.

use std::{
    fs,
    path::{Path, PathBuf},
};

use epwatch_runtimes::is_nightly;
use serde_json::Value;

use crate::support::{check_ends, check_fails, check_succeeds, epwatch, json};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");
const RED: &str = "e_mixed.q8head32";
const GREEN: &str = "e_mixed.qu8";

fn fixture(model: &str) -> String {
    format!("{MODELS}/{model}.onnx")
}

/// Runs a gate that must end with this code, and returns its document.
#[track_caller]
fn document(words: &str, code: i32) -> Value {
    let (stdout, _) = check_ends(&mut epwatch(&format!("gate {words} --json")), code);
    serde_json::from_str(&stdout).unwrap()
}

fn check<'a>(target: &'a Value, id: &str) -> &'a Value {
    let checks = target["checks"].as_array().unwrap();
    checks.iter().find(|check| check["id"] == id).unwrap()
}

fn change(target: &Value) -> (&str, &str) {
    let check = check(target, "placement_change");
    (
        check["result"].as_str().unwrap(),
        check["why"].as_str().unwrap(),
    )
}

/// Writes a policy whose limits the red model keeps.
fn lax(folder: &Path) -> PathBuf {
    let policy = folder.join("gate.toml");
    let text = "preset = 'macs-only'\n[placement]\nmin_npu_macs = 0.1";
    fs::write(&policy, text).unwrap();
    policy
}

#[test]
fn what_is_new_on_the_cpu_is_red_whatever_the_limits_are() {
    let dir = tempfile::tempdir().unwrap();
    let policy = lax(dir.path());
    let lax = format!("--soc SM8650,SM8635 --policy {}", policy.display());
    let (red, green) = (fixture(RED), fixture(GREEN));
    document(&format!("{red} {lax}"), 0);
    let found = document(&format!("{red} {lax} --baseline {green}"), 1);
    let [same, worse] = &found["targets"].as_array().unwrap()[..] else {
        panic!("{found:#}");
    };
    assert_eq!(change(same).0, "pass", "{same:#}");
    let (result, why) = change(worse);
    assert_eq!(result, "fail", "{worse:#}");
    assert!(
        why.contains("new on the CPU: Gemm head_fc1") && why.contains("4096 bytes cross"),
        "{why}"
    );
    assert_eq!(worse["before"]["placement"]["cpu_nodes"], 0, "{worse:#}");
    assert!(worse["placement"]["cpu_nodes"].as_u64().unwrap() > 0);
    let nodes = check(worse, "placement_change")["nodes"]
        .as_array()
        .unwrap();
    assert!(
        nodes
            .iter()
            .any(|node| node["reason"] == "fp16_not_supported"),
        "{nodes:#?}"
    );
    // An op that the policy allows is there by choice.
    let allowed = fs::read_to_string(&policy).unwrap()
        + "\nmax_crossing_bytes = 4096\nallowed_cpu_ops = ['Gemm', 'Relu', 'LayerNormalization', 'Softmax']";
    fs::write(&policy, allowed).unwrap();
    let found = document(&format!("{red} {lax} --baseline {green}"), 0);
    assert_eq!(change(&found["targets"][1]).0, "warn", "{found:#}");

    // With both models exchanged, nodes leave the CPU.
    let found = document(&format!("{green} --soc SM8635 --baseline {red}"), 0);
    let (result, why) = change(&found["targets"][0]);
    assert!(result == "pass" && why.contains("have left it"), "{why}");
    // Nodes that were already on the CPU are only reported by other checks.
    let found = document(&format!("{red} --soc SM8635 --baseline {red}"), 1);
    assert_eq!(
        change(&found["targets"][0]),
        ("pass", "the model before is the same file")
    );
}

#[test]
fn names_that_an_exporter_changed_are_no_news() {
    let dir = tempfile::tempdir().unwrap();
    let renamed = dir.path().join("renamed.onnx");
    let mut bytes = fs::read(fixture(RED)).unwrap();
    let (old, new) = (b"head_", b"tail_");
    let places: Vec<usize> = (0..bytes.len() - old.len())
        .filter(|at| bytes[*at..].starts_with(old))
        .collect();
    assert!(places.len() > 4, "{places:?}");
    for at in places {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
    fs::write(&renamed, bytes).unwrap();
    let red = fixture(RED);
    let words = format!("{} --soc SM8635 --baseline {red}", renamed.display());
    let found = document(&words, 1);
    let (result, why) = change(&found["targets"][0]);
    assert_eq!(result, "pass", "{why}");
    assert!(why.contains("compute there, as before"), "{why}");
}

#[test]
fn files_of_a_baseline_are_told_by_their_kind() {
    let dir = tempfile::tempdir().unwrap();
    let green = fixture(GREEN);
    let pointer = dir.path().join("scene.onnx");
    fs::write(
        &pointer,
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
    )
    .unwrap();
    let runs = dir.path().join("runs.json");
    fs::write(&runs, "[1]").unwrap();
    let (pointer, runs) = (pointer.display(), runs.display());
    for (words, says) in [
        (
            format!("{green} --soc SM8650 --baseline {pointer}"),
            "pointer of Git LFS",
        ),
        (
            format!("{green} --soc SM8650 --baseline {MODELS}/gone.onnx"),
            "gone.onnx",
        ),
        (format!("{green} --runs {runs} --baseline {green}"), "--soc"),
        (
            format!("{green} --soc SM8650 --baseline {MODELS}/../README.md"),
            "README.md",
        ),
    ] {
        check_fails(&mut epwatch(&format!("gate {words}")), 2, says);
    }
}

#[test]
fn several_models_have_one_report_and_the_worst_result() {
    let dir = tempfile::tempdir().unwrap();
    let (red, green, out) = (fixture(RED), fixture(GREEN), dir.path().join("out"));
    let key = dir.path().join("release.pem");
    check_succeeds(&mut epwatch(&format!(
        "gate keygen --out {}",
        key.display()
    )));
    let base = dir.path().join("base");
    fs::create_dir(&base).unwrap();
    fs::copy(&green, base.join(format!("{GREEN}.onnx"))).unwrap();
    let words = format!(
        "gate --soc SM8635,SM8650 --out {} --attest {} --baseline {} -- {green} {red} {green}",
        out.display(),
        key.display(),
        base.join(format!("{GREEN}.onnx")).display()
    );
    let (table, _) = check_ends(&mut epwatch(&words), 1);
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    let found: Value = serde_json::from_str(&read("gate.json")).unwrap();
    let targets = found["targets"].as_array().unwrap();
    let names: Vec<String> = targets
        .iter()
        .map(|on| {
            let path = on["model"]["path"].as_str().unwrap();
            let file = path.rsplit('/').next().unwrap();
            format!("{file} {}", on["chipset"].as_str().unwrap())
        })
        .collect();
    let expected = [
        format!("{GREEN}.onnx SM8635"),
        format!("{GREEN}.onnx SM8650"),
        format!("{RED}.onnx SM8635"),
        format!("{RED}.onnx SM8650"),
    ];
    assert_eq!(names, expected);
    assert!(
        found["made_at"].as_str().unwrap().ends_with('Z'),
        "{found:#}"
    );
    assert_eq!(change(&targets[0]).1, "the model before is the same file");
    assert_eq!(change(&targets[2]).0, "skip");
    assert!(table.contains(&format!("SM8635  {red}")), "{table}");
    let comment = read("comment.md");
    assert!(
        comment.contains("#### ") && comment.contains("| SM8635 | **fail** |"),
        "{comment}"
    );
    let junit = read("gate.xml");
    for file in [GREEN, RED] {
        let suite = format!("{file}.onnx SM8635\" tests=");
        assert_eq!(junit.matches(&suite).count(), 1, "{junit}");
    }
    // The evidence covers both models.
    let public = format!("{}.pub", key.display());
    let evidence = out.join("gate.dsse.json");
    let words = format!(
        "verify {} --key {public} --model {red} {green} --json",
        evidence.display()
    );
    let (verified, _) = check_ends(&mut epwatch(&words), 1);
    let verified: Value = serde_json::from_str(&verified).unwrap();
    assert_eq!(
        verified["problems"].as_array().unwrap().len(),
        1,
        "{verified:#}"
    );
    assert_eq!(verified["made_at"], found["made_at"]);

    let certify = "--certify http://127.0.0.1:9 --model-id a --model-version 1";
    for (words, says) in [
        (
            format!("{red} {green} --soc SM8650 {certify}"),
            "give one MODEL",
        ),
        (
            format!("{red} {green} --soc SM8650 --runs {red}"),
            "give one MODEL",
        ),
    ] {
        check_fails(&mut epwatch(&format!("gate {words}")), 2, says);
    }
    let policy = dir.path().join("gate.toml");
    fs::write(&policy, format!("[variants]\nSM8650 = '{green}'")).unwrap();
    let words = format!(
        "gate {red} {green} --soc SM8650 --policy {}",
        policy.display()
    );
    check_fails(&mut epwatch(&words), 2, "[variants]");
}

#[test]
fn a_policy_has_limits_of_single_models() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("gate.toml");
    let limits = "[model.'*q8head32.onnx'.placement]\nmin_npu_macs = 0.1\nmax_partitions = 9\n";
    let none = "[model.'gone*'.placement]\nmin_npu_macs = 0\n";
    fs::write(&policy, format!("{limits}{none}")).unwrap();
    let (red, green) = (fixture(RED), fixture(GREEN));
    let words = format!("{red} {green} --soc SM8635 --policy {}", policy.display());
    let found = document(&words, 0);
    let of = |at: usize| &check(&found["targets"][at], "npu_macs")["limit"];
    assert_eq!((of(0), of(1)), (&0.1.into(), &0.98.into()), "{found:#}");
    let not_checked = found["not_checked"].as_array().unwrap();
    assert!(
        not_checked
            .iter()
            .any(|part| part["id"] == "model \"gone*\""),
        "{not_checked:#?}"
    );
    let two = "[model.'e_*'.placement]\nmin_npu_macs = 0.1\n";
    let misspelt = "[model.'a'.placement]\nforbidden_cpu_ops = ['Convv']";
    for (more, says) in [
        (two, "both name"),
        (misspelt, "model.\"a\".placement.forbidden_cpu_ops"),
    ] {
        fs::write(&policy, format!("{limits}{more}")).unwrap();
        check_fails(&mut epwatch(&format!("gate {words}")), 2, says);
    }
}

#[test]
fn a_tier_is_all_its_chipsets() {
    let found = document(&format!("{} --soc v79,SM8650", fixture(GREEN)), 0);
    let targets = found["targets"].as_array().unwrap();
    let names: Vec<&str> = targets
        .iter()
        .map(|on| on["chipset"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["SM8750", "SXR2330", "SM8650"]);
    check_fails(
        &mut epwatch(&format!("gate {} --soc v80", fixture(GREEN))),
        2,
        "v81",
    );
}

/// Tests only the oldest release with the emulator, because each further one needs a download of 95 MB. It needs its
/// own ONNX Runtime.
#[test]
fn an_older_qnn_partitions_as_its_phones_do() {
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/gate/yolo_layernorm.qu8.onnx"
    );
    let versions: &[(&str, &str)] = match is_nightly("QNN 2.48 to 2.51 (95 MB each)") {
        true => &[
            ("2.3", "1.27.0/2.3.0"),
            ("2.48", "1.31.1/2.4.0"),
            ("2.5.0", "1.31.1/2.5.0"),
            ("2.50", "1.31.1/2.6.0"),
            ("2.7", "1.31.1/2.7.0"),
        ],
        false => &[("2.3", "1.27.0/2.3.0")],
    };
    for (version, runtime) in versions {
        let found = document(&format!("{model} --soc SM8650 --qnn-version {version}"), 1);
        let target = &found["targets"][0];
        assert_eq!(&target["runtime"], runtime);
        let nodes = check(target, "cpu_ops")["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 3, "{target:#}");
        // The sentence comes from this release's validator.
        let words = match *version {
            "2.3" => "only support axis",
            _ => "last axis",
        };
        assert!(
            nodes[0]["reason_text"].as_str().unwrap().contains(words),
            "{nodes:#?}"
        );
        // The oldest and newest release in docs/ops.md accept the other form, and the named command rewrites the node.
        let alternative = nodes[0]["alternative"].as_str().unwrap();
        let command = "`epwatch gate fix MODEL --soc SM8650`";
        let rewrites = match version.starts_with("2.7") {
            true => format!("{command} rewrites it."),
            false => format!("{command} with the same --qnn-version rewrites it."),
        };
        assert!(
            alternative.contains("Reshape to one last axis") && alternative.ends_with(&rewrites),
            "{alternative}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("fixed.onnx");
    let fix = format!(
        "gate fix {model} --soc SM8650 --qnn-version 2.3 --out {}",
        out.display()
    );
    check_ends(&mut epwatch(&fix), 0);
    let older = format!("gate {model} --soc SM8650 --qnn-version 2.40");
    check_fails(&mut epwatch(&older), 2, "PyPI has no older one");
    let engines = json(&mut epwatch("engines"));
    let lines = engines.as_array().unwrap().iter();
    let versions: Vec<&str> = lines
        .filter(|line| line["engine"] == "onnxruntime-qnn" && line["state"] == "ready")
        .map(|line| line["version"].as_str().unwrap())
        .collect();
    assert!(versions.contains(&"2.3.0"), "{versions:?}");
}
