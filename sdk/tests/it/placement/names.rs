//! Qualcomm's plugin under names that an app chose, and chosen by a policy. One process for each.

use epwatch_proto::{Accelerator, ReasonCode, SelectionPolicy, placement::QNN_EP};
use epwatch_sdk::{ModelInfo, Watch};
use ort::session::builder::{AutoDevicePolicy, SessionBuilder};
use serde_json::{Value, json};

use super::watch;
use crate::support::{command, emit, emitted_by, environment, fixture, qnn, role};

/// Devices of the latest session, without the vendor of this machine's processor.
fn devices_of(watch: &Watch) -> Vec<String> {
    let explained = watch.explain();
    let devices = explained.sessions.last().unwrap().devices.iter();
    let texts = devices.map(|device| device.split(" (").next().unwrap().to_owned());
    texts.collect()
}

fn tell_placement(name: &str) {
    let environment = environment();
    environment.set_log_level(ort::logging::LogLevel::Warning);
    let library = qnn::installed().qnn_provider_library();
    environment.register_ep_library(name, library).unwrap();
    let is_its = |device: &ort::device::Device<'_>| device.ep().is_ok_and(|ep| ep == name);
    let backend = qnn::installed().qnn_htp_library();
    let option = |key: &str, value: &str| (format!("{name}.{key}"), value.to_owned());
    let options = [
        option("backend_path", &backend.to_string_lossy()),
        option("soc_model", "57"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    let session = |model: &str| {
        let devices: Vec<_> = environment.devices().filter(is_its).take(1).collect();
        assert_eq!(devices.len(), 1, "{name}");
        let builder = SessionBuilder::new(environment).unwrap();
        let builder = builder.with_devices(devices, Some(&options)).unwrap();
        let request = watch.session(ModelInfo::new("m", "1").unwrap(), builder);
        let request = request.requesting([name]);
        request
            .commit_from_file(fixture(&format!("models/{model}.onnx")))
            .unwrap()
    };
    let _of_floats = session("c_cnn_hardmax.fp32");
    let of_floats = devices_of(&watch);
    let session = session("a_cnn.qu8");
    let placement = session.placement().wire();
    let asked = placement.asked().unwrap();
    assert!(asked.accelerator.is_plain_npu(), "{asked:?}");
    emit(json!({
        "requested": placement.requested_eps,
        "nodes": [placement.n_npu_nodes(), placement.n_nodes],
        "is_qnn": asked.accelerator == Accelerator::QnnHtp,
        "reasons": placement.reasons,
        "devices": [of_floats, devices_of(&watch)],
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
            // The emulator's hardware is this machine's processor. Inputs and outputs of the quantised model belong to nodes
            // on the CPU, so ONNX Runtime names no device of QNN.
            "devices": [[format!("{reported} on CPU")], []],
        });
        assert_eq!(found, expected, "{name}");
    }
}

/// Sessions whose EP ONNX Runtime chooses, without and with the plugin. With the plugin it chooses the emulator, whose back
/// end is named by the session's options.
fn tell_policies() {
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    let tell = |builder: SessionBuilder, policy: Option<SelectionPolicy>| {
        let mut request = watch.session(ModelInfo::new("m", "1").unwrap(), builder);
        if let Some(policy) = policy {
            request = request.with_selection_policy(policy.into());
        }
        let session = request.commit_from_file(fixture("models/a_cnn.qu8.onnx"));
        let session = session.unwrap();
        let placement = session.placement().wire();
        let explained = watch.explain();
        let explained = explained.sessions.last().unwrap();
        emit(json!({
            "requested": placement.requested_eps,
            "nodes": placement.n_npu_nodes(),
            "votes": placement.requests_npu(),
            "is_for_cpu": placement.reasons.contains(&ReasonCode::EpNotRequested),
            "by_app": explained.requested,
            "policy": explained.selection_policy,
        }));
    };
    let by = |policy| {
        let builder = SessionBuilder::new(environment()).unwrap();
        builder.with_auto_device(policy).unwrap()
    };
    tell(
        by(AutoDevicePolicy::PreferNPU),
        Some(SelectionPolicy::PreferNpu),
    );
    tell(
        by(AutoDevicePolicy::PreferCPU),
        Some(SelectionPolicy::PreferCpu),
    );
    // `ort` has set a policy here, too.
    tell(SessionBuilder::new(environment()).unwrap(), None);
    let _plugin = qnn::plugin();
    let backend = qnn::installed().qnn_htp_library();
    let chosen = by(AutoDevicePolicy::PreferNPU);
    let chosen = chosen.with_config_entry(
        "ep.qnnexecutionprovider.backend_path",
        backend.to_string_lossy(),
    );
    tell(chosen.unwrap(), Some(SelectionPolicy::PreferNpu));
}

#[test]
fn a_session_by_a_policy_counts_for_the_ep_that_got_nodes() {
    if role().is_some() {
        return tell_policies();
    }
    let test = a_session_by_a_policy_counts_for_the_ep_that_got_nodes;
    let lines = emitted_by(command(test, "policies"));
    let found: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |requested: &[&str], nodes, policy: Option<&str>| {
        let votes = !requested.is_empty();
        json!({
            "requested": requested,
            "nodes": nodes,
            "votes": votes,
            "is_for_cpu": !votes,
            "by_app": [],
            "policy": policy,
        })
    };
    let expected = [
        of(&["policy:prefer_npu"], 0, Some("prefer_npu")),
        of(&[], 0, Some("prefer_cpu")),
        of(&[], 0, None),
        of(&[QNN_EP], 35, Some("prefer_npu")),
    ];
    assert_eq!(found, expected);
}
