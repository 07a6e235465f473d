//! `epwatch.testing` in a team's own tests.

use std::fs;

use epwatch_engines::{Engine, for_tests};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::environment::{command, crate_file, environment, model};

#[test]
fn the_assertions_hold_under_pytest() {
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    let another = NamedTempFile::new().unwrap();
    let side_car = json!({
        "model_sha256": "ab".repeat(32), "total_macs": 9, "nodes": {"a layer of another model": 9}
    });
    fs::write(another.path(), side_car.to_string()).unwrap();
    let ran = command(&environment().program("python"))
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(crate_file("tests/programs/robot_tests.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("MODEL", model("mixed_v2.head32.onnx"))
        .env("SIDE_CAR", model("mixed_v2.head32.macs.json"))
        .env("SIDE_CAR_OF_ANOTHER", another.path())
        .env("PLUGIN", qnn.qnn_provider_library())
        .env("BACKEND", qnn.qnn_htp_library())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("10 passed"), "{said}");
}
