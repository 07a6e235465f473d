//! `epwatch.testing` in a team's own tests.

use std::process::{Command, Output};

use crate::environment::{command, crate_file, environment, environment_of, model};
use epwatch_engines::{Engine, for_tests};
use epwatch_runtimes::{Environment, is_nightly};

/// pytest with one of the programs, the model and the emulator. Warnings are errors.
fn pytest(environment: &Environment, program: &str) -> Command {
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    let mut pytest = command(&environment.program("python"));
    pytest
        .args([
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
        ])
        .arg(crate_file("tests/programs").join(program))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("MODEL", model("mixed_v2.head32.onnx"))
        .env("FIXTURES", crate_file("../../tests/fixtures"))
        .env("PLUGIN", qnn.qnn_provider_library())
        .env("BACKEND", qnn.qnn_htp_library());
    pytest
}

#[test]
fn the_assertions_hold_under_pytest() {
    let ran = pytest(environment(), "robot_tests.py")
        .env("SIDE_CAR", model("mixed_v2.head32.macs.json"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("13 passed"), "{said}");
}

/// The plugin has no conftest, and a failure shows the test's own line.
#[track_caller]
fn check_plugin(environment: &Environment) {
    let Output { stdout, status, .. } = pytest(environment, "plugin_tests.py").output().unwrap();
    let said = String::from_utf8_lossy(&stdout);
    assert!(said.contains("1 failed, 3 passed"), "{said}");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("ms instead of at most 0 ms"), "{said}");
    let (own, of_epwatch) = (
        "epwatch_assert_latency(session, image()",
        "statistics.median",
    );
    assert!(said.contains(own) && !said.contains(of_epwatch), "{said}");
}

#[test]
fn the_plugin_gives_the_assertions_to_tests_without_a_conftest() {
    check_plugin(environment());
}

#[test]
fn an_older_pytest_loads_the_plugin() {
    if is_nightly("the Python package's plugin under pytest 7.4.4") {
        check_plugin(&environment_of("pytest", "7.4.4"));
    }
}
