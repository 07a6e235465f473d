//! A small model on the CPU EP of the real ONNX Runtime, with and without the SDK.

use std::{path::Path, time::Instant};

use epwatch_engines::{Engine, for_tests};
use epwatch_sdk::ObservedSession;
use ort::{
    environment::Environment,
    inputs,
    session::{Session, builder::SessionBuilder},
    value::TensorRef,
};

use crate::{
    Rounds,
    time::{Rig, median, model},
};

/// Nanoseconds of a run.
#[derive(Debug)]
pub(crate) struct ModelCost {
    pub(crate) bare_ns: f64,
    /// Median of the differences between neighbouring runs.
    pub(crate) wrapped_minus_bare_ns: f64,
}

/// Number of pairs of sessions. A session's address in memory changes its time by 50 ns.
const SESSIONS: usize = 10;

/// Runs a bare and a watched session of the same model in turns, and alternates which is made first and runs first.
pub(crate) fn paired(rounds: Rounds) -> ModelCost {
    let library = for_tests(Engine::OnnxRuntime).ort_library();
    let env = ort::init_from(library).unwrap().build().unwrap();
    let rig = Rig::start();
    let mut bare_ns = Vec::new();
    let mut differences = Vec::new();
    for at in 0..SESSIONS {
        let (mut bare, mut watched) = sessions(&env, &rig, at % 2 == 0);
        let shape = bare.inputs()[0].dtype().tensor_shape().unwrap();
        let dims = shape.iter().map(|dim| usize::try_from(*dim).unwrap());
        let dims: Vec<_> = dims.collect();
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
        for pair in 0..10 + rounds.model_runs / SESSIONS {
            let (without, with) = if pair % 2 == 0 {
                let without = bare_run();
                (without, watched_run())
            } else {
                let with = watched_run();
                (bare_run(), with)
            };
            // The first runs warm up.
            if pair >= 10 {
                bare_ns.push(without);
                differences.push(with - without);
            }
        }
    }
    ModelCost {
        bare_ns: median(bare_ns),
        wrapped_minus_bare_ns: median(differences),
    }
}

fn sessions(env: &Environment, rig: &Rig, is_bare_first: bool) -> (Session, ObservedSession) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/mlp.fp32.onnx");
    let builder = || -> SessionBuilder {
        let builder = Session::builder(env).unwrap();
        builder.with_intra_threads(1).unwrap()
    };
    let bare = || builder().commit_from_file(&path).unwrap();
    let request = || rig.watch.session(model(), builder());
    let watched = || request().commit_from_file(&path).unwrap();
    if is_bare_first {
        let bare = bare();
        (bare, watched())
    } else {
        let watched = watched();
        (bare(), watched)
    }
}

fn nanoseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e9
}
