//! Golden self-tests on real sessions, with one process per simulated device. The reported distances are computed from
//! the outputs. A test runs once per firmware and runtime, and again after a run error.

use std::path::Path;

use epwatch_proto::{StartPhase, placement::QNN_EP};
use epwatch_sdk::{
    ModelInfo, ObservedSession, Watch,
    qnn::{HtpOptions, Plugin, QnnError},
    self_test::{GoldenInput, GoldenTensor, SelfTestOutcome, SelfTestSkip, code},
    types::SelfTest,
};
use ort::{inputs, session::Session, value::TensorRef};

use crate::support::{
    self, KEY, TIMEOUT, collector::Collector, command, config, emit, emitted_by, fixture, qnn, role,
};

/// One simulated device.
struct Rig {
    plugin: Plugin,
    htp: HtpOptions,
    collector: Collector,
}

impl Rig {
    fn new(soc_model: &str) -> Self {
        Self {
            plugin: qnn::plugin(),
            htp: qnn::htp(soc_model),
            collector: Collector::start(KEY),
        }
    }

    fn watch(&self, dir: &Path) -> Watch {
        support::start(config(dir, &self.collector.endpoint()))
    }

    fn session(&self, watch: &Watch, model: &str, after_run_error: bool) -> ObservedSession {
        let asked = self.plugin.session_builder(&self.htp).unwrap();
        let request = qnn::request(watch, model, asked);
        let request = match after_run_error {
            true => request.after_run_error(),
            false => request,
        };
        request.commit_from_file(path(model)).unwrap()
    }

    fn cpu(&self, model: &str) -> ort::Result<Session> {
        let mut builder = self.plugin.cpu_session_builder().unwrap();
        builder.commit_from_file(path(model))
    }
}

fn path(model: &str) -> std::path::PathBuf {
    fixture(&format!("models/{model}.onnx"))
}

#[track_caller]
fn ran(outcome: SelfTestOutcome) -> SelfTest {
    match outcome {
        SelfTestOutcome::Ran(test) => test,
        skipped => panic!("{skipped:?}"),
    }
}

fn image() -> GoldenInput {
    let golden = GoldenInput::load(fixture("self_test/image-1")).unwrap();
    golden.with_tolerance(0.25).unwrap()
}

/// The outputs of one session, read without the SDK.
fn outputs(session: &mut Session, golden: &GoldenInput) -> Vec<f32> {
    let (_, tensor) = golden.inputs().next().unwrap();
    let values: Vec<f32> = tensor
        .data()
        .chunks_exact(4)
        .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
        .collect();
    let dims: Vec<usize> = tensor
        .dims()
        .iter()
        .map(|d| usize::try_from(*d).unwrap())
        .collect();
    let input = TensorRef::from_array_view((&*dims, &*values)).unwrap();
    let outputs = session.run(inputs![input]).unwrap();
    outputs[0].try_extract_tensor::<f32>().unwrap().1.to_vec()
}

/// Checks the result against the outputs.
fn check_distances(rig: &Rig, model: &str, golden: &GoldenInput, test: &SelfTest) {
    let dir = tempfile::tempdir().unwrap();
    let mut npu = rig.session(&rig.watch(dir.path()), model, false);
    let on_npu = outputs(npu.session_mut(), golden);
    let on_cpu = outputs(&mut rig.cpu(model).unwrap(), golden);
    assert_eq!(test.error_code, 0);
    assert_eq!(
        test.npu_output_hash == test.cpu_output_hash,
        on_npu == on_cpu
    );
    let pairs = || on_npu.iter().zip(&on_cpu);
    let furthest = pairs().map(|(a, b)| f64::from(*a) - f64::from(*b));
    let max_abs = furthest.map(f64::abs).fold(0.0, f64::max);
    assert_eq!(test.max_abs, Some(max_abs));
    let top = |values: &[f32]| {
        let largest = values.iter().copied().fold(f32::MIN, f32::max);
        values.iter().position(|v| *v == largest)
    };
    assert_eq!(test.top1_equal, Some(top(&on_npu) == top(&on_cpu)));
    let cosine = test.cosine.unwrap();
    assert!((0.9..=1.0).contains(&cosine), "{model}: {cosine}");
}

/// The child process: one simulated device.
fn one_device(soc_model: &str) {
    let rig = Rig::new(soc_model);
    let dir = tempfile::tempdir().unwrap();
    let watch = rig.watch(dir.path());
    let golden = image();
    let mut results = Vec::new();
    for model in ["cnn.qu8", "mixed_v1.int8", "mixed_v2.head32"] {
        let mut session = rig.session(&watch, model, false);
        let test = ran(watch.self_test(&mut session, &golden, || rig.cpu(model)));
        check_distances(&rig, model, &golden, &test);
        // The test runs once.
        let again = watch.self_test(&mut session, &golden, || rig.cpu(model));
        assert_eq!(again, SelfTestOutcome::Skipped(SelfTestSkip::Done));
        results.push(test);
    }
    watch.flush(TIMEOUT).unwrap();
    let reports = rig.collector.reports();
    let reported = reports.iter().flat_map(|r| r.self_tests.clone());
    let reported: Vec<SelfTest> = reported.map(Into::into).collect();
    assert_eq!(reported, results);
    assert!(
        reports
            .iter()
            .all(|r| r.series.is_empty() && r.run_errors.is_empty())
    );
    assert_eq!(results[0].input_id, "image-1");
    assert_eq!(results[0].tolerance, Some(0.25));
    watch.stop(TIMEOUT).unwrap();

    // The next process on the same firmware and runtime has nothing to do.
    let watch = rig.watch(dir.path());
    let mut session = rig.session(&watch, "cnn.qu8", false);
    let not_called = || -> ort::Result<Session> { panic!("no CPU session is needed") };
    let done = watch.self_test(&mut session, &golden, not_called);
    assert_eq!(done, SelfTestOutcome::Skipped(SelfTestSkip::Done));
    // After a run error the session is made again, and the test is repeated once.
    let mut session = rig.session(&watch, "cnn.qu8", true);
    let test = ran(watch.self_test(&mut session, &golden, || rig.cpu("cnn.qu8")));
    assert_eq!(test.npu_output_hash, results[0].npu_output_hash);
    let done = watch.self_test(&mut session, &golden, not_called);
    assert_eq!(done, SelfTestOutcome::Skipped(SelfTestSkip::Done));

    // Another input makes another test, and a failure gives an error code.
    let wrong = |name: &str, dims: &[u64]| {
        let n = dims.iter().product::<u64>();
        let zeros = vec![0.0_f32; usize::try_from(n).unwrap()];
        let tensor = GoldenTensor::new(dims, &zeros).unwrap();
        GoldenInput::new("wrong")
            .unwrap()
            .with_input(name, tensor)
            .unwrap()
    };
    // ORT_INVALID_ARGUMENT
    for golden in [wrong("x", &[1, 3, 8, 8]), wrong("no such input", &[1])] {
        let test = ran(watch.self_test(&mut session, &golden, not_called));
        assert_eq!(
            (test.error_code, test.npu_output_hash),
            (2, None),
            "{golden:?}"
        );
    }
    let no_cpu = |id: &str| {
        GoldenInput::new(id).unwrap().with_input("x", {
            let (_, tensor) = golden.inputs().next().unwrap();
            tensor.clone()
        })
    };
    let no_model = || {
        rig.plugin
            .cpu_session_builder()
            .unwrap()
            .commit_from_memory(b"no model")
    };
    let test = ran(watch.self_test(&mut session, &no_cpu("a").unwrap(), no_model));
    assert!(
        test.error_code > 0 && test.npu_output_hash.is_some(),
        "{test:?}"
    );
    assert_eq!((test.cpu_output_hash, test.max_abs), (None, None));
    let own = || -> Result<Session, std::io::Error> { Err(std::io::ErrorKind::NotFound.into()) };
    let test = ran(watch.self_test(&mut session, &no_cpu("b").unwrap(), own));
    assert_eq!(test.error_code, code::CPU_SESSION);
    let wrapped = || -> Result<Session, QnnError> {
        no_model().map_err(|source| QnnError::Builder { ep: QNN_EP, source })
    };
    let test = ran(watch.self_test(&mut session, &no_cpu("c").unwrap(), wrapped));
    assert!(test.error_code > 0, "{test:?}");
    let panics = || -> ort::Result<Session> { panic!("the host's own fault") };
    let test = ran(watch.self_test(&mut session, &no_cpu("d").unwrap(), panics));
    assert_eq!(test.error_code, code::INTERNAL);
    // A model of another shape has outputs that cannot be compared.
    let other = ran(watch.self_test(&mut session, &no_cpu("e").unwrap(), || rig.cpu("mlp.fp32")));
    assert_ne!(other.error_code, 0);

    // A session for the CPU has nothing to compare.
    let builder = rig.plugin.cpu_session_builder().unwrap();
    let mut on_cpu = watch
        .session(ModelInfo::new("cnn.qu8", "1").unwrap(), builder)
        .commit_from_file(path("cnn.qu8"))
        .unwrap();
    let skipped = watch.self_test(&mut on_cpu, &golden, not_called);
    assert_eq!(skipped, SelfTestOutcome::Skipped(SelfTestSkip::NotOnNpu));

    // A session that cannot be made again has a phase of its own.
    let asked = rig.plugin.session_builder(&rig.htp).unwrap();
    let request = watch.session(ModelInfo::new("m", "1").unwrap(), asked.builder);
    let request = request.requesting(asked.requested_eps).after_run_error();
    request.commit_from_memory(b"no model").unwrap_err();
    watch.flush(TIMEOUT).unwrap();
    let report = rig.collector.reports().pop().unwrap();
    assert_eq!(
        report.start_failures[0].phase,
        StartPhase::RecreationAfterRunError
    );
    assert_eq!(report.self_tests.len(), 8, "{:?}", report.self_tests);
    watch.stop(TIMEOUT).unwrap();
    for test in results {
        emit(format_args!("{:?} {:?}", test.max_abs, test.cosine));
    }
}

#[test]
fn reported_distances_are_those_of_the_outputs() {
    if let Some(soc_model) = role() {
        return one_device(&soc_model);
    }
    for soc_model in ["57", "68"] {
        let test = reported_distances_are_those_of_the_outputs;
        let lines = emitted_by(command(test, soc_model));
        assert_eq!(lines.len(), 3, "{lines:?}");
    }
}

/// The child process: it ends in the middle of the test, as if its driver had crashed.
fn die_in_the_test(dir: &Path) {
    let rig = Rig::new("57");
    let watch = rig.watch(dir);
    let mut session = rig.session(&watch, "cnn.qu8", false);
    emit("begun");
    let outcome = watch.self_test(&mut session, &image(), || -> ort::Result<Session> {
        std::process::exit(0)
    });
    emit(format_args!("{outcome:?}"));
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn a_test_that_crashes_the_process_is_tried_three_times() {
    if let Some(dir) = role() {
        return die_in_the_test(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let test = a_test_that_crashes_the_process_is_tried_three_times;
        emitted_by(command(test, dir.path().to_str().unwrap()))
    };
    for _ in 0..3 {
        assert_eq!(start(), ["begun"]);
    }
    assert_eq!(start(), ["begun", "Skipped(GivenUp)"]);
}
