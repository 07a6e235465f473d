//! Programs in C and C++, compiled with warnings as errors, under AddressSanitizer and UBSan, with the real ONNX
//! Runtime and QNN's emulator. The library itself is not instrumented; its allocations are.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use epwatch_engines::{Engine, for_tests};
use epwatch_proto::{Phase, Report};
use epwatch_runtimes::is_nightly;
use epwatch_strict_collector::{Answer, Collector};
use serde_json::{Value, json};

use crate::{guide::Guide, operator};

pub(crate) const KEY: &str = "demo-key";
const SANITIZED: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

pub(crate) fn crate_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The folder of the test's executable, where cargo puts the library.
pub(crate) fn library_folder() -> PathBuf {
    let folder = env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(folder.join("libepwatch.so").exists(), "{folder:?}");
    folder
}

/// Compiles one source file, and returns the program.
fn compiled(compiler: &str, standard: &str, source: &str, flags: &[&str], into: &Path) -> PathBuf {
    let program = into.join("program");
    let folder = library_folder();
    let built = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-o"])
        .args([&program, &crate_file(source)])
        .arg("-I")
        .arg(crate_file("include"))
        .args(flags)
        .arg("-L")
        .arg(&folder)
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .args(["-lepwatch", "-ldl", "-lpthread"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{source}: {said}");
    program
}

/// Runs a program to its end, and returns its output.
fn run<I: IntoIterator<Item: AsRef<OsStr>>>(program: &Path, args: I) -> String {
    let ran = Command::new(program)
        .args(args)
        // The plugin and ONNX Runtime keep memory of their own to the end.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success(),
        "{program:?}: {:?}\n{said}",
        ran.status
    );
    assert!(
        !said.contains("Sanitizer") && !said.contains("epw_"),
        "{said}"
    );
    String::from_utf8(ran.stdout).unwrap()
}

pub(crate) fn n_runs(reports: &[Report]) -> u64 {
    reports.iter().flat_map(|r| &r.series).map(|s| s.n).sum()
}

pub(crate) struct App {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl App {
    pub(crate) fn compiled() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = compiled("cc", "-std=c11", "examples/app.c", SANITIZED, folder.path());
        Self { program, folder }
    }

    /// Runs the example, and returns the explanation of its session and the reports that arrived.
    pub(crate) fn run(
        &self,
        library: &Path,
        model: &str,
        soc_model: Option<&str>,
    ) -> (Value, Vec<Report>) {
        let (printed, reports) = self.printed(library, model, soc_model, None);
        // QNN prints lines of its own.
        let explained = printed.lines().find(|line| line.starts_with('{')).unwrap();
        (serde_json::from_str(explained).unwrap(), reports)
    }

    /// Does the same as [`Self::run`], and returns everything that the example prints. With a side-car the example
    /// prints more.
    pub(crate) fn printed(
        &self,
        library: &Path,
        model: &str,
        soc_model: Option<&str>,
        side_car: Option<&str>,
    ) -> (String, Vec<Report>) {
        let collector = Collector::start(KEY);
        let models = crate_file("../../tests/fixtures/models");
        let (model, side_car) = (models.join(model), side_car.map(|name| models.join(name)));
        let (data, endpoint) = (self.folder.path().join("data"), collector.endpoint());
        let mut args: Vec<&OsStr> = vec![library.as_ref(), model.as_ref()];
        args.extend([data.as_ref(), OsStr::new(&endpoint)]);
        let qnn = for_tests(Engine::OnnxRuntimeQnn);
        let (plugin, backend) = (qnn.qnn_provider_library(), qnn.qnn_htp_library());
        if let Some(soc_model) = soc_model {
            args.extend([plugin.as_ref(), backend.as_ref(), OsStr::new(soc_model)]);
        }
        args.extend(side_car.as_deref().map(Path::as_os_str));
        (run(&self.program, args), collector.reports())
    }
}

pub(crate) fn newest() -> PathBuf {
    for_tests(Engine::OnnxRuntime).ort_library()
}

#[test]
fn a_c_app_gets_its_placement_and_its_runs_arrive() {
    let app = App::compiled();
    let of_soc = |soc_model: &str, on_npu: u64| {
        let (session, reports) = app.run(&newest(), "mixed_v2.head32.onnx", Some(soc_model));
        assert_eq!(session["source"], "assignment_api");
        assert_eq!(session["eps"]["QNNExecutionProvider"]["nodes"], on_npu);
        assert_eq!(session["eps"]["CPUExecutionProvider"]["nodes"], 31 - on_npu);
        // Three cold runs, the other runs, and the error.
        assert_eq!(n_runs(&reports), 20);
        let cold = reports.iter().flat_map(|r| &r.series);
        let cold = cold.filter(|s| s.stratum.phase == Phase::Cold);
        assert_eq!(cold.map(|s| s.n).sum::<u64>(), 3);
        assert_eq!(reports[0].run_errors[0].ort_status_code, 2);
        assert_eq!(reports[0].sdk.language, "c");
        assert_eq!(reports[0].device.chipset.as_str(), "SM8650");
        let described = &reports[0].sessions[0];
        assert!(described.creation_us.is_some());
        assert_eq!(described.options.soc_model, soc_model);
        let fingerprint = described.placement.normalised.unwrap().to_string();
        assert_eq!(session["fingerprint_normalised"], fingerprint);
        fingerprint
    };
    assert_ne!(of_soc("57", 30), of_soc("68", 25));
}

/// Regression test: C programs had no MACs, no reasons from the validator, and no self-test.
#[test]
fn a_c_app_has_macs_reasons_of_refusals_and_a_self_test() {
    let app = App::compiled();
    let (model, side_car) = ("mixed_v2.head32.onnx", "mixed_v2.head32.macs.json");
    let (printed, reports) = app.printed(&newest(), model, Some("68"), Some(side_car));
    let explained = printed.lines().find(|line| line.starts_with('{')).unwrap();
    let session: Value = serde_json::from_str(explained).unwrap();
    let share = |ep: &str| session["eps"][ep]["macs_share"].as_f64().unwrap();
    // The head's two Gemm of the side-car's 193,280.
    let of_head = 50_432.0 / 193_280.0;
    assert!(
        (share("CPUExecutionProvider") - of_head).abs() < 1e-9,
        "{session}"
    );
    assert!((share("QNNExecutionProvider") - (1.0 - of_head)).abs() < 1e-9);
    let mut on_cpu = session["cpu_nodes"].as_array().unwrap().iter();
    let gemm = on_cpu.find(|node| node["op_type"] == "Gemm").unwrap();
    assert_eq!(gemm["reason"], "fp16_not_supported", "{session}");
    assert!(
        !gemm["reason_text"].as_str().unwrap().is_empty(),
        "{session}"
    );
    // The session's own log is unchanged: its runs do not write into the captured log.
    let tests: Vec<_> = reports
        .iter()
        .flat_map(|report| &report.self_tests)
        .collect();
    let [test] = tests[..] else {
        panic!("{tests:?}")
    };
    assert_eq!((test.input_id.as_str(), test.error_code), ("ramp-1", 0));
    assert!(test.npu_output_hash.is_some() && test.cpu_output_hash.is_some());
    let lines: Vec<_> = printed
        .lines()
        .filter(|line| line.starts_with("self_test "))
        .collect();
    let [first, "self_test none"] = lines[..] else {
        panic!("{printed}")
    };
    let numbers: Vec<f64> = first
        .split(' ')
        .skip(1)
        .map(|n| n.parse().unwrap())
        .collect();
    let (max_abs, cosine) = (test.max_abs.unwrap(), test.cosine.unwrap());
    assert!((numbers[0] - max_abs).abs() <= 1e-6 * max_abs, "{printed}");
    assert!(
        (numbers[1] - cosine).abs() < 1e-6 && cosine > 0.9,
        "{printed}"
    );
    assert_eq!(
        numbers[2..],
        [f64::from(u8::from(test.top1_equal.unwrap())), 0.0]
    );
    // A second process knows that the self-test already ran.
    let (printed, reports) = app.printed(&newest(), model, Some("68"), Some(side_car));
    assert_eq!(printed.matches("self_test none").count(), 2, "{printed}");
    assert!(reports.iter().all(|report| report.self_tests.is_empty()));
}

#[test]
fn an_older_onnx_runtime_is_measured_without_placement() {
    if !is_nightly("the C example with ONNX Runtime 1.22.1") {
        return;
    }
    let app = App::compiled();
    let old = epwatch_runtimes::onnxruntime("1.22.1");
    let collector = Collector::start(KEY);
    let model = crate_file("../../tests/fixtures/models/cnn.qu8.onnx");
    let ran = Command::new(&app.program)
        .args([&old, &model, &app.folder.path().join("data")])
        .arg(collector.endpoint())
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        said.contains("epw_prepare_options: 31, ") && said.contains("1.22.1"),
        "{said}"
    );
    let session: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(session["source"], "unavailable");
    assert_eq!(session["reasons"][0]["code"], "assignment_api_unavailable");
    assert_eq!(n_runs(&collector.reports()), 20);
}

#[test]
fn a_cpp_app_sends_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(
        "c++",
        "-std=c++17",
        "examples/app.cpp",
        SANITIZED,
        folder.path(),
    );
    let printed = run(&program, [folder.path().join("data")]);
    assert!(
        printed.starts_with("POST /epwatch.v1.CollectorService/Upload "),
        "{printed}"
    );
    assert_eq!(printed.lines().count(), 1, "{printed}");
}

#[test]
fn wrong_use_has_a_status_and_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(
        "cc",
        "-std=c11",
        "tests/it/abuse.c",
        SANITIZED,
        folder.path(),
    );
    let collector = Collector::start(KEY);
    let args = [folder.path().join("data"), collector.endpoint().into()];
    assert_eq!(run(&program, args), "all refused\n");
    // Runs of 8 threads, and runs of the session that was closed meanwhile. Contended runs are counted as dropped.
    let reports = collector.reports();
    let last = reports.last().unwrap();
    let labels = &last.app.rollout_labels;
    assert_eq!(labels[..], [("ring".to_owned(), "canary".to_owned())]);
    let dropped: u64 = last.health.dropped.values().map(|d| d.runs).sum();
    assert_eq!(n_runs(&reports), last.health.runs_recorded);
    assert!(n_runs(&reports) + dropped >= 200_002, "{dropped}");
}

/// Regression test: a program that was linked by the library's path asked the loader for that path.
#[test]
fn a_program_asks_for_the_library_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let source = folder.path().join("version.c");
    let text = "#include \"epwatch.h\"\nint main(void) { return epw_version() != EPW_VERSION; }\n";
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Wpadded", "-Werror", "-o"])
        .args([&program, &source])
        .arg("-I")
        .arg(crate_file("include"))
        .arg(library_folder().join("libepwatch.so"))
        .output()
        .unwrap();
    // -Wpadded: a new field that fills padding keeps sizeof, so the size could not show that a caller is older.
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    let needed = std::fs::read(&program).unwrap();
    let has = |text: &[u8]| needed.windows(text.len()).any(|part| part == text);
    assert!(has(b"\0libepwatch.so\0"));
    assert!(!has(b"/libepwatch.so\0"));
    let ran = Command::new(&program)
        .env("LD_LIBRARY_PATH", library_folder())
        .status()
        .unwrap();
    assert!(ran.success());
}

/// Bindings for Python, Node and C# return a list of nodes and EPs, and no pointer.
#[test]
fn a_placement_that_the_host_has_read_is_summarised_as_one_read_here() {
    let folder = tempfile::tempdir().unwrap();
    let source = "tests/it/assignment.c";
    let program = compiled("cc", "-std=c11", source, SANITIZED, folder.path());
    let printed = run(&program, [folder.path().join("data")]);
    let sessions: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [chosen, on_cpu, whole, empty, missing @ .., other] = &sessions[..] else {
        panic!("{printed}")
    };
    for (by_policy, ep) in [
        (chosen, "QNNExecutionProvider"),
        (on_cpu, "policy:prefer_npu"),
    ] {
        assert_eq!(by_policy["selection_policy"], "prefer_npu", "{by_policy}");
        assert_eq!(by_policy["device_type"], "npu", "{by_policy}");
        assert_eq!(by_policy["requested"], json!([]), "{by_policy}");
        assert_eq!(by_policy["requested_in_effect"], json!([ep]), "{by_policy}");
    }
    assert_eq!(whole["source"], "assignment_api");
    let npu = &whole["eps"]["QNNExecutionProvider"];
    assert_eq!((&npu["nodes"], &npu["partitions"]), (&4.into(), &3.into()));
    assert_eq!(whole["eps"]["CPUExecutionProvider"]["nodes"], 2);
    assert_eq!(whole["cpu_nodes"][1]["name"], "fc");
    assert_eq!(whole["cpu_nodes"][0]["benign"], true);
    assert!(whole["fingerprint_normalised"].is_string());
    assert_eq!(empty["source"], "assignment_api");
    let reasons: Vec<_> = missing.iter().map(|s| &s["reasons"][0]["code"]).collect();
    assert_eq!(
        reasons,
        [
            "assignment_not_recorded",
            "assignment_api_unavailable",
            "runtime_not_known"
        ]
    );
    assert_eq!(other["source"], "host");
    assert_eq!(other["runtime"], "LiteRT 2.3.0");
    assert_eq!(other["eps"]["TfLiteQnnDelegate"]["nodes"], 1);
    assert_eq!(other["eps"]["CPUExecutionProvider"]["nodes"], 1);
}

/// A graph of QNN 2.51 for SM8650, on that chipset (57) and on another (68).
#[test]
fn a_compiled_model_is_told_before_it_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let source = "tests/it/compiled_model.c";
    let program = compiled("cc", "-std=c11", source, SANITIZED, folder.path());
    let model = crate_file("../../tests/fixtures/gate/context_sm8650.onnx");
    let told = |qnn_sdk: &str| {
        let data = folder.path().join(qnn_sdk);
        let printed = run(&program, [data, model.clone(), qnn_sdk.into()]);
        let (answers, session) = printed.trim_end().rsplit_once('\n').unwrap();
        let session: Value = serde_json::from_str(session).unwrap();
        let reasons = session["reasons"].as_array().unwrap().iter();
        let code = |reason: &Value| reason["code"].as_str().unwrap().to_owned();
        let reasons: Vec<String> = reasons.map(code).collect();
        (answers.replace('\n', " "), reasons)
    };
    let (answers, reasons) = told("2.51.0");
    assert_eq!(answers, "0 2 0 2");
    let says = |code: &str| reasons.iter().any(|reason| reason == code);
    assert!(says("epcontext_for_another"), "{reasons:?}");
    let (answers, reasons) = told("2.47.0");
    assert_eq!(answers, "3 3 0 3");
    let says = |code: &str| reasons.iter().any(|reason| reason == code);
    assert!(says("epcontext_incompatible"), "{reasons:?}");
}

#[test]
fn a_signed_directive_turns_recording_off() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("cc", "-std=c11", "tests/it/off.c", SANITIZED, folder.path());
    let collector = Collector::start(KEY);
    collector.answer([Answer::Ok(operator::recording_off())]);
    let data = folder.path().join("data");
    let args = [
        collector.endpoint().into(),
        data,
        operator::public_key().into(),
    ];
    let explained = run(&program, args);
    assert!(
        explained.contains("directive quiet: record nothing, model segmenter"),
        "{explained}"
    );
    operator::check_quiet(&collector.reports());
}

#[test]
fn an_app_in_c_is_called_with_the_problem() {
    let folder = tempfile::tempdir().unwrap();
    let source = "tests/it/health.c";
    let program = compiled("cc", "-std=c11", source, SANITIZED, folder.path());
    let printed = run(&program, [folder.path().join("data")]);
    assert!(printed.starts_with("failed to upload"), "{printed}");
}

/// Regression test: seal and stop returned OK although the runs were lost.
#[test]
fn an_app_in_c_is_told_of_runs_that_cannot_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let source = "tests/it/lost.c";
    let program = compiled("cc", "-std=c11", source, SANITIZED, folder.path());
    // Not even root may create a folder there.
    assert_eq!(run(&program, ["/proc/epwatch"]), "told\n");
}

/// Regression test: every call with a parent's handle was refused. A child's `epw_start` waited for ever for a lock of
/// the tables.
#[test]
fn a_forked_process_goes_on_with_its_parents_handles() {
    let folder = tempfile::tempdir().unwrap();
    // A sanitizer's own threads and locks do not survive a fork.
    let program = compiled("cc", "-std=gnu11", "tests/it/fork.c", &[], folder.path());
    let collector = Collector::start(KEY);
    let args = [collector.endpoint().into(), folder.path().join("data")];
    assert_eq!(run(&program, args), "all arrived\n");
    let reports = collector.reports();
    assert_eq!(n_runs(&reports), 10 + 12 * 25 + 7);
    let streams: BTreeSet<_> = reports.iter().map(|report| report.key.stream).collect();
    assert_eq!(streams.len(), 1 + 12);
}

/// `just costs` shows the figures of a release build.
#[test]
fn costs_beside_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("cc", "-std=c11", "tests/it/cost.c", &["-O2"], folder.path());
    let printed = run(&program, [folder.path().join("data")]);
    assert_eq!(printed.lines().count(), 4, "{printed}");
    println!("{printed}");
}

/// The guide's programs are complete, except for the parts that belong to the app.
#[test]
fn the_guide_compiles() {
    let guide = Guide::read("c.md");
    let folder = tempfile::tempdir().unwrap();
    let check = |language: &str, compiler: &str, standard: &str, n: usize| {
        let programs = guide.blocks(language);
        assert_eq!(programs.len(), n, "{language}");
        for program in programs {
            let source = folder.path().join("guide").with_extension(language);
            std::fs::write(&source, program).unwrap();
            let (flags, source) = (["-c"], source.to_str().unwrap());
            compiled(compiler, standard, source, &flags, folder.path());
        }
    };
    check("c", "cc", "-std=c11", 5);
    check("cpp", "c++", "-std=c++17", 1);
}
