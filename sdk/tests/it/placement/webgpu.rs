//! An EP that runs ONNX Runtime's kernels in another layout: WebGPU on a software GPU, in processes of their own.

use epwatch_proto::{Placement, PlacementSource, ReasonCode};
use epwatch_sdk::{
    ModelInfo,
    placement::{Inspection, PlacementInput, inspect_file, with_built_in_ep},
    runtime,
};
use ort::session::{Session, builder::SessionBuilder};
use serde_json::{Value, json};

use super::watch;
use crate::support::{check_explains, command, emit, emitted_by, fixture, role};

const WEBGPU_EP: &str = "WebGpuExecutionProvider";
const SPLIT: &str = "models/c_cnn_hardmax.fp32.onnx";
const WHOLE: &str = "models/d_mlp.fp32.onnx";

fn facts(placement: &Placement) -> Value {
    json!({
        "source": placement.source,
        "nodes": [placement.n_npu_nodes(), placement.n_cpu_nodes(), placement.n_nodes],
        "cpu_ops": placement.cpu_ops(),
        "reasons": placement.reasons,
    })
}

fn tell_session(builder: SessionBuilder) {
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    let session = watch
        .session(ModelInfo::new("m", "1").unwrap(), builder)
        .requesting([WEBGPU_EP])
        .commit_from_file(fixture(SPLIT))
        .unwrap();
    check_explains(&watch, "records few of the nodes that run on WebGPU");
    emit(facts(session.placement().wire()));
}

fn tell_inspection(builder: SessionBuilder, model: &str) {
    let requested = [WEBGPU_EP.to_owned()];
    let input = PlacementInput {
        requested_eps: &requested,
        ..PlacementInput::default()
    };
    let inspection = inspect_file(builder, &fixture(model), input);
    let Inspection::Placed {
        placement,
        npu_nodes,
        ..
    } = inspection
    else {
        panic!("{inspection:?}");
    };
    emit(facts(&placement));
    emit(json!(npu_nodes));
}

fn tell(role: &str) {
    let library = epwatch_runtimes::onnxruntime_webgpu();
    let environment = runtime::load(library).unwrap().build().unwrap();
    let builder = Session::builder(&environment).unwrap();
    let builder = with_built_in_ep(builder, "WebGPU", &[]).unwrap();
    match role {
        "session" => tell_session(builder),
        model => tell_inspection(builder, model),
    }
}

/// ONNX Runtime's API has 2 of these 9 nodes, and none of the other model's 6. They would be a fallback that is not there.
#[test]
fn nodes_that_are_not_recorded_come_from_the_log_or_are_not_known() {
    if let Some(role) = role() {
        return tell(&role);
    }
    let told = |role| {
        let test = nodes_that_are_not_recorded_come_from_the_log_or_are_not_known;
        let mut child = command(test, role);
        child.envs(epwatch_runtimes::software_gpu());
        let lines = emitted_by(child);
        let each = lines.iter().map(|line| serde_json::from_str(line).unwrap());
        each.collect::<Vec<Value>>()
    };
    let unknown = json!({
        "source": PlacementSource::Unavailable,
        "nodes": [0, 0, 0],
        "cpu_ops": [],
        "reasons": [ReasonCode::AssignmentNotRecorded],
    });
    assert_eq!(told("session"), [unknown]);
    let split = json!({
        "source": PlacementSource::Log,
        "nodes": [9, 3, 12],
        "cpu_ops": ["Hardmax"],
        "reasons": [ReasonCode::Unknown],
    });
    let inspected = told(SPLIT);
    let (found, names) = (&inspected[0], &inspected[1]);
    assert_eq!(*found, split);
    let has = |name: &str| names.as_array().unwrap().contains(&json!(name));
    assert!(
        has("conv1") && has("softmax") && !has("hardmax0"),
        "{names}"
    );
    let whole = json!({
        "source": PlacementSource::Log,
        "nodes": [6, 0, 6],
        "cpu_ops": [],
        "reasons": [],
    });
    assert_eq!(told(WHOLE), [whole, json!([])]);
}
