//! Sessions on the CPU EP of the real ONNX Runtime, through the handle, to a strict collector.

use std::{
    collections::BTreeMap,
    fs,
    process::Command,
    time::{Duration, Instant},
};

use epwatch_proto::{
    GraphKind, Phase, PlacementSource, ReasonCode, Report,
    placement::{CPU_EP, QNN_EP},
};
use epwatch_sdk::{ModelInfo, SessionRequest, Watch};
use ort::{
    inputs,
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    session::{RunOptions, Session, builder::SessionBuilder},
    value::{Tensor, TensorRef},
};

use crate::support::{TIMEOUT, app, collector::Collector, environment, fixture};

const MODEL: &str = "models/cnn.qu8.onnx";

struct App {
    _dir: tempfile::TempDir,
    collector: Collector,
    watch: Watch,
}

impl App {
    fn new() -> Self {
        let (_dir, collector, watch) = app();
        Self {
            _dir,
            collector,
            watch,
        }
    }

    fn request(&self, builder: SessionBuilder) -> SessionRequest {
        let model = ModelInfo::new("m", "1").unwrap();
        self.watch.session(model, builder)
    }

    fn report(&self) -> Report {
        self.watch.flush(TIMEOUT).unwrap();
        let mut reports = self.collector.reports();
        assert_eq!(reports.len(), 1);
        reports.remove(0)
    }
}

fn builder() -> SessionBuilder {
    Session::builder(environment()).unwrap()
}

fn input() -> Vec<f32> {
    (0..3 * 32 * 32).map(|i| (i % 17) as f32 / 17.0).collect()
}

const DIMS: [usize; 4] = [1, 3, 32, 32];

fn numbers(outputs: &ort::session::SessionOutputs<'_>) -> Vec<u32> {
    let (_, values) = outputs[0].try_extract_tensor::<f32>().unwrap();
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn outputs_are_those_of_a_bare_session_and_runs_are_reported() {
    let app = App::new();
    let data = input();
    let tensor = || TensorRef::from_array_view((DIMS, &*data)).unwrap();
    let mut bare = builder().commit_from_file(fixture(MODEL)).unwrap();
    let expected = numbers(&bare.run(inputs![tensor()]).unwrap());

    let mut session = app
        .request(builder())
        .commit_from_file(fixture(MODEL))
        .unwrap();
    for _ in 0..5 {
        assert_eq!(numbers(&session.run(inputs![tensor()]).unwrap()), expected);
    }
    let named = session.run(inputs!["x" => tensor()]).unwrap();
    assert_eq!(numbers(&named), expected);
    drop(named);
    let options = RunOptions::new().unwrap();
    let with_options = session
        .run_with_options(inputs![tensor()], &options)
        .unwrap();
    assert_eq!(numbers(&with_options), expected);
    drop(with_options);

    let report = app.report();
    assert!(!report.runtime.ort_version.is_empty());
    let described = report.session(session.uid().wire()).unwrap();
    let hash = epwatch_proto::ModelHash::of(&fs::read(fixture(MODEL)).unwrap());
    assert_eq!(described.model.sha256, Some(hash));
    assert!(described.creation_us.is_some());
    assert_eq!(&described.placement, session.placement().wire());
    let runs = |phase| {
        let of_phase = report
            .series
            .iter()
            .filter(move |s| s.stratum.phase == phase);
        of_phase.map(|s| s.n).sum::<u64>()
    };
    assert_eq!((runs(Phase::Cold), runs(Phase::Warm)), (3, 4));
    assert!(
        report
            .series
            .iter()
            .all(|s| s.stratum.shape_key == "static")
    );
}

#[test]
fn a_session_without_an_npu_has_the_reason_for_the_cpu() {
    let app = App::new();
    let model = fs::read(fixture(MODEL)).unwrap();
    let session = app.request(builder()).commit_from_memory(&model).unwrap();
    let placement = session.placement().wire();
    assert_eq!(placement.source, PlacementSource::AssignmentApi);
    assert_eq!(placement.graph_kind, GraphKind::Jit);
    assert_eq!(placement.reasons, [ReasonCode::EpNotRequested]);
    // The app reads the same.
    let shown = session.placement();
    let counts = (shown.n_nodes(), shown.n_cpu_nodes(), shown.n_npu_nodes());
    assert_eq!(counts, (placement.n_nodes, placement.n_nodes, 0));
    assert_eq!(shown.eps()[CPU_EP].nodes, placement.n_nodes);
    assert_eq!(shown.cpu_nodes().len(), placement.cpu_nodes.len());
    assert_eq!(shown.reasons()[0].code, "ep_not_requested");
    assert_eq!(shown.npu_macs_share(), None);
    // Without NPU nodes there is no edge.
    assert!(placement.cpu_nodes.iter().all(|n| !n.benign));
    crate::support::check_explains(&app.watch, "asked for nothing but the CPU");

    // The EP is requested but absent. ORT reports no error; the placement has the reason.
    let session = app
        .request(builder())
        .requesting([QNN_EP])
        .commit_from_memory(&model)
        .unwrap();
    assert_eq!(session.placement().wire().requested_eps, [QNN_EP]);
    assert_eq!(
        session.placement().wire().reasons,
        [ReasonCode::EpNotAvailable]
    );
}

#[test]
fn a_session_that_cannot_be_made_is_the_hosts_error_and_a_start_failure() {
    let app = App::new();
    let request = app.request(builder()).requesting([QNN_EP]);
    let error = request.commit_from_memory(b"no model").unwrap_err();
    assert!(!error.message().is_empty());
    let report = app.report();
    let [failure] = &report.start_failures[..] else {
        panic!("{:?}", report.start_failures);
    };
    assert_eq!(failure.requested_eps, [QNN_EP]);
    assert_eq!(failure.reason, ReasonCode::Unknown);
    assert_ne!(failure.ort_status_code, 0);
    assert_eq!(failure.count, 1);
}

#[test]
fn failed_runs_are_the_hosts_error_and_counted_by_code() {
    let app = App::new();
    let mut session = app
        .request(builder())
        .commit_from_file(fixture(MODEL))
        .unwrap();
    let data = vec![0.0_f32; 4];
    let wrong = TensorRef::from_array_view(([1_usize, 4], &*data)).unwrap();
    let error = session.run(inputs![wrong]).map(|_| ()).unwrap_err();
    assert!(error.message().contains("Invalid rank"), "{error}");
    let report = app.report();
    // ORT_INVALID_ARGUMENT
    let errors: Vec<_> = report
        .run_errors
        .iter()
        .map(|e| (e.ort_status_code, e.count))
        .collect();
    assert_eq!(errors, [(2, 1)]);
    assert!(report.series.is_empty());
}

/// Regression test: runs were not measured if an app bound its outputs, awaited a future or ran `ort`'s session itself.
#[test]
fn bound_asynchronous_and_own_runs_are_measured() {
    let app = App::new();
    let builder = builder().with_intra_threads(2).unwrap();
    let request = app.request(builder);
    let path = fixture("models/a_cnn_dynbatch.fp32.onnx");
    let mut session = request
        .commit_with(|builder| builder.commit_from_file(&path))
        .unwrap();
    let name = session.session().inputs()[0].name().to_owned();
    let output = session.session().outputs()[0].name().to_owned();
    let tensor = || Tensor::from_array((DIMS, input())).unwrap();

    let expected = numbers(&session.run(inputs![tensor()]).unwrap());
    let mut binding = session.session().create_binding().unwrap();
    binding.bind_input(&name, &tensor()).unwrap();
    let memory = binding_memory();
    binding.bind_output_to_device(&output, &memory).unwrap();
    assert_eq!(numbers(&session.run_binding(&binding).unwrap()), expected);

    let options = RunOptions::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let run = session.run_async(inputs![tensor()], &options).unwrap();
    let outputs = { runtime }.build().unwrap().block_on(run).unwrap();
    assert_eq!(numbers(&outputs), expected);
    drop(outputs);

    for _ in 0..2 {
        let shape = "mine:1";
        let run = |session: &mut Session| session.run(inputs![tensor()]).map(|_| ());
        session.measure_shape(shape, run).unwrap();
    }
    let failed = session.measure(|_| Err::<(), _>(ort::Error::new("on purpose")));
    assert!(failed.is_err());
    session.record(Instant::now(), Duration::from_micros(80));
    let inner: Session = session.into_inner();
    drop(inner);

    let report = app.report();
    let mut by_shape = BTreeMap::new();
    for series in &report.series {
        *by_shape.entry(&*series.stratum.shape_key).or_insert(0) += series.n;
    }
    let named = format!("{name}:1x3x32x32");
    let expected = [("", 2), ("mine:1", 2), (&*named, 2)];
    assert_eq!(by_shape.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(report.run_errors.len(), 1);
}

fn binding_memory() -> MemoryInfo<'static> {
    MemoryInfo::new(
        AllocationDevice::CPU,
        0,
        AllocatorType::Device,
        MemoryType::CPUOutput,
    )
    .unwrap()
}

/// Regression test: an app with another version of `ort` could not build at all, not even to attach its sessions.
#[test]
fn without_its_feature_the_tree_has_no_ort() {
    let tree = |package: &str, features: &str| {
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let ran = Command::new(cargo)
            .args(["tree", "--locked", "--offline", "--edges", "normal"])
            .args(["--prefix", "none", "--no-default-features"])
            .args(["-p", package, "--features", features])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{err}");
        let out = String::from_utf8(ran.stdout).unwrap();
        out.lines().any(|line| line.starts_with("ort"))
    };
    assert!(!tree("epwatch-sdk", "grpc"));
    assert!(!tree("epwatch-ffi", "grpc,jni"));
    assert!(tree("epwatch-sdk", "ort"));
}
