//! A real small model on the CPU EP of the real ONNX Runtime, with and without being watched.

use std::{path::Path, time::Instant};

use epwatch_engines::{Engine, for_tests};
use ort::{inputs, session::Session, session::builder::SessionBuilder, value::TensorRef};

use crate::{
    Rounds,
    time::{Rig, median, model},
};

/// Nanoseconds of a run.
#[derive(Debug)]
pub(crate) struct ModelCost {
    pub(crate) bare_ns: f64,
    /// Median of differences of neighbouring runs.
    pub(crate) wrapped_minus_bare_ns: f64,
}

/// Runs a bare and a watched session of the same model in turns; who goes first changes.
pub(crate) fn paired(rounds: Rounds) -> ModelCost {
    let library = for_tests(Engine::OnnxRuntime).ort_library();
    let env = ort::init_from(library).unwrap().build().unwrap();
    let builder = || -> SessionBuilder {
        let builder = Session::builder(&env).unwrap();
        builder.with_intra_threads(1).unwrap()
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/mlp.fp32.onnx");
    let rig = Rig::start();
    let mut bare = builder().commit_from_file(&path).unwrap();
    let request = rig.watch.session(model(), builder());
    let mut watched = request.commit_from_file(&path).unwrap();

    let shape = bare.inputs()[0].dtype().tensor_shape().unwrap();
    let dims: Vec<usize> = shape
        .iter()
        .map(|dim| usize::try_from(*dim).unwrap())
        .collect();
    let data = vec![0.5_f32; dims.iter().product()];
    let tensor = || TensorRef::from_array_view((dims.clone(), &*data)).unwrap();
    let mut bare_run = || {
        let inputs = inputs![tensor()];
        let began = Instant::now();
        drop(bare.run(inputs).unwrap());
        nanoseconds(began)
    };
    let mut watched_run = || {
        let inputs = inputs![tensor()];
        let began = Instant::now();
        drop(watched.run(inputs).unwrap());
        nanoseconds(began)
    };
    for _ in 0..10 {
        bare_run();
        watched_run();
    }
    let mut bare_ns = Vec::new();
    let mut differences = Vec::new();
    for pair in 0..rounds.model_runs {
        let (without, with) = match pair % 2 {
            0 => {
                let without = bare_run();
                (without, watched_run())
            }
            _ => {
                let with = watched_run();
                (bare_run(), with)
            }
        };
        bare_ns.push(without);
        differences.push(with - without);
    }
    ModelCost {
        bare_ns: median(bare_ns),
        wrapped_minus_bare_ns: median(differences),
    }
}

fn nanoseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e9
}
