//! The real packages, from their real sources, into the cache that every other test uses.

use std::process::Command;

use epwatch_engines::{Availability, Engine, for_tests, verify};

/// Loading needs unsafe code, which this crate has none of; the host's Python does it in a child.
#[track_caller]
fn assert_loads(library: &std::path::Path) {
    let script = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1]); os._exit(0)";
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(library)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn libchdb_has_its_pinned_hash_and_loads() {
    let chdb = for_tests(Engine::Chdb);
    assert_eq!(chdb.version(), "26.7.3-stable.1");
    verify(Engine::Chdb).unwrap();
    assert_loads(&chdb.chdb_library());
}

#[test]
fn onnxruntime_has_its_pinned_hash_and_loads() {
    let ort = for_tests(Engine::OnnxRuntime);
    assert_eq!(ort.version(), "1.31.1");
    verify(Engine::OnnxRuntime).unwrap();
    assert_loads(&ort.ort_library());
}

/// The backend loads only with the C++ runtime that the wheel keeps in a folder beside it.
#[test]
fn qnn_plugin_and_htp_backend_load_where_they_exist() {
    if let Availability::Unavailable { reason } = Engine::OnnxRuntimeQnn.availability() {
        assert!(reason.contains("Qualcomm"), "{reason}");
        return;
    }
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    assert_eq!(qnn.version(), "2.7.0");
    verify(Engine::OnnxRuntimeQnn).unwrap();
    assert_loads(&qnn.qnn_htp_library());
    assert_loads(&qnn.qnn_provider_library());
}
