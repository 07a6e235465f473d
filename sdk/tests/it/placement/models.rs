//! Every model with known placement, on a chipset with FP16 and one without. The expected placements were read through
//! ONNX Runtime's Python API, the reasons from its log.

use std::fs;

use epwatch_proto::placement::QNN_EP;
use epwatch_sdk::{
    ExplainedEp, ExplainedNode, ExplainedReason,
    placement::{self, Inspection, PlacementInput, inspect_file},
};
use serde_json::{Value, json};

use super::watch;
use crate::support::{NOWHERE, command, emit, emitted_by, fixture, is_alone, qnn, role};

const MODELS: [&str; 7] = [
    "a_cnn.qu8",
    "a_cnn_dynbatch.fp32",
    "c_cnn_hardmax.fp32",
    "d_mlp.fp32",
    "e_mixed.q8head32",
    "e_mixed.qu8",
    "e_topk.qu8",
];

fn tell_models(soc_model: &str) {
    let (plugin, htp) = (qnn::plugin(), qnn::htp(soc_model));
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    for model in MODELS {
        let make = |captures_log: bool| {
            let request = qnn::request(&watch, model, plugin.session_builder(&htp).unwrap());
            let request = match captures_log {
                true => request.with_log_capture(),
                false => request,
            };
            request.commit_from_file(fixture(&format!("models/{model}.onnx")))
        };
        let (plain, with_log) = (make(false), make(true));
        let document = match (plain, with_log) {
            (Ok(plain), Ok(with_log)) => {
                let nodes = |s| placement::read(s).unwrap();
                // The log capture changes only reasons.
                assert_eq!(nodes(plain.session()), nodes(with_log.session()));
                assert_eq!(
                    plain.placement().wire().exact,
                    with_log.placement().wire().exact
                );
                assert_eq!(
                    plain.placement().wire().eps,
                    with_log.placement().wire().eps
                );
                let assignment = nodes(with_log.session());
                let nodes = assignment.subgraphs.iter().flat_map(|s| {
                    s.nodes.iter().map(|n| {
                        json!({"name": n.name, "op_type": n.op_type, "domain": n.domain, "ep": s.ep})
                    })
                });
                let placed = with_log.placement().wire();
                let placement = json!({
                    "n_nodes": placed.n_nodes,
                    "eps": ExplainedEp::all_of(placed),
                    "cpu_nodes": ExplainedNode::all_of(placed),
                    "reasons": placed.reasons,
                });
                json!({"model": model, "placement": placement, "nodes": nodes.collect::<Vec<_>>()})
            }
            (Err(plain), Err(with_log)) => {
                assert_eq!(plain.message(), with_log.message());
                json!({"model": model, "error": with_log.message(), "nodes": []})
            }
            (plain, with_log) => panic!("{model}: {plain:?} {with_log:?}"),
        };
        emit(document);
    }
}

fn on(chipset: &str, soc_model: u32) -> Vec<Value> {
    let test = every_model_has_the_placement_and_reasons_that_python_read;
    let lines = emitted_by(command(test, &soc_model.to_string()));
    let documents: Vec<Value> = lines
        .iter()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(documents.len(), MODELS.len());
    for document in &documents {
        let model = document["model"].as_str().unwrap();
        let oracle = fixture(&format!("placements/{model}.{chipset}.json"));
        let oracle: Value = serde_json::from_slice(&fs::read(oracle).unwrap()).unwrap();
        assert_eq!(document["nodes"], oracle["nodes"], "{model} on {chipset}");
        assert_eq!(
            document["error"].is_null(),
            oracle["error"].is_null(),
            "{model} on {chipset}"
        );
    }
    documents
}

/// (nodes on QNN, partitions there, all nodes), reasons, and the CPU nodes as `op type: reason`.
#[track_caller]
fn check(
    documents: &[Value],
    model: &str,
    counts: (u64, u64, u64),
    reasons: &[&str],
    cpu_nodes: &[&str],
) {
    let document = documents.iter().find(|d| d["model"] == model).unwrap();
    let placement = &document["placement"];
    let npu = &placement["eps"][QNN_EP];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let got = (
        number(&npu["nodes"]),
        number(&npu["partitions"]),
        number(&placement["n_nodes"]),
    );
    assert_eq!(got, counts, "{model}");
    assert_eq!(placement["reasons"], json!(reasons), "{model}");
    let cpu = placement["cpu_nodes"].as_array().unwrap().iter();
    let mut cpu: Vec<_> = cpu
        .map(|n| {
            format!(
                "{}: {}",
                n["op_type"].as_str().unwrap(),
                n["reason"].as_str().unwrap()
            )
        })
        .collect();
    cpu.dedup();
    assert_eq!(cpu, cpu_nodes, "{model}");
}

#[test]
fn every_model_has_the_placement_and_reasons_that_python_read() {
    if let Some(soc_model) = role() {
        return tell_models(&soc_model);
    }
    let with_fp16 = on("SM8650", 57);
    let without = on("SM8635", 68);

    let edges = [
        "QuantizeLinear: edge_quantization",
        "DequantizeLinear: edge_quantization",
    ];
    let edge = ["edge_quantization"];
    for documents in [&with_fp16, &without] {
        check(documents, "a_cnn.qu8", (35, 1, 37), &edge, &edges);
        check(documents, "e_mixed.qu8", (42, 1, 44), &edge, &edges);
        let everything = [
            "Conv",
            "Relu",
            "Conv",
            "Relu",
            "Conv",
            "Relu",
            "GlobalAveragePool",
            "Flatten",
            "Gemm",
            "Softmax",
        ];
        let everything: Vec<_> = everything.map(|op| format!("{op}: dynamic_shape")).into();
        let everything: Vec<_> = everything.iter().map(String::as_str).collect();
        check(
            documents,
            "a_cnn_dynbatch.fp32",
            (0, 0, 10),
            &["dynamic_shape"],
            &everything,
        );
    }

    check(
        &with_fp16,
        "e_mixed.q8head32",
        (30, 1, 31),
        &edge,
        &edges[..1],
    );
    check(&with_fp16, "e_topk.qu8", (52, 1, 54), &edge, &edges);
    check(&with_fp16, "d_mlp.fp32", (6, 1, 6), &[], &[]);
    check(
        &with_fp16,
        "c_cnn_hardmax.fp32",
        (9, 4, 12),
        &["op_not_supported"],
        &["Hardmax: op_not_supported"],
    );

    let fp16 = "fp16_not_supported";
    let head =
        ["Gemm", "LayerNormalization", "Relu", "Gemm", "Softmax"].map(|op| format!("{op}: {fp16}"));
    let head = [edges[0]]
        .into_iter()
        .chain(head.iter().map(String::as_str));
    check(
        &without,
        "e_mixed.q8head32",
        (25, 1, 31),
        &["edge_quantization", fp16],
        &head.collect::<Vec<_>>(),
    );
    check(
        &without,
        "e_topk.qu8",
        (51, 2, 54),
        &["edge_quantization", fp16],
        &[edges[0], "TopK: fp16_not_supported", edges[1]],
    );
    let mlp = ["Gemm", "Relu", "Gemm", "Relu", "Gemm", "Softmax"].map(|op| format!("{op}: {fp16}"));
    let mlp: Vec<_> = mlp.iter().map(String::as_str).collect();
    check(&without, "d_mlp.fp32", (0, 0, 6), &[fp16], &mlp);
}

/// An app's session has no log of QNN's validator, so `explain()` infers the reasons that `epwatch inspect` reads from
/// that log.
#[test]
fn a_session_on_a_chipset_without_fp16_explains_what_inspect_says() {
    if !is_alone(a_session_on_a_chipset_without_fp16_explains_what_inspect_says) {
        return;
    }
    let (plugin, htp) = (qnn::plugin(), qnn::htp("68"));
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    let requested = [QNN_EP.to_owned()];
    for model in ["e_mixed.q8head32", "d_mlp.fp32"] {
        let file = fixture(&format!("models/{model}.onnx"));
        let builder = || plugin.session_builder(&htp).unwrap();
        let session = qnn::request(&watch, model, builder())
            .commit_from_file(&file)
            .unwrap();
        let input = PlacementInput {
            requested_eps: &requested,
            soc_model: "68",
            ..PlacementInput::default()
        };
        let inspection = inspect_file(builder().builder, &file, input);
        let Inspection::Placed {
            placement: inspected,
            ..
        } = inspection
        else {
            panic!("{model}: {inspection:?}");
        };

        let explained = watch.explain_session(session.uid()).unwrap();
        let reasons = inspected.reasons.iter().copied();
        assert_eq!(
            explained.reasons,
            reasons.map(ExplainedReason::from).collect::<Vec<_>>()
        );
        let of_nodes = |nodes: &[ExplainedNode]| -> Vec<_> {
            let node = |node: &ExplainedNode| (node.op_type.clone(), node.reason.clone());
            nodes.iter().map(node).collect()
        };
        let nodes = ExplainedNode::all_of(&inspected);
        assert_eq!(of_nodes(&explained.cpu_nodes), of_nodes(&nodes), "{model}");
        let text = explained.to_string();
        for part in [
            "asked for QNNExecutionProvider on SM8635",
            "(Gemm): fp16_not_supported\n",
            "\n  fp16_not_supported: ",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!text.contains("unknown"), "{text}");
        let all = watch.explain();
        assert_eq!((&*all.chipset, &*all.endpoint), ("SM8650", NOWHERE));
        let all = all.to_string();
        let collector = format!("collector: {NOWHERE}\n");
        assert!(all.contains(&text) && all.contains(&collector), "{all}");
    }
}
