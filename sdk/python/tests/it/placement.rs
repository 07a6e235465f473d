//! The placement of a Python session is the one that the SDK reads of the same model with the same runtime.

use std::path::Path;

use epwatch_engines::{Engine, for_tests};
use epwatch_proto::placement::QNN_EP;
use epwatch_runtimes::{Environment, is_nightly};
use epwatch_sdk::{
    ModelInfo, SdkConfig, Watch,
    qnn::{HtpOptions, Plugin},
    read_side_car, runtime,
};
use serde_json::{Value, json};

use crate::environment::{environment, environment_of, model, n_runs, run_in};

const MODEL: &str = "mixed_v2.head32.onnx";
const SIDE_CAR: &str = "mixed_v2.head32.macs.json";

/// Python's explanation of the session on the emulator, and the number of runs that arrived. The plugin has this name.
fn in_python(environment: &Environment, soc_model: &str, plugin_name: &str) -> (Value, u64) {
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    let (plugin, backend) = (qnn.qnn_provider_library(), qnn.qnn_htp_library());
    let (model, side_car) = (model(MODEL), model(SIDE_CAR));
    let [soc_model, plugin_name] = [soc_model, plugin_name].map(Path::new);
    let args = [
        &*model,
        &plugin,
        &backend,
        soc_model,
        &side_car,
        plugin_name,
    ];
    let (printed, reports) = run_in(environment, "placement.py", &args);
    // QNN prints lines of its own.
    let explained = printed.lines().find(|line| line.starts_with('{')).unwrap();
    assert_eq!(reports[0].sdk.language, "python");
    (serde_json::from_str(explained).unwrap(), n_runs(&reports))
}

/// The SDK's explanations in this process.
fn in_rust(soc_models: &[&str]) -> Vec<Value> {
    let library = for_tests(Engine::OnnxRuntime).ort_library();
    let environment = runtime::load(library).unwrap().build().unwrap();
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    let plugin = Plugin::register(&environment, &qnn.qnn_provider_library()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config =
        SdkConfig::builder("app", "http://127.0.0.1:1", "key", folder.path()).with_consent(true);
    let watch = Watch::start(config.build().unwrap()).unwrap();
    let explained = soc_models.iter().map(|soc_model| {
        let htp = HtpOptions::new(qnn.qnn_htp_library()).with_soc_model(*soc_model);
        let htp = plugin.session_builder(&htp);
        let info = ModelInfo::new("segmenter", "3").unwrap();
        let manifest = read_side_car(&std::fs::read(model(SIDE_CAR)).unwrap()).unwrap();
        let session = watch
            .htp_session(info, htp.unwrap())
            .with_manifest(manifest);
        let session = session.commit_from_file(model(MODEL)).unwrap();
        let explained = watch.explain_session(session.uid()).unwrap();
        serde_json::from_str(&explained.to_json()).unwrap()
    });
    explained.collect()
}

/// Clears the fields that depend on runs, and the devices: Python has them for inputs only, Rust for outputs too.
fn placed(mut explained: Value) -> Value {
    for name in ["runs", "p50_us", "devices"] {
        explained[name] = json!(null);
    }
    explained
}

#[test]
fn the_placement_of_a_python_session_is_that_of_the_rust_sdk() {
    let soc_models = ["57", "68"];
    let names = [QNN_EP, "mine"];
    for ((soc_model, name), expected) in soc_models.iter().zip(names).zip(in_rust(&soc_models)) {
        let (explained, n_runs) = in_python(environment(), soc_model, name);
        assert_eq!(n_runs, 20);
        assert_eq!(explained["source"], "assignment_api");
        assert!(explained["eps"]["QNNExecutionProvider"]["nodes"].as_u64() >= Some(25));
        assert!(explained["eps"]["QNNExecutionProvider"]["macs_share"].is_f64());
        assert_eq!(placed(explained), placed(expected), "{soc_model}");
    }
}

#[test]
fn the_oldest_and_the_newest_onnxruntime_give_the_same_placement() {
    if !is_nightly("placements of onnxruntime 1.24.4 and 1.32.0 in Python") {
        return;
    }
    let (expected, _) = in_python(environment(), "68", QNN_EP);
    for version in ["1.24.4", "1.32.0"] {
        let (explained, n_runs) = in_python(&environment_of("onnxruntime", version), "68", QNN_EP);
        assert_eq!(n_runs, 20, "{version}");
        let name = "fingerprint_normalised";
        assert_eq!(explained[name], expected[name], "{version}");
        assert_eq!(explained["eps"], expected["eps"], "{version}");
    }
}
