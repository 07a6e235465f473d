//! `epwatch.testing` in a team's own tests.

use epwatch_engines::{Engine, for_tests};

use crate::environment::{command, crate_file, environment, model};

#[test]
fn the_assertions_hold_under_pytest() {
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    let ran = command(&environment().program("python"))
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(crate_file("tests/programs/robot_tests.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("MODEL", model("mixed_v2.head32.onnx"))
        .env("PLUGIN", qnn.qnn_provider_library())
        .env("BACKEND", qnn.qnn_htp_library())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("3 passed"), "{said}");
}
