//! What the integration tests share: the runtimes, the models, children, and a collector.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test uses its part"
)]

pub mod collector;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use epwatch_engines::{Engine, for_tests};
use ort::environment::Environment;

/// The process's one ORT environment.
pub fn environment() -> &'static Environment {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let library = for_tests(Engine::OnnxRuntime).ort_library();
        ort::init_from(library).unwrap().build().unwrap()
    })
}

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(path)
}

/// Runs this test binary again, as a process of its own with one test, and gives back the lines
/// that it printed behind `marker`.
pub fn child(test: &str, vars: &[(&str, &str)], marker: &str) -> Vec<String> {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .envs(vars.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&child.stdout).into_owned();
    let err = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{vars:?}: {out}\n{err}");
    out.lines()
        .filter_map(|line| line.split_once(marker))
        .map(|(_, rest)| rest.to_owned())
        .collect()
}

/// Polls until it is so; panics after half a minute.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
