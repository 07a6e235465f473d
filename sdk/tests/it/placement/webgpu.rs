//! An EP that runs ONNX Runtime's kernels in another layout: WebGPU on a software GPU, in a process of its own.

use epwatch_proto::{PlacementSource, ReasonCode};
use epwatch_sdk::{ModelInfo, placement::with_built_in_ep, runtime};
use ort::session::Session;
use serde_json::json;

use super::watch;
use crate::support::{check_explains, command, emit, emitted_by, fixture, role};

const WEBGPU_EP: &str = "WebGpuExecutionProvider";

fn tell_placement() {
    let library = epwatch_runtimes::onnxruntime_webgpu();
    let environment = runtime::load(library).unwrap().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    let builder = Session::builder(&environment).unwrap();
    let builder = with_built_in_ep(builder, "WebGPU", &[]).unwrap();
    let request = watch
        .session(ModelInfo::new("m", "1").unwrap(), builder)
        .requesting([WEBGPU_EP]);
    let model = fixture("models/c_cnn_hardmax.fp32.onnx");
    let session = request.commit_from_file(model).unwrap();
    let placement = session.placement();
    check_explains(&watch, "records few of the nodes that run on WebGPU");
    emit(json!({
        "source": placement.source,
        "nodes": [placement.n_npu_nodes(), placement.n_cpu_nodes(), placement.n_nodes],
        "reasons": placement.reasons,
    }));
}

/// ONNX Runtime's API has 2 of these 9 nodes. They would be a fallback that is not there.
#[test]
fn a_placement_that_is_not_recorded_is_not_known() {
    if role().is_some() {
        return tell_placement();
    }
    let mut child = command(a_placement_that_is_not_recorded_is_not_known, "webgpu");
    child.envs(epwatch_runtimes::software_gpu());
    let lines = emitted_by(child);
    let found: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let unknown = json!({
        "source": PlacementSource::Unavailable,
        "nodes": [0, 0, 0],
        "reasons": [ReasonCode::AssignmentNotRecorded],
    });
    assert_eq!(found, [unknown]);
}
