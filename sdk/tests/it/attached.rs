//! Sessions of a host in another language: the SDK knows only their pointers, the host runs them and records each run.

use std::{
    ffi::{c_char, c_void},
    time::Duration,
};

use epwatch_proto::{
    PlacementSource, ReasonCode, Report, SessionOptions, StartPhase, placement::QNN_EP,
};
use epwatch_sdk::{
    AttachRequest, AttachedSession, HostAssignment, HostPlacement, HostRuntime, ModelInfo,
    PrepareError, RequestKind, Watch,
    placement::{self, AssignedNode, Assignment, Subgraph},
};
use ort::{
    AsPointer,
    session::{Session, builder::SessionBuilder},
};

use crate::support::{
    TIMEOUT, app, app_with, check_explains, collector::Collector, environment, fixture,
};

const MODEL: &str = "models/cnn.qu8.onnx";

/// The runtime that the test's process has loaded.
fn runtime() -> HostRuntime {
    environment();
    HostRuntime::loaded().expect("ort has loaded it")
}

/// A session that the host made, and its pointer. Its options are prepared if `is_prepared`.
fn session(is_prepared: bool) -> (Session, *const c_void) {
    let mut builder: SessionBuilder = Session::builder(environment()).unwrap();
    if is_prepared {
        // SAFETY: they are options of this runtime.
        unsafe { runtime().record_assignment(builder.ptr_mut().cast()) }.unwrap();
    }
    let session = builder.commit_from_file(fixture(MODEL)).unwrap();
    let pointer = session.ptr().cast();
    (session, pointer)
}

fn request(watch: &Watch, runtime: Option<HostRuntime>) -> AttachRequest {
    watch.attach(ModelInfo::new("m", "1").unwrap(), runtime)
}

fn report(watch: &Watch, collector: &Collector) -> Report {
    watch.flush(TIMEOUT).unwrap();
    let mut reports = collector.reports();
    assert_eq!(reports.len(), 1);
    reports.remove(0)
}

#[test]
fn a_session_known_by_its_pointer_is_observed_as_one_of_ort() {
    let (_dir, collector, watch) = app();
    let observed = watch
        .session(
            ModelInfo::new("m", "1").unwrap(),
            Session::builder(environment()).unwrap(),
        )
        .requesting([QNN_EP])
        .with_reasons([ReasonCode::EpNotAvailable.into()])
        .commit_from_file(fixture(MODEL))
        .unwrap();
    let expected = observed.placement().wire().clone();
    drop(observed);
    watch.flush(TIMEOUT).unwrap();

    let options = SessionOptions {
        soc_model: "57".to_owned(),
        ..SessionOptions::default()
    };
    let (host, pointer) = session(true);
    // SAFETY: the session is the runtime's, and dropped later.
    let pointer = unsafe { runtime().session(pointer) };
    let attached = request(&watch, Some(runtime()))
        .requesting([QNN_EP])
        .with_options(options.into())
        .with_reasons([ReasonCode::EpNotAvailable.into()])
        .observe(pointer, Some(Duration::from_micros(1_234)));
    assert_eq!(attached.placement().wire(), &expected);
    assert_eq!(expected.source, PlacementSource::AssignmentApi);
    // The host may close its session first.
    drop(host);

    let began = AttachedSession::now();
    for _ in 0..5 {
        attached.record(began, Duration::from_millis(8));
    }
    attached.record_shape(began, Duration::from_millis(9), "x:1x3x32x32");
    attached.record_error(2);
    // A time before the start of the process does no harm.
    attached.record(Duration::ZERO, Duration::from_millis(8));
    let uid = attached.uid().wire();
    drop(attached);
    watch.flush(TIMEOUT).unwrap();

    let reports = collector.reports();
    let report = reports.last().unwrap();
    let described = report.session(uid).unwrap();
    assert_eq!(described.requested_eps, [QNN_EP]);
    assert_eq!(described.options.soc_model, "57");
    assert_eq!(described.creation_us, Some(1_234));
    assert_eq!(described.placement, expected);
    assert_eq!(report.runtime.ort_version, runtime().version());
    let of_shape = |key: &str| -> u64 {
        let series = report.series.iter();
        let series = series.filter(|s| s.stratum.shape_key == key);
        series.map(|s| s.n).sum()
    };
    assert_eq!((of_shape("static"), of_shape("x:1x3x32x32")), (6, 1));
    let errors = report.run_errors.iter();
    let errors: Vec<_> = errors.map(|e| (e.ort_status_code, e.count)).collect();
    assert_eq!(errors, [(2, 1)]);
}

/// The host's binding returns the list, but no pointer.
#[test]
fn a_placement_that_the_host_has_read_is_the_one_read_here() {
    let (_dir, collector, watch) = app();
    let (host, pointer) = session(true);
    // SAFETY: the session is the runtime's, and alive.
    let pointer = unsafe { runtime().session(pointer) };
    let of_pointer = request(&watch, Some(runtime())).requesting([QNN_EP]);
    let expected = of_pointer.observe(pointer, None).placement().wire().clone();
    let read = HostAssignment {
        runtime: runtime().version(),
        assignment: Some(placement::read(&host).unwrap()),
        devices: Vec::new(),
        ep_compatibility: String::new(),
    };
    let attached = request(&watch, None)
        .requesting([QNN_EP])
        .with_model_file(fixture(MODEL))
        .observe_assignment(read, Some(Duration::from_micros(1_234)));
    assert_eq!(attached.placement().wire(), &expected);
    attached.record(AttachedSession::now(), Duration::from_millis(8));
    let report = report(&watch, &collector);
    let described = report.session(attached.uid().wire()).unwrap();
    assert_eq!(described.placement, expected);
    assert_eq!(described.creation_us, Some(1_234));
    assert!(described.model.sha256.is_some());
    assert_eq!(report.runtime.ort_version, runtime().version());
}

/// Only a call that asks for it reads the model's file before the user has agreed.
#[test]
fn a_models_file_is_not_read_for_reports_without_consent() {
    let (_dir, _collector, watch) = app_with(|config| config.with_consent(false));
    let asked = || {
        let options = SessionOptions {
            soc_model: "68".to_owned(),
            ..SessionOptions::default()
        };
        request(&watch, None)
            .requesting([QNN_EP])
            .with_options(options.into())
            .with_model_file(fixture("gate/context_sm8650.onnx"))
    };
    let reason = ReasonCode::EpcontextForAnother;
    let is_told = || {
        let session = asked().observe(None, None);
        session.placement().wire().reasons.contains(&reason)
    };
    assert!(asked().compatibility().is_some());
    assert!(!is_told());
    watch.set_consent(true);
    assert!(is_told());
}

/// A placement of LiteRT, with ops that XNNPACK left to the CPU.
fn of_litert() -> HostPlacement {
    let subgraph = |ep: &str, ops: &[&str]| Subgraph {
        ep: ep.to_owned(),
        nodes: ops
            .iter()
            .map(|op| AssignedNode {
                name: op.to_lowercase(),
                op_type: (*op).to_owned(),
                domain: String::new(),
            })
            .collect(),
    };
    HostPlacement {
        requested: vec!["XNNPACK".to_owned()],
        assignment: Some(Assignment {
            subgraphs: vec![
                subgraph("XNNPACK", &["FULLY_CONNECTED", "ADD"]),
                subgraph("CPU", &["CUMSUM"]),
                subgraph("XNNPACK", &["SOFTMAX"]),
            ],
        }),
        creation: Some(Duration::from_micros(1_234)),
    }
}

#[test]
fn a_session_of_another_runtime_is_recorded_by_the_hosts_word() {
    let (_dir, collector, watch) = app();
    let model = ModelInfo::new("m", "1").unwrap();
    let session = watch.session_of(model.clone(), of_litert(), "LiteRT 2.3.0");
    session.record(AttachedSession::now(), Duration::from_millis(8));
    let untold = HostPlacement {
        assignment: None,
        ..of_litert()
    };
    let untold = watch.session_of(model, untold, "2.3.0");
    let text = watch.explain_session(session.uid()).unwrap().to_string();
    for part in [
        "asked for XNNPACK with LiteRT 2.3.0; placement as the app says",
        "XNNPACK: 3 nodes in 2 partitions",
        "on the CPU: cumsum (CUMSUM)",
        "Ask the runtime's own log",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let of = |runtime: &str| {
        let mut reports = reports.iter();
        let found = reports.find(|report| report.runtime.ort_version == runtime);
        &found.unwrap_or_else(|| panic!("{reports:#?}")).sessions[0]
    };
    let described = of("LiteRT 2.3.0");
    assert_eq!(described.creation_us, Some(1_234));
    let placement = &described.placement;
    assert_eq!(placement.source, PlacementSource::Host);
    let counts = (
        placement.n_npu_nodes(),
        placement.n_npu_partitions(),
        placement.n_cpu_nodes(),
    );
    assert_eq!(counts, (3, 2, 1));
    assert_eq!(placement.cpu_ops(), ["CUMSUM"]);
    let untold_placement = &of("other 2.3.0").placement;
    assert_eq!(untold_placement.reasons, [ReasonCode::RuntimeNotKnown]);
    assert_eq!(untold_placement, untold.placement().wire());
}

#[test]
fn a_missing_placement_has_its_reason() {
    let (_dir, _collector, watch) = app();
    let reasons = |runtime: Option<HostRuntime>, pointer: *const c_void| {
        // SAFETY: the session is the runtime's, and alive in the whole test.
        let session = runtime.and_then(|runtime| unsafe { runtime.session(pointer) });
        let attached = request(&watch, runtime).observe(session, None);
        assert_eq!(
            attached.placement().wire().source,
            PlacementSource::Unavailable
        );
        attached.placement().wire().reasons.clone()
    };
    let (_host, pointer) = session(false);
    let not_recorded = [ReasonCode::AssignmentNotRecorded];
    assert_eq!(reasons(Some(runtime()), pointer), not_recorded);
    let not_known = [ReasonCode::RuntimeNotKnown];
    assert_eq!(reasons(None, pointer), not_known);
    let unknown = [ReasonCode::Unknown];
    assert_eq!(reasons(Some(runtime()), std::ptr::null()), unknown);

    // SAFETY: null is allowed.
    let refused = unsafe { runtime().record_assignment(std::ptr::null_mut()) };
    assert!(matches!(refused, Err(PrepareError::Refused(_))));
    // SAFETY: null is allowed.
    assert!(unsafe { HostRuntime::from_base(std::ptr::null()) }.is_none());
    // SAFETY: the table is `ort`'s.
    let by_table = unsafe { HostRuntime::from_api(std::ptr::from_ref(ort::api()).cast()) };
    assert_eq!(by_table.unwrap().version(), runtime().version());
}

/// A function of a table. The SDK calls one of them in this test, which succeeds.
type Function = unsafe extern "system" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

type TableOf = extern "system" fn(u32) -> *const Function;
type Version = extern "system" fn() -> *const c_char;

/// The head of any ONNX Runtime.
#[repr(C)]
struct Base {
    table: TableOf,
    version: Version,
}

extern "system" fn add(_: *mut c_void, _: *const c_char, _: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// At the same position another library has a function that must not be called.
extern "system" fn other(_: *mut c_void, _: *const c_char, _: *const c_char) -> *mut c_void {
    std::process::abort()
}

/// Longer than the table of 1.24.
static TABLE: [Function; 450] = [add; 450];
static OTHER: [Function; 450] = {
    let mut table: [Function; 450] = [add; 450];
    table[100] = other;
    table
};

extern "system" fn appended(_: u32) -> *const Function {
    TABLE.as_ptr()
}

extern "system" fn reordered(version: u32) -> *const Function {
    match version {
        24 => OTHER.as_ptr(),
        _ => TABLE.as_ptr(),
    }
}

extern "system" fn v1_24() -> *const c_char {
    c"1.24.3".as_ptr()
}

extern "system" fn v2_24() -> *const c_char {
    c"2.24.0".as_ptr()
}

/// If a library uses a position of the table differently, the function there could be any other function.
#[test]
fn a_table_is_called_only_if_major_minor_and_known_functions_agree() {
    let prepared = |table: TableOf, version: Version| {
        let base = Base { table, version };
        let mut options = 0_u8;
        // SAFETY: the runtime is not used after this closure, and its functions ignore their arguments.
        unsafe {
            let runtime = HostRuntime::from_base((&raw const base).cast()).unwrap();
            runtime.record_assignment((&raw mut options).cast())
        }
    };
    assert!(prepared(appended, v1_24).is_ok());
    let wrong: [(TableOf, Version, &str); 2] =
        [(appended, v2_24, "2.24.0"), (reordered, v1_24, "1.24.3")];
    for (table, version, found) in wrong {
        let error = prepared(table, version).unwrap_err();
        assert!(matches!(error, PrepareError::OtherFunctions { .. }));
        assert!(error.to_string().contains(found), "{error}");
    }
}

#[test]
fn a_session_that_the_host_could_not_make_is_a_start_failure() {
    let (_dir, collector, watch) = app();
    let failed = |code: i32, message: &str| {
        request(&watch, Some(runtime()))
            .requesting([QNN_EP])
            .after_run_error()
            .failed(code, message);
    };
    failed(15, "the DSP is gone: /data/user/0/x 17");
    failed(1, "something else");
    let report = report(&watch, &collector);
    let failures = report.start_failures.iter();
    let failures: Vec<_> = failures
        .map(|f| (f.reason, f.ort_status_code, f.phase, &*f.text))
        .collect();
    let phase = StartPhase::RecreationAfterRunError;
    let restarted = ReasonCode::DspRestarted;
    assert_eq!(
        failures,
        [
            (restarted, 15, phase, "the DSP is gone: <path> ##"),
            (ReasonCode::Unknown, 1, phase, "something else"),
        ]
    );
    assert_eq!(report.start_failures[0].requested_eps, [QNN_EP]);
    assert_eq!(report.runtime.ort_version, runtime().version());
}

#[test]
fn a_restart_of_the_dsp_is_explained() {
    let (_dir, _collector, watch) = app();
    let attached = request(&watch, Some(runtime())).observe(None, None);
    attached.record_error(15);
    watch.flush(TIMEOUT).unwrap();
    check_explains(&watch, ReasonCode::DspRestarted.meaning());
}

#[test]
fn a_host_that_sends_by_itself_seals_when_it_wants() {
    let (_dir, _collector, watch) = app_with(|config| config.with_uploads_by_host());
    let attached = request(&watch, None).observe(None, None);
    attached.record(AttachedSession::now(), Duration::from_millis(8));
    // The interval is an hour.
    assert!(watch.next_upload().is_none());
    watch.seal().unwrap();
    let request = watch.next_upload().unwrap();
    assert_eq!(
        (request.kind(), request.n_reports()),
        (RequestKind::Upload, 1)
    );
}
