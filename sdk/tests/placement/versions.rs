//! ONNX Runtime 1.22 to 1.31 under one build of the SDK, a process each.
//!
//! With the feature `qnn` every builder of `ort` has an automatic EP policy, in which 1.22.1 aborts
//! the process, having no devices to choose from. Any EP that is asked for turns the policy off, so the
//! one that PyPI's builds have is, Azure's: it takes nothing of an ordinary model.

use epwatch_engines::{Engine, for_tests};
use epwatch_proto::{PlacementSource, ReasonCode, placement::QNN_EP};
use epwatch_sdk::{ModelInfo, placement, qnn};
use ort::{
    AsPointer,
    session::{Session, builder::SessionBuilder},
};
use serde_json::{Value, json};

use crate::{
    support::{child, fixture},
    watch,
};

const VERSION: &str = "EPWATCH_TEST_ORT";
const MARKER: &str = "version: ";

fn engine(version: &str) -> Engine {
    match version {
        "1.22.1" => Engine::OnnxRuntime1_22,
        "1.24.4" => Engine::OnnxRuntime1_24,
        _ => Engine::OnnxRuntime,
    }
}

fn add_azure_ep(builder: &mut SessionBuilder) {
    let add = ort::api().SessionOptionsAppendExecutionProvider;
    // SAFETY: the builder's options are alive, the name ends in NUL, and there are no options.
    let status = unsafe {
        add(
            builder.ptr_mut(),
            c"AZURE".as_ptr(),
            std::ptr::null(),
            std::ptr::null(),
            0,
        )
    };
    // SAFETY: it is ORT's own status, handed over.
    unsafe { ort::Error::result_from_status(status) }.unwrap();
}

fn tell(version: &str) {
    let library = for_tests(engine(version)).ort_library();
    let environment = ort::init_from(library).unwrap().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    let make = |hears_log: bool| {
        let mut builder = Session::builder(&environment).unwrap();
        add_azure_ep(&mut builder);
        let request = watch
            .session(ModelInfo::new("m", "1").unwrap(), builder)
            .requesting([QNN_EP])
            .with_reasons(qnn::missing(&environment));
        let request = match hears_log {
            true => request.with_log_capture(),
            false => request,
        };
        request
            .commit_from_file(fixture("models/d_mlp.fp32.onnx"))
            .unwrap()
    };
    let (deaf, heard) = (make(false), make(true));
    let told = |s: &epwatch_sdk::ObservedSession| {
        let p = s.placement();
        json!({"source": p.source, "n_nodes": p.n_nodes, "reasons": p.reasons})
    };
    let document = json!({
        "version": placement::ort_version(),
        "deaf": told(&deaf),
        "heard": told(&heard),
    });
    println!("{MARKER}{document}");
}

#[test]
fn each_onnx_runtime_tells_what_it_can_and_nothing_is_guessed() {
    if let Ok(version) = std::env::var(VERSION) {
        return tell(&version);
    }
    let of = |version: &str| -> Value {
        let lines = child(
            "versions::each_onnx_runtime_tells_what_it_can_and_nothing_is_guessed",
            &[(VERSION, version)],
            MARKER,
        );
        let document: Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(document["version"], version);
        document
    };
    let not_there = ReasonCode::EpNotAvailable;
    let old = of("1.22.1");
    let no_api = ReasonCode::AssignmentApiUnavailable;
    assert_eq!(
        old["deaf"],
        json!({"source": PlacementSource::Unavailable, "n_nodes": 0, "reasons": [no_api, not_there]})
    );
    // Its list has no names where all is on the CPU, but a count.
    assert_eq!(
        old["heard"],
        json!({"source": PlacementSource::Log, "n_nodes": 4, "reasons": [not_there]})
    );
    for version in ["1.24.4", "1.31.1"] {
        let new = of(version);
        let expected =
            json!({"source": PlacementSource::AssignmentApi, "n_nodes": 6, "reasons": [not_there]});
        assert_eq!(new["deaf"], expected, "{version}");
        assert_eq!(new["heard"], expected, "{version}");
    }
}
