//! ONNX Runtime and its models.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use epwatch_engines::{Engine, for_tests};
use ort::environment::Environment;

/// The process's one ORT environment.
pub(crate) fn environment() -> &'static Environment {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let library = for_tests(Engine::OnnxRuntime).ort_library();
        ort::init_from(library).unwrap().build().unwrap()
    })
}

pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(path)
}
