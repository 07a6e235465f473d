//! A session of the host's own ONNX Runtime: prepared, observed, recorded, closed.

use std::{
    ffi::{c_char, c_void},
    time::Duration,
};

use epwatch_sdk::{
    AttachRequest, AttachedSession, HostRuntime, SessionPlan, Watch, read_side_car,
    types::{DeviceType, ReasonCode, SelectionPolicy, SessionOptions},
};

use crate::{
    handle::{Table, closed},
    log,
    model::{EpwModel, PLANS, model_info, names},
    runtime::{prepare_failed, runtime_given, runtime_of},
    status::{EpwStatus, Failure, guarded},
    text::{self, EpwText, Foreign, ResultPlace, Texts, array, copy_out},
    watch::EpwWatch,
};

/// Longest side-car of a model.
const MAX_SIDE_CAR_BYTES: usize = 64 << 20;

pub(crate) static SESSIONS: Table<Observed> = Table::new(3);

/// An observed session, and the SDK that it belongs to.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) session: AttachedSession,
    pub(crate) watch: Watch,
}

/// An observed session.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwSession {
    /// 0 is none.
    pub id: u64,
}

/// A run that the host measured.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwRun {
    /// When the run began, in nanoseconds of CLOCK_MONOTONIC (epw_now).
    pub began_ns: u64,
    /// How long the run took.
    pub latency_ns: u64,
}

/// # Safety
/// The texts must be valid.
pub(crate) unsafe fn request(
    watch: &Watch,
    runtime: Option<HostRuntime>,
    model: &EpwModel,
) -> Result<AttachRequest, Failure> {
    let texts = Texts::default();
    // SAFETY: guaranteed by the caller.
    let text = |text: EpwText| unsafe { texts.get(text) };
    let options = SessionOptions::default()
        .with_performance_mode(text(model.performance_mode))
        .with_soc_model(text(model.soc_model))
        .with_htp_arch(text(model.htp_arch))
        .with_selection_policy(SelectionPolicy::of_text(text(model.selection_policy)))
        .with_device_type(DeviceType::of_text(text(model.device_type)));
    let (variant, model_file) = (text(model.variant), text(model.model_file));
    texts.checked()?;
    // SAFETY: guaranteed by the caller.
    let (info, eps, reasons) = unsafe {
        (
            model_info(model)?,
            names(model.requested_eps, model.n_requested_eps)?,
            names(model.reasons, model.n_reasons)?,
        )
    };
    let reason = |name: &String| {
        let unknown = || Failure::invalid(format!("{name:?} is not a code of a reason"));
        ReasonCode::from_name(name).ok_or_else(unknown)
    };
    let reasons = reasons.iter().map(reason).collect::<Result<Vec<_>, _>>()?;
    let mut request = watch
        .attach(info, runtime)
        .requesting(eps)
        .with_options(options)
        .with_reasons(reasons);
    if model.plan.id != 0 {
        request = request.with_plan(&PLANS.with(model.plan.id, SessionPlan::clone)?);
    }
    if !variant.is_empty() {
        request = request.with_variant(variant);
    }
    if model.after_run_error != 0 {
        request = request.after_run_error();
    }
    if !model_file.is_empty() {
        request = request.with_model_file(model_file);
    }
    // SAFETY: guaranteed by the caller.
    let side_car = unsafe { model.side_car.bytes(MAX_SIDE_CAR_BYTES)? };
    if !side_car.is_empty() {
        let read = read_side_car(side_car);
        let manifest = read.map_err(|error| Failure::invalid(error.to_string()))?;
        request = request.with_manifest(manifest);
    }
    if model.log.id != 0
        && let Some(log) = log::taken(model.log)?
    {
        request = request.with_log(log);
    }
    Ok(request)
}

/// # Safety
/// The session must belong to the runtime and be alive; the texts must be valid.
pub(crate) unsafe fn observe(
    watch: Watch,
    runtime: Option<HostRuntime>,
    session: Foreign,
    model: &EpwModel,
) -> Result<u64, Failure> {
    let creation = (model.creation_ns > 0).then(|| Duration::from_nanos(model.creation_ns));
    // SAFETY: guaranteed by the caller.
    let session = unsafe {
        let session = runtime.and_then(|runtime| runtime.session(session));
        request(&watch, runtime, model)?.observe(session, creation)
    };
    SESSIONS.insert(Observed { session, watch })
}

/// # Safety
/// The texts must be valid.
pub(crate) unsafe fn start_failed(
    watch: &Watch,
    runtime: Option<HostRuntime>,
    model: &EpwModel,
    code: i32,
    message: &str,
) -> Result<EpwStatus, Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe { request(watch, runtime, model)? }.failed(code, message);
    Ok(EpwStatus::Ok)
}

/// Makes sessions of these OrtSessionOptions keep the EP of each node: call it before the session is made.
/// `ort_api_base` is what OrtGetApiBase() returns, or NULL for the ONNX Runtime that is loaded. The session can be made
/// whatever this call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_prepare_options(
    ort_api_base: *const c_void,
    options: *mut c_void,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties; the options belong to the host's ONNX Runtime.
    guarded(|| unsafe {
        let prepared = runtime_given(ort_api_base)?.record_assignment(options);
        prepared.map_err(|error| prepare_failed(&error))?;
        Ok(EpwStatus::Ok)
    })
}

/// Observes an OrtSession, and reads its placement once. The session still belongs to the host, which may close it
/// after this call. Without ONNX Runtime or a session (NULL) runs are measured, and epw_explain_session has the reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_observe(
    watch: EpwWatch,
    ort_api_base: *const c_void,
    session: *const c_void,
    model: *const EpwModel,
    observed: *mut EpwSession,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties; the session belongs to the host's ONNX Runtime.
    guarded(|| unsafe {
        let observed = ResultPlace::of(observed)?;
        let model = text::read(model)?;
        let watch = crate::watch::watch(watch.id)?;
        let id = self::observe(watch, runtime_of(ort_api_base), session, &model)?;
        Ok(observed.write(EpwSession { id }))
    })
}

/// Counts a session that could not be made, with ONNX Runtime's error code and message. Paths and numbers in the message
/// do not leave the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_start_failed(
    watch: EpwWatch,
    ort_api_base: *const c_void,
    model: *const EpwModel,
    ort_error_code: i32,
    message: EpwText,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties.
    guarded(|| unsafe {
        let model = text::read(model)?;
        let watch = crate::watch::watch(watch.id)?;
        let runtime = runtime_of(ort_api_base);
        self::start_failed(&watch, runtime, &model, ort_error_code, message.get()?)
    })
}

/// Returns nanoseconds of CLOCK_MONOTONIC, the clock of Java's System.nanoTime on Android and Linux.
#[unsafe(no_mangle)]
pub extern "C" fn epw_now() -> u64 {
    u64::try_from(AttachedSession::now().as_nanos()).unwrap_or(u64::MAX)
}

/// Records a run of a model with a fixed input shape. Never blocks, and reads no clock. A latency beyond the longest
/// that a report can hold is recorded as the longest. The first run in the child of a fork begins a session in the
/// child's own stream, and takes as long as epw_observe.
#[unsafe(no_mangle)]
pub extern "C" fn epw_record(session: EpwSession, began_ns: u64, latency_ns: u64) -> EpwStatus {
    on_path(session.id, |observed| {
        let (began, latency) = (
            Duration::from_nanos(began_ns),
            Duration::from_nanos(latency_ns),
        );
        observed.record(began, latency);
    })
}

/// A call on the inference path.
#[inline]
pub(crate) fn on_path(session: u64, call: impl FnOnce(&AttachedSession)) -> EpwStatus {
    guarded(|| {
        let done = SESSIONS.try_with(session, |observed| call(&observed.session));
        done.map(|()| EpwStatus::Ok).ok_or_else(closed)
    })
}

/// Does the same as epw_record, for a model with free dimensions. A shape is for example "x:1x3x224x224". A session
/// keeps 8 shapes apart, and counts further ones together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_record_shape(
    session: EpwSession,
    began_ns: u64,
    latency_ns: u64,
    shape: EpwText,
) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        let shape = unsafe { shape.get()? };
        let (began, latency) = (
            Duration::from_nanos(began_ns),
            Duration::from_nanos(latency_ns),
        );
        let record = |o: &Observed| o.session.record_shape(began, latency, shape);
        let done = SESSIONS.try_with(session.id, record);
        done.map(|()| EpwStatus::Ok).ok_or_else(closed)
    })
}

/// Records runs of a model with a fixed input shape.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_record_all(
    session: EpwSession,
    runs: *const EpwRun,
    n_runs: usize,
) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        let runs = unsafe { array(runs, n_runs, usize::MAX >> 8)? };
        Ok(on_path(session.id, |observed| {
            for run in runs {
                let began = Duration::from_nanos(run.began_ns);
                observed.record(began, Duration::from_nanos(run.latency_ns));
            }
        }))
    })
}

/// Counts a run that failed with this code of ONNX Runtime (OrtErrorCode: 1 or more). 15 (ORT_DEVICE_RESET) is a restart of the DSP: make the
/// session again, with after_run_error.
#[unsafe(no_mangle)]
pub extern "C" fn epw_record_error(session: EpwSession, ort_error_code: i32) -> EpwStatus {
    if ort_error_code < 1 {
        return guarded(|| {
            let text =
                format!("ort_error_code is {ort_error_code}; expected OrtErrorCode, 1 or more");
            Err(Failure::invalid(text))
        });
    }
    on_path(session.id, |observed| observed.record_error(ort_error_code))
}

/// Copies the session's part of epw_explain: EPs, nodes on the CPU, fingerprints, reasons. Never waits for the disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_explain_session(
    session: EpwSession,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> EpwStatus {
    guarded(|| {
        let json = explain_session(session.id)?;
        // SAFETY: the header's first comment states the caller's duties.
        unsafe { copy_out(json.as_bytes(), buffer, capacity, length) }
    })
}

pub(crate) fn explain_session(session: u64) -> Result<String, Failure> {
    let explained = SESSIONS.with(session, |o| o.watch.explain_session(o.session.uid()))?;
    Ok(explained.map_or_else(|| "{}".to_owned(), |session| session.to_json()))
}

/// Ends the recording of a session. Its runs are sealed with the next report.
#[unsafe(no_mangle)]
pub extern "C" fn epw_session_close(session: EpwSession) -> EpwStatus {
    guarded(|| close_session(session.id))
}

pub(crate) fn close_session(session: u64) -> Result<EpwStatus, Failure> {
    // In the child of a fork the value stays in its slot.
    SESSIONS.close(session, |observed| observed.session.close())?;
    Ok(EpwStatus::Ok)
}
