//! Intel's EP, which compiles partitions as QNN's does: real sessions of `onnxruntime-openvino`, in a process of their own.

use epwatch_proto::{Accelerator, Placement, PlacementSource, ReasonCode};
use epwatch_sdk::{ModelInfo, placement::with_built_in_ep, runtime, types::DeviceType};
use ort::session::Session;
use serde_json::{Value, json};

use super::{run, watch};
use crate::support::{command, emit, emitted_by, fixture, role};

const OPENVINO_EP: &str = "OpenVINOExecutionProvider";

fn facts(placement: &Placement) -> Value {
    let accelerator = placement.asked().map(|asked| asked.accelerator);
    assert_eq!(accelerator, Some(Accelerator::OpenVino));
    assert_eq!(placement.source, PlacementSource::AssignmentApi);
    let ops: Vec<_> = placement.cpu_nodes.iter().map(|n| &n.op_type).collect();
    json!({
        "requested": placement.requested_eps,
        "nodes": [placement.n_npu_nodes(), placement.n_cpu_nodes(), placement.n_nodes],
        "partitions": placement.n_npu_partitions(),
        "cpu_ops": ops,
        "reasons": placement.reasons,
    })
}

fn tell_placements() {
    let library = epwatch_runtimes::onnxruntime_openvino();
    let environment = runtime::load(library).unwrap().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    let models = [
        ("c_cnn_hardmax.fp32", &[1, 3, 32, 32][..]),
        ("d_mlp.fp32", &[1, 64]),
    ];
    for (model, dims) in models {
        let builder = Session::builder(&environment).unwrap();
        let on_cpu = [("device_type".to_owned(), "CPU".to_owned())];
        let builder = with_built_in_ep(builder, "OpenVINO", &on_cpu).unwrap();
        let mut session = watch
            .session(ModelInfo::new(model, "1").unwrap(), builder)
            .requesting([OPENVINO_EP])
            .with_device_type(DeviceType::Cpu)
            .commit_from_file(fixture(&format!("models/{model}.onnx")))
            .unwrap();
        run(&mut session, dims);
        emit(facts(session.placement().wire()));
    }
    let explained = watch.explain().to_string();
    let asked = format!("asked for {OPENVINO_EP} (device cpu);");
    assert!(explained.contains(&asked), "{explained}");
    assert!(!explained.contains("NPU"), "{explained}");
}

#[test]
fn a_partial_fallback_of_openvino_is_read_as_one_of_qnn() {
    if role().is_some() {
        return tell_placements();
    }
    let test = a_partial_fallback_of_openvino_is_read_as_one_of_qnn;
    let lines = emitted_by(command(test, "openvino"));
    let found: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let split = json!({
        "requested": [OPENVINO_EP],
        "nodes": [4, 6, 10],
        "partitions": 1,
        "cpu_ops": ["Conv", "Hardmax", "Conv", "Hardmax", "Conv", "Hardmax"],
        "reasons": [ReasonCode::Unknown],
    });
    let whole = json!({
        "requested": [OPENVINO_EP],
        "nodes": [6, 0, 6],
        "partitions": 1,
        "cpu_ops": [],
        "reasons": [],
    });
    assert_eq!(found, [split, whole]);
}
