//! A precompiled model that the real EP made, loaded with the EP and without it.

use std::path::Path;

use epwatch_proto::{GraphKind, ReasonCode, placement::QNN_EP};
use epwatch_sdk::{ModelInfo, ObservedSession};

use crate::support::{KEY, TIMEOUT, collector::Collector, config, fixture, is_alone, qnn, start};

#[test]
fn a_precompiled_model_has_its_own_kind_and_is_compared_by_its_cpu_nodes() {
    if !is_alone(a_precompiled_model_has_its_own_kind_and_is_compared_by_its_cpu_nodes) {
        return;
    }
    let (plugin, htp) = (qnn::plugin(), qnn::htp("57"));
    let dir = tempfile::tempdir().unwrap();
    let compiled = dir.path().join("compiled.onnx");
    let collector = Collector::start(KEY);
    let watch = start(config(&dir.path().join("epwatch"), &collector.endpoint()));
    let make = |model: &Path, options: &[(&str, &str)]| -> ort::Result<ObservedSession> {
        let mut asked = plugin.session_builder(&htp).unwrap();
        for (key, value) in options {
            asked.builder = asked.builder.with_config_entry(key, value).unwrap();
        }
        qnn::request(&watch, "m", asked)
            .with_log_capture()
            .commit_from_file(model)
    };

    // The log capture must not write the file before the host does.
    let path = compiled.to_string_lossy().into_owned();
    let options = [
        ("ep.context_enable", "1"),
        ("ep.context_file_path", &path),
        ("ep.context_embed_mode", "1"),
    ];
    let source = make(&fixture("models/cnn.qu8.onnx"), &options).unwrap();
    assert_eq!(source.placement().wire().graph_kind, GraphKind::Jit);
    assert_eq!(source.placement().wire().n_nodes, 37);
    assert!(compiled.is_file());

    let session = make(&compiled, &[]).unwrap();
    let placement = session.placement().wire();
    assert_eq!(placement.graph_kind, GraphKind::EpContext);
    assert_eq!(placement.ep(QNN_EP).unwrap().n_nodes, 1);
    // The CPU's part is compared. It equals the CPU's part of the source model.
    let cpu = |s: &ObservedSession| -> Vec<_> {
        let nodes = s.placement().wire().cpu_nodes.iter();
        nodes
            .map(|n| (n.name.clone(), n.op_type.clone(), n.benign))
            .collect()
    };
    assert_eq!(cpu(&session), cpu(&source));
    assert_ne!(placement.graph_kind, source.placement().wire().graph_kind);
    let again = make(&compiled, &[]).unwrap();
    assert_eq!(again.placement().wire().normalised, placement.normalised);

    let builder = plugin.cpu_session_builder().unwrap();
    let error = watch
        .session(ModelInfo::new("m", "1").unwrap(), builder)
        .requesting([QNN_EP])
        .commit_from_file(&compiled)
        .map(|_| ())
        .unwrap_err();
    assert!(error.message().contains("EPContext"), "{error}");
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let model = &reports[0].session(session.uid().wire()).unwrap().model;
    assert!(model.ep_compatibility.starts_with("v2:"), "{model:?}");
    let failures = reports.iter().flat_map(|r| &r.start_failures);
    let reasons: Vec<_> = failures.map(|f| f.reason).collect();
    assert_eq!(reasons, [ReasonCode::EpcontextWithoutEp]);
}
