//! ONNX Runtime 1.22 to 1.31 under one build of the SDK, with a process per version.
//!
//! With the feature `qnn` every builder of `ort` has an automatic EP policy. Without devices, 1.22.1 aborts the process
//! in it. Any requested EP turns the policy off. The tests request Azure's, which PyPI's builds have and which takes no
//! node of an ordinary model.

use std::path::PathBuf;

use epwatch_engines::{Engine, for_tests};
use epwatch_proto::{PlacementSource, ReasonCode, placement::QNN_EP};
use epwatch_sdk::{ModelInfo, placement, runtime};
use ort::{
    AsPointer,
    session::{Session, builder::SessionBuilder},
};
use serde_json::{Value, json};

use super::watch;
use crate::support::{command, emit, emitted_by, fixture, is_alone, role};

fn library(version: &str) -> PathBuf {
    match version {
        "1.31.1" => for_tests(Engine::OnnxRuntime).ort_library(),
        older => epwatch_runtimes::onnxruntime(older),
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
    // SAFETY: it is ORT's own status, and ownership passes to `ort`.
    unsafe { ort::Error::result_from_status(status) }.unwrap();
}

fn tell_placements(version: &str) {
    let environment = runtime::load(library(version)).unwrap().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(dir.path());
    let make = |captures_log: bool| {
        let mut builder = Session::builder(&environment).unwrap();
        add_azure_ep(&mut builder);
        let request = watch
            .session(ModelInfo::new("m", "1").unwrap(), builder)
            .requesting([QNN_EP]);
        let request = match captures_log {
            true => request.with_log_capture(),
            false => request,
        };
        request
            .commit_from_file(fixture("models/d_mlp.fp32.onnx"))
            .unwrap()
    };
    let (without_log, with_log) = (make(false), make(true));
    let facts = |s: &epwatch_sdk::ObservedSession| {
        let p = s.placement().wire();
        json!({"source": p.source, "n_nodes": p.n_nodes, "reasons": p.reasons})
    };
    let document = json!({
        "version": placement::ort_version(),
        "without_log": facts(&without_log),
        "with_log": facts(&with_log),
        "limit": runtime::check().err().map(|error| error.to_string()),
        "explained": watch.explain().to_string(),
    });
    emit(document);
}

#[test]
fn each_onnx_runtime_gives_its_facts_without_guesses() {
    if let Some(version) = role() {
        return tell_placements(&version);
    }
    let of = |version: &str| -> Value {
        let test = each_onnx_runtime_gives_its_facts_without_guesses;
        let lines = emitted_by(command(test, version));
        let document: Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(document["version"], version);
        document
    };
    let not_there = ReasonCode::EpNotAvailable;
    let says_all = |version: &str| {
        let new = of(version);
        let expected =
            json!({"source": PlacementSource::AssignmentApi, "n_nodes": 6, "reasons": [not_there]});
        assert_eq!(new["without_log"], expected, "{version}");
        assert_eq!(new["with_log"], expected, "{version}");
        assert_eq!(new["limit"], Value::Null, "{version}");
        assert!(!new["explained"].as_str().unwrap().contains("too old"));
    };
    says_all("1.31.1");
    if !epwatch_runtimes::is_nightly("ONNX Runtime 1.22.1 and 1.24.4 under the SDK") {
        return;
    }
    says_all("1.24.4");
    let old = of("1.22.1");
    let no_api = ReasonCode::AssignmentApiUnavailable;
    assert_eq!(
        old["without_log"],
        json!({"source": PlacementSource::Unavailable, "n_nodes": 0, "reasons": [no_api, not_there]})
    );
    // If all nodes are on the CPU, its list has a count but no names.
    assert_eq!(
        old["with_log"],
        json!({"source": PlacementSource::Log, "n_nodes": 4, "reasons": [not_there]})
    );
    // The runtime works, and the message names the limit and how to get around it.
    let limit = old["limit"].as_str().unwrap();
    assert!(limit.contains("1.22.1") && limit.contains("1.24 or later"));
    assert!(old["explained"].as_str().unwrap().contains(limit));
}

/// A library that returns version 1.16.3 and has no other function.
const TOO_OLD: &str = r#"
    #[repr(C)]
    pub struct Base {
        api: extern "C" fn(u32) -> *const u8,
        version: extern "C" fn() -> *const u8,
    }
    extern "C" fn api(_: u32) -> *const u8 {
        std::ptr::null()
    }
    extern "C" fn version() -> *const u8 {
        b"1.16.3\0".as_ptr()
    }
    static BASE: Base = Base { api, version };
    #[unsafe(no_mangle)]
    pub extern "C" fn OrtGetApiBase() -> *const Base {
        &BASE
    }
"#;

#[test]
fn a_runtime_that_is_too_old_is_an_error_with_both_versions_and_the_way_out() {
    if !is_alone(a_runtime_that_is_too_old_is_an_error_with_both_versions_and_the_way_out) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("old.rs"), dir.path().join("libold.so"));
    std::fs::write(&source, TOO_OLD).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built = std::process::Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .args([&library, &source])
        .output()
        .unwrap();
    assert!(built.status.success(), "{built:?}");

    let Err(error) = runtime::load(&library) else {
        panic!("1.16.3 was accepted");
    };
    let text = error.to_string();
    for part in ["1.16.3", "libold.so", "1.22 or later"] {
        assert!(text.contains(part), "{text}");
    }
    let Err(error) = runtime::load(dir.path().join("libnothing.so")) else {
        panic!("an empty library was accepted");
    };
    assert!(error.to_string().contains("libonnxruntime.so"), "{error}");
}
