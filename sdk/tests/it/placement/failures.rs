//! Sessions that do not get the NPU, and the reason code of each.

use epwatch_proto::{ReasonCode, placement::QNN_EP};
use epwatch_sdk::{
    Watch,
    qnn::{HtpOptions, Plugin},
};
use serde_json::{Value, json};

use crate::support::{TIMEOUT, app, command, emit, emitted_by, fixture, qnn, role};

/// One way in which a session does not get the NPU.
struct Case {
    name: &'static str,
    model: &'static str,
    /// A library next to the HTP library, or a path without a file.
    backend: &'static str,
    soc_model: &'static str,
}

const fn case(
    name: &'static str,
    model: &'static str,
    backend: &'static str,
    soc_model: &'static str,
) -> Case {
    Case {
        name,
        model,
        backend,
        soc_model,
    }
}

const HTP: &str = "libQnnHtp.so";
const CASES: [Case; 9] = [
    case("no library", "cnn.qu8", "libQnnNowhere.so", "57"),
    case("no backend", "cnn.qu8", "libQnnSystem.so", "57"),
    case("no gpu", "cnn.qu8", "libQnnGpu.so", "57"),
    case("unknown number", "cnn.qu8", HTP, "9999"),
    case("unknown name", "cnn.qu8", HTP, "nonsense"),
    case("dynamic batch", "a_cnn_dynbatch.fp32", HTP, "57"),
    case("no fp16", "d_mlp.fp32", HTP, "68"),
    case("no fp16 with conv", "c_cnn_hardmax.fp32", HTP, "68"),
    case("prepare", "instance_norm.fp32", HTP, "30"),
];

fn outcome(
    watch: &Watch,
    plugin: &Plugin,
    htp: &HtpOptions,
    model: &str,
    captures_log: bool,
) -> Value {
    let asked = plugin.session_builder(htp).unwrap();
    let request = qnn::request(watch, model, asked);
    let request = match captures_log {
        true => request.with_log_capture(),
        false => request,
    };
    match request.commit_from_file(fixture(&format!("models/{model}.onnx"))) {
        Ok(session) => {
            let placement = session.placement().wire();
            json!({
                "on_npu": placement.ep(QNN_EP).map_or(0, |e| e.n_nodes),
                "reasons": placement.reasons,
            })
        }
        Err(error) => json!({"error": error.message()}),
    }
}

fn tell_outcomes(name: &str) {
    let case = CASES.iter().find(|c| c.name == name).unwrap();
    let (_dir, collector, watch) = app();
    let plugin = qnn::plugin();
    let mut htp = qnn::htp(case.soc_model);
    htp.backend_path.set_file_name(case.backend);
    let without_log = outcome(&watch, &plugin, &htp, case.model, false);
    let with_log = outcome(&watch, &plugin, &htp, case.model, true);
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let failures = reports.iter().flat_map(|r| &r.start_failures);
    let failures: Vec<_> = failures.map(|f| (f.reason, f.count)).collect();
    emit(json!({"without_log": without_log, "with_log": with_log, "failures": failures}));
}

fn child_of(name: &str) -> Value {
    let lines = emitted_by(command(each_way_to_lose_the_npu_has_its_reason, name));
    serde_json::from_str(&lines[0]).unwrap()
}

/// A session that is made, with or without the NPU.
#[track_caller]
fn made(name: &str, on_npu: u64, without_log: &[ReasonCode], with_log: &[ReasonCode]) {
    let got = child_of(name);
    for (key, reasons) in [("without_log", without_log), ("with_log", with_log)] {
        assert_eq!(
            got[key],
            json!({"on_npu": on_npu, "reasons": reasons}),
            "{name}, {key}"
        );
    }
}

/// A session that cannot be made. The host gets ORT's error, and the start failure has the code.
#[track_caller]
fn not_made(name: &str, words: &str, reason: ReasonCode) {
    let got = child_of(name);
    for key in ["without_log", "with_log"] {
        let error = got[key]["error"].as_str().unwrap();
        assert!(error.contains(words), "{name}, {key}: {error}");
    }
    let failures = got["failures"].as_array().unwrap();
    assert!(
        !failures.is_empty() && failures.iter().all(|f| f[0] == json!(reason)),
        "{name}: {got}"
    );
}

#[test]
fn each_way_to_lose_the_npu_has_its_reason() {
    if let Some(name) = role() {
        return tell_outcomes(&name);
    }
    let unknown = [ReasonCode::Unknown];
    made(
        "no library",
        0,
        &unknown,
        &[ReasonCode::BackendLibraryMissing],
    );
    made("no backend", 0, &unknown, &[ReasonCode::BackendSetupFailed]);
    made("no gpu", 0, &unknown, &[ReasonCode::BackendSetupFailed]);
    made(
        "unknown number",
        0,
        &unknown,
        &[
            ReasonCode::SocModelUnknown,
            ReasonCode::DeviceCreationFailed,
        ],
    );
    // The session runs on the default chipset, which only the log shows.
    let edges = ReasonCode::EdgeQuantization;
    made(
        "unknown name",
        35,
        &[edges],
        &[ReasonCode::SocModelUnknown, edges],
    );
    made("dynamic batch", 0, &unknown, &[ReasonCode::DynamicShape]);
    let no_fp16 = [ReasonCode::Fp16NotSupported];
    made("no fp16", 0, &no_fp16, &no_fp16);
    not_made("no fp16 with conv", "NHWC", ReasonCode::LayoutNotSelected);
    not_made("prepare", "1002", ReasonCode::PrepareFailed);
}
