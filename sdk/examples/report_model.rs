//! Runs a model under ONNX Runtime and reports to a running `epwatch serve`:
//! `cargo run -p epwatch-sdk --example report_model -- [MODEL [ENDPOINT [KEY]]]`.
//! ONNX Runtime is loaded from `ORT_DYLIB_PATH`, or else from epwatch's cache.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::{env, error::Error, time::Duration};

use epwatch_engines::{Engine, ensure};
use epwatch_sdk::{ModelInfo, SdkConfig, Watch};
use ort::{inputs, session::Session, value::Tensor};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/fixtures/models/cnn.qu8.onnx"
);

fn main() -> Result<(), Box<dyn Error>> {
    let arg = |at, default: &str| env::args().nth(at).unwrap_or_else(|| default.to_owned());
    let (model, endpoint) = (arg(1, MODEL), arg(2, "http://127.0.0.1:4717"));
    let dir = env::temp_dir().join("epwatch-example");
    let config = SdkConfig::builder(
        "com.example.report-model",
        endpoint,
        arg(3, "demo-key"),
        dir,
    )
    // Starting the example counts as the user's consent.
    .with_consent(true);
    let watch = Watch::start(config.build()?)?;

    let library = match env::var_os("ORT_DYLIB_PATH") {
        Some(path) => path.into(),
        None => ensure(Engine::OnnxRuntime)?.ort_library(),
    };
    let environment = ort::init_from(library)?.build()?;
    let mut session = watch
        .session(
            ModelInfo::new("example", "1")?,
            Session::builder(&environment)?,
        )
        .commit_from_file(model)?;

    let input = &session.session().inputs()[0];
    let shape = input
        .dtype()
        .tensor_shape()
        .ok_or("the first input is not a tensor")?;
    let dims: Vec<i64> = shape.iter().map(|dim| (*dim).max(1)).collect();
    let length = usize::try_from(dims.iter().product::<i64>())?;
    for _ in 0..100 {
        session.run(inputs![Tensor::from_array((
            dims.clone(),
            vec![0.5_f32; length]
        ))?])?;
    }
    // `explain` covers runs only after they are in a report.
    let flushed = watch.flush(Duration::from_secs(10));
    println!("{}", watch.explain());
    flushed?;
    println!("the collector has 100 runs");
    Ok(())
}
