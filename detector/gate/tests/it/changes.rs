//! Compares a placement with the placement of the earlier model. Nodes that are new on the CPU are found even if an
//! exporter numbered all names anew.

use std::collections::BTreeMap;

use epwatch_gate::{
    change::{self, Neighbours, Side},
    placement::InspectedChipset,
    policy::{PlacementLimits, Policy},
    report::comment,
    verdict::{Check, CheckResult, EarlierModel, GatedModel, Target, Verdict},
};

/// A chipset with these partitions, nodes that compute on the CPU (name and op) and bytes that cross.
fn on(partitions: u32, nodes: &[(&str, &str)], bytes: u64) -> InspectedChipset {
    let each = nodes.iter().map(|(name, op)| {
        serde_json::json!({"name": name, "op_type": op, "reason": "op_config_rejected", "reason_text": null,
            "macs_share": 0.0, "benign": op.ends_with("QuantizeLinear"), "place": "middle"})
    });
    let each: Vec<_> = each.collect();
    let npu = if partitions > 0 { 90 } else { 0 };
    let document = serde_json::json!({"chipset": "SM8650", "soc_model": "57", "session": "ok", "error": null,
        "eps": {"QNNExecutionProvider": {"nodes": npu, "partitions": partitions, "macs_share": 1.0},
            "CPUExecutionProvider": {"nodes": each.len(), "partitions": null, "macs_share": 0.0}},
        "cpu_nodes": each, "fingerprint_normalised": null,
        "reasons": [{"code": "op_config_rejected", "fix": "Read the sentence."}],
        "crossings": {"to_npu": [{"tensor": "a", "bytes": bytes}], "to_cpu": []}});
    serde_json::from_value(document).unwrap()
}

fn no_session(session: &str) -> InspectedChipset {
    let mut on = on(0, &[], 0);
    session.clone_into(&mut on.session);
    on
}

type Graph = BTreeMap<String, Neighbours>;

/// Nodes of a graph: name, op, and the ops around it.
fn graph(nodes: &[(&str, &str, &str)]) -> Graph {
    let each = nodes.iter().map(|(name, op, between)| {
        let around = Neighbours {
            op_type: (*op).to_owned(),
            between: (*between).to_owned(),
        };
        ((*name).to_owned(), around)
    });
    each.collect()
}

#[track_caller]
fn judged(
    now: (&InspectedChipset, &Graph),
    before: (&InspectedChipset, &Graph),
    policy: &str,
    expected: CheckResult,
) -> Check {
    let side = |(on, nodes)| Side { on, nodes };
    let limits = Policy::parse(policy).unwrap().placement_on("SM8650");
    let check = change::judge(side(now), side(before), &limits).unwrap();
    assert_eq!(check.result, expected, "{check:#?}");
    check
}

const NORM: (&str, &str) = ("ln", "LayerNormalization");

#[test]
fn what_was_there_before_is_said_and_passes() {
    let none = Graph::new();
    let both = on(2, &[NORM], 400);
    let check = judged((&both, &none), (&both, &none), "", CheckResult::Pass);
    assert_eq!(
        check.why,
        "nothing is new on the CPU: 1 node computes there, as before"
    );
    let less = on(1, &[], 0);
    let check = judged((&less, &none), (&both, &none), "", CheckResult::Pass);
    assert!(check.why.contains("1 node has left it"), "{}", check.why);
    // Edge quantisation computes nothing.
    let edge = on(1, &[("q", "QuantizeLinear")], 0);
    judged((&edge, &none), (&less, &none), "", CheckResult::Pass);
}

#[test]
fn nodes_partitions_and_bytes_that_are_new_fail_unless_the_policy_sets_them() {
    let none = Graph::new();
    let (now, before) = (on(2, &[NORM, ("top", "TopK")], 900), on(1, &[], 0));
    let check = judged((&now, &none), (&before, &none), "", CheckResult::Fail);
    for part in [
        "2 nodes are new on the CPU: LayerNormalization ln, TopK top",
        "2 partitions on the NPU, 1 before",
        "900 bytes cross between NPU and CPU in a run, 0 before",
    ] {
        assert!(check.why.contains(part), "{}", check.why);
    }
    assert_eq!((check.value, check.nodes.len()), (Some(2.0), 2));
    assert_eq!(check.nodes[0].fix.as_deref(), Some("Read the sentence."));
    let all = "[placement]\nallowed_cpu_ops = ['LayerNormalization', 'TopK']\nmax_partitions = 2\nmax_crossing_bytes = 900";
    judged((&now, &none), (&before, &none), all, CheckResult::Warn);
    // Each of these changes fails on its own.
    for (now, policy) in [
        (on(1, &[NORM], 0), ""),
        (on(2, &[], 0), ""),
        (on(1, &[], 1), ""),
        (on(1, &[], 901), "[placement]\nmax_crossing_bytes = 900"),
        (on(3, &[], 0), "[placement]\nmax_partitions = 2"),
        (on(1, &[NORM], 0), "[placement]\nallowed_cpu_ops = ['TopK']"),
        // No preset allows more nodes on the CPU than before.
        (on(1, &[NORM], 0), "preset = 'macs-only'"),
    ] {
        judged((&now, &none), (&before, &none), policy, CheckResult::Fail);
    }
}

/// Exporters number all nodes of an op, so an inserted node shifts the names after it.
#[test]
fn nodes_with_new_names_are_paired_by_what_stands_around_them() {
    let before = graph(&[
        ("Add_1", "Add", "Conv>Relu"),
        ("Add_2", "Add", "MatMul>Erf"),
        ("Erf_1", "Erf", "Add>Mul"),
    ]);
    // One more Add at the beginning, on the NPU.
    let now = graph(&[
        ("Add_1", "Add", "Mul>Conv"),
        ("Add_2", "Add", "Conv>Relu"),
        ("Add_3", "Add", "MatMul>Erf"),
        ("Erf_1", "Erf", "Add>Mul"),
    ]);
    let was = on(2, &[("Add_2", "Add"), ("Erf_1", "Erf")], 0);
    let is = on(2, &[("Add_3", "Add"), ("Erf_1", "Erf")], 0);
    judged((&is, &now), (&was, &before), "", CheckResult::Pass);
    // A second one is new, wherever the first one's name went.
    let more = on(
        2,
        &[("Add_2", "Add"), ("Add_3", "Add"), ("Erf_1", "Erf")],
        0,
    );
    let check = judged((&more, &now), (&was, &before), "", CheckResult::Fail);
    assert_eq!(check.nodes.len(), 1, "{check:#?}");
    // The op has as many nodes as before, but one is at another place: the check warns and does not fail.
    let moved = on(2, &[("Add_1", "Add"), ("Erf_1", "Erf")], 0);
    let check = judged((&moved, &now), (&was, &before), "", CheckResult::Warn);
    assert!(
        check
            .why
            .contains("Add Add_1 between other ops than Add_2 before"),
        "{}",
        check.why
    );
    // Without names, nodes can only be paired by op.
    let unnamed = |n: usize| on(2, &vec![("", "Erf"); n], 0);
    let none = Graph::new();
    judged(
        (&unnamed(2), &none),
        (&unnamed(2), &none),
        "",
        CheckResult::Pass,
    );
    let check = judged(
        (&unnamed(3), &none),
        (&unnamed(2), &none),
        "",
        CheckResult::Fail,
    );
    assert!(check.why.contains("Erf (unnamed)"), "{}", check.why);
}

#[test]
fn a_new_node_says_where_it_was_before() {
    let before = graph(&[("ln", "LayerNormalization", "Conv>Conv")]);
    let same = graph(&[
        ("ln", "LayerNormalization", "Conv>Conv"),
        ("e", "Erf", "Add>Mul"),
    ]);
    let now = on(1, &[NORM, ("e", "Erf")], 0);
    let check = judged(
        (&now, &same),
        (&on(1, &[], 0), &before),
        "",
        CheckResult::Fail,
    );
    assert!(
        check.why.contains(
            "LayerNormalization ln (on the NPU before), Erf e (no node of this name before)"
        ),
        "{}",
        check.why
    );
}

#[test]
fn sessions_that_were_not_made_compare_with_nothing() {
    let none = Graph::new();
    let now = on(2, &[NORM], 400);
    judged(
        (&now, &none),
        (&no_session("failed"), &none),
        "",
        CheckResult::Pass,
    );
    judged(
        (&now, &none),
        (&no_session("timed_out"), &none),
        "",
        CheckResult::Undecided,
    );
    // The earlier model was wholly on the CPU, so partitions and crossings are progress.
    let cpu = on(0, &[NORM], 0);
    judged((&now, &none), (&cpu, &none), "", CheckResult::Pass);
    let side = |on| Side { on, nodes: &none };
    let failed = no_session("failed");
    let check = change::judge(side(&failed), side(&now), &PlacementLimits::default());
    assert!(check.is_none(), "{check:#?}");
}

fn file(path: &str) -> GatedModel {
    GatedModel {
        path: path.to_owned(),
        sha256: "0123456789abcdef".repeat(4),
        data: Vec::new(),
    }
}

fn target(
    model: &str,
    chipset: &str,
    now: &InspectedChipset,
    before: Option<&InspectedChipset>,
) -> Target {
    let none = Graph::new();
    let side = |on| Side { on, nodes: &none };
    let limits = PlacementLimits::default();
    let mut checks = now.judge(&limits, None);
    checks.extend(before.and_then(|before| change::judge(side(now), side(before), &limits)));
    Target {
        chipset: chipset.to_owned(),
        model: Some(file(model)),
        source: "emulator",
        runtime: Some("1.31.1/2.7.0".to_owned()),
        asked_for: Vec::new(),
        before: before.map(|before| EarlierModel {
            model: file("base/scene.onnx"),
            placement: before.numbers(),
        }),
        placement: now.numbers(),
        checks,
        ..Target::default()
    }
}

#[test]
fn a_comment_has_each_chipset_before_and_now() {
    let (bad, good) = (on(2, &[NORM], 1_505_600), on(1, &[], 0));
    let targets = vec![
        target("scene.onnx", "SM8650", &good, Some(&good)),
        target("scene.onnx", "SM8635", &bad, Some(&good)),
        target("scene.onnx", "SM8350", &bad, Some(&good)),
        target("scene.onnx", "SM8450", &good, Some(&no_session("failed"))),
    ];
    let verdict = Verdict::new("0", None, Vec::new(), targets);
    let text = comment::comment(&verdict);
    assert!(
        text.starts_with("<!-- epwatch gate -->\n### epwatch gate: fail\n"),
        "{text}"
    );
    for row in [
        "| SM8650 | pass | 100.0 % | 1 | 0 | 0 |",
        "| SM8635 | **fail** | 100.0 % | 1 → 2 | 0 → 1 | 0 → 1,505,600 |",
        "| SM8450 | pass | no session → 100.0 % | no session → 1 | no session → 0 | no session → 0 |",
        // Both chipsets share one sentence.
        "- **SM8635, SM8350** placement\\_change: 1 node is new on the CPU: LayerNormalization ln",
        "Fix: Read the sentence.",
        "Runtime: 1.31.1/2.7.0.",
    ] {
        let text = text.replace('\u{a0}', " ");
        assert!(text.contains(row), "no {row} in {text}");
    }
    let at = |word: &str| text.find(word).unwrap();
    assert!(at("placement\\_change") < at("cpu\\_ops"), "{text}");
    assert_eq!(verdict.name_of(&verdict.targets[0]), "SM8650");
}

#[test]
fn several_models_have_a_block_each() {
    let (bad, good) = (on(2, &[NORM], 400), on(1, &[], 0));
    let targets = vec![
        target("a.onnx", "SM8650", &good, None),
        target("b.onnx", "SM8650", &bad, None),
    ];
    let verdict = Verdict::new("0", None, Vec::new(), targets);
    assert_eq!(verdict.name_of(&verdict.targets[1]), "b.onnx SM8650");
    let text = comment::comment(&verdict);
    assert!(
        text.contains("#### a.onnx\n") && text.contains("#### b.onnx\n"),
        "{text}"
    );
    assert!(text.contains("**b.onnx SM8650** cpu\\_ops"), "{text}");
    assert!(!text.contains('→'), "{text}");
}

/// GitHub takes 65,536 characters, and node names come from a stranger.
#[test]
fn a_comment_stays_short_and_escapes_names() {
    let names: Vec<String> = (0..2_000)
        .map(|n| format!("<script>|@team {n}{}", "x".repeat(200)))
        .collect();
    let nodes: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "Erf")).collect();
    let bad = on(2, &nodes, 400);
    let targets = (0..400).map(|n| target("a.onnx", &format!("SM{n}"), &bad, None));
    let verdict = Verdict::new("0", None, Vec::new(), targets.collect());
    let text = comment::comment(&verdict);
    assert!(text.len() < 65_536, "{}", text.len());
    assert!(
        !text.contains("<script>") && !text.contains(" @team"),
        "{text}"
    );
}
