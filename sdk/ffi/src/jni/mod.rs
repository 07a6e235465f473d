//! The calls of the C header again, for `dev.epwatch.Native` (`sdk/android`).
//!
//! Texts are `byte[]` of UTF-8, because JNI's own strings have another encoding, and names of nodes may be any bytes.
//! Calls of runs take primitives only. Handles are positive `long`s; a negative one is a status. Structs are arrays, in
//! the order of `Native.kt`.

mod env;
mod self_test;

use std::ffi::c_void;

use epwatch_sdk::HostRuntime;

use crate::{
    assignment::{self, EpwAssignment, EpwNode},
    compiled_model,
    log::EpwLog,
    model::{EpwModel, EpwPlan, PLANS, model_info},
    plan,
    session::{self, EpwRun, EpwSession},
    status::{EpwStatus, Failure, guarded, last_error},
    text::EpwText,
    upload,
    watch::{self, EpwConfig, EpwLabel, EpwPreflight, EpwWatch},
};
use env::{Env, Object};

type Class = *mut c_void;

const EMPTY: EpwText = EpwText {
    data: std::ptr::null(),
    length: 0,
};

/// Arrays of `Native.kt`, read one after the other.
struct Fields {
    texts: Vec<Vec<u8>>,
    numbers: Vec<i64>,
}

impl Fields {
    fn read<const N: usize>(env: Env, texts: Object, numbers: Object) -> Result<Self, Failure> {
        let mut read = [0; N];
        if !env.longs(numbers, 0, &mut read) {
            return Err(Failure::invalid("the array of numbers is too short"));
        }
        Ok(Self {
            texts: env.texts(texts),
            numbers: read.to_vec(),
        })
    }

    fn text(&self, at: usize) -> EpwText {
        self.texts.get(at).map_or(EMPTY, |text| EpwText::of(text))
    }

    fn unsigned(&self, at: usize) -> u64 {
        u64::try_from(self.numbers[at]).unwrap_or(0)
    }

    fn flag(&self, at: usize) -> i32 {
        i32::from(self.numbers[at] != 0)
    }
}

/// A handle, or a status as a negative number.
fn handle(call: impl FnOnce() -> Result<u64, Failure>) -> i64 {
    let mut made = 0;
    let status = guarded(|| {
        made = call()?;
        Ok(EpwStatus::Ok)
    });
    match status {
        EpwStatus::Ok => made.cast_signed(),
        failed => -i64::from(failed as i32),
    }
}

fn status(call: impl FnOnce() -> Result<EpwStatus, Failure>) -> i32 {
    guarded(call) as i32
}

/// A text for Java; null if the call fails.
fn text(env: Env, call: impl FnOnce() -> Result<Vec<u8>, Failure>) -> Object {
    let mut array = std::ptr::null_mut();
    guarded(|| {
        array = env.byte_array(&call()?);
        Ok(EpwStatus::Ok)
    });
    array
}

/// The runtime of the app's Java classes, or else the one that is loaded.
fn runtime(env: Env) -> Option<HostRuntime> {
    let api = env.static_long_field(c"ai/onnxruntime/OnnxRuntime", c"ortApiHandle");
    // SAFETY: ONNX Runtime's own class keeps its `OrtApi*` there, and never unloads the library.
    let by_table = api.and_then(|api| unsafe { HostRuntime::from_api(address(api)) });
    by_table.or_else(HostRuntime::loaded)
}

/// A pointer that Java holds as a number.
fn address(number: i64) -> *const c_void {
    std::ptr::with_exposed_provenance(usize::try_from(number.cast_unsigned()).unwrap_or(0))
}

/// A model of `Native.kt`. Texts are id, version, hash, performance mode, SoC, HTP architecture, variant, side-car, file,
/// selection policy, type of device, then the EPs and the reasons. Numbers are the count of EPs, the plan, the time of the
/// creation, and a flag.
fn with_model<R>(
    fields: &Fields,
    call: impl FnOnce(&EpwModel) -> Result<R, Failure>,
) -> Result<R, Failure> {
    const FIRST_NAME: usize = 11;
    let names: Vec<EpwText> = (FIRST_NAME..fields.texts.len())
        .map(|at| fields.text(at))
        .collect();
    let n_eps = usize::try_from(fields.unsigned(0))
        .unwrap_or(0)
        .min(names.len());
    let (eps, reasons) = names.split_at(n_eps);
    call(&EpwModel {
        size: size_of::<EpwModel>(),
        id: fields.text(0),
        version: fields.text(1),
        sha256: fields.text(2),
        requested_eps: eps.as_ptr(),
        n_requested_eps: eps.len(),
        reasons: reasons.as_ptr(),
        n_reasons: reasons.len(),
        performance_mode: fields.text(3),
        soc_model: fields.text(4),
        htp_arch: fields.text(5),
        variant: fields.text(6),
        plan: EpwPlan {
            id: fields.unsigned(1),
        },
        creation_ns: fields.unsigned(2),
        after_run_error: fields.flag(3),
        reserved: 0,
        model_file: fields.text(8),
        side_car: fields.text(7),
        // ONNX Runtime's Java API cannot pass its log to a function of the app.
        log: EpwLog { id: 0 },
        selection_policy: fields.text(9),
        device_type: fields.text(10),
    })
}

const N_MODEL_NUMBERS: usize = 4;
const N_CONFIG_NUMBERS: usize = 11;
/// Number of texts of a configuration before its roll-out labels, which are pairs of key and value.
const N_CONFIG_TEXTS: usize = 23;

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_lastError(env: Env, _: Class) -> Object {
    text(env, || Ok(last_error().into_bytes()))
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_start(
    env: Env,
    _: Class,
    texts: Object,
    numbers: Object,
) -> i64 {
    handle(|| {
        let fields = Fields::read::<N_CONFIG_NUMBERS>(env, texts, numbers)?;
        let text = |at| fields.text(at);
        let label = |at| EpwLabel {
            key: text(at),
            value: text(at + 1),
        };
        let n_texts = fields.texts.len();
        let labels: Vec<_> = (N_CONFIG_TEXTS..n_texts).step_by(2).map(label).collect();
        watch::start(&EpwConfig {
            size: size_of::<EpwConfig>(),
            on_health: None,
            health_context: std::ptr::null_mut(),
            app_id: text(0),
            endpoint: text(1),
            app_key: text(2),
            folder: text(3),
            app_version: text(4),
            app_build: text(5),
            environment: text(6),
            language: text(7),
            directive_key_id: text(8),
            directive_key: text(9),
            chipset: text(10),
            soc_manufacturer: text(11),
            board: text(12),
            abi: text(13),
            manufacturer: text(14),
            device_model: text(15),
            os: text(16),
            os_version: text(17),
            security_patch: text(18),
            vendor_fingerprint: text(19),
            ep_package: text(20),
            ep_version: text(21),
            qnn_sdk_version: text(22),
            ram_bytes: fields.unsigned(0),
            report_interval_ms: fields.unsigned(1),
            metered_bytes_per_day: fields.unsigned(2),
            api_level: u32::try_from(fields.unsigned(3)).unwrap_or(0),
            has_consent: fields.flag(4),
            sends_by_host: fields.flag(5),
            reports_thermal: fields.flag(6),
            reports_power_save: fields.flag(7),
            allows_plaintext: fields.flag(8),
            client_cert_file: EMPTY,
            client_key_file: EMPTY,
            root_certificate: EMPTY,
            rollout_labels: labels.as_ptr(),
            n_rollout_labels: labels.len(),
            // The host sends by itself, at its own interval and with its own trusted roots.
            upload_interval_ms: 0,
            unmetered_bytes_per_day: fields.unsigned(9),
            trusted_roots: 0,
            reads_thermal_zones: fields.flag(10),
        })
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_disableRuntimeTelemetry(_: Env, _: Class) -> i32 {
    // SAFETY: the app is asked to call it before its other libraries are loaded; `System.getenv` reads a copy.
    unsafe { watch::epw_disable_runtime_telemetry() as i32 }
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_stop(
    _: Env,
    _: Class,
    watch: i64,
    timeout_ms: i64,
) -> i32 {
    let id = watch.cast_unsigned();
    watch::epw_stop(EpwWatch { id }, u64::try_from(timeout_ms).unwrap_or(0)) as i32
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_setConsent(
    _: Env,
    _: Class,
    watch: i64,
    is_given: u8,
) -> i32 {
    let id = watch.cast_unsigned();
    watch::epw_set_consent(EpwWatch { id }, i32::from(is_given)) as i32
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_setConditions(
    _: Env,
    _: Class,
    watch: i64,
    thermal: i32,
    power_save: i32,
) -> i32 {
    let id = watch.cast_unsigned();
    // SAFETY: the text is empty.
    unsafe { watch::epw_set_conditions(EpwWatch { id }, thermal, power_save, EMPTY) as i32 }
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_setNetwork(
    _: Env,
    _: Class,
    watch: i64,
    network: i32,
) -> i32 {
    let id = watch.cast_unsigned();
    watch::epw_set_network(EpwWatch { id }, network) as i32
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_seal(_: Env, _: Class, watch: i64) -> i32 {
    let id = watch.cast_unsigned();
    watch::epw_seal(EpwWatch { id }) as i32
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_explain(env: Env, _: Class, watch: i64) -> Object {
    text(env, || {
        let watch = watch::watch(watch.cast_unsigned())?;
        Ok(watch.explain().to_json().into_bytes())
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_preflight(
    env: Env,
    _: Class,
    watch: i64,
    texts: Object,
    declares_rpc_library: i32,
) -> i32 {
    let mut n_found = 0;
    let status = status(|| {
        let texts = env.texts(texts);
        let text = |at: usize| texts.get(at).map_or(EMPTY, |text| EpwText::of(text));
        let facts = EpwPreflight {
            size: size_of::<EpwPreflight>(),
            backend_path: text(0),
            soc_model: text(1),
            native_library_dir: text(2),
            model_qairt: text(3),
            runtime_qairt: text(4),
            plugin_version: text(5),
            declares_rpc_library,
            reserved: 0,
        };
        // SAFETY: the texts are alive until the end of the call.
        n_found = unsafe { watch::preflight(watch.cast_unsigned(), &facts)? };
        Ok(EpwStatus::Ok)
    });
    match status {
        0 => i32::try_from(n_found).unwrap_or(i32::MAX),
        failed => -failed,
    }
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_plan(
    env: Env,
    _: Class,
    watch: i64,
    texts: Object,
    numbers: Object,
    timeout_ms: i64,
) -> i64 {
    handle(|| {
        let fields = Fields::read::<N_MODEL_NUMBERS>(env, texts, numbers)?;
        // SAFETY: the texts are alive until the end of the call.
        let model = with_model(&fields, |model| unsafe { model_info(model) })?;
        let timeout_ms = u64::try_from(timeout_ms).unwrap_or(0);
        plan::plan(watch.cast_unsigned(), &model, timeout_ms)
    })
}

/// Without a plan a session may use the NPU.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_planUsesNpu(_: Env, _: Class, plan: i64) -> u8 {
    let answer = PLANS.try_with(plan.cast_unsigned(), |plan| plan.use_npu());
    u8::from(answer.unwrap_or(true))
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_planVariant(env: Env, _: Class, plan: i64) -> Object {
    text(env, || {
        plan::plan_variant(plan.cast_unsigned()).map(String::into_bytes)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_closePlan(_: Env, _: Class, plan: i64) -> i32 {
    let id = plan.cast_unsigned();
    plan::epw_plan_close(EpwPlan { id }) as i32
}

/// `session` is an `ai.onnxruntime.OrtSession`, open during the call, or null.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_observe(
    env: Env,
    _: Class,
    watch: i64,
    session: Object,
    texts: Object,
    numbers: Object,
) -> i64 {
    handle(|| {
        let fields = Fields::read::<N_MODEL_NUMBERS>(env, texts, numbers)?;
        let watch = watch::watch(watch.cast_unsigned())?;
        // The value is bits, not a number: tagged pointers may be negative.
        let native = env.long_field(session, c"nativeHandle").unwrap_or(0);
        with_model(&fields, |model| {
            // SAFETY: the field is the session's `OrtSession*`, open during the call; the texts are alive.
            unsafe { session::observe(watch, runtime(env), address(native), model) }
        })
    })
}

/// A session of another runtime. `nodes` has accelerator and op type of each op, in turn. It is null if the runtime does not
/// tell. `partitions` has the number of each op's partition.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_sessionOf(
    env: Env,
    _: Class,
    watch: i64,
    texts: Object,
    numbers: Object,
    runtime: Object,
    nodes: Object,
    partitions: Object,
) -> i64 {
    handle(|| {
        let fields = Fields::read::<N_MODEL_NUMBERS>(env, texts, numbers)?;
        let watch = watch::watch(watch.cast_unsigned())?;
        let (runtime, named) = (env.bytes(runtime), env.texts(nodes));
        assignment::check_is_named(&String::from_utf8_lossy(&runtime))?;
        let numbers = env.all_longs(partitions);
        let pairs = named.chunks_exact(2).zip(&numbers);
        let listed: Vec<EpwNode> = pairs
            .map(|(pair, number)| EpwNode {
                name: EMPTY,
                op_type: EpwText::of(&pair[1]),
                domain: EMPTY,
                ep: EpwText::of(&pair[0]),
                subgraph: number.cast_unsigned(),
            })
            .collect();
        let given = EpwAssignment {
            size: size_of::<EpwAssignment>(),
            runtime: EpwText::of(&runtime),
            nodes: match nodes.is_null() {
                true => std::ptr::null(),
                false => listed.as_ptr(),
            },
            n_nodes: listed.len(),
            ep_compatibility: EMPTY,
        };
        // SAFETY: texts and nodes are alive until the end of the call.
        with_model(&fields, |model| unsafe {
            assignment::observe(watch, model, &given)
        })
    })
}

/// A number of `EpwCompatibility`.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_compatibility(
    env: Env,
    _: Class,
    watch: i64,
    texts: Object,
    numbers: Object,
) -> i64 {
    handle(|| {
        let fields = Fields::read::<N_MODEL_NUMBERS>(env, texts, numbers)?;
        // SAFETY: the texts are alive until the end of the call.
        let answer = with_model(&fields, |model| unsafe {
            compiled_model::compatibility(watch.cast_unsigned(), model)
        })?;
        Ok(answer as u64)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_startFailed(
    env: Env,
    _: Class,
    watch: i64,
    texts: Object,
    numbers: Object,
    code: i32,
    message: Object,
) -> i32 {
    status(|| {
        let fields = Fields::read::<N_MODEL_NUMBERS>(env, texts, numbers)?;
        let watch = watch::watch(watch.cast_unsigned())?;
        let message = env.bytes(message);
        let message = String::from_utf8_lossy(&message);
        with_model(&fields, |model| {
            // SAFETY: the texts are alive until the end of the call.
            unsafe { session::start_failed(&watch, runtime(env), model, code, &message) }
        })
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_record(
    _: Env,
    _: Class,
    session: i64,
    began_ns: i64,
    latency_ns: i64,
) -> i32 {
    let id = session.cast_unsigned();
    session::epw_record(EpwSession { id }, positive(began_ns), positive(latency_ns)) as i32
}

fn positive(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_recordShape(
    env: Env,
    _: Class,
    session: i64,
    began_ns: i64,
    latency_ns: i64,
    shape: Object,
) -> i32 {
    let (id, shape) = (session.cast_unsigned(), env.bytes(shape));
    let (began, latency) = (positive(began_ns), positive(latency_ns));
    // SAFETY: the text is alive until the end of the call.
    unsafe {
        session::epw_record_shape(EpwSession { id }, began, latency, EpwText::of(&shape)) as i32
    }
}

/// `runs` holds pairs of beginning and latency, `n` of them.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_recordAll(
    env: Env,
    _: Class,
    session: i64,
    runs: Object,
    n: i32,
) -> i32 {
    const AT_ONCE: i32 = 64;
    status(|| {
        let id = session.cast_unsigned();
        let mut from = 0;
        while from < n {
            let count = (n - from).min(AT_ONCE);
            let mut pairs = [0_i64; 2 * AT_ONCE as usize];
            let pairs = &mut pairs[..2 * usize::try_from(count).unwrap_or(0)];
            if !env.longs(runs, from.saturating_mul(2), pairs) {
                return Err(Failure::invalid("the array has fewer than n pairs"));
            }
            let runs: Vec<EpwRun> = pairs
                .chunks_exact(2)
                .map(|pair| EpwRun {
                    began_ns: positive(pair[0]),
                    latency_ns: positive(pair[1]),
                })
                .collect();
            // SAFETY: the runs are alive until the end of the call.
            match unsafe { session::epw_record_all(EpwSession { id }, runs.as_ptr(), runs.len()) } {
                EpwStatus::Ok => from += count,
                failed => return Ok(failed),
            }
        }
        Ok(EpwStatus::Ok)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_recordError(
    _: Env,
    _: Class,
    session: i64,
    code: i32,
) -> i32 {
    let id = session.cast_unsigned();
    // OrtException's code is -1 if Java lacks it.
    session::on_path(id, |observed| observed.record_error(code)) as i32
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_explainSession(
    env: Env,
    _: Class,
    session: i64,
) -> Object {
    text(env, || {
        session::explain_session(session.cast_unsigned()).map(String::into_bytes)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_closeSession(_: Env, _: Class, session: i64) -> i32 {
    status(|| session::close_session(session.cast_unsigned()))
}

/// 0 if nothing is to be sent.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_nextUpload(_: Env, _: Class, watch: i64) -> i64 {
    handle(|| Ok(upload::next_upload(watch.cast_unsigned())?.unwrap_or(0)))
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_uploadPath(env: Env, _: Class, upload: i64) -> Object {
    text(env, || Ok(upload::path(upload.cast_unsigned())?.into()))
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_uploadBody(env: Env, _: Class, upload: i64) -> Object {
    text(env, || upload::body(upload.cast_unsigned()))
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_uploadAnswer(
    env: Env,
    _: Class,
    upload: i64,
    answer: Object,
) -> i32 {
    status(|| upload::settle(upload.cast_unsigned(), Ok(&env.bytes(answer))))
}

#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_uploadFailed(
    env: Env,
    _: Class,
    upload: i64,
    http_status: i32,
    retry_after_ms: i64,
    message: Object,
) -> i32 {
    status(|| {
        let message = env.bytes(message);
        let message = String::from_utf8_lossy(&message);
        let retry_after_ms = u64::try_from(retry_after_ms).unwrap_or(0);
        upload::failed(
            upload.cast_unsigned(),
            http_status,
            retry_after_ms,
            &message,
        )
    })
}
