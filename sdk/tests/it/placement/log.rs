//! Compares the log reader with the assignment API for the same session.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use epwatch_proto::PlacementSource;
use epwatch_sdk::{
    placement::{
        self, Assignment, PlacementInput,
        log::{LogReader, SessionLog},
    },
    qnn::{HtpOptions, Plugin},
};
use ort::{logging::LogLevel, session::Session};

use crate::support::{command, emit, emitted_by, fixture, qnn, role};

/// (EP, name, op type) of every node, sorted, and partitions of the EPs that have any.
type Facts = (Vec<[String; 3]>, BTreeMap<String, usize>);

fn facts(assignment: &Assignment) -> Facts {
    let mut partitions = BTreeMap::new();
    let mut nodes = Vec::new();
    for subgraph in &assignment.subgraphs {
        *partitions.entry(subgraph.ep.clone()).or_insert(0) += 1;
        for n in &subgraph.nodes {
            nodes.push([subgraph.ep.clone(), n.name.clone(), n.op_type.clone()]);
        }
    }
    nodes.sort();
    (nodes, partitions)
}

fn captured(plugin: &Plugin, htp: &HtpOptions, model: &str) -> (ort::Result<Session>, SessionLog) {
    let reader = Arc::new(Mutex::new(LogReader::default()));
    let writer = Arc::clone(&reader);
    let mut builder = plugin
        .session_builder(htp)
        .unwrap()
        .builder
        .with_logger(Arc::new(
            move |_, _: &str, _: &str, location: &str, message: &str| {
                writer.lock().unwrap().message(location, message);
            },
        ))
        .unwrap()
        .with_log_level(LogLevel::Verbose)
        .unwrap()
        .with_config_entry("session.record_ep_graph_assignment_info", "1")
        .unwrap();
    let session = builder.commit_from_file(fixture(&format!("models/{model}.onnx")));
    let sessions = std::mem::take(&mut *reader.lock().unwrap()).finish();
    assert!(sessions.len() <= 1, "{model}");
    (session, sessions.into_iter().next().unwrap_or_default())
}

fn compare(soc_model: &str) {
    let (plugin, htp) = (qnn::plugin(), qnn::htp(soc_model));
    for model in [
        "a_cnn.qu8",
        "a_cnn_dynbatch.fp32",
        "c_cnn_hardmax.fp32",
        "d_mlp.fp32",
        "e_mixed.q8head32",
        "e_mixed.qu8",
        "e_topk.qu8",
        "mixed_v1.int8",
        "mixed_v2.head32",
        "cnn.qu8",
    ] {
        let (session, log) = captured(&plugin, &htp, model);
        let Ok(session) = session else {
            assert_eq!(log.assignment(), None, "{model}");
            continue;
        };
        let by_api = facts(&placement::read(&session).unwrap());
        let by_log = facts(&log.assignment().unwrap());
        assert_eq!(by_log, by_api, "{model} on {soc_model}");
        let placement = log.placement(PlacementInput::default());
        assert_eq!(placement.source, PlacementSource::Log);
        assert_eq!(log.soc().unwrap().qnn_id.to_string(), soc_model);
        emit(model);
    }
}

#[test]
fn a_log_and_the_assignment_api_agree_on_a_session() {
    if let Some(soc_model) = role() {
        return compare(&soc_model);
    }
    for (soc_model, n_models) in [("57", 10), ("68", 9)] {
        let test = a_log_and_the_assignment_api_agree_on_a_session;
        let same = emitted_by(command(test, soc_model));
        assert_eq!(same.len(), n_models, "{same:?}");
    }
}
