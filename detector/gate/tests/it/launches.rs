//! Files of other tools, judged together: each mistake is named instead of computed.

use epwatch_gate::{
    launches::{JudgedLaunches, LaunchesError, MeasuredFile},
    macs::ModelMacs,
    verdict::{CheckResult, Verdict},
};

use crate::checks::{By, MEDIAN, alone, check, check_mistake, check_refused, files};

const PROXY: &str = "QCS8550 (Proxy)";

/// Launches of 30 runs around this many microseconds, as documents `epwatch.run/1` with more fields.
fn launches(us: u64, n: usize, fields: &str) -> Vec<MeasuredFile> {
    let each = (0..n as u64).flat_map(|launch| {
        let runs: Vec<u64> = (0..30).map(|run| us + run % 7 + launch).collect();
        files(&format!(
            r#"{{"schema": "epwatch.run/1", "runs_us": {runs:?}, "target": {{"device": "phone"}}{fields}}}"#
        ))
    });
    each.collect()
}

fn judge_with(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    policy: &str,
    macs: Option<&ModelMacs>,
) -> Result<JudgedLaunches, LaunchesError> {
    let by = By {
        policy,
        macs,
        ..By::default()
    };
    by.judge(candidate, baseline)
}

fn judge(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
) -> Result<JudgedLaunches, LaunchesError> {
    By::default().judge(candidate, baseline)
}

#[test]
fn launches_of_another_device_or_runtime_do_not_compare() {
    let here = |fields| launches(8_000, 6, fields);
    let there = |device: &str| {
        let mut launches = launches(8_000, 6, r#", "runtime": {"ort": "1.23.0"}"#);
        for one in &mut launches {
            one.file.sha256.push('b');
            one.run.target.device = Some(device.to_owned());
        }
        launches
    };
    let judged = judge(here(r#", "runtime": {"ort": "1.23.0"}"#), there("phone")).unwrap();
    check(&judged, "regression", CheckResult::Pass);
    check_refused(
        judge(here(""), there("tablet")),
        "device phone against tablet",
    );
    check_refused(
        judge(here(r#", "runtime": {"ort": "1.22.0"}"#), there("phone")),
        "runtime ONNX Runtime 1.22.0 against ONNX Runtime 1.23.0",
    );
}

#[test]
fn a_throttled_launch_is_left_out_with_its_pair_and_named() {
    let mut slow = launches(8_000, 7, "");
    slow[2] = launches(30_000, 1, r#", "thermal_after": 2"#).remove(0);
    slow[2].file.path = "hot.json".to_owned();
    let mut baseline = launches(8_100, 7, "");
    baseline[2].run.runs_us.fill(90_000);
    let judged = judge(slow.clone(), baseline).unwrap();
    let check_of = check(&judged, "regression", CheckResult::Pass);
    assert!(check_of.why.contains("over 6 pairs"), "{}", check_of.why);
    check_mistake(&judged, "throttled");
    let why = &judged.targets[0].mistakes[0].why;
    assert!(why.starts_with("hot.json was measured"), "{why}");
    // Nothing is left.
    let judged = alone(slow[2..3].to_vec(), "[latency]\nmedian_ms = 90");
    check(&judged, "throttled", CheckResult::Undecided);
}

/// A device that cools down would not be slower again.
#[test]
fn a_launch_at_a_faster_clock_is_left_out_and_is_not_called_throttled() {
    let with_probes = |us: u64| -> Vec<MeasuredFile> {
        let mut all = launches(us, 7, "");
        for one in &mut all {
            one.run.probe_us = Some(1_000.0);
        }
        all
    };
    let (mut now, baseline) = (with_probes(8_000), with_probes(8_100));
    now[2].run.probe_us = Some(760.0);
    now[2].run.runs_us.fill(2_000);
    now[2].file.path = "fast.json".to_owned();
    let judged = judge(now, baseline).unwrap();
    let check_of = check(&judged, "regression", CheckResult::Pass);
    assert!(check_of.why.contains("over 6 pairs"), "{}", check_of.why);
    let [note] = &judged.targets[0].mistakes[..] else {
        panic!("{:#?}", judged.targets[0].mistakes);
    };
    assert_eq!(note.id, "faster_clock");
    assert_eq!(
        note.why,
        "fast.json was measured at a faster clock (the CPU probe takes 0.76 times as long as of most launches), and is \
         not judged"
    );
    assert!(!note.fix.contains("cool"), "{}", note.fix);
}

#[test]
fn one_launch_and_a_warm_up_among_its_runs_are_named() {
    let limits = "[latency]\nmedian_ms = 10\nwarmup = 0";
    let judged = alone(launches(8_000, 1, ""), limits);
    check(&judged, "median", CheckResult::Pass);
    check_mistake(&judged, "one_launch");
    let mut cold = launches(8_000, 1, "");
    cold[0].run.runs_us[..4].fill(14_000);
    let judged = alone(cold.clone(), limits);
    check_mistake(&judged, "warm_up_in_runs");
    // The slow first runs are dropped, or there is only one spike.
    let judged = alone(cold, "[latency]\nmedian_ms = 10\nwarmup = 4");
    assert_eq!(judged.targets[0].mistakes.len(), 1);
    let mut spike = launches(8_000, 1, "");
    spike[0].run.runs_us[1] = 50_000;
    let judged = alone(spike, limits);
    assert_eq!(judged.targets[0].mistakes.len(), 1);
}

/// Nanoseconds that were taken for microseconds.
#[test]
fn a_median_far_beyond_its_limit_asks_for_the_unit() {
    let limit = "[latency]\nmedian_ms = 10";
    let judged = alone(launches(8_195_000, 1, ""), limit);
    let why = &check(&judged, "median", CheckResult::Fail).why;
    assert!(
        why.contains("8") && why.ends_with("are the run times nanoseconds?"),
        "{why}"
    );
    let judged = alone(launches(80_000, 1, ""), limit);
    let why = &check(&judged, "median", CheckResult::Fail).why;
    assert!(!why.contains("nanoseconds"), "{why}");
}

#[test]
fn five_runs_are_refused_and_kinds_are_not_mixed() {
    let few = files("[8000, 8000, 8000, 8000, 8000]");
    check_refused(
        judge_with(few.clone(), Vec::new(), MEDIAN, None),
        "measure 23 or more",
    );
    check_refused(judge(few, launches(8_000, 1, "")), "give one kind for all");
    check_refused(
        judge(launches(8_000, 2, ""), launches(9_000, 1, "")),
        "do not pair up",
    );
    check_refused(
        judge(launches(8_000, 1, ""), Vec::new()),
        "nothing to judge by",
    );
    let twice = [launches(8_000, 1, ""), launches(8_000, 1, "")].concat();
    check_refused(judge(twice, Vec::new()), "are the same launch");
}

/// Each job of a farm is one launch, on some phone of one kind.
#[test]
fn jobs_of_a_farm_are_not_paired() {
    let job = |us: u64, units: [&str; 2]| {
        let runs: Vec<u64> = (0..100).map(|run| us + run % 13).collect();
        files(&format!(
            r#"{{"execution_summary": {{"estimated_inference_time": {us}, "all_inference_times": {runs:?}}}, "execution_detail":
                [{{"name": "a", "type": "Conv", "compute_unit": "{}"}}, {{"name": "b", "type": "Gemm", "compute_unit": "{}"}}]}}"#,
            units[0], units[1]
        ))
    };
    let npu = ["NPU"; 2];
    let judged = judge(job(8_000, npu), job(7_900, npu)).unwrap();
    check(&judged, "regression", CheckResult::Pass);
    check(&judged, "layers", CheckResult::Pass);
    let undecided = judge(job(10_400, npu), job(8_000, npu)).unwrap();
    let why = check(&undecided, "regression", CheckResult::Undecided).why;
    assert!(why.contains("3 jobs a side in total would decide"), "{why}");
    check(
        &judge(job(12_100, npu), job(8_000, npu)).unwrap(),
        "regression",
        CheckResult::Fail,
    );
    // Fewer layers on the NPU and slower fails. Fewer layers alone are a warning, which an eighth of the harmless
    // changes would get.
    let worse = judge(job(10_400, ["NPU", "CPU"]), job(8_000, npu)).unwrap();
    check(&worse, "layers", CheckResult::Fail);
    let worse = judge(job(8_000, ["NPU", "CPU"]), job(8_001, npu)).unwrap();
    check(&worse, "layers", CheckResult::Warn);
    // The model has 100 % of its layers on the CPU, and had none on the NPU before.
    let never = judge(job(8_000, ["CPU"; 2]), job(8_001, ["CPU"; 2])).unwrap();
    let why = check(&never, "layers", CheckResult::Fail).why;
    assert!(why.contains("it was never there"), "{why}");
    assert!(!judged.not_checked.iter().any(|part| part.id == "placement"));
}

/// Rows of two tables are compared by device and runtime.
#[test]
fn tables_compare_row_by_row() {
    let table = |ms: &str, cpu: u32| {
        files(&format!(
            "precisions:\n  float:\n    components:\n      M:\n        performance_metrics:\n          {PROXY}:\n            onnx:\n              \
             inference_time_milliseconds: {ms}\n              layer_counts:\n                npu: 100\n                cpu: {cpu}\n"
        ))
    };
    let judged = judge(table("0.9", 0), table("0.8", 0)).unwrap();
    check(&judged, "regression", CheckResult::Pass);
    check_mistake(&judged, "proxy_device");
    check_mistake(&judged, "only_minimum");
    assert_eq!(judged.targets[0].chipset, format!("{PROXY}: float M, onnx"));
    let slower = judge(table("1.3", 4), table("0.8", 0)).unwrap();
    check(&slower, "regression", CheckResult::Fail);
    check(&slower, "layers", CheckResult::Fail);
    let mut other = table("0.8", 0);
    other[0].run.target.device = Some("Samsung Galaxy S24".to_owned());
    check_refused(judge(table("0.9", 0), other), "no row of --runs");
}

#[test]
fn a_plan_of_core_ml_has_layers_and_no_latency() {
    let plan = |ane: u32, cpu: u32| {
        files(&format!(
            "=== m ===\n  ANE: {ane} / 9 ( 0%)\n  CPU: {cpu} / 9 ( 0%)\n"
        ))
    };
    let judged = judge(plan(7, 2), plan(9, 0)).unwrap();
    check(&judged, "layers", CheckResult::Warn);
    assert!(judged.not_checked.iter().any(|part| part.id == "latency"));
    check(
        &judge(plan(9, 0), plan(8, 0)).unwrap(),
        "layers",
        CheckResult::Pass,
    );
}

/// A profile without MODEL gives no shares, and the report says why. No profile has a field `flops` to divide by.
#[test]
fn a_profile_needs_the_model_for_its_placement() {
    let profile = include_str!("../fixtures/profiles/e_mixed.q8head32.SM8635.json");
    let limits = "[latency]\nwarmup = 0\nmedian_ms = 1000";
    check_refused(
        judge_with(files(profile), Vec::new(), limits, None),
        "at least 20 must remain",
    );
    check_refused(judge(files(profile), Vec::new()), "nothing to judge by");
    let run = r#"{"name": "model_run", "ph": "X", "dur": 8000, "args": {}}"#;
    let long = profile.replacen('[', &format!("[{}", format!("{run},").repeat(30)), 1);
    let judged = alone(files(&long), limits);
    check_mistake(&judged, "no_flops");
    check_mistake(&judged, "partition_as_node");
    assert!(judged.not_checked.iter().any(|part| part.id == "placement"));
    assert!(judged.targets[0].placement.is_none());
    // With MODEL, two runs are enough, because their times are not judged.
    let macs = ModelMacs {
        total: 1_000_000,
        by_name: [
            ("head_fc1".to_owned(), 262_144),
            ("head_fc2".to_owned(), 2_560),
        ]
        .into(),
        ..ModelMacs::default()
    };
    let judged = judge_with(files(profile), Vec::new(), "", Some(&macs)).unwrap();
    let found = check(&judged, "npu_macs", CheckResult::Fail);
    assert!((found.value.unwrap() - 0.735_296).abs() < 1e-6, "{found:?}");
    assert!(judged.targets[0].latency.is_none());
}

/// An emulator's placement is judged as `gate --soc` judges it.
#[test]
fn the_document_of_inspect_is_a_placement() {
    let document = r#"{"macs_error": null, "chipsets": [{"chipset": "SM8635", "soc_model": "68", "session": "ok", "error": null,
        "eps": {"CPUExecutionProvider": {"nodes": 3, "partitions": null, "macs_share": null}},
        "cpu_nodes": [{"name": "a", "op_type": "Gemm", "reason": "unknown", "reason_text": null, "macs_share": null, "benign": false}],
        "fingerprint_normalised": null, "reasons": []}]}"#;
    let judged = alone(files(document), "");
    let why = check(&judged, "npu_macs", CheckResult::Fail).why;
    assert!(why.contains("the whole graph is on the CPU"), "{why}");
    assert_eq!(
        (&*judged.targets[0].chipset, judged.targets[0].source),
        ("SM8635", "inspect")
    );
}

#[test]
fn reports_have_the_mistakes() {
    let judged = alone(launches(8_000, 1, ""), MEDIAN);
    let verdict = Verdict::new("0.1.0", None, judged.not_checked, judged.targets);
    let json = serde_json::to_value(&verdict).unwrap();
    assert_eq!(json["targets"][0]["mistakes"][0]["id"], "one_launch");
    for text in [
        epwatch_gate::report::table::table(&verdict, None),
        epwatch_gate::report::markdown::markdown(&verdict),
        epwatch_gate::report::junit::junit(&verdict),
    ] {
        assert!(text.contains("measure six launches or more"), "{text}");
    }
}
