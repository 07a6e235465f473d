//! After the first run of its stratum a run allocates nothing, even while reports are sealed. Around a real session it
//! adds nothing to the allocations of ONNX Runtime's own wrapper.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

#[path = "it/support/onnx_runtime.rs"]
mod onnx_runtime;

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use allocation_counter::measure;
use epwatch_proto::{InstallationId, Placement, ReasonCode, SessionOptions};
use epwatch_sdk::{
    Conditions, ModelInfo, SdkConfig, Watch,
    simulation::{Core, CoreConfig, Now, SessionInfo, random_stream, simulated_device},
};
use onnx_runtime::{environment, fixture};
use ort::{
    inputs,
    session::{Session, builder::SessionBuilder},
    value::TensorRef,
};

const LATER: Duration = Duration::from_secs(1);

fn model() -> ModelInfo {
    ModelInfo::new("m", "1").unwrap()
}

fn placement() -> Placement {
    Placement::unavailable(vec![], ReasonCode::AssignmentApiUnavailable)
}

fn watch(dir: &tempfile::TempDir) -> Watch {
    let config = SdkConfig::builder("app", "http://127.0.0.1:1", "key", dir.path())
        .with_consent(true)
        .with_device(simulated_device("SM8650").into())
        .with_report_interval(Duration::from_secs(36_000))
        .build()
        .unwrap();
    Watch::start(config).unwrap()
}

fn at(seconds: u64) -> Now {
    Now::simulated(Duration::from_secs(seconds), 1_800_000_000_000)
}

#[test]
fn a_run_of_a_known_stratum_allocates_nothing_seals_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(&dir);
    let session = watch.simulated_session(model(), placement(), SessionOptions::default());
    for _ in 0..10 {
        session.run(|| ());
    }
    for _ in 0..3 {
        let runs = measure(|| (0..1_000).for_each(|_| session.run(|| ())));
        assert_eq!(runs.count_total, 0);
        // Seals the interval. The upload fails, because no collector listens.
        watch.flush(LATER * 30).unwrap_err();
    }
    watch.stop(LATER * 30).unwrap();
}

/// A run waits a little for the sealer's swap, because moving to another slot begins a new series.
#[test]
fn many_strata_under_a_sealer_that_never_rests_allocate_nothing() {
    const PARTS: usize = 250;
    const ROUNDS: usize = 200;
    let config = CoreConfig::new("app", simulated_device("SM8650")).unwrap();
    let mut core = Core::new(config, random_stream(), at(0));
    core.set_installation(InstallationId::from_secret(b"secret"));
    let recorder = core.open_session(SessionInfo::new(model(), placement()), at(0));
    let shapes = ["static", "", "x:1x3x224x224", &"long ".repeat(50), "other"];
    let hot = Conditions::unknown().with_performance_mode("burst");
    let mut runs = 0;
    let mut record = || {
        for shape in shapes {
            recorder.record(LATER, Duration::from_millis(8), shape);
            recorder.record_under(LATER, Duration::from_millis(9), shape, &hot);
            runs += 2;
        }
    };
    // Cold runs have strata of their own.
    record();
    record();
    let mut sealed = 0;
    let mut allocated = Vec::new();
    let (rounds, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|s| {
        let sealer = s.spawn(|| {
            let (mut sealed, mut seen) = (0, 0);
            for seal in 1.. {
                sealed += core.seal(at(seal)).iter().map(|r| r.runs).sum::<u64>();
                // Each stratum has a run between two seals, because an unused one loses its slot.
                while rounds.load(Relaxed) < seen + 3 && !is_done.load(Relaxed) {
                    thread::yield_now();
                }
                seen = rounds.load(Relaxed);
                if is_done.load(Relaxed) {
                    break;
                }
            }
            sealed
        });
        let mut part = || {
            for _ in 0..ROUNDS {
                record();
                rounds.fetch_add(1, Relaxed);
            }
        };
        for _ in 0..PARTS {
            allocated.push(measure(&mut part).count_total);
        }
        is_done.store(true, Relaxed);
        sealed += sealer.join().unwrap();
    });
    sealed += core.seal(at(1_000_000)).iter().map(|r| r.runs).sum::<u64>();
    assert_eq!(sealed, runs);
    // If the machine suspends the sealer in the middle of a swap, runs move to another slot. That affects some parts of
    // the measurement; any other cause would affect most.
    allocated.sort_unstable();
    assert_eq!(
        allocated[PARTS / 2],
        0,
        "{allocated:?} in parts of {ROUNDS} rounds"
    );
}

fn builder() -> SessionBuilder {
    let builder = Session::builder(environment()).unwrap();
    builder.with_intra_threads(1).unwrap()
}

/// `y = Relu(x)`, with `x` of free batch and width. Encoded by hand, because no ONNX tool runs here.
fn model_of_any_shape() -> Vec<u8> {
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let len = u8::try_from(content.len()).unwrap();
        [&[number << 3 | 2, len], content].concat()
    }
    let dim = |name: &str| field(1, &field(2, name.as_bytes()));
    let shape = [dim("batch"), dim("width")].concat();
    // TypeProto.tensor_type { elem_type: FLOAT, shape }
    let tensor = [vec![1 << 3, 1], field(2, &shape)].concat();
    let typed = field(2, &field(1, &tensor));
    let value = |name: &str| [field(1, name.as_bytes()), typed.clone()].concat();
    let node = [field(1, b"x"), field(2, b"y"), field(4, b"Relu")].concat();
    let graph = [
        field(1, &node),
        field(2, b"g"),
        field(11, &value("x")),
        field(12, &value("y")),
    ];
    // ir_version 8, opset 13
    let opset = field(8, &[2 << 3, 13]);
    [vec![1 << 3, 8], field(7, &graph.concat()), opset].concat()
}

#[test]
fn a_real_session_allocates_what_ort_allocates_and_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let watch = watch(&dir);
    let of_any_shape = model_of_any_shape();
    let of_one_shape = std::fs::read(fixture("models/mlp.fp32.onnx")).unwrap();
    for model_bytes in [&of_any_shape, &of_one_shape] {
        let mut bare = builder().commit_from_memory(model_bytes).unwrap();
        let request = watch.session(model(), builder());
        let mut observed = request.commit_from_memory(model_bytes).unwrap();
        let dims: Vec<usize> = {
            let shape = bare.inputs()[0].dtype().tensor_shape().unwrap();
            shape
                .iter()
                .map(|dim| usize::try_from(*dim).unwrap_or(3))
                .collect()
        };
        let data = vec![0.5_f32; dims.iter().product()];
        let name = bare.inputs()[0].name().to_owned();
        let tensor = || TensorRef::from_array_view((dims.clone(), &*data)).unwrap();
        let bare_count = |by_name: bool, session: &mut Session| {
            let run = |session: &mut Session| match by_name {
                true => drop(session.run(inputs![&*name => tensor()]).unwrap()),
                false => drop(session.run(inputs![tensor()]).unwrap()),
            };
            run(session);
            measure(|| run(session)).count_total
        };
        let mut observed_count = |by_name: bool| {
            let mut run = || match by_name {
                true => drop(observed.run(inputs![&*name => tensor()]).unwrap()),
                false => drop(observed.run(inputs![tensor()]).unwrap()),
            };
            (0..5).for_each(|_| run());
            measure(run).count_total
        };
        for by_name in [false, true] {
            assert_eq!(observed_count(by_name), bare_count(by_name, &mut bare));
        }
    }
    watch.stop(LATER * 30).unwrap();
}
