//! Qualcomm's plugin under names that an app chose, with one process per name.

use epwatch_proto::{Accelerator, placement::QNN_EP};
use epwatch_sdk::ModelInfo;
use ort::session::builder::SessionBuilder;
use serde_json::{Value, json};

use super::watch;
use crate::support::{command, emit, emitted_by, environment, fixture, qnn, role};

fn tell_placement(name: &str) {
    let environment = environment();
    environment.set_log_level(ort::logging::LogLevel::Warning);
    let library = qnn::installed().qnn_provider_library();
    environment.register_ep_library(name, library).unwrap();
    let is_its = |device: &ort::device::Device<'_>| device.ep().is_ok_and(|ep| ep == name);
    let devices: Vec<_> = environment.devices().filter(is_its).take(1).collect();
    assert_eq!(devices.len(), 1, "{name}");
    let backend = qnn::installed().qnn_htp_library();
    let option = |key: &str, value: &str| (format!("{name}.{key}"), value.to_owned());
    let options = [
        option("backend_path", &backend.to_string_lossy()),
        option("soc_model", "57"),
    ];
    let builder = SessionBuilder::new(environment).unwrap();
    let builder = builder.with_devices(devices, Some(&options)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let session = watch(dir.path())
        .session(ModelInfo::new("m", "1").unwrap(), builder)
        .requesting([name])
        .commit_from_file(fixture("models/a_cnn.qu8.onnx"))
        .unwrap();
    let placement = session.placement();
    let asked = placement.asked().unwrap();
    assert!(asked.accelerator.is_plain_npu(), "{asked:?}");
    emit(json!({
        "requested": placement.requested_eps,
        "nodes": [placement.n_npu_nodes(), placement.n_nodes],
        "is_qnn": asked.accelerator == Accelerator::QnnHtp,
        "reasons": placement.reasons,
    }));
}

#[test]
fn a_plugin_under_any_name_gives_the_right_placement() {
    if let Some(name) = role() {
        return tell_placement(&name);
    }
    // A name that the table knows as QNN is kept. For other names the runtime knows whose plugin it is.
    for (name, reported) in [
        ("QNN", "QNN"),
        ("qnn", "qnn"),
        ("npu0", QNN_EP),
        ("mine", QNN_EP),
    ] {
        let test = a_plugin_under_any_name_gives_the_right_placement;
        let lines = emitted_by(command(test, name));
        let found: Value = serde_json::from_str(&lines[0]).unwrap();
        let expected = json!({
            "requested": [reported],
            "nodes": [35, 37],
            "is_qnn": true,
            "reasons": ["edge_quantization"],
        });
        assert_eq!(found, expected, "{name}");
    }
}
