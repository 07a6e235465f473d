//! `epwatch gate --local` if a launch cannot be made: a crash, inputs that are not tensors, an old runtime, half a look.

use std::{fs, path::Path, process::Command};

use epwatch_engines::{Engine, ensure};
use serde_json::Value;

use crate::{
    gate_inputs::library_of_ops,
    gate_local::{check_no_process, measured_file, policy},
    support::{check_ends, check_fails, check_succeeds, epwatch},
};

/// Keeps an op on the CPU, because QNN crashes on it.
const AFFINITY: &str = r#"{"op_type":{"STFT":"cpu"}}"#;
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The model has no session in the app either, so the gate fails, as it does without launches.
#[test]
fn a_crash_of_qnn_fails_the_gate_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let model = format!("{FIXTURES}/gate/crash_stft.onnx");
    let policy = policy(folder.path(), 1);
    let words = format!("gate {model} --local --soc SM8650 --policy {policy}");
    let (table, told) = check_ends(&mut epwatch(&words), 1);
    let why = "QNN crashed (SIGSEGV) while it made the session or ran the model";
    assert!(table.contains(why), "{table}");
    let launch = "SIGSEGV ended the placement's launch of the candidate (crash_stft.onnx)";
    assert!(told.contains(launch), "{told}");
    // The other row names the node, and how to keep it off the NPU.
    assert_eq!(table.matches("Replace STFT").count(), 1, "{table}");
    assert!(
        !table.contains("makes the session on an emulator"),
        "{table}"
    );
    // A reader can tell the row with launches from the other one.
    for row in ["SM8650  ", "SM8650, launches  "] {
        assert!(table.lines().any(|line| line.starts_with(row)), "{table}");
    }
    let (ort, qnn) = (
        ensure(Engine::OnnxRuntime).unwrap(),
        ensure(Engine::OnnxRuntimeQnn).unwrap(),
    );
    let report = folder.path().join("report.json");
    let mut run = epwatch(&format!("run {model} --soc-model 57 --chipset SM8650"));
    run.arg("--ort").arg(ort.ort_library());
    run.arg("--qnn-provider").arg(qnn.qnn_provider_library());
    run.arg("--qnn-backend").arg(qnn.qnn_htp_library());
    run.arg("--out").arg(folder.path().join("launches"));
    check_succeeds(run.arg("--report").arg(&report));
    let mut verify = epwatch("verify");
    verify.arg(&report).arg("--key");
    verify.arg(folder.path().join("report.json.pub"));
    let (printed, _) = check_ends(&mut verify, 0);
    let seen: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(seen["models"][0]["session"], "failed", "{seen:#}");
}

#[test]
fn inputs_that_a_launch_cannot_have_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 1);
    for (model, told) in [
        (
            "sequence_in",
            "input s is a sequence, and a launch takes tensors only",
        ),
        (
            "optional_in",
            "input o is optional, and a launch takes tensors only",
        ),
        (
            "empty_cache",
            "input past has the shape [1,4,0,16], so that it has no elements",
        ),
    ] {
        let out = folder.path().join(model);
        let words = format!("gate {FIXTURES}/gate/{model}.onnx --local --policy {policy}");
        check_fails(epwatch(&words).arg("--out").arg(&out), 3, told);
        check_reports(&out, told);
        // The emulator answers without a launch: this NPU has no FP16 for the model's products.
        let found = measured_file(
            &format!("{FIXTURES}/gate/{model}.onnx"),
            &format!("--soc SM8635 --policy {policy}"),
        );
        assert_eq!(
            found["targets"][0]["checks"][1]["result"], "fail",
            "{found:#}"
        );
        let session = &found["targets"][1]["checks"][0];
        assert_eq!(session["id"], "session", "{found:#}");
        assert_eq!(session["result"], "undecided", "{found:#}");
        assert!(session["why"].as_str().unwrap().contains(told), "{found:#}");
    }
}

/// Checks that each report of `--out` has this sentence.
fn check_reports(out: &Path, sentence: &str) {
    for report in [
        "gate.json",
        "gate.md",
        "comment.md",
        "gate.xml",
        "gate.sarif",
    ] {
        let text = fs::read_to_string(out.join(report)).unwrap();
        // Markdown escapes brackets.
        assert!(
            text.replace('\\', "").contains(sentence),
            "{report}: {text}"
        );
    }
}

/// A pipeline shows the reports, and nobody reads the log of a gate that could not find out.
#[test]
fn a_gate_without_an_answer_writes_its_reports() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    // A library, and not ONNX Runtime.
    let other = library_of_ops(folder.path());
    let (policy, out, keep) = (policy(folder.path(), 1), at("out"), at("launches"));
    let model = format!("{FIXTURES}/models/a_cnn.qu8.onnx");
    let words = format!(
        "gate {model} --local --policy {policy} --out {out} --keep {keep} --ort {}",
        other.display()
    );
    let told = "failed to load ONNX Runtime";
    let (_, stderr) = check_ends(&mut epwatch(&words), 3);
    assert!(stderr.contains(told), "{stderr}");
    check_reports(Path::new(&out), told);
    // No launch was made, so the same command would make none either.
    assert!(!stderr.contains("goes on"), "{stderr}");
    let found = read(&Path::new(&out).join("gate.json"));
    assert_eq!(found["targets"][0]["model"]["path"], model, "{found:#}");
}

/// A library of custom ops that starts a process of its own, and then never returns.
const HANGING: &str = r#"
    #include <unistd.h>
    __attribute__((constructor)) static void hang(void) {
        fork();
        for (;;) pause();
    }
"#;

/// Builds a library of custom ops from C.
fn library(folder: &Path, source: &str) -> String {
    let (code, library) = (folder.join("ops.c"), folder.join("libops.so"));
    fs::write(&code, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]);
    check_succeeds(cc.arg(&library).arg(code));
    library.display().to_string()
}

/// The runtime is not to blame alone.
#[test]
fn a_crash_names_the_library_of_custom_ops_too() {
    let folder = tempfile::tempdir().unwrap();
    // A raised signal would pass: Rust's own handler takes the first one.
    let crashing =
        "__attribute__((constructor)) static void crash(void) { *(volatile int *)8 = 1; }";
    let (library, policy) = (library(folder.path(), crashing), policy(folder.path(), 1));
    let model = format!("{FIXTURES}/gate/custom_op.onnx");
    let words = format!("gate {model} --local --policy {policy} --custom-ops {library}");
    let told = "ONNX Runtime, or libops.so of --custom-ops, crashed";
    check_fails(&mut epwatch(&words), 1, told);
}

/// The option --baseline is not one of this command.
#[test]
fn a_calibration_of_a_model_without_a_launch_names_the_model() {
    let model = format!("{FIXTURES}/gate/sequence_in.onnx");
    let mut calibrate = epwatch(&format!("gate calibrate {model} --local"));
    let (_, told) = check_ends(&mut calibrate, 2);
    assert!(
        told.contains("MODEL has no answer here: input s is a sequence"),
        "{told}"
    );
    assert!(!told.contains("--baseline"), "{told}");
}

#[test]
fn a_library_that_hangs_ends_the_launch_at_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let library = library(folder.path(), HANGING);
    let (policy, out) = (policy(folder.path(), 1), at("out"));
    let keep = at("launches").display().to_string();
    let model = format!("{FIXTURES}/gate/custom_op.onnx");
    let words = format!(
        "gate {model} --local --policy {policy} --keep {keep} --custom-ops {library} --launch-timeout 1500ms"
    );
    let told = "the placement's launch of the candidate (custom_op.onnx) did not end within 1500ms, and was ended";
    check_fails(epwatch(&words).arg("--out").arg(&out), 3, told);
    check_reports(&out, told);
    check_no_process(folder.path());
    for command in [
        format!("gate {model} --local"),
        format!("run {model} --ort {library} --out {keep}"),
    ] {
        let mut command = epwatch(&format!("{command} --launch-timeout 500ms"));
        check_fails(&mut command, 2, "expected a second or more");
    }
}

#[test]
fn launches_have_the_apps_custom_ops_as_the_emulator_has() {
    let folder = tempfile::tempdir().unwrap();
    let library = library_of_ops(folder.path());
    let (model, policy) = (
        format!("{FIXTURES}/gate/custom_op.onnx"),
        folder.path().join("gate.toml"),
    );
    let limits = "[latency]\nlaunches = 1\nruns = 21\nwarmup = 1\n[placement]\nmin_npu_macs = 0\nallowed_cpu_ops = ['Foo']";
    fs::write(&policy, limits).unwrap();
    let policy = policy.display();
    let words = format!("--soc SM8650 --policy {policy}");
    let needs = measured_file(&model, &words);
    for target in needs["targets"].as_array().unwrap() {
        let session = &target["checks"][0];
        assert_eq!(session["result"], "undecided", "{needs:#}");
        let why = session["why"].as_str().unwrap();
        let told = "the model needs a custom-op library, for my.domain:Foo; give the app's with --custom-ops LIB";
        assert!(why.contains(told), "{why}");
    }
    let library = library.display();
    let found = measured_file(&model, &format!("{words} --custom-ops {library}"));
    let [emulated, launched] = &found["targets"].as_array().unwrap()[..] else {
        panic!("{found:#}");
    };
    assert!(emulated["placement"].is_object(), "{found:#}");
    assert_eq!(emulated["placement"], launched["placement"], "{found:#}");
    assert_eq!(launched["latency"]["launches"], 1, "{found:#}");
    // What the library lacks is the same sentence in both.
    let lacking =
        format!("gate {model} --local {words} --custom-ops {FIXTURES}/gate/external.onnx");
    check_fails(&mut epwatch(&lacking), 2, "RegisterCustomOps");
    let farm = format!("gate {model} --aihub phone --jobs jobs --custom-ops {library}");
    check_fails(&mut epwatch(&farm), 2, "--custom-ops does not reach AI Hub");
    let files = format!("gate {model} --runs x.json --custom-ops {library}");
    check_fails(&mut epwatch(&files), 2, "of sessions that are made here");
}

/// Nothing of this is a fault of the device.
#[test]
fn inputs_that_do_not_fit_are_wrong_use() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, inputs) = (policy(folder.path(), 1), folder.path().join("inputs"));
    let model = format!("{FIXTURES}/models/d_mlp.fp32.onnx");
    fs::create_dir(&inputs).unwrap();
    let check = |bytes: &[u8], told: &str| {
        fs::write(inputs.join("input_0.pb"), bytes).unwrap();
        let mut gate = epwatch(&format!("gate {model} --local --policy {policy}"));
        check_fails(gate.arg("--inputs").arg(&inputs), 2, told);
    };
    check(b"no tensor", "input_0.pb");
    // A TensorProto of one float: dims, data_type, name, raw_data.
    let tensor = |name: &str| {
        let mut bytes = vec![8, 1, 16, 1, 0x42, u8::try_from(name.len()).unwrap()];
        bytes.extend(name.bytes());
        bytes.extend([0x4a, 4, 0, 0, 0, 0]);
        bytes
    };
    check(&tensor("other"), "no tensor for the model's input x");
    check(&tensor("x"), "do not fit the model");
}

/// Six launches before and six after would look like a change of the device.
#[test]
fn launches_without_their_turn_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().join("launches").display().to_string();
    let [new, old] =
        ["mixed_v2.head32", "mixed_v1.int8"].map(|model| format!("{FIXTURES}/models/{model}.onnx"));
    let words = format!("--policy {} --keep {keep}", policy(folder.path(), 2));
    measured_file(&new, &words);
    let told = format!(
        "--keep {keep}: candidate-002.json is there, and baseline-001.json, which is measured before it, is not; \
         give another folder"
    );
    let words = format!("gate {new} --local --baseline {old} {words}");
    check_fails(&mut epwatch(&words), 2, &told);
}

/// `ort` gives each session a policy for its EP, for which this runtime aborts the process.
#[test]
fn a_runtime_that_is_too_old_is_named_with_the_least_version() {
    if !epwatch_runtimes::is_nightly("launches with ONNX Runtime 1.22.1") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (policy, old) = (
        policy(folder.path(), 1),
        epwatch_runtimes::onnxruntime("1.22.1"),
    );
    let model = format!("{FIXTURES}/models/mixed_v2.head32.onnx");
    let mut gate = epwatch(&format!("gate {model} --local --policy {policy}"));
    let told = "ONNX Runtime 1.22.1 is too old for launches; give 1.23 or later";
    check_fails(gate.arg("--ort").arg(&old), 2, told);
}

/// A full disk may leave a look without its profile. The next call adds it.
#[test]
fn a_look_without_a_profile_gets_one_in_the_next_call() {
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().join("launches");
    let words = format!(
        "--policy {} --keep {}",
        policy(folder.path(), 1),
        keep.display()
    );
    let model = format!("{FIXTURES}/models/mixed_v2.head32.onnx");
    measured_file(&model, &words);
    let (look, profile) = (
        keep.join("candidate-look.json"),
        keep.join("candidate-ort-profile.json"),
    );
    let whole = read(&look);
    let mut without = whole.clone();
    assert!(without.as_object_mut().unwrap().remove("profile").is_some());
    fs::write(&look, without.to_string()).unwrap();
    fs::remove_file(&profile).unwrap();
    let made = keep.join("candidate-001.json");
    let launch = fs::read(&made).unwrap();
    measured_file(&model, &words);
    let again = read(&look);
    assert_eq!(again["profile"]["files"], whole["profile"]["files"]);
    assert!(profile.is_file());
    // Nothing else was made again.
    assert_eq!(again["started_unix_ms"], whole["started_unix_ms"]);
    assert_eq!(fs::read(&made).unwrap(), launch);
    // The disk was full for the launch, too: the report has the profile all the same.
    let mut without = read(&made);
    assert!(without.as_object_mut().unwrap().remove("profile").is_some());
    fs::write(&made, without.to_string()).unwrap();
    let found = measured_file(&model, &words);
    assert!(found["targets"][0]["profile"].is_object(), "{found:#}");
    let now = read(&made);
    assert_eq!(now["runs_us"], without["runs_us"]);
    assert_eq!(
        now["placement"], without["placement"],
        "as the gate completed it"
    );
}

/// Otherwise launches of other weights, or with other nodes on the CPU, would be judged as launches of this model.
#[test]
fn a_folder_of_other_data_or_another_affinity_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["forms_outside.fp32.onnx", "forms_outside.fp32.data"] {
        fs::copy(format!("{FIXTURES}/models/{name}"), at(name)).unwrap();
    }
    let policy = policy(folder.path(), 1);
    let gate = |words: &str| {
        let mut gate = epwatch(&format!("gate --local --policy {policy} {words}"));
        gate.current_dir(folder.path());
        gate
    };
    let outside = "forms_outside.fp32.onnx --keep outside";
    check_succeeds(&mut gate(outside));
    let data = at("forms_outside.fp32.data");
    let mut bytes = fs::read(&data).unwrap();
    bytes[0] ^= 1;
    fs::write(&data, bytes).unwrap();
    check_fails(&mut gate(outside), 2, "the model's data: ");
    // QNN reads the file, whose path is relative to the folder of the caller.
    let crashing = format!("{FIXTURES}/gate/crash_stft.onnx");
    let words =
        format!("{crashing} --soc SM8650 --ep-option op_affinity=aff.json --keep affinity --json");
    fs::write(at("aff.json"), AFFINITY).unwrap();
    let ended = gate(&words).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    let found: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let [seen, launched] = &found["targets"].as_array().unwrap()[..] else {
        panic!("{found:#}: {told}");
    };
    assert_eq!(seen["placement"], launched["placement"], "{told}");
    assert!(seen["placement"].is_object(), "{found:#}");
    fs::write(at("aff.json"), format!("{AFFINITY} ")).unwrap();
    check_fails(&mut gate(&words), 2, "op_affinity's file: ");
}
