//! `epwatch gate --local`: launches on this machine, with QNN's emulator as the board.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use epwatch_engines::{Engine, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{EPWATCH, Running, check_fails, check_succeeds, epwatch};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

/// A policy of few and short launches. It has a limit, since nothing else would judge a model on the CPU.
pub(crate) fn policy(folder: &Path, launches: u32) -> String {
    let path = folder.join("gate.toml");
    let text =
        format!("[latency]\nlaunches = {launches}\nruns = 21\nwarmup = 1\nmedian_ms = 60000.0\n");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Returns the document of a gate that measures on this machine, whatever its result.
fn measured(model: &str, words: &str) -> Value {
    measured_file(&format!("{MODELS}/{model}.onnx"), words)
}

/// The same for a model by its path.
pub(crate) fn measured_file(model: &str, words: &str) -> Value {
    let words = format!("gate {model} --local --json {words}");
    let ended = epwatch(&words).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    let code = ended.status.code();
    assert!(matches!(code, Some(0 | 1 | 3)), "{code:?}: {told}");
    let found: Result<Value, _> = serde_json::from_slice(&ended.stdout);
    let found = found.unwrap_or_else(|error| panic!("{model}: {error}: {told}"));
    let expected = match found["result"].as_str().unwrap() {
        "pass" => 0,
        "fail" => 1,
        _ => 3,
    };
    assert_eq!(code, Some(expected), "{found:#}");
    found
}

/// Checks the number of launches that are judged. A pair in which other programs changed the clock is left out, and named.
/// Returns whether one is judged.
pub(crate) fn check_launches(found: &Value, expected: u64) -> bool {
    let target = &found["targets"][0];
    let judged = target["latency"]["launches"].as_u64().unwrap_or(0);
    let mistakes = target["mistakes"].as_array().unwrap();
    let mut pairs: Vec<&str> = mistakes
        .iter()
        .filter(|one| {
            ["throttled", "faster_clock"]
                .iter()
                .any(|id| one["id"] == *id)
        })
        .map(|one| {
            let (file, _) = one["why"].as_str().unwrap().split_once(".json").unwrap();
            &file[file.len() - 3..]
        })
        .collect();
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(judged + pairs.len() as u64, expected, "{found:#}");
    judged > 0
}

pub(crate) fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
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
    // The model runs on this machine's CPU, and two launches are not enough for a decision.
    let found = measured("mixed_v2.head32", &words(1));
    assert_eq!(found["targets"].as_array().unwrap().len(), 1, "{found:#}");
    // No node is expected on an NPU, so that the run times are compared.
    let checks = found["targets"][0]["checks"].as_array().unwrap();
    let ids: Vec<&str> = checks
        .iter()
        .map(|check| check["id"].as_str().unwrap())
        .collect();
    for of_an_npu in [
        "npu_used",
        "npu_macs",
        "partitions",
        "cpu_ops",
        "placement_change",
    ] {
        assert!(!ids.contains(&of_an_npu), "{found:#}");
    }
    let is_compared = |found: &Value| {
        let checks = found["targets"][0]["checks"].as_array().unwrap();
        let mut checks = checks.iter();
        checks.any(|check| check["id"] == "regression" && check["result"] != "skip")
    };
    let is_judged = check_launches(&found, 1);
    assert_eq!(is_compared(&found), is_judged, "{found:#}");
    // Without --baseline, kept launches of a baseline are not judged.
    let alone = format!(
        "--policy {} --keep {}",
        policy(folder.path(), 1),
        keep.display()
    );
    let alone = measured("mixed_v2.head32", &alone);
    assert!(!is_compared(&alone), "{alone:#}");
    let first = fs::read(keep.join("baseline-001.json")).unwrap();
    check_launches(&measured("mixed_v2.head32", &words(2)), 2);
    // Launches beyond the policy's number are kept, and do not count.
    check_launches(&measured("mixed_v2.head32", &words(1)), 1);
    let mut made = files(&keep);
    made.retain(|name| !name.contains(".try-"));
    assert_eq!(
        made,
        [
            "baseline-001.json",
            "baseline-002.json",
            "baseline-look.json",
            "baseline-ort-profile.json",
            "candidate-001.json",
            "candidate-002.json",
            "candidate-look.json",
            "candidate-ort-profile.json",
        ]
    );
    assert_eq!(fs::read(keep.join("baseline-001.json")).unwrap(), first);
    let began = |name: &str| -> i64 {
        let document: Value = serde_json::from_slice(&fs::read(keep.join(name)).unwrap()).unwrap();
        document["started_unix_ms"].as_i64().unwrap()
    };
    // The order of the launches is A B B A.
    assert!(began("candidate-001.json") < began("baseline-001.json"));
    assert!(began("baseline-002.json") < began("candidate-002.json"));
}

/// Neither is judged: a profiler slows runs down, and a compiled graph hides the first start.
#[test]
fn a_profile_and_the_start_from_a_compiled_graph_are_in_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let (keep, policy) = (folder.path().join("launches"), policy(folder.path(), 1));
    let words = format!("--soc SM8635 --policy {policy} --keep {}", keep.display());
    let found = measured("e_mixed.q8head32", &words);
    let target = &found["targets"][1];
    let mut made = files(&keep);
    // A launch is made again if other programs slow it down.
    made.retain(|name| !name.contains(".try-"));
    assert_eq!(
        made,
        [
            "candidate-001.json",
            "candidate-look.json",
            "candidate-ort-profile.json",
            "candidate-qnn-profile.csv",
        ]
    );
    let profile = &target["profile"];
    let names = ["candidate-ort-profile.json", "candidate-qnn-profile.csv"];
    assert_eq!(profile["files"], Value::from(names.to_vec()));
    let nodes = profile["nodes"].as_array().unwrap();
    let share = |node: &Value| node["share"].as_f64().unwrap();
    let all: f64 = nodes.iter().map(share).sum();
    assert!((0.99..1.01).contains(&all), "{profile:#}");
    for ep in ["QNNExecutionProvider", "CPUExecutionProvider"] {
        assert!(nodes.iter().any(|node| node["ep"] == ep), "{profile:#}");
    }
    let load = &target["load"];
    for key in ["cold_ms", "warm_ms"] {
        assert!(load[key].as_f64().unwrap() > 0.0, "{load:#}");
    }
    // Without --keep they are gone when the report is read.
    let soon_gone = measured(
        "e_mixed.q8head32",
        &format!("--soc SM8635 --policy {policy}"),
    );
    let profile = &soon_gone["targets"][1]["profile"];
    assert_eq!(profile["files"], Value::from(Vec::<Value>::new()));
    assert!(!profile["nodes"].as_array().unwrap().is_empty());
    // The profilers' own files are read as such.
    for name in names {
        let path = keep.join(name);
        let model = format!("{MODELS}/e_mixed.q8head32.onnx");
        let words = format!("gate {model} --json --soc SM8635 --median-ms 60000 --runs");
        let ended = epwatch(&words).arg(path).output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_ne!(ended.status.code(), Some(2), "{name}: {told}");
    }
}

/// Otherwise launches of different models would be judged as launches of one.
#[test]
fn a_folder_of_another_model_or_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (keep, policy) = (folder.path().join("launches"), policy(folder.path(), 1));
    let words = format!("--policy {policy} --keep {}", keep.display());
    measured("mixed_v2.head32", &words);
    let gate = |model: &str| epwatch(&format!("gate {MODELS}/{model}.onnx --local {words}"));
    let other = "candidate-look.json was made by another command: it is of another model; give another folder";
    let other = format!("--keep {}: {other}", keep.display());
    check_fails(&mut gate("a_cnn.qu8"), 2, &other);
    // Makes another runtime by content: an additional byte changes nothing else.
    let ort = ensure(Engine::OnnxRuntime).unwrap().ort_library();
    let longer = folder.path().join("libonnxruntime.so");
    let mut bytes = fs::read(&ort).unwrap();
    bytes.push(0);
    fs::write(&longer, bytes).unwrap();
    let runs = folder.path().join("runs.toml");
    let text = "[latency]\nlaunches = 1\nruns = 22\nwarmup = 1\nmedian_ms = 60000.0\n";
    fs::write(&runs, text).unwrap();
    let (longer, runs, at) = (longer.display(), runs.display(), keep.display());
    let look: Value =
        serde_json::from_slice(&fs::read(keep.join("candidate-look.json")).unwrap()).unwrap();
    let version = look["runtime"]["ort"].as_str().unwrap();
    for (words, told) in [
        (
            format!("{words} --inputs zeros"),
            "inputs: noise before, zeros now",
        ),
        (
            format!("{words} --ort {longer}"),
            &format!("ONNX Runtime: {version} before, another file now, {longer}"),
        ),
        (
            format!("--policy {runs} --keep {at}"),
            "timed runs: 21 before, 22 now",
        ),
    ] {
        let model = format!("{MODELS}/mixed_v2.head32.onnx");
        let mut gate = epwatch(&format!("gate {model} --local {words}"));
        check_fails(&mut gate, 2, told);
    }
    // The first one is of the CPU, and has no chipset of its own.
    let keep = folder.path().join("emulated");
    let emulated = |soc: &str| {
        let (model, keep) = ("e_topk.qu8", keep.display());
        epwatch(&format!(
            "gate {MODELS}/{model}.onnx --local --soc {soc} --policy {policy} --keep {keep}"
        ))
    };
    emulated("SM8650").output().unwrap();
    check_fails(
        &mut emulated("SM8635"),
        2,
        "chipset: SM8650 before, SM8635 now",
    );
    let keep = folder.path().join("launches");
    let run = |words: &str| {
        let ort = ensure(Engine::OnnxRuntime).unwrap().ort_library();
        let (ort, out) = (ort.display(), folder.path().join("run"));
        epwatch(&format!(
            "run {MODELS}/d_mlp.fp32.onnx --ort {ort} --launches 1 --runs 21 --out {} {words}",
            out.display()
        ))
    };
    assert!(run("--firmware f1").status().unwrap().success());
    check_fails(&mut run("--firmware f2"), 2, "firmware: f1 before, f2 now");
    let held = fs::File::open(&keep).unwrap();
    held.lock().unwrap();
    check_fails(
        &mut gate("mixed_v2.head32"),
        2,
        &format!("--keep {} is in use by another run", keep.display()),
    );
}

/// A board may have the command under a link.
#[test]
fn a_link_with_the_runners_name_is_the_runner() {
    let folder = tempfile::tempdir().unwrap();
    let runner = folder.path().join("epwatch-run");
    symlink(EPWATCH, &runner).unwrap();
    let ort = ensure(Engine::OnnxRuntime).unwrap().ort_library();
    let mut run = Command::new(runner);
    run.arg(format!("{MODELS}/d_mlp.fp32.onnx"))
        .arg("--ort")
        .arg(ort);
    run.args(["--launches", "1", "--runs", "21", "--out"]);
    check_succeeds(run.arg(folder.path().join("launches")));
}

#[test]
fn what_cannot_be_measured_is_told_before_a_launch() {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 2);
    let model = format!("{MODELS}/a_cnn.qu8.onnx");
    for (words, code, told) in [
        (
            format!("gate {model} --local --soc SM8650,SM8635"),
            2,
            "launches (--local) are of one chipset: give one with --soc",
        ),
        (
            format!("gate {model} {MODELS}/d_mlp.fp32.onnx --aihub phone --jobs jobs"),
            2,
            "launches (--aihub) are of one model: give one MODEL",
        ),
        ("gate --local".to_owned(), 2, "give MODEL"),
        (
            format!("gate {model} --local --policy {policy} --inputs no/such"),
            2,
            "expected noise, zeros, ones, ramp",
        ),
        (
            format!("gate {model} --local --policy {policy} --ort /no/such.so"),
            2,
            "--ort /no/such.so",
        ),
        (
            format!("run {model} --ort {model} --out /dev/null/x"),
            2,
            "--out /dev/null/x: Not a directory",
        ),
        (
            format!("gate {model} --local --policy {policy} --keep /dev/null/x"),
            2,
            "--keep /dev/null/x: Not a directory",
        ),
        (
            format!("gate {model} --ssh board --policy {policy} --keep /dev/null/x --workdir /tmp"),
            2,
            "--keep /dev/null/x: Not a directory",
        ),
        (
            format!("gate {model} --aihub phone --jobs /dev/null/x"),
            2,
            "--jobs /dev/null/x: Not a directory",
        ),
    ] {
        check_fails(&mut epwatch(&words), code, told);
    }
    let words = format!("gate {model} --soc SM8650 --policy {policy}");
    check_fails(
        &mut epwatch(&words),
        2,
        "give --local, --ssh or --adb, or take it out",
    );
    // A limit of the command line is a limit for launches that are made here.
    let limit = "--median-ms 60000";
    let words = format!("gate {model} {limit} --soc SM8650");
    check_fails(
        &mut epwatch(&words),
        2,
        "are limits of launches: give --runs, --local",
    );
    let words = format!("gate {model} {limit} --local --ort /no/such.so");
    check_fails(&mut epwatch(&words), 2, "--ort /no/such.so");
}

/// Minutes of launches, or a farm's jobs, would be for nothing.
#[test]
fn what_could_not_be_judged_or_certified_is_refused_before_a_launch() {
    let folder = tempfile::tempdir().unwrap();
    let model = format!("{MODELS}/a_cnn.qu8.onnx");
    let copy = folder.path().join("copy.onnx");
    fs::copy(&model, &copy).unwrap();
    let (keep, copy) = (folder.path().join("launches"), copy.display());
    let local = format!("gate {model} --local --keep {}", keep.display());
    let certified = "--certify http://127.0.0.1:1 --model-id scene --model-version 3";
    for (words, told) in [
        (
            local.clone(),
            "--local measures on the CPU, where nothing judges the launches: give --baseline",
        ),
        (format!("{local} --baseline {copy}"), "is the same model as"),
        (
            format!(
                "gate {model} --aihub phone --jobs {} --baseline {copy}",
                keep.display()
            ),
            "measure this one in turn with itself by `epwatch gate calibrate`",
        ),
        (
            format!(
                "{local} --soc SM8650 --certify 127.0.0.1:1 --model-id scene --model-version 3"
            ),
            "expected http:// or https:// at its beginning",
        ),
        (
            format!(
                "{local} --soc SM8650 --certify http://127.0.0.1:1 --model-id {} --model-version 3",
                "x".repeat(129)
            ),
            "--model-id and --model-version: ",
        ),
        (
            format!("{local} --soc SM8650 {certified} --ep-version 2.7.0"),
            "--ep-version is of launches on a device",
        ),
        (
            format!("{local} {certified} --ep-version 2.7.0"),
            "--local measures on the CPU: give --qnn-provider",
        ),
    ] {
        check_fails(&mut epwatch(&words), 2, told);
        assert!(!keep.exists(), "{words}");
    }
}

/// A FIFO would wait for ever, and a wrong file would cost all launches.
#[test]
fn strange_files_are_refused_before_a_launch() {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 1);
    let fifo = folder.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let no_model = folder.path().join("no.json");
    fs::write(&no_model, "{}").unwrap();
    let ort = ensure(Engine::OnnxRuntime).unwrap().ort_library();
    let keep = folder.path().join("launches");
    let [fifo, no_model, dir, kept] =
        [&fifo, &no_model, folder.path(), &keep].map(|path| path.display().to_string());
    let (model, ort) = (format!("{MODELS}/a_cnn.qu8.onnx"), ort.display());
    let gate = format!("gate --local --policy {policy} --keep {kept}");
    let run = format!("run --out {kept}");
    let a_fifo = |argument: &str| format!("{argument} {fifo}: it is a FIFO; expected a file");
    let no_file = |argument: &str| format!("{argument} {fifo}: it is not a regular file");
    for (words, told) in [
        (format!("{gate} {fifo}"), a_fifo("MODEL")),
        (
            format!("{gate} {model} --baseline {fifo}"),
            a_fifo("--baseline"),
        ),
        (format!("{gate} {model} --ort {fifo}"), a_fifo("--ort")),
        (
            format!("{gate} {model} --inputs {fifo}"),
            format!("--inputs {fifo}: expected noise"),
        ),
        (
            format!("{gate} {model} --baseline {no_model}"),
            format!("--baseline {no_model}: the file is not a whole ONNX model"),
        ),
        (
            format!("{gate} {model} --baseline {no_model} {fifo}"),
            "give one file as --baseline".to_owned(),
        ),
        (
            format!("gate calibrate {fifo} --local --keep {kept} --out {kept}.json"),
            a_fifo("MODEL"),
        ),
        (
            format!("gate calibrate {model} --local --keep {kept} --out {dir}"),
            "is a folder; expected a file".to_owned(),
        ),
        (format!("{run} {fifo} --ort {ort}"), no_file("MODEL")),
        (
            format!("{run} {model} --against {fifo} --ort {ort}"),
            no_file("--against"),
        ),
        (format!("{run} {model} --ort {fifo}"), no_file("--ort")),
        (
            format!("{run} {model} --ort {ort} --report {dir}"),
            "it is a folder; expected a file".to_owned(),
        ),
    ] {
        check_fails(&mut epwatch(&words), 2, &told);
        let made = keep.exists() && !files(&keep).is_empty();
        assert!(!made, "{words}");
    }
}

/// The launches of the candidate would be made for nothing.
#[test]
fn an_earlier_model_without_a_session_is_told_before_a_timed_launch() {
    let folder = tempfile::tempdir().unwrap();
    let (keep, policy) = (folder.path().join("launches"), policy(folder.path(), 1));
    // The file ends with its opset.
    let old = folder.path().join("old.onnx");
    let mut bytes = fs::read(format!("{MODELS}/d_mlp.fp32.onnx")).unwrap();
    *bytes.last_mut().unwrap() = 99;
    fs::write(&old, bytes).unwrap();
    let words = format!(
        "gate {MODELS}/d_mlp.fp32.onnx --local --policy {policy} --keep {} --baseline {}",
        keep.display(),
        old.display()
    );
    check_fails(
        &mut epwatch(&words),
        2,
        "the model of --baseline is broken: ",
    );
    let made = files(&keep);
    assert!(!made.contains(&"candidate-001.json".to_owned()), "{made:?}");
}

/// An emulator's time to start a session says nothing of a phone.
#[test]
fn an_emulator_keeps_no_limit_of_the_load_time() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("load.toml");
    let text = "[latency]\nlaunches = 1\nruns = 21\nwarmup = 1\n[load]\ncold_ms = 60000\n";
    fs::write(&policy, text).unwrap();
    let words = format!("--soc SM8650 --policy {}", policy.display());
    let found = measured("a_cnn.qu8", &words);
    assert_eq!(found["result"], "undecided", "{found:#}");
    let checks = found["targets"][1]["checks"].as_array().unwrap();
    let load = checks.iter().find(|check| check["id"] == "load").unwrap();
    assert_eq!(load["result"], "undecided", "{found:#}");
}

/// A file's name may begin with a dash, and need not be text.
#[test]
fn strange_names_of_files_are_names() {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 1);
    for (name, keep) in [(&b"-m.onnx"[..], "-1"), (b"caf\xe9 m.onnx", "-2")] {
        let name = OsStr::from_bytes(name);
        let model = format!("{MODELS}/mixed_v2.head32.onnx");
        fs::copy(model, folder.path().join(name)).unwrap();
        let words = format!("gate --local --json --policy {policy} --keep={keep} --");
        let mut gate = epwatch(&words);
        let ended = gate.arg(name).current_dir(folder.path()).output();
        let ended = ended.unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        let found: Result<Value, _> = serde_json::from_slice(&ended.stdout);
        let found = found.unwrap_or_else(|error| panic!("{error}: {told}"));
        assert_eq!(found["targets"][0]["source"], "run", "{told}");
        let launch = folder.path().join(keep).join("candidate-001.json");
        assert!(launch.is_file(), "{told}");
    }
}

/// The path of a removed file is useless in a report.
#[test]
fn a_temporary_folder_is_named_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy(folder.path(), 1);
    for words in ["", "--soc SM8635"] {
        let model = format!("{MODELS}/c_cnn_hardmax.fp32.onnx");
        let words = format!("gate {model} --local --json --policy {policy} {words}");
        let ended = epwatch(&words).output().unwrap();
        let told = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(told[0].contains("candidate-001.json"), "{told:?}");
        assert!(!told.concat().contains("epwatch-run-"), "{told:?}");
    }
}

/// Processes whose command line names this folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&folder)).collect()
}

/// Starts a gate, and returns it with its lines once it has printed `moment`.
pub(crate) fn started(mut gate: Command, moment: &str) -> (Running, Vec<String>) {
    gate.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut gate = Running(gate.spawn().unwrap());
    let mut told = Vec::new();
    let lines = BufReader::new(gate.0.stderr.take().unwrap()).lines();
    for line in lines.map(Result::unwrap) {
        let is_it = line.contains(moment);
        told.push(line);
        if is_it {
            return (gate, told);
        }
    }
    panic!("no line has {moment:?}: {told:#?}")
}

#[track_caller]
pub(crate) fn check_no_process(folder: &Path) {
    let began = Instant::now();
    while !processes_of(folder).is_empty() {
        let left = processes_of(folder);
        assert!(began.elapsed() < Duration::from_secs(300), "{left:#?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// After its gate was killed, nobody could end a remaining runner.
#[test]
fn a_gate_that_is_killed_leaves_no_runner() {
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().join("launches");
    let (policy, keep_shown) = (policy(folder.path(), 150), keep.display());
    let words =
        format!("gate {MODELS}/mixed_v2.head32.onnx --local --policy {policy} --keep {keep_shown}");
    let (mut gate, _) = started(epwatch(&words), "launch 1 of");
    gate.0.kill().unwrap();
    gate.0.wait().unwrap();
    check_no_process(folder.path());
    // Only complete launches have a launch's file name.
    for name in files(&keep)
        .iter()
        .filter(|name| name.starts_with("candidate-"))
    {
        let text = fs::read(keep.join(name)).unwrap();
        if !name.ends_with(".part") {
            serde_json::from_slice::<Value>(&text).unwrap();
        }
    }
}

/// A phone that is short of memory kills a launch: the report names the launch that was made again, and why.
#[test]
fn a_launch_that_is_made_again_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let (keep, policy) = (folder.path().join("launches"), policy(folder.path(), 12));
    let words = format!("--policy {policy} --keep {}", keep.display());
    let gate = epwatch(&format!(
        "gate {MODELS}/mixed_v2.head32.onnx --local {words}"
    ));
    let (mut gate, _) = started(gate, "launch 1 of");
    let began = Instant::now();
    while !is_launch_killed(&keep) {
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "no launch was found"
        );
        assert_eq!(gate.0.try_wait().unwrap(), None, "the gate ended first");
    }
    assert!(gate.0.wait().unwrap().code().is_some());
    let found = measured("mixed_v2.head32", &words);
    let mistakes = found["targets"][0]["mistakes"].as_array().unwrap();
    let text = |field: &Value| field.as_str().unwrap().to_owned();
    let again = |mistake: &&Value| {
        let why = text(&mistake["why"]);
        mistake["id"] == "made_again" && why.contains("candidate-0") && why.contains("SIGKILL")
    };
    assert_eq!(mistakes.iter().filter(again).count(), 1, "{found:#}");
}

/// Kills a process that makes a launch for this folder, if there is one.
fn is_launch_killed(keep: &Path) -> bool {
    let keep = keep.display().to_string();
    let is_of_launch = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("--job") && line.contains(&keep)
    };
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    let Some(launch) = processes.find(is_of_launch) else {
        return false;
    };
    let name = launch.file_name();
    let pid = name
        .to_str()
        .and_then(|name| Pid::from_raw(name.parse().ok()?));
    kill_process(pid.unwrap(), Signal::KILL).is_ok()
}

/// The disk of the kept folder is full after some launches: these are whole, and count once there is space.
#[test]
fn a_full_disk_loses_no_launch() {
    const SCRIPT: &str = "mount -t tmpfs -o size=32k tmpfs \"$0\" || exit 9; \"$@\"; first=$?; \
        mount -o remount,size=16m \"$0\"; \"$@\"; echo \"codes $first $?\"; cd \"$0\" && for file in *; do \
        echo \"$file $(tail -c 1 \"$file\")\"; done";
    let folder = tempfile::tempdir().unwrap();
    let (keep, policy) = (folder.path().join("launches"), policy(folder.path(), 12));
    fs::create_dir(&keep).unwrap();
    let ended = epwatch_runtimes::with_own_mounts()
        .args(["sh", "-c", SCRIPT])
        .arg(&keep)
        .args([
            EPWATCH,
            "gate",
            &format!("{MODELS}/d_mlp.fp32.onnx"),
            "--local",
        ])
        .args(["--policy", &policy, "--keep"])
        .arg(&keep)
        .env_remove("EPWATCH_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let [said, told] = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
    // Other programs can slow two launches down: this alone may fail, or leave the second result undecided.
    let failed: Vec<&str> = said
        .lines()
        .filter(|line| line.trim_start().starts_with("FAIL"))
        .collect();
    let ended: &[&str] = match failed[..] {
        [] => &["codes 3 0\n", "codes 3 3\n"],
        [only] if only.contains(" slow_phases ") => &["codes 3 1\n"],
        _ => panic!("{said}\n{told}"),
    };
    assert!(
        ended.iter().any(|codes| said.contains(codes)),
        "{said}\n{told}"
    );
    assert!(told.contains("No space left on device"), "{told}");
    assert!(told.contains("launch 2 of 12"), "{told}");
    for n in 1..=12 {
        let whole = format!("candidate-{n:03}.json }}\n");
        assert!(said.contains(&whole), "{said}\n{told}");
        // Each was made once.
        let made = format!(": candidate-{n:03}.json\n");
        assert_eq!(told.matches(&made).count(), 1, "{told}");
    }
    assert!(!said.contains("launching"), "{said}");
}

/// Tests Ctrl-C before the look, during it, and between launches.
#[test]
fn ctrl_c_leaves_no_process_and_no_file_that_it_does_not_keep() {
    let folder = tempfile::tempdir().unwrap();
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let policy = policy(folder.path(), 150);
    for launches in [0, 1, 2, 5] {
        let mut gate = epwatch(&format!(
            "gate {MODELS}/mixed_v2.head32.onnx --local --policy {policy}"
        ));
        gate.env("TMPDIR", &temporary);
        let mut gate = match launches {
            0 => Running(gate.stderr(Stdio::null()).spawn().unwrap()),
            n => started(gate, &format!("launch {n} of")).0,
        };
        if launches == 0 {
            let began = Instant::now();
            while files(&temporary).is_empty() {
                assert!(began.elapsed() < Duration::from_secs(300));
                thread::sleep(Duration::from_millis(5));
            }
        }
        let pid = rustix::process::Pid::from_child(&gate.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(gate.0.wait().unwrap().code(), Some(130));
        check_no_process(&temporary);
        assert_eq!(files(&temporary), [""; 0], "after {launches}");
    }
}
