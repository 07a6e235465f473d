//! Unusual inputs of `epwatch gate` and related commands: broken models, external data, settings of the app, a crashing
//! plugin, and paths that are not files. A gate must neither fail for these nor wait for ever.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{check_ends, check_fails, check_succeeds, epwatch};

const GATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gate");
const SOCS: &str = "--soc SM8650,SM8635";

fn path(model: &str) -> String {
    format!("{GATE}/{model}.onnx")
}

#[track_caller]
fn document(words: &str, code: i32) -> Value {
    let (stdout, _) = check_ends(&mut epwatch(&format!("{words} --json")), code);
    serde_json::from_str(&stdout).unwrap()
}

fn check<'a>(target: &'a Value, id: &str) -> &'a Value {
    let checks = target["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["id"] == id);
    found.unwrap_or_else(|| panic!("{id}: {target:#}"))
}

fn session(words: &str, code: i32) -> Value {
    let found = document(words, code);
    check(&found["targets"][0], "session").clone()
}

/// A broken model is wrong use, not a chipset's refusal. It is reported once for all chipsets, with the file and the
/// tensor or node.
#[test]
fn a_broken_model_is_no_chipsets_refusal() {
    for (model, words) in [
        ("cyclic", "the graph is not acyclic"),
        ("unknown_op", "No Op registered for Rellu"),
        (
            "unknown_op_ms",
            "com.microsoft:Foo(-1) is not a registered function/op",
        ),
        ("no_opset", "Missing opset in the model"),
        ("no_import", "No opset import for domain 'my.domain'"),
        (
            "opset99",
            "it has opset 99 of ai.onnx, and this ONNX Runtime takes 26 at most; export it with opset 26 or an older one",
        ),
        (
            "ir99",
            "it has IR version 99, and this ONNX Runtime takes 13 at most",
        ),
        ("same_names", "two nodes with same node name (mm)"),
        ("no_source", "Node input 'nowhere' is not a graph input"),
        ("wrong_shapes", "Node (mm) Op (MatMul)"),
        ("lying_dims", "tensor w has 1024 bytes of data"),
        ("data_missing", "tensor w has its data in nowhere.bin"),
        (
            "data_short",
            "tensor w has its data in short.bin: 1024 bytes",
        ),
        ("data_beyond", "tensor w has its data in w.bin"),
        ("data_lying_dims", "its shape [16,32] takes 2048"),
        ("data_lfs", "git lfs pull"),
    ] {
        let path = path(&format!("broken/{model}"));
        for command in ["gate", "inspect"] {
            let (stdout, stderr) = check_ends(&mut epwatch(&format!("{command} {path} {SOCS}")), 2);
            let lines: Vec<&str> = stderr.trim().lines().collect();
            assert_eq!(lines.len(), 1, "{model}: {stderr}");
            assert!(lines[0].contains(words), "{model}: {stderr}");
            assert!(
                lines[0].contains(&format!("MODEL {path} is broken")),
                "{stderr}"
            );
            // The error names neither a chipset nor a line of ONNX Runtime's source.
            for strange in ["SM8650", ".cc:", "std::", "Load model"] {
                assert!(!stderr.contains(strange), "{model}: {stderr}");
            }
            assert_eq!(stdout, "", "{model}");
        }
    }
    let words = format!("gate {} {SOCS} --annotations", path("broken/ir99"));
    let (stdout, _) = check_ends(&mut epwatch(&words), 2);
    assert!(
        stdout.starts_with("::error title=epwatch gate::MODEL "),
        "{stdout}"
    );
    // The earlier model is broken, not this one.
    let (model, before) = (path("tanh_clip"), path("broken/cyclic"));
    let (_, stderr) = check_ends(
        &mut epwatch(&format!("gate {model} {SOCS} --baseline {before}")),
        2,
    );
    let named = format!("--baseline {before} is broken: the graph is not acyclic");
    assert!(
        stderr.contains(&named) && !stderr.contains("MODEL /") && stderr.contains("judged alone"),
        "{stderr}"
    );
}

/// ONNX Runtime loads a model of Hugging Face's cache, whose files are links into `blobs`.
#[test]
fn data_next_to_a_link_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (dir.path().join("blobs"), dir.path().join("snapshots/abc"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for (blob, from, name) in [
        ("aaaa1111", "external.onnx", "model.onnx"),
        ("bbbb2222", "broken/w.bin", "w.bin"),
    ] {
        fs::copy(format!("{GATE}/{from}"), blobs.join(blob)).unwrap();
        symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    let words = format!(
        "gate {} --soc SM8650",
        snapshot.join("model.onnx").display()
    );
    let found = document(&words, 0);
    assert_eq!(
        found["targets"][0]["placement"]["npu_macs"], 1.0,
        "{found:#}"
    );
}

/// Builds the app's library of custom ops.
pub(crate) fn library_of_ops(folder: &Path) -> PathBuf {
    let library = folder.join("libfoo.so");
    let source = format!("{GATE}/custom_op.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library);
    check_succeeds(cc.arg(source));
    library
}

#[test]
fn a_model_with_ops_of_the_app_is_judged_with_its_library() {
    let model = path("custom_op");
    let needs = session(&format!("gate {model} {SOCS}"), 3);
    assert_eq!(needs["result"], "undecided", "{needs:#}");
    let why = needs["why"].as_str().unwrap();
    assert!(
        why.contains("custom-op library, for my.domain:Foo") && why.contains("--custom-ops"),
        "{why}"
    );
    check_fails(
        &mut epwatch(&format!("inspect {model} --soc SM8650")),
        3,
        "custom-op library",
    );
    let dir = tempfile::tempdir().unwrap();
    let library = library_of_ops(dir.path());
    // No rule counts the MACs of the app's own op.
    let policy = dir.path().join("gate.toml");
    let limits = "[placement]\nmin_npu_macs = 0\nallowed_cpu_ops = ['Foo']";
    fs::write(&policy, limits).unwrap();
    let with = |library: &Path| {
        let (library, policy) = (library.display(), policy.display());
        format!("gate {model} --soc SM8650 --policy {policy} --custom-ops {library}")
    };
    let found = document(&with(&library), 0);
    let target = &found["targets"][0];
    assert_eq!(check(target, "cpu_ops")["result"], "pass");
    assert_eq!(target["placement"]["partitions"], 1);
    // A library without the op, or a file that is not a library, is not blamed on the model.
    check_fails(
        &mut epwatch(&with(Path::new(&path("external")))),
        2,
        "RegisterCustomOps",
    );
    check_fails(
        &mut epwatch(&with(&dir.path().join("none.so"))),
        2,
        "No such file",
    );
}

#[test]
fn free_dimensions_are_fixed_as_the_app_does() {
    let model = path("open_batch");
    let found = document(&format!("gate {model} --soc SM8650"), 1);
    let fix = check(&found["targets"][0], "npu_macs")["nodes"][0]["fix"].clone();
    assert!(fix.as_str().unwrap().contains("--dim batch=1"), "{fix}");
    let found = document(&format!("gate {model} --soc SM8650 --dim batch=1"), 0);
    let placement = &found["targets"][0]["placement"];
    assert_eq!(
        (&placement["npu_macs"], &placement["partitions"]),
        (&1.0.into(), &1.into())
    );
    let wrong = format!("gate {model} --soc SM8650 --dim batsh=1");
    check_fails(&mut epwatch(&wrong), 2, "its open dimensions are batch");
    let mut manifest = epwatch(&format!("manifest {model} --dim batch=4 --json --out"));
    let dir = tempfile::tempdir().unwrap();
    let (stdout, _) = check_ends(manifest.arg(dir.path().join("m.json")), 0);
    assert!(stdout.contains("\"total_macs\": 1024"), "{stdout}");
}

/// The session's process has another working folder than the caller.
#[test]
fn a_relative_path_of_an_option_is_that_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let text = r#"{"op_type":{"GroupQueryAttention":"htp"}}"#;
    fs::write(dir.path().join("aff.json"), text).unwrap();
    // By its default the plugin keeps this op off the NPU, with the same way out.
    let found = document(&format!("gate {} --soc SM8650", path("gqa_static")), 1);
    let node = &check(&found["targets"][0], "npu_macs")["nodes"][0];
    assert!(
        node["reason_text"].as_str().unwrap().contains(text),
        "{node:#}"
    );
    assert_eq!(node["fix"], Value::Null, "one way out: {node:#}");
    let words = format!(
        "gate {} --soc SM8650 --ep-option op_affinity=aff.json",
        path("gqa_static")
    );
    check_ends(epwatch(&words).current_dir(dir.path()), 0);
    let missing = words.replace("aff.json", "none.json");
    check_fails(
        epwatch(&missing).current_dir(dir.path()),
        2,
        "op_affinity=none.json",
    );
}

#[test]
fn a_crash_of_qnn_names_the_node_it_was_told_of_last() {
    let model = path("crash_stft");
    let found = document(&format!("gate {model} --soc SM8650"), 1);
    let session = check(&found["targets"][0], "session");
    let why = session["why"].as_str().unwrap();
    assert!(
        why.contains("QNN crashed (SIGSEGV)") && why.contains("STFT spectrum"),
        "{why}"
    );
    let node = &session["nodes"][0];
    assert_eq!(
        (&node["op_type"], &node["name"]),
        (&"STFT".into(), &"spectrum".into())
    );
    // The way out that is printed works.
    let dir = tempfile::tempdir().unwrap();
    let fix = node["fix"].as_str().unwrap();
    let (_, json) = fix.split_once("FILE with ").unwrap();
    let (json, _) = json.split_once(", in the app").unwrap();
    fs::write(dir.path().join("aff.json"), json).unwrap();
    let words = format!("inspect {model} --soc SM8650 --ep-option op_affinity=aff.json");
    let (table, _) = check_ends(epwatch(&words).current_dir(dir.path()), 0);
    assert!(table.contains("on the CPU: STFT spectrum"), "{table}");
}

#[test]
fn a_compiled_graph_is_of_its_chipset_alone() {
    let model = path("context_sm8650");
    let found = document(&format!("gate {model} {SOCS}"), 1);
    let (own, other) = (&found["targets"][0], &found["targets"][1]);
    assert_eq!(check(own, "session")["result"], "pass");
    let session = check(other, "session");
    assert_eq!(session["result"], "fail");
    let why = session["why"].as_str().unwrap();
    assert!(
        why.contains("compiled for SM8650 (QNN's 57), and not for SM8635"),
        "{why}"
    );
    // QNN 2.51 compiled the graph, so an older QNN refuses it.
    let older = self::session(&format!("gate {model} --soc SM8650 --qnn-version 2.3"), 1);
    let why = older["why"].as_str().unwrap();
    assert!(
        why.contains("QNN 2.51.0 compiled the graph, and QNN 2.47.0 refuses it")
            && why.contains("--qnn-version 2.51"),
        "{why}"
    );
    let unnamed = fs::read(path("context_unnamed")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("context.onnx");
    fs::write(&model, unnamed).unwrap();
    let words = format!("gate {} --soc SM8650", model.display());
    let missing = "context_sm8650_qnn.bin, which is not there";
    check_fails(&mut epwatch(&words), 2, missing);
    fs::copy(
        format!("{GATE}/context_sm8650_qnn.bin"),
        dir.path().join("context_sm8650_qnn.bin"),
    )
    .unwrap();
    let session = session_of(&words);
    assert_eq!(session["result"], "undecided", "{session:#}");
}

fn session_of(words: &str) -> Value {
    session(words, 3)
}

#[test]
fn inputs_that_are_odd_have_a_way_out() {
    let found = session(&format!("gate {} --soc SM8650", path("empty_cache")), 1);
    let why = found["why"].as_str().unwrap();
    assert!(why.contains("input past has the shape [1,4,0,16]"), "{why}");
    for (model, words) in [
        ("sequence_in", "input s is a sequence"),
        ("optional_in", "input o is optional"),
    ] {
        let found = document(&format!("gate {} --soc SM8650", path(model)), 3);
        let why = check(&found["targets"][0], "npu_macs")["why"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(why.contains(words) && !why.contains("--shape"), "{why}");
    }
}

#[test]
fn other_formats_and_files_over_2_gb_are_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let ort = dir.path().join("m.ort");
    fs::write(&ort, b"\x18\0\0\0ORTM\0\0\0\0").unwrap();
    let big = dir.path().join("big.onnx");
    fs::copy(path("tanh_clip"), &big).unwrap();
    // Sparse.
    let file = fs::OpenOptions::new().append(true).open(&big).unwrap();
    file.set_len(2_200_000_000).unwrap();
    for (model, words) in [(ort, "ORT format"), (big, "external data")] {
        let model = model.display();
        for command in [
            format!("inspect {model} --soc SM8650"),
            format!("gate {model} --soc SM8650"),
            format!("manifest {model}"),
        ] {
            check_fails(&mut epwatch(&command), 2, words);
        }
    }
    let empty = dir.path().join("empty.json");
    fs::write(&empty, "").unwrap();
    let words = format!("gate {} --runs {}", path("tanh_clip"), empty.display());
    check_fails(&mut epwatch(&words), 2, "the file is empty");
}

/// A FIFO may wait for ever and a device never ends, so both are refused before they are opened.
#[test]
fn what_is_no_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let long = dir.path().join("long.toml");
    fs::File::create(&long).unwrap().set_len(300 << 20).unwrap();
    let (fifo, long) = (fifo.display(), long.display());
    let model = path("tanh_clip");
    let key = dir.path().join("key.pem");
    check_succeeds(epwatch("gate keygen --out").arg(&key));
    let (key, soc) = (key.display(), "--soc SM8650");
    for words in [
        format!("gate FILE {soc}"),
        format!("gate {model} {soc} --policy FILE"),
        format!("gate {model} --runs FILE"),
        format!("gate FILE --runs {GATE}/sequence_in.profile.json"),
        format!("gate {model} {soc} --ep-option op_affinity=FILE"),
        format!("gate {model} {soc} --custom-ops FILE"),
        format!("gate fix FILE {soc}"),
        format!("inspect FILE {soc}"),
        format!("inspect {model} {soc} --manifest FILE"),
        "manifest FILE".to_owned(),
        "logs FILE".to_owned(),
        format!("verify FILE --key {key}.pub"),
        format!("verify {model} --key FILE"),
    ] {
        for (file, what) in [
            (fifo.to_string(), "a FIFO"),
            ("/dev/zero".to_owned(), "a device"),
        ] {
            check_fails(&mut epwatch(&words.replace("FILE", &file)), 2, what);
        }
    }
    for words in [
        format!("gate {model} {soc} --policy {long}"),
        format!("verify {long} --key {key}.pub"),
    ] {
        check_fails(&mut epwatch(&words), 2, "expected at most 1");
    }
}

/// ONNX Runtime would open them, and wait for ever.
#[test]
fn tensors_in_what_is_no_file_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::copy(path("external"), at("m.onnx")).unwrap();
    fs::copy(path("tanh_clip"), at("plain.onnx")).unwrap();
    let made = Command::new("mkfifo").arg(at("w.bin")).status().unwrap();
    assert!(made.success());
    let (model, plain, soc) = (at("m.onnx"), at("plain.onnx"), "--soc SM8650");
    let limits = at("gate.toml");
    fs::write(&limits, "[latency]\nmedian_ms = 60000").unwrap();
    for words in [
        format!("gate {model} {soc}"),
        format!("gate {plain} {soc} --baseline {model}"),
        format!("gate {model} --local --policy {limits}"),
        format!("gate {plain} --local --baseline {model}"),
        format!("gate fix {model} {soc}"),
        format!("inspect {model} {soc}"),
        format!("gate {model} --aihub phone --jobs {}", at("jobs")),
        format!("run {model} --ort {plain} --out {}", at("launches")),
        format!(
            "run {plain} --against {model} --ort {plain} --out {}",
            at("launches")
        ),
    ] {
        check_fails(
            &mut epwatch(&words),
            2,
            "it has its data in w.bin, which is not a plain file",
        );
    }
}

#[test]
fn a_misspelt_op_of_a_policy_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("gate.toml");
    let gate = format!(
        "gate {} --soc SM8650 --policy {}",
        path("custom_op"),
        policy.display()
    );
    fs::write(
        &policy,
        "[placement]\nforbidden_cpu_ops = ['LayerNormalisation']",
    )
    .unwrap();
    check_fails(&mut epwatch(&gate), 2, "did you mean LayerNormalization?");
    fs::write(
        &policy,
        "[chipset.SM8650.placement]\nallowed_cpu_ops = ['Topk']",
    )
    .unwrap();
    let words = "chipset.SM8650.placement.allowed_cpu_ops";
    check_fails(&mut epwatch(&gate), 2, words);
    // The model has this op, so the gate continues until it needs the library.
    fs::write(&policy, "[placement]\nallowed_cpu_ops = ['Foo']").unwrap();
    check_fails(&mut epwatch(&gate), 3, "custom-op library");
}

/// The key of a pipeline may come through a FIFO. If the key is never written, a signal must still end the gate.
#[test]
fn sigterm_ends_a_gate_that_waits_for_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("key");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let words = format!(
        "gate {} --soc SM8650 --out {} --attest {}",
        path("tanh_clip"),
        dir.path().display(),
        fifo.display()
    );
    let mut child = epwatch(&words).stderr(Stdio::null()).spawn().unwrap();
    // This returns once the gate has opened the FIFO and reads.
    let writer = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(writer);
}

/// ONNX Runtime does not load one file of 2 GB, and such a file is still a model.
#[test]
fn a_file_of_two_gigabytes_is_refused_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("big.onnx");
    fs::File::create(&path)
        .unwrap()
        .set_len(2_228_224_116)
        .unwrap();
    let path = path.display();
    for words in [
        format!("manifest {path}"),
        format!("inspect {path} --soc SM8650"),
        format!("gate {path} --soc SM8650"),
        format!("gate fix {path} --soc SM8650"),
        format!(
            "gate {} --soc SM8650 --baseline {path}",
            self::path("enc_scan")
        ),
    ] {
        let (_, error) = check_ends(&mut epwatch(&words), 2);
        assert!(
            error.contains("save the weights as external data"),
            "{words}: {error}"
        );
        assert!(!error.contains("not an ONNX model"), "{words}: {error}");
    }
}
