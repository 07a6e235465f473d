//! A gate does not pass what it could not check. These files and policies once passed wrongly, or could have.

use epwatch_gate::{
    launches::{JudgedLaunches, MeasuredFile},
    macs::ModelMacs,
    report,
    verdict::{CheckResult, Verdict},
};

use crate::checks::{By, MEDIAN, alone, check, check_mistake, check_refused, files, judge};

const NPU: &str = "QNNExecutionProvider";
const CPU: &str = "CPUExecutionProvider";

/// A document `epwatch.run/1` with these run times and fields.
fn run(runs_us: &[u64], fields: &str) -> Vec<MeasuredFile> {
    files(&format!(
        r#"{{"schema": "epwatch.run/1", "runs_us": {runs_us:?}{fields}}}"#
    ))
}

/// 30 runs around this many microseconds.
fn around(us: u64) -> Vec<u64> {
    (0..30).map(|run| us + run % 7).collect()
}

/// A launch for each of these medians.
fn launches(us: &[u64], fields: &str) -> Vec<MeasuredFile> {
    let each = us.iter().enumerate();
    each.flat_map(|(at, us)| run(&around(*us), &format!(r#", "launch": {at}{fields}"#)))
        .collect()
}

fn result(judged: JudgedLaunches) -> CheckResult {
    Verdict::new("0", None, judged.not_checked, judged.targets).result
}

/// A placement of `inspect` or of a launch, with a Gemm on the CPU that has this share.
fn placed(chipset: &str, session: &str, on_cpu: f64) -> String {
    format!(
        r#"{{"chipset": "{chipset}", "soc_model": "68", "session": "{session}", "error": null,
            "eps": {{"{NPU}": {{"nodes": 9, "partitions": 1, "macs_share": {}}},
                "{CPU}": {{"nodes": 1, "partitions": null, "macs_share": {on_cpu}}}}},
            "cpu_nodes": [{{"name": "a", "op_type": "Gemm", "reason": "unknown", "reason_text": null, "macs_share": {on_cpu},
                "benign": false}}], "fingerprint_normalised": null, "reasons": []}}"#,
        1.0 - on_cpu
    )
}

fn inspected(chipsets: &[&str]) -> Vec<MeasuredFile> {
    files(&format!(
        r#"{{"macs_error": null, "chipsets": [{}]}}"#,
        chipsets.join(", ")
    ))
}

fn with_placement(session: &str, on_cpu: f64) -> String {
    format!(r#", "placement": {}"#, placed("SM8635", session, on_cpu))
}

#[test]
fn a_session_that_was_not_made_fails() {
    let failed = run(&[], &with_placement("failed", 0.0));
    let found = alone(failed.clone(), "");
    check(&found, "session", CheckResult::Fail);
    // One of six.
    let mut some = launches(&[8_000; 5], &with_placement("ok", 0.0));
    some.extend(failed);
    let found = alone(some, MEDIAN);
    check(&found, "session", CheckResult::Fail);
    check(&found, "latency", CheckResult::Undecided);
}

/// A limit does not pass if no file shows its number.
#[test]
fn a_limit_without_a_number_is_undecided() {
    let all = "[latency]\nmedian_ms = 10\np95_ms = 10\ndeadline_ms = 33\ncv_max = 0.2\n[load]\ncold_ms = 900\n\
               [outputs]\nmin_cosine = 0.9\n[placement]\nmin_npu_macs = 0.9\nmax_partitions = 1\nallowed_cpu_ops = []\n\
               max_crossing_bytes = 0\n";
    let plan = "=== m ===\n  ANE: 9 / 9 ( 0%)\n";
    let found = alone(files(plan), all);
    for id in [
        "median",
        "p95",
        "late",
        "cv",
        "load",
        "outputs",
        "npu_macs",
        "partitions",
        "cpu_ops",
        "crossings",
    ] {
        check(&found, id, CheckResult::Undecided);
    }
    let found = alone(inspected(&[&placed("SM8635", "ok", 0.0)]), all);
    check(&found, "npu_macs", CheckResult::Pass);
    check(&found, "median", CheckResult::Undecided);
    check(&found, "crossings", CheckResult::Undecided);
    // Without limits, parts that were not checked are only named.
    let found = alone(launches(&[8_000], ""), MEDIAN);
    assert!(found.not_checked.iter().any(|part| part.id == "placement"));
    assert_eq!(result(found), CheckResult::Pass);
    let nothing = Verdict::new("0", None, Vec::new(), found_without_checks());
    assert_eq!(nothing.result, CheckResult::Undecided);
}

fn found_without_checks() -> Vec<epwatch_gate::verdict::Target> {
    let mut targets = alone(launches(&[8_000], ""), MEDIAN).targets;
    targets[0]
        .checks
        .retain(|check| check.result == CheckResult::Skip);
    targets
}

#[test]
fn launches_without_times_are_not_left_out() {
    let timed = launches(&[8_000; 6], &with_placement("ok", 0.0));
    let mut one_without = timed.clone();
    one_without[3].run.runs_us.clear();
    let found = alone(one_without.clone(), MEDIAN);
    let why = check(&found, "latency", CheckResult::Undecided).why;
    assert!(why.contains("1 of 6 launches"), "{why}");
    let found = judge(one_without, launches(&[8_001; 6], ""), "").unwrap();
    check(&found, "latency", CheckResult::Undecided);
    let warm_up = run(&around(8_000), r#", "warmup": 30"#);
    check_refused(judge(warm_up, Vec::new(), MEDIAN), "30 are warm-up");
}

#[test]
fn macs_that_do_not_join_are_undecided() {
    let macs = ModelMacs {
        total: 100,
        by_name: [("conv".to_owned(), 70), ("head".to_owned(), 30)].into(),
        ..ModelMacs::default()
    };
    let ops = |ops: &[(&str, &str, &str, &str)]| {
        let each = ops.iter().map(|(name, op_type, ep, macs)| {
            format!(r#"{{"name": "{name}", "op_type": "{op_type}", "ep": "{ep}"{macs}}}"#)
        });
        let each: Vec<String> = each.collect();
        run(
            &around(8_000),
            &format!(r#", "per_op": [{}]"#, each.join(", ")),
        )
    };
    let by = By {
        macs: Some(&macs),
        ..By::default()
    };
    // All layers are on the NPU, but they are of another model, or only a part of this one.
    for names in [&["x", "y"][..], &["conv"]] {
        let of: Vec<_> = names.iter().map(|name| (*name, "Conv", NPU, "")).collect();
        let found = by.judge(ops(&of), Vec::new()).unwrap();
        let why = check(&found, "npu_macs", CheckResult::Undecided).why;
        assert!(why.contains("% of them have a layer"), "{why}");
    }
    let whole = ops(&[("conv", "Conv", NPU, ""), ("head", "Gemm", NPU, "")]);
    let found = by.judge(whole, Vec::new()).unwrap();
    check(&found, "npu_macs", CheckResult::Pass);
    // The launch has its own MACs, but an op on the CPU has none.
    let own = |op_type: &str| {
        let of = ops(&[
            ("a", "Conv", NPU, r#", "macs": 90"#),
            ("b", op_type, CPU, ""),
        ]);
        alone(of, "")
    };
    let why = check(&own("Gemm"), "npu_macs", CheckResult::Undecided).why;
    assert!(why.contains("b has none"), "{why}");
    check(&own(""), "npu_macs", CheckResult::Undecided);
    check(&own("Relu"), "npu_macs", CheckResult::Pass);
    assert!(
        !own("Relu")
            .not_checked
            .iter()
            .any(|part| part.id == "placement")
    );
}

/// A list of nodes that was cut does not show the missing ones.
#[test]
fn nodes_that_are_not_listed_are_not_on_the_npu() {
    let cut = |policy: &str, share: &str| {
        let document = format!(
            r#"{{"macs_error": null, "chipsets": [{{"chipset": "SM8635", "soc_model": "68", "session": "ok", "error": null,
                "eps": {{"{NPU}": {{"nodes": 9, "partitions": 1, "macs_share": {share}}},
                    "XnnpackExecutionProvider": {{"nodes": 5, "partitions": null, "macs_share": null}}}},
                "cpu_nodes": [], "fingerprint_normalised": null, "reasons": []}}]}}"#
        );
        alone(files(&document), policy)
    };
    check(&cut("", "null"), "npu_macs", CheckResult::Undecided);
    check(&cut("", "0.99"), "npu_macs", CheckResult::Pass);
    let found = cut("[placement]\nforbidden_cpu_ops = ['Conv']", "0.99");
    check(&found, "cpu_ops", CheckResult::Undecided);
}

/// The median over twelve launches shows neither one nor two that are far beyond a limit.
#[test]
fn launches_far_beyond_a_limit_do_not_hide_behind_the_median() {
    let of = |far: usize, us: u64| {
        let mut all = [8_000; 12];
        all[..far].fill(us);
        let mut files = launches(&all, r#", "load_us": 500000"#);
        for one in &mut files[..far] {
            one.run.load_us = Some(2_000_000.0);
        }
        files
    };
    let limits = "[latency]\nmedian_ms = 10\np95_ms = 12\ndeadline_ms = 33\nmax_late = 0.1\n[load]\ncold_ms = 900";
    for (far, expected) in [
        (0, CheckResult::Pass),
        (1, CheckResult::Warn),
        (2, CheckResult::Fail),
    ] {
        let found = alone(of(far, 80_000), limits);
        for id in ["median", "p95", "late", "load", "slow_phases"] {
            check(&found, id, expected);
        }
    }
    let why = check(&alone(of(1, 80_000), limits), "median", CheckResult::Warn);
    assert!(why.why.contains("beyond 17.000 in 1"), "{why:?}");
    // Against a baseline.
    let found = judge(of(1, 80_000), launches(&[8_001; 12], ""), "").unwrap();
    let why = check(&found, "regression", CheckResult::Warn).why;
    assert!(why.contains("1 of 12 launches slow as a whole"), "{why}");
}

#[test]
fn slow_phases_without_a_baseline_are_undecided() {
    let mut files = launches(&[8_000; 6], "");
    for one in &mut files[..3] {
        one.run.runs_us[20..26].fill(20_000);
    }
    let found = alone(files, MEDIAN);
    check(&found, "median", CheckResult::Pass);
    let why = check(&found, "slow_phases", CheckResult::Undecided).why;
    assert!(why.contains("3 of 6 launches"), "{why}");
}

#[test]
fn one_launch_that_is_left_does_not_decide_alone() {
    let mut files = launches(&[8_000; 6], r#", "thermal_after": 2"#);
    files.push(launches(&[8_000], r#", "thermal_after": 0"#).remove(0));
    let found = alone(files, MEDIAN);
    let why = check(&found, "median", CheckResult::Undecided).why;
    assert!(why.contains("the others of 7 were throttled"), "{why}");
}

/// The jobs of a farm have a median too.
#[test]
fn one_slow_job_of_three_is_said() {
    let job = |us: u64| {
        let runs: Vec<u64> = (0..100).map(|run| us + run % 13).collect();
        files(&format!(
            r#"{{"execution_summary": {{"all_inference_times": {runs:?}}}}}"#
        ))
    };
    let now = [job(8_000), job(8_100), job(80_000)].concat();
    let before = [job(8_200), job(8_300), job(8_400)].concat();
    let why = check(
        &judge(now, before, "").unwrap(),
        "regression",
        CheckResult::Warn,
    )
    .why;
    assert!(why.contains("1 of them above 1.7 times"), "{why}");
}

/// The chipset that the file names has limits of its own, and they are used.
#[test]
fn the_chipset_of_a_file_selects_its_limits() {
    let ops = format!(
        r#", "target": {{"chipset": "SM8635"}}, "per_op": [{{"name": "a", "op_type": "Conv", "ep": "{NPU}", "macs": 90}},
            {{"name": "b", "op_type": "Gemm", "ep": "{CPU}", "macs": 10}}]"#
    );
    let policy = "[placement]\nmin_npu_macs = 0.5\n[chipset.SM8635.placement]\nmin_npu_macs = 0.95";
    let found = alone(run(&around(8_000), &ops), policy);
    assert_eq!(
        check(&found, "npu_macs", CheckResult::Fail).limit,
        Some(0.95)
    );
    let unnamed = ops.replace(r#""chipset": "SM8635""#, "");
    let found = alone(run(&around(8_000), &unnamed), policy);
    let why = check(&found, "chipset", CheckResult::Undecided).why;
    assert!(why.contains("limits of SM8635"), "{why}");
    let other = By {
        chipset: Some("SM8650"),
        ..By::default()
    };
    let placed = run(&around(8_000), &with_placement("ok", 0.0));
    check_refused(other.judge(placed, Vec::new()), "--soc names SM8650");
}

#[test]
fn every_placement_of_a_target_is_judged() {
    let (good, bad) = (placed("SM8635", "ok", 0.0), placed("SM8635", "ok", 0.4));
    let documents = [inspected(&[&good]), inspected(&[&bad])].concat();
    let found = alone(documents.clone(), "");
    assert_eq!((found.targets.len(), result(found)), (2, CheckResult::Fail));
    // The model may not be worse than the best placement of the earlier model.
    let hybrid = "[placement]\nmin_npu_macs = 0.5";
    let found = judge(inspected(&[&bad]), documents[..1].to_vec(), hybrid).unwrap();
    check(&found, "placement_change", CheckResult::Fail);
    let mut before = documents;
    before[0].file.sha256 = "another".to_owned();
    before[1].file.sha256 = "a third".to_owned();
    let found = judge(inspected(&[&bad]), before, hybrid).unwrap();
    check(&found, "placement_change", CheckResult::Fail);
    let other = inspected(&[&placed("SM8650", "ok", 0.0)]);
    let found = judge(inspected(&[&good]), other, "").unwrap();
    check(&found, "placement_change", CheckResult::Undecided);
    assert!(found.not_checked.iter().any(|part| part.id == "SM8650"));

    // Placements of three launches, one of which has none.
    let mut mixed = launches(&[8_000; 2], &with_placement("ok", 0.0));
    mixed.extend(launches(&[8_001], ""));
    let found = alone(mixed.clone(), "");
    let why = check(&found, "placement", CheckResult::Undecided).why;
    assert!(why.contains("1 of 3 launches"), "{why}");
    mixed[2] = launches(&[8_001], &with_placement("ok", 0.4)).remove(0);
    mixed[2].file.path = "bad.json".to_owned();
    let found = alone(mixed, "");
    check(&found, "npu_macs", CheckResult::Fail);
    check_mistake(&found, "placements_differ");
    assert!(found.targets[0].mistakes[0].why.contains("of bad.json"));

    // Several jobs of a farm, with layers.
    let job = |unit: &str, us: u64| {
        files(&format!(
            r#"{{"execution_summary": {{"estimated_inference_time": {us}}}, "execution_detail":
                [{{"name": "a", "type": "Conv", "compute_unit": "NPU"}}, {{"name": "b", "type": "Gemm", "compute_unit": "{unit}"}}]}}"#
        ))
    };
    let jobs = [job("NPU", 8_000), job("CPU", 8_001)].concat();
    let found = judge(jobs, job("NPU", 8_002), "").unwrap();
    check(&found, "layers", CheckResult::Warn);
}

/// A launch's own MACs are compared with the MACs of the launch before.
#[test]
fn ops_of_launches_are_compared() {
    let ops = |on_cpu: u64| {
        format!(
            r#", "per_op": [{{"name": "a", "op_type": "Conv", "ep": "{NPU}", "macs": {}}},
                {{"name": "b", "op_type": "Gemm", "ep": "{CPU}", "macs": {on_cpu}}}]"#,
            100 - on_cpu
        )
    };
    let (now, before) = (run(&around(8_000), &ops(20)), run(&around(8_001), &ops(10)));
    let found = judge(now, before, "[placement]\nmin_npu_macs = 0.5").unwrap();
    check(&found, "placement_change", CheckResult::Fail);
}

/// Heat changes run times, but not outputs.
#[test]
fn outputs_of_launches_that_are_left_out_are_judged() {
    let fine = r#", "outputs": {"cosine": 0.999}"#;
    let wrong = r#", "thermal_after": 3, "outputs": {"cosine": 0.1}"#;
    let mut files = launches(&[8_000; 6], fine);
    files.push(launches(&[8_001], wrong).remove(0));
    files[6].file.path = "hot.json".to_owned();
    let policy = "[latency]\nmedian_ms = 10\n[outputs]\nmin_cosine = 0.99";
    let found = alone(files.clone(), policy);
    check(&found, "median", CheckResult::Pass);
    let why = check(&found, "outputs", CheckResult::Fail).why;
    assert!(why.contains("7 launches is 0.1000, of hot.json"), "{why}");
    // Without a limit there are no checks of outputs.
    let found = alone(files, MEDIAN);
    assert!(
        found.targets[0]
            .checks
            .iter()
            .all(|check| check.id != "outputs")
    );
    assert!(found.not_checked.iter().any(|part| part.id == "outputs"));
}

#[test]
fn runs_that_failed_fail() {
    let mut files = launches(&[8_000; 6], "");
    files[2].run.failed_runs = 3;
    let found = alone(files, MEDIAN);
    let why = check(&found, "failed_runs", CheckResult::Fail).why;
    assert!(why.contains("3 runs ended with an error, in 1"), "{why}");
}

/// Every file is compared with every other, even if the first names fewer parts than the others.
#[test]
fn launches_of_other_devices_hide_behind_none_that_names_none() {
    let of = |device: &str| launches(&[8_000], &format!(r#", "target": {{"os": "{device}"}}"#));
    let mut candidate = launches(&[8_000; 2], "");
    candidate[1] = of("Android 14").remove(0);
    let baseline = [launches(&[8_001], ""), of("Android 15")].concat();
    check_refused(
        judge(candidate, baseline, ""),
        "os Android 14 against Android 15",
    );
    let of = |model: &str, us: u64| launches(&[us], &format!(r#", "model": {{{model}}}"#));
    let (a, b) = (r#""sha256": "AA""#, r#""sha256": "bb""#);
    let two = [of(a, 8_000), of(b, 8_001)].concat();
    check_refused(judge(two, Vec::new(), MEDIAN), "two models (aa and bb)");
    check_refused(
        judge(of(a, 8_000), of(&a.to_lowercase(), 8_001), ""),
        "the same model",
    );
    check_refused(
        judge(
            of(r#""name": "scene""#, 8_000),
            of(r#""name": "pose""#, 8_001),
            "",
        ),
        "the model scene and a.json of pose",
    );
    let found = judge(of(a, 8_000), of(b, 8_001), "").unwrap();
    let said: Vec<&str> = found.not_checked.iter().map(|part| &*part.id).collect();
    for part in ["device", "firmware", "runtime"] {
        assert!(said.contains(&part), "{said:?}");
    }
}

/// A copy with another start, number or white space is not a further launch.
#[test]
fn the_same_run_times_are_the_same_launch() {
    let runs: Vec<u64> = (0..30).map(|run| 8_000 + run * run % 97).collect();
    let of = |fields: &str| run(&runs, fields);
    let twice = [
        of(r#", "launch": 1, "started_unix_ms": 1"#),
        of(r#", "launch": 2, "started_unix_ms": 2"#),
    ];
    check_refused(
        judge(twice.concat(), Vec::new(), MEDIAN),
        "are the same launch",
    );
    check_refused(
        judge(of(""), of(r#", "launch": 2"#), ""),
        "are the same launch",
    );
}

#[test]
fn an_emulator_keeps_no_limit_of_latency() {
    let fields = format!(r#", "target": {{"os": "Linux x86_64"}}, "runtime": {{"ep": "{NPU}"}}"#);
    let found = alone(launches(&[8_000; 6], &fields), MEDIAN);
    check_mistake(&found, "cpu_latency");
    check(&found, "latency", CheckResult::Undecided);
    let fields = format!(r#"{fields}, "load_us": 118571, "load_warm_us": 90000"#);
    for limit in [5_000, 1] {
        let limit = format!("[load]\ncold_ms = {limit}");
        let found = alone(launches(&[8_000; 6], &fields), &limit);
        let why = check(&found, "load", CheckResult::Undecided).why;
        assert!(why.contains("was not measured on an NPU"), "{why}");
    }
    let cpu = format!(r#", "runtime": {{"ep": "{CPU}"}}"#);
    let found = alone(launches(&[8_000; 6], &cpu), MEDIAN);
    let why = check(&found, "npu_used", CheckResult::Fail).why;
    assert!(why.contains("they asked for the CPU"), "{why}");
}

/// A table has no row for a phone on which the job failed.
#[test]
fn a_row_that_is_gone_is_undecided() {
    let row = |device: &str, ms: f64| {
        format!(
            "          {device}:\n            onnx:\n              inference_time_milliseconds: {ms}\n"
        )
    };
    let table = |rows: &[String]| {
        let head =
            "precisions:\n  float:\n    components:\n      M:\n        performance_metrics:\n";
        files(&format!("{head}{}", rows.concat()))
    };
    let before = || table(&[row("A", 0.8), row("B", 0.8)]);
    let found = judge(table(&[row("A", 0.9)]), before(), "").unwrap();
    assert_eq!(found.targets[1].chipset, "B: float M, onnx");
    assert_eq!(result(found), CheckResult::Undecided);
    let more = table(&[row("A", 0.9), row("B", 0.9), row("C", 0.9)]);
    let found = judge(more, before(), "").unwrap();
    assert!(
        found
            .not_checked
            .iter()
            .any(|part| part.id == "C: float M, onnx")
    );
    assert_eq!(result(found), CheckResult::Pass);
}

/// Each report begins with the parts that were not checked, and has the undecided checks.
#[test]
fn reports_say_what_was_not_found_out() {
    let mut timed = launches(&[8_000; 6], "");
    timed[3].run.runs_us.clear();
    let judged = alone(timed, MEDIAN);
    let verdict = Verdict::new("0", None, judged.not_checked, judged.targets);
    let sarif = report::sarif::sarif(&verdict);
    let said = &sarif["runs"][0]["invocations"][0]["toolExecutionNotifications"][0];
    let said = said["message"]["text"].as_str().unwrap();
    assert!(said.starts_with("not checked: placement"), "{said}");
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    assert!(
        results.iter().any(|one| one["ruleId"] == "latency"),
        "{sarif:#}"
    );
    let lines = report::annotations::annotations(&verdict);
    assert!(
        lines.starts_with("::notice title=not checked::placement"),
        "{lines}"
    );
}

/// A document `epwatch.run/1` with these run times, whose one node ran on this EP.
fn on_ep(ep: &str) -> Vec<MeasuredFile> {
    let node = format!(r#"[{{"name": "a", "op_type": "Gemm", "ep": "{ep}", "us": 5, "macs": 9}}]"#);
    run(&around(8_000), &format!(r#", "per_op": {node}"#))
}

/// The CPU may well be fast enough, but that does not show that the NPU is.
#[test]
fn times_of_a_model_that_left_the_npu_keep_no_limit() {
    let all = "[latency]\nmedian_ms = 10\np95_ms = 20\ncv_max = 0.5";
    let found = alone(on_ep(CPU), all);
    check(&found, "npu_used", CheckResult::Fail);
    for id in ["median", "p95", "cv"] {
        check(&found, id, CheckResult::Skip);
    }
    assert_eq!(result(found), CheckResult::Fail);
    check(&alone(on_ep(NPU), all), "median", CheckResult::Pass);
}

/// The median of a launch lands on the fast of two latencies.
#[test]
fn one_launch_with_two_latencies_is_warned_of() {
    let two: Vec<u64> = (0..40)
        .map(|at| if at % 10 < 3 { 25_000 } else { 8_500 } + at)
        .collect();
    let found = alone(run(&two, ""), MEDIAN);
    let why = check(&found, "slow_phases", CheckResult::Warn).why;
    assert!(why.contains("two latencies, 8."), "{why}");
    check(&found, "median", CheckResult::Pass);
    let calm = alone(run(&around(8_500), ""), MEDIAN);
    let has_check = calm.targets[0]
        .checks
        .iter()
        .any(|check| check.id == "slow_phases");
    assert!(!has_check);
}
