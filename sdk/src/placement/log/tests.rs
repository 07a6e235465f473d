//! Real logs of this runtime, texts from public logs of older ones, and hostile texts.

use std::fs;

use epwatch_proto::{
    Placement, PlacementSource, ReasonCode,
    placement::{CPU_EP, QNN_EP},
};
use proptest::prelude::*;

use super::*;
use crate::placement::PlacementInput;

fn fixture(name: &str) -> String {
    let path = format!(
        "{}/../tests/fixtures/logs/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    fs::read_to_string(path).unwrap()
}

fn one(text: &str) -> SessionLog {
    let mut sessions = read_log(text.lines());
    assert_eq!(sessions.len(), 1);
    sessions.remove(0)
}

fn placement(log: &SessionLog) -> Placement {
    let placement = log.placement(PlacementInput {
        requested_eps: &[QNN_EP.to_owned()],
        ..PlacementInput::default()
    });
    // A collector must accept what a device sends.
    let wire = epwatch_proto::v1::Placement::from(&placement);
    assert_eq!(Placement::try_from(wire).unwrap(), placement);
    placement
}

fn why(placement: &Placement) -> Vec<(&str, ReasonCode)> {
    let nodes = placement.cpu_nodes.iter();
    nodes.map(|n| (n.op_type.as_str(), n.reason)).collect()
}

#[test]
fn todays_log_gives_counts_partitions_nodes_and_reasons() {
    let log = one(&fixture("e_topk.qu8.68.verbose.txt"));
    let parsed = placement(&log);
    assert_eq!(parsed.source, PlacementSource::Log);
    let qnn = parsed.ep(QNN_EP).unwrap();
    assert_eq!(
        (qnn.n_nodes, qnn.n_partitions, parsed.n_nodes),
        (51, Some(2), 54)
    );
    let expected = [
        ("QuantizeLinear", ReasonCode::EdgeQuantization),
        ("TopK", ReasonCode::Fp16NotSupported),
        ("DequantizeLinear", ReasonCode::EdgeQuantization),
    ];
    assert_eq!(why(&parsed), expected);
    assert_eq!(parsed.cpu_ops(), ["TopK"]);
    assert!(parsed.cpu_nodes[0].reason_text.contains("not take Q nodes"));
    let reasons = [ReasonCode::EdgeQuantization, ReasonCode::Fp16NotSupported];
    assert_eq!(parsed.reasons, reasons);
}

#[test]
fn a_graph_wholly_on_the_cpu_is_named_by_the_validator() {
    let parsed = placement(&one(&fixture("d_mlp.fp32.68.verbose.txt")));
    assert_eq!((parsed.n_nodes, parsed.cpu_nodes.len()), (6, 6));
    assert_eq!(parsed.reasons, [ReasonCode::Fp16NotSupported]);
    assert!(parsed.ep(QNN_EP).is_none());
    let parsed = placement(&one(&fixture("a_cnn_dynbatch.fp32.57.verbose.txt")));
    assert_eq!(parsed.n_nodes, 10);
    assert_eq!(parsed.reasons, [ReasonCode::DynamicShape]);
}

#[test]
fn the_built_in_eps_later_form_reads_out_of_logcat() {
    let log = one(&fixture("built_in_1_20.logcat.txt"));
    let parsed = placement(&log);
    let qnn = parsed.ep(QNN_EP).unwrap();
    assert_eq!(
        (qnn.n_nodes, qnn.n_partitions, parsed.n_nodes),
        (1, Some(1), 5)
    );
    let rejected = ReasonCode::OpConfigRejected;
    let expected = [
        ("DequantizeLinear", rejected),
        ("Sqrt", rejected),
        ("QuantizeLinear", rejected),
        ("BatchNormalization", rejected),
    ];
    assert_eq!(why(&parsed), expected);
    assert!(log.validated[1].refusal.as_ref().unwrap().by_backend);
}

#[test]
fn the_built_in_eps_first_form_reads() {
    let parsed = placement(&one(&fixture("built_in_1_17.txt")));
    assert_eq!(parsed.ep(QNN_EP).unwrap().n_nodes, 1);
    let expected = [
        ("Hardmax", ReasonCode::OpNotSupported),
        ("Softmax", ReasonCode::OpConfigRejected),
    ];
    assert_eq!(why(&parsed), expected);
    assert!(
        parsed.cpu_nodes[1]
            .reason_text
            .contains("only supports an `axis`")
    );
}

#[test]
fn errors_of_the_whole_have_their_codes_and_no_placement() {
    let log = one(&fixture("built_in_errors.txt"));
    let expected = [
        ReasonCode::LayoutNotSelected,
        ReasonCode::PrepareFailed,
        ReasonCode::DeviceCreationFailed,
    ];
    assert_eq!(log.reasons, expected);
    assert!(log.reason_text.contains("NHWC"));
    let parsed = placement(&log);
    assert_eq!(parsed.source, PlacementSource::Unavailable);
    assert!(
        expected
            .iter()
            .all(|reason| parsed.reasons.contains(reason))
    );
}

#[test]
fn sessions_of_one_log_are_kept_apart() {
    let (one, other) = (
        fixture("d_mlp.fp32.68.verbose.txt"),
        fixture("built_in_1_17.txt"),
    );
    let sessions = read_log([one.as_str(), &other, &one].iter().flat_map(|t| t.lines()));
    let counts: Vec<_> = sessions.iter().map(|s| placement(s).n_nodes).collect();
    assert_eq!(counts, [6, 3, 6]);
}

#[test]
fn a_log_cut_short_is_no_placement() {
    let text = fixture("e_topk.qu8.68.verbose.txt");
    let head: Vec<_> = text
        .lines()
        .take_while(|l| !l.contains("Node placements"))
        .collect();
    let parsed = placement(&one(&head.join("\n")));
    assert_eq!(parsed.source, PlacementSource::Unavailable);
    // A log whose two sources contradict each other has no placement either.
    let text = fixture("built_in_1_17.txt").replace("supported by QNN: 1", "supported by QNN: 7");
    assert_eq!(placement(&one(&text)).source, PlacementSource::Unavailable);
}

/// Both cases occurred with onnxruntime 1.31.1: a Loop, and the function op Mish.
#[test]
fn bodies_and_graphs_partitioned_twice_are_no_placement() {
    let text = fixture("built_in_1_17.txt");
    let body = "Node placements\n All nodes placed on [CPUExecutionProvider]. Number of nodes: 3";
    assert_eq!(one(&format!("{text}\n{body}")).assignment(), None);
    let again = "Node supported: [0] index: [3] name: [p] Operator type: [QNN_1_1] as part";
    assert_eq!(one(&format!("{text}\n{again}")).assignment(), None);
}

#[test]
fn a_fused_list_alone_counts_no_npu_nodes() {
    let text = "Node placements\n Node(s) placed on [QNNExecutionProvider]. Number of nodes: 1\n   \
                QNNExecutionProvider_5600499331747928002_1\n Node(s) placed on \
                [CPUExecutionProvider]. Number of nodes: 1\n   QuantizeLinear (images_q)\n";
    let log = one(text);
    assert_eq!(log.placed[1].nodes[0].name, "images_q");
    assert_eq!(placement(&log).source, PlacementSource::Unavailable);
}

#[test]
fn memory_is_bounded_for_any_log() {
    let mut reader = LogReader::default();
    reader.line("Node placements");
    reader.line(" Node(s) placed on [CPUExecutionProvider]. Number of nodes: 4000000000");
    for at in 0..MAX_LOG_NODES + 10 {
        reader.line(&format!("  Relu (r{at})"));
    }
    let log = reader.finish().remove(0);
    assert_eq!(log.placed[0].nodes.len(), MAX_LOG_NODES);
    assert!(log.is_truncated);
    assert_eq!(placement(&log).source, PlacementSource::Unavailable);
}

/// Lines that the reader knows, and hostile variants of them.
fn hostile_line() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "Session Options {",
        "Initializing session.",
        "GetCapability pass 2",
        "Validation FAILED for 1 nodes in NodeUnit (X) :",
        "Validation PASSED for 9 nodes in OrtNodeUnit (X) :",
        "\tOperator type: X Node name: y Node index: 7",
        "\tREASON : Failed to add node.",
        "Node supported: [0] index: [1] name: [n] Operator type: [X] as",
        "Number of partitions supported by QNN EP: 4294967295, number of nodes in the graph: 3, number of nodes supported by QNN: 1",
        "QNN.backendValidateOpConfig() failed for node `n` of type",
        "Node placements",
        " Node(s) placed on [QNNExecutionProvider]. Number of nodes: 4294967295",
        " All nodes placed on [CPUExecutionProvider]. Number of nodes: 2",
        "   Op (name)",
        "Qnn_OpConfig node name: n",
        " node_inputs:",
        " name=x dataType=QNN_DATATYPE_FLOAT_32",
    ]);
    prop_oneof![
        4 => known.prop_map(str::to_owned),
        1 => "\\PC{0,60}",
        1 => ("[\\[\\]():`, é\u{1b}]{0,12}", "[a-zA-Z:. \\[\\]]{0,30}").prop_map(|(a, b)| format!("[V:onnxruntime:{a}] {b}")),
    ]
}

proptest! {
    #[test]
    fn any_text_gives_placements_that_a_collector_takes(
        lines in prop::collection::vec(hostile_line(), 0..60)
    ) {
        for log in read_log(&lines) {
            let parsed = placement(&log);
            prop_assert!(parsed.ep(CPU_EP).is_none_or(|e| e.n_nodes as usize >= parsed.cpu_nodes.len()));
        }
    }
}

/// ONNX Runtime 1.27 with WebGPU on a software GPU. Its API returned 2 of these 9 nodes, and none of the other model's 6.
#[test]
fn an_ep_that_runs_kernels_has_its_nodes_in_the_log() {
    let webgpu = "WebGpuExecutionProvider";
    let of = |name: &str| {
        one(&fixture(name)).placement(PlacementInput {
            requested_eps: &[webgpu.to_owned()],
            ..PlacementInput::default()
        })
    };
    let split = of("c_cnn_hardmax.fp32.webgpu.txt");
    assert_eq!(split.source, PlacementSource::Log);
    let own = split.ep(webgpu).unwrap();
    let found = (own.n_nodes, own.op_types["Conv"], split.n_nodes);
    assert_eq!((found, own.n_partitions), ((9, 3, 12), Some(1)));
    assert_eq!(split.cpu_ops(), ["Hardmax"]);
    let whole = of("d_mlp.fp32.webgpu.txt");
    assert_eq!(whole.source, PlacementSource::Log);
    assert_eq!((whole.ep(webgpu).unwrap().n_nodes, whole.n_nodes), (6, 6));
    assert_eq!(
        (whole.cpu_nodes.len(), whole.cpu_nodes_truncated),
        (0, false)
    );
    assert_eq!(whole.reasons, []);
}
