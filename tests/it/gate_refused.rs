//! What launches on this machine are refused for: a broken model, options that do not fit, files that a report would replace.
//! A refusal leaves no folder behind.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use epwatch_engines::{Engine, ensure};
use epwatch_test_support::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    gate_inputs::library_of_ops,
    gate_local::{files, measured_file, policy},
    support::{EPWATCH, Running, check_ends, check_fails, check_succeeds, epwatch},
};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns the runner on this machine's CPU.
fn run(model: &str, out: &Path) -> Command {
    let ort = ensure(Engine::OnnxRuntime).unwrap().ort_library();
    let mut run = epwatch(&format!("run {model} --launches 1 --runs 21 --warmup 1"));
    run.arg("--ort").arg(ort).arg("--out").arg(out);
    run
}

#[test]
fn a_broken_model_is_wrong_use_and_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 1);
    let out = folder.path().join("out");
    for (model, told) in [
        ("gate/broken/cyclic.onnx", "the graph is not acyclic"),
        ("gate/broken/opset99.onnx", "it has opset 99"),
        (
            "gate/broken/data_missing.onnx",
            "tensor w has its data in nowhere.bin",
        ),
        ("README.md", ""),
    ] {
        let path = format!("{FIXTURES}/{model}");
        let name = Path::new(model).file_name().unwrap().to_str().unwrap();
        let told = format!("MODEL {name} is broken: {told}");
        check_fails(&mut run(&path, &out), 2, &told);
        assert!(!out.exists(), "{model}");
        let report = folder.path().join("report.json");
        check_fails(run(&path, &out).arg("--report").arg(&report), 2, &told);
        assert!(!report.exists());
        if model == "README.md" {
            continue;
        }
        let words = format!("gate {path} --local --policy {policy}");
        let mut gate = epwatch(&words);
        gate.arg("--out").arg(&out);
        check_fails(gate.arg("--keep").arg(folder.path().join("keep")), 2, &told);
        assert_eq!(files(folder.path()), ["gate.toml"], "{model}");
    }
    // QNN refuses it first, and then the CPU does.
    let (ort, qnn) = (
        ensure(Engine::OnnxRuntime).unwrap(),
        ensure(Engine::OnnxRuntimeQnn).unwrap(),
    );
    let mut run = epwatch(&format!(
        "run {FIXTURES}/gate/broken/same_names.onnx --soc-model 57 --chipset SM8650"
    ));
    run.arg("--ort").arg(ort.ort_library());
    run.arg("--qnn-provider").arg(qnn.qnn_provider_library());
    run.arg("--qnn-backend").arg(qnn.qnn_htp_library());
    check_fails(
        run.arg("--out").arg(&out),
        2,
        "MODEL same_names.onnx is broken: ",
    );
}

/// The CPU's EP lacks a kernel, and another EP may have it. The report names the request, which was the CPU.
#[test]
fn a_model_without_a_kernel_on_the_cpu_is_no_broken_model() {
    let folder = tempfile::tempdir().unwrap();
    let words = format!("--policy {}", policy(folder.path(), 1));
    let found = measured_file(&format!("{FIXTURES}/gate/no_cpu_kernel.onnx"), &words);
    let target = &found["targets"][0];
    assert_eq!(target["checks"][0]["id"], "session", "{found:#}");
    assert_eq!(target["checks"][0]["result"], "fail", "{found:#}");
    assert_eq!(target["asked_for"][0], "CPUExecutionProvider", "{found:#}");
}

#[test]
fn options_that_do_not_fit_are_refused_before_a_launch() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, keep) = (policy(folder.path(), 1), folder.path().join("keep"));
    let model = format!("{FIXTURES}/models/a_cnn_dynbatch.fp32.onnx");
    for (shape, told) in [("nosuch=1,3,8,8", "nosuch"), ("x=1", "x")] {
        let words = format!("gate {model} --local --policy {policy} --shape {shape}");
        check_fails(epwatch(&words).arg("--keep").arg(&keep), 2, told);
        assert!(!keep.exists(), "{shape}");
    }
    check_fails(
        run(&model, &keep).args(["--dim", "batch=x"]),
        2,
        "expected for example batch=1",
    );
    check_fails(
        run(&model, &keep).args(["--inputs", "no/such"]),
        2,
        "expected noise",
    );
    assert!(!keep.exists());
}

#[test]
fn a_library_of_custom_ops_is_given_once() {
    let folder = tempfile::tempdir().unwrap();
    let library = library_of_ops(folder.path());
    let copy = folder.path().join("libcopy.so");
    fs::copy(&library, &copy).unwrap();
    let policy = policy(folder.path(), 1);
    let model = format!("{FIXTURES}/gate/custom_op.onnx");
    for words in [
        "--soc SM8650".to_owned(),
        format!("--local --policy {policy}"),
    ] {
        let mut gate = epwatch(&format!("gate {model} {words}"));
        gate.arg("--custom-ops")
            .arg(&library)
            .arg("--custom-ops")
            .arg(&copy);
        check_fails(&mut gate, 2, "is the same library as");
    }
}

/// `--markdown model.onnx` is a slip of a shell's completion.
#[test]
fn a_report_never_replaces_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    fs::copy(format!("{FIXTURES}/models/d_mlp.fp32.onnx"), &model).unwrap();
    let (bytes, shown, policy) = (
        fs::read(&model).unwrap(),
        model.display(),
        policy(folder.path(), 1),
    );
    let gate = format!("gate {shown} --soc SM8650");
    for words in [
        format!("{gate} --markdown {shown}"),
        format!("{gate} --comment {shown}"),
        format!("{gate} --junit {shown}"),
        format!("{gate} --sarif {shown}"),
        format!("gate {shown} --local --policy {policy} --report {shown}"),
        format!("gate calibrate {shown} --local --out {shown}"),
        format!("gate trend {FIXTURES} --svg {shown}"),
        format!("manifest {shown} --out {shown}"),
    ] {
        let told = format!("{shown}: it exists, and a report would replace it; give a new file");
        check_fails(&mut epwatch(&words), 2, &told);
        assert_eq!(fs::read(&model).unwrap(), bytes, "{words}");
    }
    check_fails(
        run(&shown.to_string(), &folder.path().join("out"))
            .arg("--report")
            .arg(&model),
        2,
        "it exists",
    );
    // Earlier reports are replaced.
    let report = |name: &str| folder.path().join(name).display().to_string();
    let reports =
        ["markdown", "comment", "junit", "sarif"].map(|name| format!("--{name} {}", report(name)));
    let words = format!("{gate} {} --preset macs-only", reports.join(" "));
    check_succeeds(&mut epwatch(&words));
    check_succeeds(&mut epwatch(&words));
    check_succeeds(&mut epwatch(&format!(
        "{gate} --preset macs-only --junit /dev/stdout"
    )));
}

#[test]
fn reports_of_a_folder_replace_no_file_of_another_tool() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let gate = format!(
        "gate {FIXTURES}/models/d_mlp.fp32.onnx --soc SM8650 --preset macs-only --out {}",
        out.display()
    );
    for name in [
        "gate.json",
        "gate.md",
        "comment.md",
        "gate.xml",
        "gate.sarif",
        "gate.dsse.json",
    ] {
        let file = out.join(name);
        let text = r#"{"schema": "another.gate/1"}"#;
        fs::write(&file, text).unwrap();
        let told = format!(
            "--out {}: it exists, and a report would replace it",
            file.display()
        );
        check_fails(&mut epwatch(&gate), 2, &told);
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        fs::remove_file(&file).unwrap();
    }
    check_succeeds(&mut epwatch(&gate));
    check_succeeds(&mut epwatch(&gate));
}

/// Else minutes of launches would be for nothing.
#[test]
fn reports_that_could_not_be_written_are_refused_before_a_launch() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let gate = format!("gate {FIXTURES}/models/d_mlp.fp32.onnx --soc SM8650");
    let policy = policy(folder.path(), 1);
    for (words, told) in [
        (
            format!("--junit {0} --sarif {0}", at("one")),
            "--junit and --sarif are one file",
        ),
        (
            format!("--out {0} --junit {0}/gate.sarif", at("out")),
            "--out and --junit are one file",
        ),
        (
            format!(
                "--local --policy {policy} --report {0} --sarif {0}.pub",
                at("r.json")
            ),
            "--sarif and --report are one file",
        ),
        (
            "--junit /proc/gate.xml".to_owned(),
            "--junit /proc/gate.xml: no file can be made there",
        ),
        (
            format!("--local --policy {policy} --report /dev/null"),
            "--report /dev/null: its public key is written next to it",
        ),
    ] {
        check_fails(&mut epwatch(&format!("{gate} {words}")), 2, told);
    }
}

/// The launches count, although the report of them is lost.
#[test]
fn a_report_that_cannot_be_written_after_the_launches_leaves_their_result() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, report) = (policy(folder.path(), 6), folder.path().join("report.json"));
    let model = format!("{FIXTURES}/models/d_mlp.fp32.onnx");
    let mut gate = epwatch(&format!("gate {model} --local --policy {policy} --json"));
    gate.arg("--report").arg(&report);
    gate.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut gate = Running(gate.spawn().unwrap());
    let mut told = String::new();
    let lines = BufReader::new(gate.0.stderr.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        told.push_str(&line);
        if line.contains("launch 1 of 6") {
            fs::create_dir(&report).unwrap();
        }
    }
    let found: Value = serde_json::from_reader(gate.0.stdout.take().unwrap()).unwrap();
    assert_eq!(gate.0.wait().unwrap().code(), Some(3), "{told}");
    assert!(told.contains("failed to write the report"), "{told}");
    let judged = found["targets"][0]["runs"].as_array().unwrap();
    assert_eq!(judged.len(), 6, "{found:#}");
    // Without a launch that was throttled, the gate has an answer.
    if found["result"] == "pass" {
        let words = "the gate passed, and its --report was not written";
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn ctrl_c_ends_a_run_with_130() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let ort = ensure(Engine::OnnxRuntime).unwrap().ort_library();
    let mut run = epwatch(&format!(
        "run {FIXTURES}/models/d_mlp.fp32.onnx --launches 150"
    ));
    run.arg("--ort").arg(ort).arg("--out").arg(&out);
    let mut run = Running(run.stderr(Stdio::null()).spawn().unwrap());
    wait_for(|| out.join("candidate-001.json").exists());
    kill_process(Pid::from_child(&run.0), Signal::INT).unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
}

/// Otherwise the launches of a slower model would count as the baseline's, and a red gate would be green. The file is put
/// back, so that its content does not show it.
#[test]
fn a_model_that_is_replaced_between_launches_ends_the_gate() {
    for (replaced, argument) in [("old.onnx", "--baseline"), ("new.onnx", "MODEL")] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::copy(
            format!("{FIXTURES}/models/mixed_v1.int8.onnx"),
            at("old.onnx"),
        )
        .unwrap();
        fs::copy(
            format!("{FIXTURES}/models/mixed_v2.head32.onnx"),
            at("new.onnx"),
        )
        .unwrap();
        fs::copy(
            format!("{FIXTURES}/models/a_cnn.qu8.onnx"),
            at("other.onnx"),
        )
        .unwrap();
        let policy = policy(folder.path(), 6);
        let mut gate = epwatch(&format!(
            "gate new.onnx --local --baseline old.onnx --policy {policy}"
        ));
        gate.current_dir(folder.path()).stdout(Stdio::null());
        let mut running = Running(gate.stderr(Stdio::piped()).spawn().unwrap());
        let mut told = String::new();
        let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
        for line in lines.by_ref().map_while(Result::ok) {
            told.push_str(&line);
            if line.contains("launch 1 of 12") {
                fs::rename(at(replaced), at("aside.onnx")).unwrap();
                fs::rename(at("other.onnx"), at(replaced)).unwrap();
                fs::rename(at("aside.onnx"), at(replaced)).unwrap();
            }
        }
        assert_eq!(running.0.wait().unwrap().code(), Some(2), "{told}");
        let words =
            format!("{replaced} of {argument} was changed or replaced while launches were made");
        assert!(told.contains(&words), "{told}");
    }
}

/// As its models are.
#[test]
fn the_inputs_of_a_policy_are_relative_to_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("gate.toml");
    fs::write(
        &policy,
        "[latency]\nmedian_ms = 60000\n[outputs]\ngolden = 'inputs'",
    )
    .unwrap();
    let model = format!("{FIXTURES}/models/d_mlp.fp32.onnx");
    let mut gate = epwatch(&format!(
        "gate {model} --local --policy {}",
        policy.display()
    ));
    let told = format!(
        "--inputs {}: expected noise",
        folder.path().join("inputs").display()
    );
    check_fails(&mut gate, 2, &told);
}

/// Nothing says that the folder was made for nothing.
#[test]
fn ctrl_c_leaves_no_empty_folder_of_reports() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, out) = (policy(folder.path(), 150), folder.path().join("out"));
    let words = format!("gate {FIXTURES}/models/mixed_v2.head32.onnx --local --policy {policy}");
    let mut gate = epwatch(&words);
    gate.arg("--out")
        .arg(&out)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut gate = Running(gate.spawn().unwrap());
    wait_for(|| out.exists());
    kill_process(Pid::from_child(&gate.0), Signal::INT).unwrap();
    assert_eq!(gate.0.wait().unwrap().code(), Some(130));
    assert!(!out.exists());
}

/// In Hugging Face's cache a model and its data are links into another folder, where they have other names.
#[test]
fn a_model_that_is_a_link_has_its_data_next_to_the_link() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("blobs")).unwrap();
    for (name, blob) in [
        ("forms_outside.fp32.onnx", "blobs/1"),
        ("forms_outside.fp32.data", "blobs/2"),
    ] {
        fs::copy(format!("{FIXTURES}/models/{name}"), at(blob)).unwrap();
        symlink(blob, at(name)).unwrap();
    }
    let out = at("launches");
    check_succeeds(&mut run(
        &at("forms_outside.fp32.onnx").display().to_string(),
        &out,
    ));
    let launch = read(&out.join("candidate-001.json"));
    assert!(
        !launch["runs_us"].as_array().unwrap().is_empty(),
        "{launch:#}"
    );
    assert!(
        launch["model"]["data"]["forms_outside.fp32.data"].is_string(),
        "{launch:#}"
    );
}

/// As `--qnn-backend libQnnHtp.so` in the folder of the libraries.
#[test]
fn libraries_of_qnn_may_be_bare_names() {
    let folder = tempfile::tempdir().unwrap();
    let qnn = ensure(Engine::OnnxRuntimeQnn).unwrap();
    let [provider, backend] = [qnn.qnn_provider_library(), qnn.qnn_htp_library()];
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(provider.parent(), backend.parent());
    let ort = ensure(Engine::OnnxRuntime).unwrap().ort_library();
    let words = format!(
        "gate {FIXTURES}/models/e_topk.qu8.onnx --local --json --policy {} --ort {} --qnn-provider {} --qnn-backend {}",
        policy(folder.path(), 1),
        ort.display(),
        name(&provider),
        name(&backend)
    );
    let mut gate = epwatch(&words);
    gate.current_dir(provider.parent().unwrap());
    let ended = gate.output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    let found: Value =
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    let eps = &found["targets"][0]["placement"]["eps"];
    assert!(eps["QNNExecutionProvider"].is_object(), "{found:#}: {told}");
}

#[test]
fn macs_may_come_through_a_pipe_and_are_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("launches");
    let [model, macs] =
        ["onnx", "macs.json"].map(|end| format!("{FIXTURES}/models/mixed_v2.head32.{end}"));
    let piped = run(&model, &out);
    let mut shell = Command::new("sh");
    shell
        .args([
            "-c",
            "cat \"$0\" | \"$@\" --manifest /dev/stdin",
            &macs,
            EPWATCH,
        ])
        .args(piped.get_args());
    check_succeeds(&mut shell);
    let look = read(&out.join("candidate-look.json"));
    let share = &look["placement"]["eps"]["CPUExecutionProvider"]["macs_share"];
    assert_eq!(share.as_f64(), Some(1.0), "{look:#}");
    let other = format!("{FIXTURES}/models/cnn.qu8.macs.json");
    let mut wrong = run(&model, &folder.path().join("other"));
    check_fails(
        wrong.args(["--manifest", &other]),
        2,
        "it is of another model, with the SHA-256 ",
    );
    let (_, told) = check_ends(
        run(&model, &folder.path().join("other")).args(["--manifest", "/dev/null"]),
        2,
    );
    assert!(told.contains("it is not a regular file"), "{told}");
}
