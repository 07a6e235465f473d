//! Helpers that several tests share: an app with its runs, child processes, ONNX Runtime, a collector.

mod onnx_runtime;
mod process;
pub(crate) mod qnn;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use epwatch_proto::{Placement, ReasonCode, SessionOptions, placement::QNN_EP, v1};
use epwatch_sdk::{
    Conditions, ModelInfo, RequestKind, SdkConfig, SdkConfigBuilder, UploadBatch, Watch,
    simulation::{SimulatedSession, simulated_device},
};
use prost::Message;
use tempfile::TempDir;

use collector::Collector;
pub(crate) use epwatch_strict_collector as collector;
pub(crate) use onnx_runtime::{environment, fixture};
pub(crate) use process::{command, emit, emitted_by, emitted_line, is_alone, role};

pub(crate) const KEY: &str = "demo-key";
/// An address without a listener.
pub(crate) const NOWHERE: &str = "http://127.0.0.1:1";
/// Longest wait. A test that reaches it fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// An app that seals and uploads only in a flush, so that no timer changes a test.
pub(crate) fn config(dir: &Path, endpoint: &str) -> SdkConfigBuilder {
    SdkConfig::builder("app", endpoint, KEY, dir)
        .with_consent(true)
        .with_device(simulated_device("SM8650").into())
        .with_report_interval(Duration::from_secs(3600))
        .with_upload_interval(Duration::from_secs(3600))
}

pub(crate) fn start(config: SdkConfigBuilder) -> Watch {
    Watch::start(config.build().unwrap()).unwrap()
}

/// An app whose reports a collector takes. Its folder is removed when the first value is dropped.
pub(crate) fn app() -> (TempDir, Collector, Watch) {
    app_with(|config| config)
}

/// Does the same as [`app`], with other settings.
pub(crate) fn app_with(
    set: impl FnOnce(SdkConfigBuilder) -> SdkConfigBuilder,
) -> (TempDir, Collector, Watch) {
    let (dir, collector) = (tempfile::tempdir().unwrap(), Collector::start(KEY));
    let watch = start(set(config(dir.path(), &collector.endpoint())));
    (dir, collector, watch)
}

/// Placement of a session that requested the NPU, on an ORT without the assignment API.
pub(crate) fn placement() -> Placement {
    let reason = ReasonCode::AssignmentApiUnavailable;
    Placement::unavailable(vec![QNN_EP.to_owned()], reason)
}

pub(crate) fn session(watch: &Watch) -> SimulatedSession {
    session_of(watch, "m", "1")
}

pub(crate) fn session_of(watch: &Watch, model: &str, version: &str) -> SimulatedSession {
    let model = ModelInfo::new(model, version).unwrap();
    watch.simulated_session(model, placement(), SessionOptions::default())
}

/// Short enough that the runs of a busy loop fit into the interval that their report names. A report whose runs take
/// more time than its interval is not counted.
const LATENCY: Duration = Duration::from_micros(8);

pub(crate) fn run(session: &SimulatedSession, runs: u64) {
    for _ in 0..runs {
        session.record(LATENCY, "static", &Conditions::unknown());
    }
}

/// Returns the paths of all files below a folder, relative to it.
pub(crate) fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(at).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_owned());
            }
        }
    }
    found
}

/// Checks that the explanation contains the text.
#[track_caller]
pub(crate) fn check_explains(watch: &Watch, part: &str) {
    let text = watch.explain().to_string();
    assert!(text.contains(part), "{text}");
}

/// A collector's answer to the request of a host that sends by itself: all is stored, or deleted.
pub(crate) fn acknowledged(batch: &UploadBatch) -> Vec<u8> {
    match batch.kind() {
        RequestKind::DeleteInstallation => {
            let request = v1::DeleteInstallationRequest::decode(&batch.encoded()[..]).unwrap();
            epwatch_strict_collector::deletion_of(&request).encode_to_vec()
        }
        _ => answered(batch, v1::UploadResponse::default()),
    }
}

/// Turns this answer into an answer to this request.
pub(crate) fn answered(batch: &UploadBatch, answer: v1::UploadResponse) -> Vec<u8> {
    let request = v1::UploadRequest::decode(&batch.encoded()[..]).unwrap();
    epwatch_strict_collector::answer_to(&request, answer).encode_to_vec()
}

/// Polls until the condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
