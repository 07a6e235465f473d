//! The limits of a gate without a policy, by preset. The document of `inspect` has nodes at each place of the graph.

use epwatch_gate::{
    launches::JudgedLaunches,
    verdict::{CheckResult, Verdict},
};

use crate::checks::{alone, check, files};

/// A document of `inspect` with these partitions, nodes of the CPU (op and place) and other fields.
fn inspected(partitions: u32, nodes: &[(&str, &str)], fields: &str) -> String {
    let each = nodes.iter().enumerate().map(|(at, (op, place))| {
        let benign = matches!(*place, "edge" | "companion");
        format!(
            r#"{{"name": "n{at}", "op_type": "{op}", "reason": "unknown", "reason_text": null, "macs_share": 0.0,
                "benign": {benign}, "place": "{place}"}}"#
        )
    });
    let each: Vec<String> = each.collect();
    format!(
        r#"{{"macs_error": null{fields}, "chipsets": [{{"chipset": "SM8650", "soc_model": "57", "session": "ok", "error": null,
            "eps": {{"QNNExecutionProvider": {{"nodes": 90, "partitions": {partitions}, "macs_share": 1.0}},
                "CPUExecutionProvider": {{"nodes": {}, "partitions": null, "macs_share": 0.0}}}},
            "cpu_nodes": [{}], "fingerprint_normalised": null, "reasons": []}}]}}"#,
        nodes.len(),
        each.join(", ")
    )
}

fn result(judged: JudgedLaunches) -> CheckResult {
    Verdict::new("0", None, judged.not_checked, judged.targets).result
}

#[track_caller]
fn check_result(document: &str, policy: &str, expected: CheckResult) {
    let judged = alone(files(document), policy);
    let checks = format!("{:#?}", judged.targets[0].checks);
    assert_eq!(result(judged), expected, "{policy}: {checks}");
}

/// LayerNormalization has no MACs, so the share of the MACs alone stays at 100 %.
#[test]
fn work_on_the_cpu_within_the_graph_is_red_whatever_its_macs() {
    use CheckResult::{Fail, Pass};
    let edges = ("QuantizeLinear", "edge");
    let middle = inspected(2, &[edges, ("LayerNormalization", "middle")], "");
    let split = inspected(2, &[edges], "");
    let end = inspected(1, &[edges, ("TopK", "output")], "");
    let start = inspected(1, &[("Cast", "input")], "");
    let weight = inspected(1, &[("DequantizeLinear", "weight")], "");
    let whole = inspected(1, &[edges], "");
    let allowed = "[placement]\nallowed_cpu_ops = ['LayerNormalization']";
    let several = "[placement]\nmax_partitions = 2";
    let (default, strict, macs) = ("", "preset = 'strict'", "preset = 'macs-only'");
    for (document, policy, expected) in [
        (&middle, default, Fail),
        (&middle, strict, Fail),
        (&middle, macs, Pass),
        (&middle, allowed, Pass),
        (&middle, several, Pass),
        (&split, default, Fail),
        (&split, macs, Pass),
        (&split, several, Pass),
        (&end, default, Pass),
        (&end, strict, Fail),
        (
            &end,
            "preset = 'strict'\n[placement]\nallowed_cpu_ops = ['TopK']",
            Pass,
        ),
        (&start, default, Pass),
        (&start, strict, Fail),
        (&weight, default, Pass),
        (&weight, strict, Fail),
        (&whole, default, Pass),
        (&whole, strict, Pass),
        (&whole, macs, Pass),
    ] {
        check_result(document, policy, expected);
    }
    let found = alone(files(&middle), "");
    let ops = check(&found, "cpu_ops", CheckResult::Fail);
    assert!(
        ops.why.contains("1 node computes on the CPU between parts"),
        "{ops:#?}"
    );
    assert_eq!(ops.nodes[0].op_type, "LayerNormalization");
    // Each node is listed once.
    assert!(
        check(&found, "partitions", CheckResult::Fail)
            .nodes
            .is_empty()
    );
    let why = check(&alone(files(&end), ""), "cpu_ops", CheckResult::Warn).why;
    assert!(why.contains("after the last on the NPU"), "{why}");
}

/// QNN ends a sentence in the middle of its text.
#[test]
fn an_error_without_a_node_is_one_sentence() {
    let error = "Failed to finalize QNN graph. Error: QNN_COMMON_ERROR_MEM_ALLOC: Memory allocation related error., Code: 1002";
    let document = inspected(1, &[], "").replace(
        r#""session": "ok", "error": null"#,
        &format!(r#""session": "failed", "error": "{error}""#),
    );
    let why = check(&alone(files(&document), ""), "session", CheckResult::Fail).why;
    assert!(
        why.ends_with("Memory allocation related error, code 1002"),
        "{why}"
    );
}

/// A loop may turn never or a million times. No share has a bound then, so no number is printed.
#[test]
fn a_loop_with_an_unknown_number_of_turns_makes_the_share_undecided() {
    let uncounted = |total: u64, loops: &[(&str, &str, u64)]| {
        let each = loops.iter().map(|(name, op_type, macs)| {
            format!(
                r#"{{"name": "{name}", "op_type": "{op_type}", "why": "the number of its turns is not a constant of the model",
                    "at_least_macs": {macs}, "unknown_turns": true}}"#
            )
        });
        let each: Vec<String> = each.collect();
        format!(
            r#", "total_macs": {total}, "uncounted": [{}]"#,
            each.join(", ")
        )
    };
    let looped = &[("Loop", "output")][..];
    let also_gemm = &[("Loop", "output"), ("Gemm", "output")][..];
    let (one, of_body) = (("n0", "Loop", 0), ("n0", "LinearAttention", 9_000));
    let free = "[placement]\nmin_npu_macs = 0.0";
    use CheckResult::{Pass, Skip, Undecided};
    for (nodes, fields, policy, expected) in [
        (looped, uncounted(1_000, &[one]), "", Undecided),
        (looped, uncounted(0, &[one]), "", Undecided),
        // Counting one turn as a bound once made this case fail.
        (looped, uncounted(1_000, &[one, of_body]), "", Undecided),
        (also_gemm, uncounted(1_000, &[one]), "", Undecided),
        (looped, uncounted(1_000, &[one]), free, Skip),
        (&[], uncounted(1_000, &[("npu", "Scan", 0)]), "", Pass),
    ] {
        for share in ["1.0", "0.1"] {
            let document = inspected(1, nodes, &fields).replace(
                r#""partitions": 1, "macs_share": 1.0"#,
                &format!(r#""partitions": 1, "macs_share": {share}"#),
            );
            let judged = alone(files(&document), policy);
            let found = check(&judged, "npu_macs", expected);
            let shown = judged.targets[0].placement.as_ref().unwrap().npu_macs;
            assert_eq!(
                (found.value, shown),
                match expected {
                    Pass => (Some(1.0), Some(1.0)),
                    _ => (None, None),
                }
            );
            let why = &found.why;
            assert!(
                !why.contains('%') && (expected == Skip || why.contains("number of its turns")),
                "{why}"
            );
            assert!(
                expected != Undecided || why.contains("make the number a constant"),
                "{why}"
            );
        }
    }
}

#[test]
fn tensors_that_cross_are_named_with_and_without_a_limit() {
    let crossing = |op: &str, place: &str| {
        let document = inspected(2, &[(op, place)], "");
        let crossings = r#""crossings": {"to_npu": [{"tensor": "y", "bytes": 100}],
            "to_cpu": [{"tensor": "a", "bytes": 400}, {"tensor": "b", "bytes": 900}]}, "reasons""#;
        document.replace("\"reasons\"", crossings)
    };
    let middle = crossing("LayerNormalization", "middle");
    let why = check(&alone(files(&middle), ""), "crossings", CheckResult::Warn).why;
    assert!(
        why.contains("1400 bytes a run, about 0.10 to 3.0 ms: 2 tensors to the CPU (b 900, a 400), 1 to the NPU (y 100)"),
        "{why}"
    );
    let limit = |most: u32| format!("[placement]\nmax_crossing_bytes = {most}");
    check(
        &alone(files(&middle), &limit(1_399)),
        "crossings",
        CheckResult::Fail,
    );
    check(
        &alone(files(&middle), &limit(1_400)),
        "crossings",
        CheckResult::Pass,
    );
    let end = crossing("TopK", "output");
    check(&alone(files(&end), ""), "crossings", CheckResult::Pass);
}

/// If some MACs are not counted, the share of the counted ones is only a bound.
#[test]
fn work_without_a_rule_makes_the_share_a_bound() {
    let uncounted = |name: &str, macs: u64| {
        format!(
            r#", "total_macs": 1000, "uncounted": [{{"name": "{name}", "op_type": "LinearAttention", "why": "there is no rule",
                "at_least_macs": {macs}}}]"#
        )
    };
    let cpu = &[("Gemm", "output")];
    for (name, macs, expected) in [
        // n0 is on the CPU: the share can only be smaller.
        ("n0", 10, CheckResult::Undecided),
        ("n0", 1_000, CheckResult::Fail),
        // The uncounted node is on the NPU: the share can only be larger.
        ("npu", 1_000, CheckResult::Pass),
        ("(unnamed, makes y)", 10, CheckResult::Undecided),
    ] {
        let document = inspected(1, cpu, &uncounted(name, macs));
        let found = alone(files(&document), "");
        let why = check(&found, "npu_macs", expected).why;
        assert!(why.contains("are not counted: LinearAttention"), "{why}");
        assert!(
            expected == CheckResult::Pass || !why.contains("100.0 % of the MACs"),
            "{why}"
        );
    }
    let found = alone(files(&inspected(1, &[], &uncounted("npu", 64))), "");
    let why = check(&found, "npu_macs", CheckResult::Pass).why;
    assert!(
        why.starts_with("every node that computes is on the NPU; at least 6.0 %"),
        "{why}"
    );
    let found = alone(files(&inspected(1, &[], ", \"total_macs\": 0")), "");
    let why = check(&found, "npu_macs", CheckResult::Pass).why;
    assert!(why.contains("none of them has MACs"), "{why}");
}
