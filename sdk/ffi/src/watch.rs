//! The SDK of a process: start, consent, conditions, plans, explanations, end.

use std::{
    ffi::{c_char, c_void},
    time::Duration,
};

use epwatch_proto::unhex;
use epwatch_sdk::{
    Conditions, NetworkKind, SdkConfig, TrustedRoots, Watch,
    preflight::PreflightFacts,
    runtime,
    types::{ContextKind, Device, PowerSave, Runtime, Thermal},
};

use crate::{
    handle::Table,
    status::{EpwStatus, Failure, flush_failed, guarded},
    text::{self, EpwText, ResultPlace, Texts, array, copy_out},
};

pub(crate) static WATCHES: Table<Watch> = Table::new(1);

/// The SDK of this process.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwWatch {
    /// 0 is none.
    pub id: u64,
}

/// A roll-out group of this installation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwLabel {
    /// For example "ring".
    pub key: EpwText,
    /// For example "canary".
    pub value: EpwText,
}

/// The SDK's configuration. Only the first five fields are required.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwConfig {
    /// sizeof(EpwConfig)
    pub size: usize,
    /// The app's id at the collector.
    pub app_id: EpwText,
    /// The collector's address, https://HOST:4717.
    pub endpoint: EpwText,
    /// The key that authenticates the app.
    pub app_key: EpwText,
    /// A private folder of the app, which epwatch creates.
    pub folder: EpwText,
    /// The app's version as its users see it.
    pub app_version: EpwText,
    /// The app's build.
    pub app_build: EpwText,
    /// The default is "production".
    pub environment: EpwText,
    /// Language of the binding; the default is "c".
    pub language: EpwText,
    /// Id of the operator's public key, if the app obeys directives.
    pub directive_key_id: EpwText,
    /// The Ed25519 public key: 64 hexadecimal digits.
    pub directive_key: EpwText,
    /// Android: Build.SOC_MODEL, else Build.HARDWARE. If all fields that describe the device are empty, epwatch reads
    /// them from Linux.
    pub chipset: EpwText,
    /// Android: Build.SOC_MANUFACTURER.
    pub soc_manufacturer: EpwText,
    /// Android: Build.BOARD.
    pub board: EpwText,
    /// For example "arm64-v8a".
    pub abi: EpwText,
    /// Of the device.
    pub manufacturer: EpwText,
    /// Of the device.
    pub device_model: EpwText,
    /// For example "android".
    pub os: EpwText,
    /// For example "15".
    pub os_version: EpwText,
    /// Android: Build.VERSION.SECURITY_PATCH.
    pub security_patch: EpwText,
    /// Android: Build.FINGERPRINT. Only its hash is kept.
    pub vendor_fingerprint: EpwText,
    /// Package of the QNN EP, for example "onnxruntime-qnn".
    pub ep_package: EpwText,
    /// Its version.
    pub ep_version: EpwText,
    /// QAIRT version of the runtime.
    pub qnn_sdk_version: EpwText,
    /// Bytes of memory; 0 is unknown.
    pub ram_bytes: u64,
    /// Time between two reports; 0 is 15 minutes.
    pub report_interval_ms: u64,
    /// Bytes a day over metered networks; 0 sends nothing there.
    pub metered_bytes_per_day: u64,
    /// Android's API level; 0 is unknown.
    pub api_level: u32,
    /// Not 0 once the user has consented.
    pub has_consent: i32,
    /// Not 0: the host sends, see epw_next_upload. In a build without gRPC the host always sends.
    pub sends_by_host: i32,
    /// Not 0: epw_set_conditions will report the thermal status.
    pub reports_thermal: i32,
    /// Not 0: epw_set_conditions will report power save.
    pub reports_power_save: i32,
    /// Not 0: http:// is allowed to hosts other than this one, for test networks.
    pub allows_plaintext: i32,
    /// PEM file of a client certificate and its chain, for a collector that asks for one (mTLS). Read before each
    /// upload, so a renewed one needs no restart.
    pub client_cert_file: EpwText,
    /// PEM file of the certificate's private key.
    pub client_key_file: EpwText,
    /// One more root certificate as PEM text, for a collector with a private CA.
    pub root_certificate: EpwText,
    /// Roll-out groups. The first eight count.
    pub rollout_labels: *const EpwLabel,
    /// Length of rollout_labels.
    pub n_rollout_labels: usize,
    /// Time between two uploads; 0 is 15 minutes. The collector may ask for another.
    pub upload_interval_ms: u64,
    /// Bytes a day over other networks than metered ones; 0 is 64 MiB.
    pub unmetered_bytes_per_day: u64,
    /// Roots that are trusted: 0 Mozilla's list in the library, 1 the device's list, 2 only root_certificate.
    pub trusted_roots: i32,
    /// Not 0: epwatch reads the thermal zones of Linux, and ignores the thermal status of epw_set_conditions.
    pub reads_thermal_zones: i32,
    /// Called when the problem that epw_explain has as last_problem begins or changes, with the problem. Called with
    /// {NULL, 0} when the problem is over. NULL if the app wants no calls. epwatch's thread calls it, until epw_stop
    /// has returned EPW_STATUS_OK. It must not throw, nor call epw_flush or epw_stop. The text ends with the call.
    pub on_health: EpwOnHealth,
    /// Passed to on_health, from epwatch's thread.
    pub health_context: *mut c_void,
}

/// A function of the app that takes epwatch's problem.
pub type EpwOnHealth = Option<unsafe extern "C" fn(context: *mut c_void, problem: EpwText)>;

/// The app's pointer, which only its function uses.
struct HealthContext(*mut c_void);

// SAFETY: the header documents the thread that passes the pointer.
unsafe impl Send for HealthContext {}
// SAFETY: as above.
unsafe impl Sync for HealthContext {}

impl HealthContext {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

// SAFETY: all fields are numbers, pointers, or texts made of both.
unsafe impl text::Versioned for EpwConfig {
    const NAME: &'static str = "EpwConfig";
}

/// Input of epw_preflight. Empty fields are not checked.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwPreflight {
    /// sizeof(EpwPreflight)
    pub size: usize,
    /// Path of QNN's back end, as passed to the QNN EP.
    pub backend_path: EpwText,
    /// Number of the chipset, as passed to the QNN EP.
    pub soc_model: EpwText,
    /// Android: applicationInfo.nativeLibraryDir.
    pub native_library_dir: EpwText,
    /// QAIRT version of the model's export.
    pub model_qairt: EpwText,
    /// QAIRT version of the runtime.
    pub runtime_qairt: EpwText,
    /// Version of the QNN plugin.
    pub plugin_version: EpwText,
    /// Whether the manifest declares libcdsprpc.so: 1 yes, -1 no, 0 not known.
    pub declares_rpc_library: i32,
    /// 0. Fills the padding that a compiler would insert.
    pub reserved: i32,
}

// SAFETY: all fields are numbers, pointers, or texts made of both.
unsafe impl text::Versioned for EpwPreflight {
    const NAME: &'static str = "EpwPreflight";
}

/// Maximum number of labels that are read, far more than the eight that count.
const MAX_LABELS: usize = 64;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn config_of(given: &EpwConfig) -> Result<SdkConfig, Failure> {
    let texts = Texts::default();
    // SAFETY: the header's first comment states the caller's duties.
    let text = |text: EpwText| unsafe { texts.get(text) };
    let or = |default, given| match text(given) {
        "" => default,
        given => given,
    };
    let folder = text(given.folder);
    let (key_id, key) = (text(given.directive_key_id), text(given.directive_key));
    let runtime = Runtime::default()
        .with_ep_package(text(given.ep_package))
        .with_ep_version(text(given.ep_version))
        .with_qnn_sdk_version(text(given.qnn_sdk_version));
    let (app_id, endpoint) = (text(given.app_id), text(given.endpoint));
    let mut config = SdkConfig::builder(app_id, endpoint, text(given.app_key), folder)
        .with_app_version(text(given.app_version), text(given.app_build))
        .with_environment(or("production", given.environment))
        .with_language(or("c", given.language))
        .with_runtime(runtime)
        .with_consent(given.has_consent != 0)
        .with_plaintext_to_other_hosts(given.allows_plaintext != 0);
    let device = device_of(given, &text);
    let (cert_file, key_file) = (text(given.client_cert_file), text(given.client_key_file));
    let root_certificate = text(given.root_certificate);
    // SAFETY: the header's first comment states the caller's duties.
    let labels = unsafe { array(given.rollout_labels, given.n_rollout_labels, MAX_LABELS)? };
    for label in labels {
        config = config.with_rollout_label(text(label.key), text(label.value));
    }
    texts.checked()?;
    if folder.is_empty() {
        let text = "folder is empty; give a private folder of the app";
        return Err(Failure::new(EpwStatus::Config, text));
    }
    match (cert_file, key_file) {
        ("", "") => {}
        ("", _) | (_, "") => {
            let text = "client_cert_file and client_key_file belong together; one is empty";
            return Err(Failure::new(EpwStatus::Config, text));
        }
        _ => config = config.with_client_certificate(cert_file, key_file),
    }
    if let Some(device) = device {
        config = config.with_device(device);
    }
    if !key_id.is_empty() {
        let key = unhex(key).and_then(|bytes| bytes.try_into().ok());
        let wrong = || Failure::new(EpwStatus::Config, "directive_key is not 64 hex digits");
        config = config.with_directive_key(key_id, key.ok_or_else(wrong)?);
    }
    if given.report_interval_ms > 0 {
        config = config.with_report_interval(ms(given.report_interval_ms));
    }
    if given.upload_interval_ms > 0 {
        config = config.with_upload_interval(ms(given.upload_interval_ms));
    }
    if given.unmetered_bytes_per_day > 0 {
        config = config.with_unmetered_bytes_per_day(given.unmetered_bytes_per_day);
    }
    if !root_certificate.is_empty() {
        config = config.with_root_certificate(root_certificate);
    }
    config = match given.trusted_roots {
        0 => config,
        1 => config.with_trusted_roots(TrustedRoots::System),
        2 => config.with_trusted_roots(TrustedRoots::Only),
        other => {
            let text = format!("trusted_roots is {other}; expected 0, 1 or 2");
            return Err(Failure::new(EpwStatus::Config, text));
        }
    };
    if given.reads_thermal_zones != 0 {
        config = config.with_thermal_zones(true);
    }
    if given.metered_bytes_per_day > 0 {
        config = config.with_metered_bytes_per_day(given.metered_bytes_per_day);
    }
    if let Some(on_health) = given.on_health {
        let context = HealthContext(given.health_context);
        config = config.with_health_listener(move |problem| {
            let none = EpwText {
                data: std::ptr::null(),
                length: 0,
            };
            let problem = problem.map_or(none, |text| EpwText::of(text.as_bytes()));
            // SAFETY: the app promises it; the text lives during the call.
            unsafe { on_health(context.pointer(), problem) };
        });
    }
    if given.sends_by_host != 0 {
        config = config.with_uploads_by_host();
    }
    let refused = |error| Failure::new(EpwStatus::Config, format!("{error}"));
    config.build().map_err(refused)
}

/// The description of the device that the host gave, if it gave any.
fn device_of<'a>(given: &EpwConfig, text: &dyn Fn(EpwText) -> &'a str) -> Option<Device> {
    let device = Device::default()
        .with_chipset(text(given.chipset))
        .with_soc_manufacturer(text(given.soc_manufacturer))
        .with_board(text(given.board))
        .with_abi(text(given.abi))
        .with_manufacturer(text(given.manufacturer))
        .with_model(text(given.device_model))
        .with_os(text(given.os))
        .with_os_version(text(given.os_version))
        .with_security_patch(text(given.security_patch))
        .with_api_level((given.api_level > 0).then_some(given.api_level));
    if device == Device::default() {
        return None;
    }
    let device = device
        .with_contexts([ContextKind::PerformanceMode, ContextKind::InputShape])
        .with_contexts((given.reports_thermal != 0).then_some(ContextKind::Thermal))
        .with_contexts((given.reports_power_save != 0).then_some(ContextKind::PowerSave))
        .with_vendor_fingerprint(text(given.vendor_fingerprint));
    Some(match given.ram_bytes {
        0 => device,
        bytes => device.with_ram_bytes(bytes),
    })
}

pub(crate) fn start(given: &EpwConfig) -> Result<u64, Failure> {
    let config = config_of(given)?;
    let started = Watch::start(config);
    let watch = started.map_err(|error| Failure::new(EpwStatus::Start, error.to_string()))?;
    WATCHES.insert(watch)
}

/// Returns a clone, so that no lock is held during slow calls.
pub(crate) fn watch(handle: u64) -> Result<Watch, Failure> {
    WATCHES.with(handle, Watch::clone)
}

pub(crate) fn with_watch(handle: u64, call: impl FnOnce(&Watch)) -> EpwStatus {
    guarded(|| {
        call(&watch(handle)?);
        Ok(EpwStatus::Ok)
    })
}

/// Turns ONNX Runtime's own telemetry off for this process, by the environment variable ORT_DISABLE_TELEMETRY. Call it before
/// ONNX Runtime makes its environment, and while no other thread reads or writes environment variables: first in main. A
/// later call has no effect. Works before epw_start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_disable_runtime_telemetry() -> EpwStatus {
    guarded(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { runtime::disable_telemetry() };
        Ok(EpwStatus::Ok)
    })
}

/// Starts the SDK. A thread of its own does all work with files and the network. The child of a fork starts its own
/// thread and stream at its first call or run. Handles, settings and folder stay the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_start(config: *const EpwConfig, watch: *mut EpwWatch) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties.
    guarded(|| unsafe {
        let watch = ResultPlace::of(watch)?;
        let config = text::read(config)?;
        let id = start(&config)?;
        Ok(watch.write(EpwWatch { id }))
    })
}

/// Seals recorded runs, ends the thread, and closes the handle. Returns EPW_STATUS_TIMEOUT if the thread is still busy,
/// EPW_STATUS_FOLDER if runs could not be stored and are lost.
#[unsafe(no_mangle)]
pub extern "C" fn epw_stop(watch: EpwWatch, timeout_ms: u64) -> EpwStatus {
    guarded(|| {
        let stopped = WATCHES.close(watch.id, |watch| watch.stop(ms(timeout_ms)))?;
        stopped.map_err(|error| flush_failed(&error))?;
        Ok(EpwStatus::Ok)
    })
}

/// Gives or withdraws the user's consent. A withdrawal wipes the folder and asks the collector to delete everything.
#[unsafe(no_mangle)]
pub extern "C" fn epw_set_consent(watch: EpwWatch, is_given: i32) -> EpwStatus {
    with_watch(watch.id, |watch| watch.set_consent(is_given != 0))
}

/// Sets the conditions of runs from now on. `thermal` is Android's status, 0 to 6; `power_save` is 0 or 1; -1 is not
/// known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_set_conditions(
    watch: EpwWatch,
    thermal: i32,
    power_save: i32,
    performance_mode: EpwText,
) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        let mode = unsafe { performance_mode.get()? };
        // The first is "unknown"; the others are in Android's order.
        let at = thermal
            .checked_add(1)
            .and_then(|at| usize::try_from(at).ok());
        let known = at.and_then(|at| Thermal::ALL.get(at)).copied();
        let wrong = || Failure::invalid(format!("thermal is {thermal}; expected -1 to 6"));
        let thermal = known.ok_or_else(wrong)?;
        let power_save = match power_save {
            -1 => PowerSave::Unknown,
            0 => PowerSave::Off,
            1 => PowerSave::On,
            other => {
                let text = format!("power_save is {other}; expected -1, 0 or 1");
                return Err(Failure::invalid(text));
            }
        };
        let conditions = Conditions::unknown()
            .with_thermal(thermal)
            .with_power_save(power_save)
            .with_performance_mode(mode);
        crate::watch::watch(watch.id)?.set_conditions(&conditions);
        Ok(EpwStatus::Ok)
    })
}

/// Sets the network: 0 not known, 1 unmetered, 2 metered, 3 none.
#[unsafe(no_mangle)]
pub extern "C" fn epw_set_network(watch: EpwWatch, network: i32) -> EpwStatus {
    guarded(|| {
        let network = match network {
            0 => NetworkKind::Unknown,
            1 => NetworkKind::Unmetered,
            2 => NetworkKind::Metered,
            3 => NetworkKind::Offline,
            other => {
                let text = format!("network is {other}; expected 0 to 3");
                return Err(Failure::invalid(text));
            }
        };
        crate::watch::watch(watch.id)?.set_network(network);
        Ok(EpwStatus::Ok)
    })
}

/// Seals recorded runs at once, for example when the app goes to the background. Touches the disk. Returns
/// EPW_STATUS_FOLDER if runs could not be stored, now or since the last call that returned it.
#[unsafe(no_mangle)]
pub extern "C" fn epw_seal(watch: EpwWatch) -> EpwStatus {
    guarded(|| {
        let sealed = crate::watch::watch(watch.id)?.seal();
        sealed.map_err(|error| flush_failed(&error))?;
        Ok(EpwStatus::Ok)
    })
}

/// Seals and sends everything, if the library sends by itself. Blocks at most the given time. Returns EPW_STATUS_FORKED
/// at once in a forked process in which the SDK could not start again.
#[unsafe(no_mangle)]
pub extern "C" fn epw_flush(watch: EpwWatch, timeout_ms: u64) -> EpwStatus {
    guarded(|| {
        let flushed = crate::watch::watch(watch.id)?.flush(ms(timeout_ms));
        flushed.map_err(|error| flush_failed(&error))?;
        Ok(EpwStatus::Ok)
    })
}

/// Copies one JSON object: sessions with placements and reasons, checks, directives, the last upload, the last
/// problem. May wait for the disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_explain(
    watch: EpwWatch,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> EpwStatus {
    guarded(|| {
        let json = crate::watch::watch(watch.id)?.explain().to_json();
        // SAFETY: the header's first comment states the caller's duties.
        unsafe { copy_out(json.as_bytes(), buffer, capacity, length) }
    })
}

/// Counts causes that keep the NPU from starting; epw_explain lists them. Touches the disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_preflight(
    watch: EpwWatch,
    facts: *const EpwPreflight,
    n_found: *mut usize,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties.
    guarded(|| unsafe {
        let n_found = ResultPlace::of(n_found)?;
        let facts = text::read(facts)?;
        Ok(n_found.write(preflight(watch.id, &facts)?))
    })
}

/// # Safety
/// The texts must be valid.
pub(crate) unsafe fn preflight(watch: u64, given: &EpwPreflight) -> Result<usize, Failure> {
    let texts = Texts::default();
    // SAFETY: guaranteed by the caller.
    let text = |text: EpwText| unsafe { texts.get(text) };
    let dir = text(given.native_library_dir);
    let mut facts = PreflightFacts::default();
    facts.backend_path = text(given.backend_path).into();
    facts.soc_model = text(given.soc_model).to_owned();
    facts.native_library_dir = (!dir.is_empty()).then(|| dir.into());
    facts.declares_rpc_library = match given.declares_rpc_library {
        0 => None,
        answer => Some(answer > 0),
    };
    facts.model_qairt = text(given.model_qairt).to_owned();
    facts.runtime_qairt = text(given.runtime_qairt).to_owned();
    facts.plugin_version = text(given.plugin_version).to_owned();
    texts.checked()?;
    Ok(crate::watch::watch(watch)?.preflight(&facts).len())
}
