//! Placements of real sessions on the HTP emulator, with one process per chipset. The expected placements were read
//! through ONNX Runtime's Python API (`tests/fixtures/placements`).

mod compiled_models;
mod epcontext;
mod failures;
mod log;
mod models;
mod names;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod openvino;
#[expect(unsafe_code, reason = "`ort` has no safe call for an EP by name")]
mod versions;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod webgpu;

use std::{collections::BTreeMap, fs, path::Path};

use epwatch_proto::{Placement, PlacementSource, ReasonCode, placement::QNN_EP};
use epwatch_sdk::{
    ModelInfo, ObservedSession, Watch,
    placement::{self, Assignment},
    read_side_car,
    types::ModelManifest,
};
use ort::{inputs, value::TensorRef};
use serde_json::{Value, json};

use crate::support::{
    self, NOWHERE, TIMEOUT, command, config, emit, emitted_by, fixture, qnn, role,
};

/// Chipsets with QNN's numbers.
const SOCS: [(&str, u32); 5] = [
    ("SM8650", 57),
    ("SM8635", 68),
    ("SM8550", 43),
    ("SM8750", 69),
    ("SM7550", 64),
];

fn watch(dir: &Path) -> Watch {
    support::start(config(dir, NOWHERE))
}

fn manifest(model: &str) -> ModelManifest {
    read_side_car(&fs::read(fixture(&format!("models/{model}.macs.json"))).unwrap()).unwrap()
}

fn run(session: &mut ObservedSession, dims: &[usize]) {
    let input = vec![0.5_f32; dims.iter().product()];
    let input = TensorRef::from_array_view((dims, &*input)).unwrap();
    let outputs = session.run(inputs![input]).unwrap();
    let (_, output) = outputs[0].try_extract_tensor::<f32>().unwrap();
    assert!(output.iter().all(|y| y.is_finite()) && !output.is_empty());
}

/// The child process: makes a session of every model on one chipset, runs it, and emits its placement.
fn tell_placements(soc_model: &str) {
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    let plugin = qnn::plugin();
    assert!(plugin.has_device());
    let models = [
        ("mixed_v1.int8", vec![1, 3, 32, 32]),
        ("mixed_v2.head32", vec![1, 3, 32, 32]),
        ("mlp.fp32", vec![1, 64]),
        ("cnn.qu8", vec![1, 3, 32, 32]),
    ];
    for (model, dims) in models {
        let asked = plugin.session_builder(&qnn::htp(soc_model)).unwrap();
        let mut session = qnn::request(&watch, model, asked)
            .with_manifest(manifest(model))
            .commit_from_file(fixture(&format!("models/{model}.onnx")))
            .unwrap();
        run(&mut session, &dims);
        let assignment = placement::read(session.session()).unwrap();
        let document = document(model, session.placement().wire(), &assignment);
        emit(document);
    }
    // A session of the same process that must stay off the NPU does so.
    let builder = plugin.cpu_session_builder().unwrap();
    let session = watch
        .session(ModelInfo::new("cpu", "1").unwrap(), builder)
        .commit_from_file(fixture("models/cnn.qu8.onnx"))
        .unwrap();
    assert!(session.placement().wire().ep(QNN_EP).is_none());
    assert_eq!(
        session.placement().wire().reasons,
        [ReasonCode::EpNotRequested]
    );
    watch.stop(TIMEOUT).unwrap();
}

fn document(model: &str, placement: &Placement, assignment: &Assignment) -> Value {
    let wire = epwatch_proto::v1::Placement::from(placement);
    assert_eq!(&Placement::try_from(wire).unwrap(), placement);
    assert_eq!(placement.source, PlacementSource::AssignmentApi);
    assert_eq!(placement.requested_eps, [QNN_EP]);
    let nodes = assignment.subgraphs.iter().flat_map(|s| {
        s.nodes
            .iter()
            .map(|n| json!({"name": n.name, "op_type": n.op_type, "domain": n.domain, "ep": s.ep}))
    });
    let npu = placement.ep(QNN_EP);
    json!({
        "model": model,
        "on_npu": npu.map_or(0, |e| e.n_nodes),
        "partitions": npu.and_then(|e| e.n_partitions).unwrap_or(0),
        "n_nodes": placement.n_nodes,
        "cpu_ops": placement.cpu_ops(),
        "cpu_macs": placement.cpu_macs_share(),
        "attributed": placement.macs_attributed,
        "fingerprints": [placement.exact, placement.normalised],
        "nodes": nodes.collect::<Vec<_>>(),
    })
}

fn placements_of(soc_model: u32) -> BTreeMap<String, Value> {
    let test = placements_are_those_of_onnx_runtimes_python_api;
    let lines = emitted_by(command(test, &soc_model.to_string()));
    let documents = lines
        .iter()
        .map(|l| serde_json::from_str::<Value>(l).unwrap());
    let named = documents.map(|d| (d["model"].as_str().unwrap().to_owned(), d));
    named.collect()
}

#[test]
fn placements_are_those_of_onnx_runtimes_python_api() {
    if let Some(soc_model) = role() {
        return tell_placements(&soc_model);
    }
    let by_soc: BTreeMap<_, _> = SOCS
        .map(|(soc, soc_model)| (soc, placements_of(soc_model)))
        .into();

    // Placements are compared node by node, in order.
    for (soc, models) in &by_soc {
        for (oracle, model) in [
            ("mixed_v1", "mixed_v1.int8"),
            ("mixed_v2", "mixed_v2.head32"),
        ] {
            let path = fixture(&format!("placements/{oracle}.{soc}.json"));
            let oracle: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            assert_eq!(models[model]["nodes"], oracle["nodes"], "{model} on {soc}");
        }
    }

    // The rows of tests/fixtures/README.md.
    let check = |soc: &str, model: &str, on_npu: u32, n_nodes: u32, cpu_ops: &[&str], macs: f64| {
        let got = &by_soc[soc][model];
        assert_eq!(got["on_npu"], on_npu, "{model} on {soc}");
        assert_eq!(got["n_nodes"], n_nodes, "{model} on {soc}");
        assert_eq!(got["cpu_ops"], json!(cpu_ops), "{model} on {soc}");
        assert_eq!(got["attributed"], 1.0, "{model} on {soc}");
        let share = got["cpu_macs"].as_f64().unwrap();
        assert!((share - macs).abs() < 5e-4, "{model} on {soc}: {share}");
    };
    let head = ["Gemm", "LayerNormalization", "Relu", "Softmax"];
    check("SM8650", "mixed_v1.int8", 42, 44, &[], 0.0);
    check("SM8635", "mixed_v1.int8", 42, 44, &[], 0.0);
    check("SM8650", "mixed_v2.head32", 30, 31, &[], 0.0);
    check("SM8635", "mixed_v2.head32", 25, 31, &head, 0.261);
    check("SM8650", "mlp.fp32", 6, 6, &[], 0.0);
    check("SM8650", "cnn.qu8", 35, 37, &[], 0.0);
    check("SM8635", "cnn.qu8", 35, 37, &[], 0.0);
    assert_eq!(by_soc["SM8635"]["mlp.fp32"]["on_npu"], 0);
    assert_eq!(by_soc["SM8635"]["mlp.fp32"]["cpu_macs"], 1.0);

    // The fingerprint is the same in all processes and chipsets unless a node moved.
    let prints = |soc: &str, model: &str| by_soc[soc][model]["fingerprints"].clone();
    assert_eq!(prints("SM8650", "cnn.qu8"), prints("SM8635", "cnn.qu8"));
    assert_eq!(
        prints("SM8650", "mixed_v2.head32"),
        prints("SM8750", "mixed_v2.head32")
    );
    assert_ne!(
        prints("SM8650", "mixed_v2.head32")[1],
        prints("SM8635", "mixed_v2.head32")[1]
    );
}
