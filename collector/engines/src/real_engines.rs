//! Fetches the real packages from their real sources, into the cache that all tests use.

use std::process::Command;

use crate::pins::plan_here;
use crate::{Engine, for_tests, verify};

/// Loads a library in a child process with the host's Python, because loading needs unsafe code, which this crate
/// forbids.
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

/// Hosts may have an old ONNX Runtime, so the SDK's tests also run on older ones.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn older_onnxruntimes_have_their_pinned_hash_and_load() {
    for version in ["1.22.1", "1.24.4"] {
        assert_loads(&epwatch_runtimes::onnxruntime(version));
    }
}

/// The backend loads only with the C++ runtime in the wheel's other folder.
#[test]
fn qnn_plugin_and_htp_backend_load_where_they_exist() {
    if let Err(error) = plan_here(Engine::OnnxRuntimeQnn) {
        assert!(error.to_string().contains("Qualcomm"), "{error}");
        return;
    }
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    assert_eq!(qnn.version(), "2.7.0");
    verify(Engine::OnnxRuntimeQnn).unwrap();
    assert_loads(&qnn.qnn_htp_library());
    assert_loads(&qnn.qnn_provider_library());
}

#[cfg(target_os = "linux")]
#[test]
fn alertmanager_comes_from_the_distribution_and_runs() {
    let Some(alertmanager) = epwatch_runtimes::alertmanager() else {
        return;
    };
    let program = alertmanager.folder.join("usr/bin/prometheus-alertmanager");
    let output = Command::new(program).arg("--version").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let upstream = alertmanager.version.split('-').next().unwrap();
    assert!(
        String::from_utf8_lossy(&text).contains(upstream),
        "{upstream} in {text:?}"
    );
}

/// Runs one of the tests above in a child with an empty cache and other settings; returns what it
/// printed when it failed.
#[track_caller]
fn failure_of(test: &str, settings: &[(&str, &str)]) -> String {
    let cache = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&format!("real_engines::{test}"), "--exact", "--nocapture"])
        .env("EPWATCH_CACHE", cache.path())
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!output.status.success(), "{text}");
    let left: Vec<_> = std::fs::read_dir(cache.path())
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    assert!(
        left.iter()
            .all(|path| path.extension() == Some("lock".as_ref())),
        "{left:?}"
    );
    text
}

#[track_caller]
fn assert_says(text: &str, expected: &[&str]) {
    for part in expected {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

/// Nothing listens on port 9 of this machine: which equals being offline.
const NOWHERE: &str = "http://127.0.0.1:9/";

#[test]
fn offline_npm_is_named_with_its_own_words_and_the_way_out() {
    let settings = [("npm_config_registry", NOWHERE)];
    let text = failure_of("libchdb_has_its_pinned_hash_and_loads", &settings);
    let command = "failed to fetch libchdb-26.7.3-stable.1: `npm pack";
    assert_says(
        &text,
        &[
            command,
            "ECONNREFUSED",
            "bring libchdb-26.7.3-stable.1 from a machine",
            "`epwatch engines import FILE` here",
        ],
    );
}

#[test]
fn offline_pip_is_named_with_its_own_words_and_the_way_out() {
    let settings = [("PIP_INDEX_URL", NOWHERE), ("PIP_RETRIES", "0")];
    let text = failure_of("onnxruntime_has_its_pinned_hash_and_loads", &settings);
    let command = "failed to fetch onnxruntime-1.31.1: `python3 -m pip download";
    let pip = "No matching distribution found for onnxruntime==1.31.1";
    assert_says(
        &text,
        &[command, pip, "bring onnxruntime-1.31.1 from a machine"],
    );
}

#[test]
fn machine_without_npm_is_told_how_to_get_it() {
    let empty = tempfile::tempdir().unwrap();
    let settings = [("PATH", empty.path().to_str().unwrap())];
    let text = failure_of("libchdb_has_its_pinned_hash_and_loads", &settings);
    assert_says(
        &text,
        &[
            "`npm`, `tar` are not installed; install them",
            "`apt-get install npm tar`",
            "`epwatch engines import FILE` here",
        ],
    );
}
