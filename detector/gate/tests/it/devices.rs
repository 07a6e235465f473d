//! Launches of several devices, and fields of documents `epwatch.run/1` other than run times.

use epwatch_gate::{
    launches::{JudgedLaunches, MeasuredFile},
    macs::ModelMacs,
    verdict::{Check, CheckResult},
};

use crate::checks::{By, alone, check, check_mistake, check_refused, files, judge};

/// A launch of 30 runs around this many microseconds.
fn launch(device: &str, arm: &str, us: u64, at: usize, fields: &str) -> MeasuredFile {
    let runs: Vec<u64> = (0..30).map(|run| us + run % 7).collect();
    let document = format!(
        r#"{{"schema": "epwatch.run/1", "runs_us": {runs:?}, "arm": "{arm}", "launch": {at},
            "target": {{"chipset": "SM8650", "device": "{device}"}}{fields}}}"#
    );
    files(&document).remove(0)
}

/// Launches of a device, one for each of these medians.
fn arm(device: &str, arm: &str, us: &[u64]) -> Vec<MeasuredFile> {
    let each = us.iter().enumerate();
    each.map(|(at, us)| launch(device, arm, *us, at, ""))
        .collect()
}

/// The check of the target with this name.
fn check_on(judged: &JudgedLaunches, target: &str, id: &str) -> Check {
    let target = judged.targets.iter().find(|one| one.chipset == target);
    let mut checks = target.unwrap().checks.iter();
    checks.find(|check| check.id == id).unwrap().clone()
}

const HEALTHY: [u64; 12] = [8_000; 12];

#[test]
fn each_device_votes_once() {
    let both = |name: &str, b: u64| [arm("a", name, &HEALTHY), arm("b", name, &[b; 12])].concat();
    let found = judge(both("candidate", 10_400), both("baseline", 8_000), "").unwrap();
    assert_eq!(found.targets.len(), 2);
    assert_eq!(
        check_on(&found, "SM8650 a", "regression").result,
        CheckResult::Pass
    );
    assert_eq!(
        check_on(&found, "SM8650 b", "regression").result,
        CheckResult::Fail
    );
    let chance = found.targets[1].against.unwrap().chance.unwrap();
    assert!((chance - 2.0 * 0.5_f64.powi(12)).abs() < 1e-12, "{chance}");

    let one = arm("a", "baseline", &HEALTHY);
    check_refused(
        judge(both("candidate", 8_000), one, ""),
        "12 files of --runs and 0",
    );
    let more = [both("baseline", 8_000), arm("c", "baseline", &[8_000])].concat();
    check_refused(
        judge(both("candidate", 8_000), more, ""),
        "no file of --runs is of (SM8650 c)",
    );
    let mut unnamed = both("candidate", 8_000);
    unnamed[3].run.target.device = None;
    unnamed[3].run.target.chipset = None;
    check_refused(
        judge(unnamed, both("baseline", 8_000), ""),
        "names no device",
    );
}

/// A firmware may change the driver, so each firmware has its own result.
#[test]
fn each_firmware_of_a_device_is_a_cell() {
    let on = |firmware: &str, side: &str, us: u64| {
        let mut launches = arm("a", side, &[us; 12]);
        for one in &mut launches {
            one.run.target.firmware = Some(firmware.to_owned());
        }
        launches
    };
    let both = |side: &str, us: u64| [on("f1", side, 8_000), on("f2", side, us)].concat();
    let found = judge(both("candidate", 10_400), both("baseline", 8_000), "").unwrap();
    for (firmware, result) in [("f1", CheckResult::Pass), ("f2", CheckResult::Fail)] {
        let cell = format!("SM8650 a, firmware {firmware}");
        assert_eq!(check_on(&found, &cell, "regression").result, result);
    }
    let firmwares = found
        .targets
        .iter()
        .map(|target| target.firmware.as_deref());
    assert_eq!(Vec::from_iter(firmwares), [Some("f1"), Some("f2")]);
    let other = [on("f1", "baseline", 8_000), on("f3", "baseline", 8_000)].concat();
    check_refused(
        judge(both("candidate", 8_000), other, ""),
        "no file of --runs is of (SM8650 a, firmware f3)",
    );
}

/// Ten of twelve pairs are slower. With one device that is a regression; among ten devices, one shows it by chance.
#[test]
fn chances_are_adjusted_for_the_number_of_devices() {
    let slower = [
        10_400, 10_400, 10_400, 10_400, 10_400, 8_000, 10_400, 10_400, 10_400, 10_400, 10_400,
        8_000,
    ];
    let gate = |devices: usize| {
        let (mut candidate, mut baseline) = (Vec::new(), Vec::new());
        for device in 0..devices {
            let name = format!("phone {device}");
            let us = if device == 0 { &slower } else { &HEALTHY };
            candidate.extend(arm(&name, "candidate", us));
            baseline.extend(arm(&name, "baseline", &HEALTHY));
        }
        judge(candidate, baseline, "").unwrap()
    };
    check(&gate(1), "regression", CheckResult::Fail);
    let among = gate(10);
    let found = check_on(&among, "SM8650 phone 0", "regression");
    assert_eq!(found.result, CheckResult::Undecided, "{found:?}");
    assert!(found.why.contains("18 pairs in total"), "{found:?}");
    let passed = |at: usize| among.targets[at].checks[0].result == CheckResult::Pass;
    assert!((1..10).all(passed));
}

#[test]
fn a_launch_says_its_side_its_chipset_and_its_clock() {
    let (new, old) = (
        arm("a", "candidate", &[8_000; 7]),
        arm("a", "baseline", &[8_000; 7]),
    );
    check_refused(judge(old.clone(), new.clone(), ""), "give it to --baseline");
    let on = |chipset| By {
        chipset: Some(chipset),
        ..By::default()
    };
    check_refused(
        on("SM8635").judge(new.clone(), old.clone()),
        "was measured on SM8650, and --soc names SM8635",
    );
    let found = on("SM8650").judge(new, old).unwrap();
    assert_eq!(found.targets[0].chipset, "SM8650");

    let side = |name: &str, slow: usize| -> Vec<MeasuredFile> {
        let probe = |at| if at == slow { 120 } else { 100 };
        let each = (0..7).map(|at| {
            launch(
                "a",
                name,
                8_000,
                at,
                &format!(r#", "probe_us": {}"#, probe(at)),
            )
        });
        each.collect()
    };
    let found = judge(side("candidate", 2), side("baseline", 9), "").unwrap();
    check_mistake(&found, "throttled");
    let why = check(&found, "regression", CheckResult::Pass).why;
    assert!(why.contains("over 6 pairs"), "{why}");
}

/// A shell's pattern sorts files by name, but launches pair up in the order of measuring.
#[test]
fn launches_pair_up_by_their_start() {
    let side = |name: &str, shift: i64, step: i64| -> Vec<MeasuredFile> {
        // The device slows down, whichever model runs. The names of files sort the other way.
        let each = (0..6_u64).map(|at| {
            let start = 1_790_000_000_000 + shift + step * i64::try_from(at).unwrap();
            let us = 8_000 * (10 + at) / 10;
            let fields = format!(r#", "started_unix_ms": {start}"#);
            launch("a", name, us, usize::try_from(at).unwrap(), &fields)
        });
        let mut files: Vec<MeasuredFile> = each.collect();
        if name == "candidate" {
            files.reverse();
        }
        files
    };
    let found = judge(side("candidate", 1, 10), side("baseline", 0, 10), "").unwrap();
    let against = found.targets[0].against.unwrap();
    assert_eq!((against.ratio, against.origin), (1.0, "launches"));
    assert!(
        found.targets[0].mistakes.is_empty(),
        "{:?}",
        found.targets[0].mistakes
    );
    let found = judge(side("candidate", 1_000, 10), side("baseline", 0, 10), "").unwrap();
    check_mistake(&found, "not_in_turn");
    let again = side("candidate", 1, 10);
    let mut copy = again.clone();
    copy[0].file.sha256 = "a copy".to_owned();
    check_refused(
        judge(
            [again, copy[..1].to_vec()].concat(),
            Vec::new(),
            "[latency]\nmedian_ms = 9",
        ),
        "are the same launch",
    );
}

#[test]
fn load_times_and_outputs_have_limits() {
    let launches = |fields: &str| -> Vec<MeasuredFile> {
        let each = (0..6).map(|at| launch("a", "candidate", 8_000, at, fields));
        each.collect()
    };
    let good = r#", "load_us": 900000, "outputs": {"hash": "a", "cosine": 0.995}"#;
    let judged = |fields: &str, policy: &str| alone(launches(fields), policy);
    let load = |limit: &str| format!("[load]\ncold_ms = {limit}");
    check(&judged(good, &load("1500")), "load", CheckResult::Pass);
    let found = judged(good, &load("800"));
    let found = check(&found, "load", CheckResult::Fail);
    assert_eq!((found.value, found.unit), (Some(900.0), Some("ms")));
    check(&judged("", &load("1500")), "load", CheckResult::Undecided);
    let cosine = "[outputs]\nmin_cosine = 0.99";
    let passed = judged(good, cosine);
    check(&passed, "outputs", CheckResult::Pass);
    assert!(!passed.not_checked.iter().any(|part| part.id == "outputs"));
    let bad = good.replace("0.995", "0.98");
    check(&judged(&bad, cosine), "outputs", CheckResult::Fail);
    check(&judged("", cosine), "outputs", CheckResult::Undecided);
    let mut vary = launches(good);
    vary.truncate(5);
    vary.push(launch(
        "a",
        "candidate",
        8_000,
        5,
        &good.replace("\"a\"", "\"b\""),
    ));
    check_mistake(&alone(vary.clone(), cosine), "outputs_vary");
    vary[2].run.outputs = None;
    let found = alone(vary, cosine);
    check(&found, "outputs", CheckResult::Undecided);
}

/// A NaN has no distance, so that no cosine shows it.
#[test]
fn a_nan_where_the_cpu_has_a_number_fails_without_a_limit() {
    let judged = |elements: u64, expected: u64, differs: bool, policy: &str| {
        let fields = format!(
            r#", "outputs": {{"hash": "a", "not_finite": {{"output": "y", "elements": {elements}, "expected": {expected},
            "of": 16, "differs": {differs}}}}}"#
        );
        alone(vec![launch("a", "candidate", 8_000, 0, &fields)], policy)
    };
    let policy = "[latency]\nmedian_ms = 9";
    for (elements, expected, told) in [
        (
            16,
            0,
            "y has 16 NaNs or infinities in 16 elements, and 0 on the CPU",
        ),
        (
            2,
            2,
            "y has 2 NaNs or infinities in 16 elements, and as many on the CPU at other places",
        ),
    ] {
        let found = judged(elements, expected, true, policy);
        let found = check(&found, "outputs", CheckResult::Fail);
        assert!(found.why.contains(told), "{found:?}");
    }
    // The CPU's outputs are the ones that cannot be used.
    for (elements, expected, differs) in [(0, 2, true), (2, 2, false)] {
        let found = judged(elements, expected, differs, policy);
        check_mistake(&found, "not_finite");
        let checks = &found.targets[0].checks;
        assert!(
            !checks.iter().any(|check| check.id == "outputs"),
            "{checks:?}"
        );
    }
    let limit = "[outputs]\nmin_cosine = 0.99";
    let undecided = judged(16, 16, false, limit);
    check(&undecided, "outputs", CheckResult::Undecided);
}

/// The baseline's own launches are too noisy for the limit.
#[test]
fn a_limit_below_the_floor_of_the_device_is_named() {
    let side = |name: &str| -> Vec<MeasuredFile> {
        let each = (0..12).map(|at| {
            let mut one = launch("a", name, 8_000, at, "");
            one.run.runs_us[9] = 24_000;
            one
        });
        each.collect()
    };
    let found = judge(
        side("candidate"),
        side("baseline"),
        "[latency]\ncv_max = 0.08",
    )
    .unwrap();
    check(&found, "cv", CheckResult::Fail);
    check(&found, "regression", CheckResult::Pass);
    check_mistake(&found, "limit_below_floor");
    let found = judge(
        side("candidate"),
        side("baseline"),
        "[latency]\ncv_max = 0.5",
    )
    .unwrap();
    check(&found, "cv", CheckResult::Pass);
    assert!(found.targets[0].mistakes.is_empty());
}

/// A farm names its layers, so layers with the name of a node of the model have MACs.
#[test]
fn layers_join_the_macs_of_the_model() {
    let job = |names: [&str; 3]| {
        let runs: Vec<u64> = (0..100).map(|run| 8_000 + run % 13).collect();
        let [a, b, c] = names;
        files(&format!(
            r#"{{"execution_summary": {{"estimated_inference_time": 8000, "all_inference_times": {runs:?}}}, "execution_detail":
                [{{"name": "{a}", "type": "Conv", "compute_unit": "NPU"}}, {{"name": "{b}", "type": "Conv", "compute_unit": "NPU"}},
                 {{"name": "{c}", "type": "Gemm", "compute_unit": "CPU"}}]}}"#
        ))
    };
    let macs = ModelMacs {
        total: 1_000,
        by_name: [("conv0", 600), ("conv1", 20), ("head", 380)]
            .map(|(name, macs)| (name.to_owned(), macs))
            .into(),
        ..ModelMacs::default()
    };
    let by = By {
        macs: Some(&macs),
        ..By::default()
    };
    let found = by
        .judge(job(["conv0", "conv1", "head"]), Vec::new())
        .unwrap();
    let share = check(&found, "npu_macs", CheckResult::Fail);
    assert_eq!((share.value, &*share.nodes[0].name), (Some(0.62), "head"));
    let found = by.judge(job(["conv0", "x", "y"]), Vec::new()).unwrap();
    let why = check(&found, "npu_macs", CheckResult::Undecided).why;
    assert!(why.contains("60.0 % of them have a layer"), "{why}");
    check(&found, "layers", CheckResult::Warn);
    // A node that became several layers counts as on the CPU if one of them is there.
    let found = by
        .judge(job(["conv0", "head", "conv0"]), Vec::new())
        .unwrap();
    assert_eq!(
        check(&found, "npu_macs", CheckResult::Fail).value,
        Some(0.38)
    );

    let ops = r#", "per_op": [{"name": "a", "op_type": "Conv", "ep": "QNNExecutionProvider", "macs": 90},
        {"name": "b", "op_type": "Gemm", "ep": "CPUExecutionProvider", "macs": 10}]"#;
    let found = alone(vec![launch("a", "candidate", 8_000, 0, ops)], "");
    assert_eq!(
        check(&found, "npu_macs", CheckResult::Fail).value,
        Some(0.9)
    );
    check(&found, "npu_used", CheckResult::Pass);
}

/// A document of `inspect` with a Gemm on the CPU that has this share.
fn inspected(share: f64, partitions: &str, print: &str) -> Vec<MeasuredFile> {
    files(&format!(
        r#"{{"macs_error": null, "chipsets": [{}]}}"#,
        on_chipset(share, partitions, print)
    ))
}

fn on_chipset(share: f64, partitions: &str, print: &str) -> String {
    format!(
        r#"{{"chipset": "SM8635", "soc_model": "68", "session": "ok", "error": null,
            "eps": {{"QNNExecutionProvider": {{"nodes": 9, "partitions": {partitions}, "macs_share": {}}},
                "CPUExecutionProvider": {{"nodes": 1, "partitions": null, "macs_share": {share}}}}},
            "cpu_nodes": [{{"name": "a", "op_type": "Gemm", "reason": "unknown", "reason_text": null, "macs_share": {share},
                "benign": false}}], "fingerprint_normalised": "{print}", "reasons": []}}"#,
        1.0 - share
    )
}

#[test]
fn a_placement_is_judged_by_the_one_before() {
    let hybrid = "[placement]\nmin_npu_macs = 0.5";
    let judged = |now, before| judge(now, before, hybrid).unwrap();
    let before = || inspected(0.1, "1", "1:aa");
    let found = judged(inspected(0.15, "1", "1:bb"), before());
    check(&found, "npu_macs", CheckResult::Pass);
    let change = check(&found, "placement_change", CheckResult::Fail);
    assert_eq!(change.why, "85.0 % of the MACs on the NPU, 90.0 % before");
    let found = judged(inspected(0.11, "2", "1:bb"), before());
    check(&found, "placement_change", CheckResult::Warn);
    let found = judged(inspected(0.11, "1", "1:bb"), before());
    check(&found, "placement_change", CheckResult::Warn);
    // The files differ, but their placements are equal.
    let found = judged(inspected(0.101, "1", "1:aa"), before());
    check(&found, "placement_change", CheckResult::Pass);
    let eps = &found.targets[0].placement.as_ref().unwrap().eps;
    assert_eq!(eps["QNNExecutionProvider"].nodes, 9);

    // Placements of launches give the same results.
    let of = |name: &str, share: f64| {
        let placed = on_chipset(share, "null", "1:aa").replace("SM8635", "SM8650");
        let placement = format!(r#", "placement": {placed}"#);
        vec![launch("a", name, 8_000, 0, &placement)]
    };
    let found = judge(of("candidate", 0.2), of("baseline", 0.1), hybrid).unwrap();
    check(&found, "placement_change", CheckResult::Fail);
    check(&found, "partitions", CheckResult::Skip);
    let limit = format!("{hybrid}\nmax_partitions = 1");
    let found = judge(of("candidate", 0.1), of("baseline", 0.1), &limit).unwrap();
    check(&found, "partitions", CheckResult::Undecided);
}

/// A table without single runs cannot pass limits on them.
#[test]
fn limits_of_single_runs_are_undecided_without_them() {
    let table = "precisions:\n  float:\n    components:\n      M:\n        performance_metrics:\n          Phone:\n            onnx:\n              \
                 inference_time_milliseconds: 0.9\n";
    let found = alone(files(table), "[latency]\nmedian_ms = 1\np95_ms = 2");
    check(&found, "median", CheckResult::Pass);
    check(&found, "p95", CheckResult::Undecided);
}

/// A farm's result names the op on the CPU, even without MACs.
#[test]
fn layers_on_the_cpu_are_ops_with_names() {
    let runs: Vec<u64> = (0..100).map(|run| 8_000 + run % 13).collect();
    let job = files(&format!(
        r#"{{"execution_summary": {{"estimated_inference_time": 8000, "all_inference_times": {runs:?}}}, "execution_detail":
            [{{"name": "conv0", "type": "Conv", "compute_unit": "NPU"}},
             {{"name": "norm", "type": "LayerNormalization", "compute_unit": "CPU"}}]}}"#
    ));
    let latency = "[latency]\nmedian_ms = 10\n";
    for (limit, expected) in [
        ("", CheckResult::Warn),
        ("[placement]\nallowed_cpu_ops = []", CheckResult::Fail),
        (
            "[placement]\nforbidden_cpu_ops = ['LayerNormalization']",
            CheckResult::Fail,
        ),
        (
            "[placement]\nforbidden_cpu_ops = ['TopK']",
            CheckResult::Warn,
        ),
        (
            "[placement]\nallowed_cpu_ops = ['LayerNormalization']",
            CheckResult::Pass,
        ),
    ] {
        let found = judge(job.clone(), Vec::new(), &format!("{latency}{limit}")).unwrap();
        let ops = check(&found, "cpu_ops", expected);
        assert!(
            expected == CheckResult::Pass || ops.nodes[0].name == "norm",
            "{ops:#?}"
        );
    }
}
