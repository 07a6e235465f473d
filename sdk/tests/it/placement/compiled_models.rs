//! Checks whether a compiled model is for this device before it is loaded, with a real file of QNN and with a real EP.

use std::{
    fs,
    path::{Path, PathBuf},
};

use epwatch_proto::{DeviceType, ReasonCode};
use epwatch_sdk::{
    ModelInfo, ObservedSession, SessionRequest, Watch,
    placement::Compatibility,
    qnn::{HtpOptions, Plugin},
    types::Runtime,
};
use ort::environment::Environment;

use crate::support::{
    KEY, NOWHERE, TIMEOUT, check_explains, collector::Collector, config, environment, fixture,
    is_alone, qnn, start,
};

/// QNN's plugin with its back end.
struct Qnn {
    plugin: Plugin,
    backend: PathBuf,
}

impl Qnn {
    fn of(environment: &Environment, installed: &epwatch_engines::Installed) -> Self {
        let library = installed.qnn_provider_library();
        Self {
            plugin: Plugin::register(environment, &library).unwrap(),
            backend: installed.qnn_htp_library(),
        }
    }

    /// A request for a chipset, by QNN's number.
    fn request(&self, watch: &Watch, soc_model: &str, options: &[(&str, &str)]) -> SessionRequest {
        let htp = HtpOptions::new(&self.backend).with_soc_model(soc_model);
        let mut asked = self.plugin.session_builder(&htp).unwrap();
        for (key, value) in options {
            asked.builder = asked.builder.with_config_entry(key, value).unwrap();
        }
        qnn::request(watch, "m", asked)
    }

    /// Compiles a model for SM8650.
    fn compile(&self, watch: &Watch, compiled: &Path) {
        let path = compiled.to_string_lossy().into_owned();
        let options = [
            ("ep.context_enable", "1"),
            ("ep.context_file_path", &path),
            ("ep.context_embed_mode", "1"),
        ];
        let request = self.request(watch, "57", &options);
        assert_eq!(request.compatibility(fixture("models/cnn.qu8.onnx")), None);
        request
            .commit_from_file(fixture("models/cnn.qu8.onnx"))
            .unwrap();
    }
}

fn reasons(session: &ObservedSession) -> &[ReasonCode] {
    &session.placement().wire().reasons
}

#[test]
fn a_compiled_model_of_another_chipset_is_told_before_it_is_loaded() {
    if !is_alone(a_compiled_model_of_another_chipset_is_told_before_it_is_loaded) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let compiled = dir.path().join("compiled.onnx");
    let collector = Collector::start(KEY);
    let config = config(&dir.path().join("epwatch"), &collector.endpoint());
    let watch = start(config);
    let qnn = Qnn::of(environment(), &qnn::installed());
    qnn.compile(&watch, &compiled);

    let request = qnn.request(&watch, "57", &[]);
    assert_eq!(request.compatibility(&compiled), None);
    let same = request.commit_from_file(&compiled).unwrap();
    assert!(!reasons(&same).contains(&ReasonCode::EpcontextForAnother));

    let request = qnn.request(&watch, "68", &[]);
    let told = request.compatibility(&compiled);
    assert_eq!(told, Some(Compatibility::PreferRecompilation));
    let other = request.commit_from_file(&compiled).unwrap();
    assert!(reasons(&other).contains(&ReasonCode::EpcontextForAnother));
    check_explains(&watch, "epcontext_for_another: ");
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let reported = reports[0].session(other.uid().wire()).unwrap();
    let told = &reported.placement.reasons;
    assert!(told.contains(&ReasonCode::EpcontextForAnother), "{told:?}");
    assert!(reported.model.ep_compatibility.starts_with("v2:"));
}

/// QNN 2.47 refuses a graph of QNN 2.51.
#[test]
fn a_compiled_model_of_a_newer_qnn_is_told_and_its_failure_has_the_reason() {
    if !is_alone(a_compiled_model_of_a_newer_qnn_is_told_and_its_failure_has_the_reason) {
        return;
    }
    let (ort, installed) = epwatch_engines::ensure_qnn("2.3".parse().unwrap()).unwrap();
    let environment = ort::init_from(ort.ort_library()).unwrap().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let config = config(&dir.path().join("epwatch"), &collector.endpoint());
    let watch = start(config.with_runtime(Runtime::default().with_qnn_sdk_version("2.47.0")));
    let qnn = Qnn::of(&environment, &installed);
    let compiled = fixture("gate/context_sm8650.onnx");
    let request = qnn.request(&watch, "57", &[]);
    let told = request.compatibility(&compiled);
    assert_eq!(told, Some(Compatibility::Unsupported));
    let refused = request.commit_from_file(&compiled);
    assert!(refused.is_err(), "QNN 2.47 made a session of it");
    check_explains(&watch, "epcontext_incompatible: ");
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let failures: Vec<_> = reports.iter().flat_map(|r| &r.start_failures).collect();
    let [failure] = &failures[..] else {
        panic!("{failures:#?}");
    };
    assert_eq!(failure.reason, ReasonCode::EpcontextIncompatible);
    assert!(failure.model.ep_compatibility.starts_with("v2:6:2.51.0"));
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![(number << 3) | 2, u8::try_from(bytes.len()).unwrap()];
    field.extend(bytes);
    field
}

/// An ONNX model of one node EPContext, with this text of Intel's EP.
fn compiled_by_openvino(text: &str) -> Vec<u8> {
    let mut pair = field(1, b"ep_compatibility_info.OpenVINOExecutionProvider");
    pair.extend(field(2, text.as_bytes()));
    let mut model = field(7, &field(1, &field(4, b"EPContext")));
    model.extend(field(14, &pair));
    model
}

/// Intel's plugin lists the NPUs that it can compile for as virtual devices, and answers for them.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn the_ep_is_asked_about_a_compiled_model() {
    if !is_alone(the_ep_is_asked_about_a_compiled_model) {
        return;
    }
    let environment = environment();
    let plugin = epwatch_runtimes::onnxruntime_ep_openvino();
    environment
        .register_ep_library("openvino.virtual", &plugin)
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let watch = start(config(&dir.path().join("epwatch"), NOWHERE));
    let path = dir.path().join("compiled.onnx");
    let answer = |text: &str| {
        fs::write(&path, compiled_by_openvino(text)).unwrap();
        let builder = ort::session::Session::builder(environment).unwrap();
        let model = ModelInfo::new("m", "1").unwrap();
        let request = watch.session(model, builder);
        request
            .requesting(["OpenVINOExecutionProvider"])
            .compatibility(&path)
    };
    assert_eq!(answer("not its own"), Some(Compatibility::Unsupported));
    // The text has the plugin's own form, but names a device that is missing here.
    assert_eq!(answer(r#"{"device":"NPU"}"#), None);
}

/// Intel's plugin lists NPUs only, as virtual devices. Here it has no compiler for them, so its session fails.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn a_session_that_fails_names_the_only_device_type_of_its_ep() {
    if !is_alone(a_session_that_fails_names_the_only_device_type_of_its_ep) {
        return;
    }
    let environment = environment();
    let plugin = epwatch_runtimes::onnxruntime_ep_openvino();
    let name = "openvino.virtual";
    environment.register_ep_library(name, &plugin).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let watch = start(config(&dir.path().join("epwatch"), &collector.endpoint()));
    let ep = |device: &ort::device::Device<'_>| device.ep().unwrap().to_owned();
    let is_its = |device: &ort::device::Device<'_>| ep(device).starts_with("OpenVINO");
    let devices: Vec<_> = environment.devices().filter(is_its).take(1).collect();
    let asked = ep(&devices[0]);
    let builder = ort::session::Session::builder(environment).unwrap();
    let builder = builder.with_devices(devices, None).unwrap();
    let request = watch.session(ModelInfo::new("m", "1").unwrap(), builder);
    let request = request.requesting([asked]);
    let made = request.commit_from_file(fixture("models/d_mlp.fp32.onnx"));
    assert!(made.is_err(), "there is a compiler for Intel's NPU here");
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    assert_eq!(
        reports[0].start_failures[0].device_type,
        Some(DeviceType::Npu)
    );
    let chipsets: Vec<_> = reports[0].start_failure_chipsets("x").collect();
    assert_eq!(chipsets, ["x [OpenVINO NPU]"]);
}
