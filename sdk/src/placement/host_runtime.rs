//! Safe wrapper of ONNX Runtime's graph assignment API, over the library's own table of functions.
//!
//! The API exists since ORT 1.24. A host may bring ORT 1.17 or later: the version is read first, and the newer table of
//! functions is used only from 1.24 on. ORT 1.x promises only to append to the table. A table is not called if it is
//! from another major version, or does not begin with the older table's functions. Positions were checked with
//! `ort-sys` built with `api-24`, a test checks the older ones, and the calls were made with ORT 1.20 to 1.31.
//!
//! The library belongs to `ort`, or to a host in another language ([`HostRuntime`]). This module links and loads no
//! library.
//!
//! All texts and arrays belong to the session. They are copied before the borrow of the session ends; nothing but
//! statuses and metadata is freed.

use std::{
    ffi::{CStr, c_char, c_void},
    marker::PhantomData,
    mem, ptr, slice,
};

use epwatch_proto::{DeviceType, EpDevice, ReasonCode, clipped, placement::QNN_EP};

use super::assignment::{AssignedNode, Assignment, Subgraph};
use super::compiled_model::{EP_COMPATIBILITY, MAX_EP_COMPATIBILITY_BYTES};
use super::devices::reported;
#[cfg(feature = "qnn")]
use {super::compiled_model::Compatibility, std::ffi::c_int};

/// The first minor version with the assignment API.
pub(crate) const FIRST_MINOR: u32 = 24;

/// Minor version of the older table, and the least number of its functions.
const OLDER_MINOR: u32 = 17;
const OLDER_FUNCTIONS: usize = 276;

/// Positions in OrtApi, all of whose members are function pointers.
mod at {
    pub(super) const GET_ERROR_MESSAGE: usize = 2;
    pub(super) const SESSION_GET_INPUT_COUNT: usize = 30;
    pub(super) const SESSION_GET_OUTPUT_COUNT: usize = 31;
    pub(super) const ALLOCATOR_FREE: usize = 76;
    pub(super) const GET_ALLOCATOR_WITH_DEFAULT_OPTIONS: usize = 78;
    pub(super) const SET_SESSION_LOG_SEVERITY_LEVEL: usize = 22;
    pub(super) const RELEASE_STATUS: usize = 93;
    pub(super) const SESSION_GET_MODEL_METADATA: usize = 111;
    pub(super) const MODEL_METADATA_LOOKUP_CUSTOM_METADATA_MAP: usize = 116;
    pub(super) const RELEASE_MODEL_METADATA: usize = 118;
    pub(super) const ADD_SESSION_CONFIG_ENTRY: usize = 130;
    pub(super) const SET_USER_LOGGING_FUNCTION: usize = 266;
    pub(super) const HARDWARE_DEVICE_TYPE: usize = 307;
    pub(super) const HARDWARE_DEVICE_VENDOR: usize = 309;
    pub(super) const EP_DEVICE_EP_NAME: usize = 312;
    pub(super) const EP_DEVICE_DEVICE: usize = 316;
    pub(super) const SESSION_GET_EP_DEVICE_FOR_INPUTS: usize = 382;
    #[cfg(feature = "qnn")]
    pub(super) const GET_MODEL_COMPATIBILITY_FOR_EP_DEVICES: usize = 388;
    pub(super) const SESSION_GET_EP_DEVICE_FOR_OUTPUTS: usize = 396;
    pub(super) const SESSION_GET_EP_GRAPH_ASSIGNMENT_INFO: usize = 407;
    pub(super) const EP_ASSIGNED_SUBGRAPH_GET_EP_NAME: usize = 408;
    pub(super) const EP_ASSIGNED_SUBGRAPH_GET_NODES: usize = 409;
    pub(super) const EP_ASSIGNED_NODE_GET_NAME: usize = 410;
    pub(super) const EP_ASSIGNED_NODE_GET_DOMAIN: usize = 411;
    pub(super) const EP_ASSIGNED_NODE_GET_OPERATOR_TYPE: usize = 412;
}

/// Session option that makes ORT keep the EP of each node. Older versions ignore unknown keys.
pub(crate) const RECORD_ASSIGNMENT: &CStr = c"session.record_ep_graph_assignment_info";

/// Options of the host that must not take effect twice: they would write files, or share contexts.
pub(super) const NOT_TWICE: [&CStr; 3] = [
    c"ep.context_enable",
    c"ep.share_ep_contexts",
    c"ep.stop_share_ep_contexts",
];

/// `OrtLoggingFunction` of onnxruntime_c_api.h: parameter, severity, category, logger's id, code location, message. The texts
/// are NUL-terminated.
pub type LoggingFunction = unsafe extern "system" fn(
    *mut c_void,
    i32,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
);

/// The library's entry: `OrtApiBase` of onnxruntime_c_api.h.
#[repr(C)]
#[derive(Debug)]
struct ApiBase {
    get_api: unsafe extern "system" fn(u32) -> *const Function,
    get_version_string: unsafe extern "system" fn() -> *const c_char,
}

/// A member of `OrtApi`.
type Function = *const c_void;

/// An `OrtStatus`; null is success.
type Status = *mut c_void;

/// A session's options cannot be prepared; the session works all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// ORT before 1.24 returns no placements.
    #[error(
        "failed to prepare a session for its placement: ONNX Runtime {found} is older than 1.{FIRST_MINOR}; runs are \
         measured all the same"
    )]
    TooOld {
        /// Its version, for example `1.22.0`.
        found: String,
    },
    /// A table of functions that is not from ORT 1.x.
    #[error(
        "failed to prepare a session for its placement: the functions of ONNX Runtime {found} do not fit \
         1.{FIRST_MINOR}; runs are measured all the same"
    )]
    OtherFunctions {
        /// Its version, for example `2.0.0`.
        found: String,
    },
    /// ORT's own words.
    #[error("failed to prepare a session for its placement: {0}")]
    Refused(String),
}

/// The ONNX Runtime of a host that does not call it through `ort`, for example from a JVM or C. The SDK never loads it,
/// and it still belongs to the host.
#[derive(Debug, Clone, Copy)]
pub struct HostRuntime(&'static ApiBase);

/// An `OrtSession` of a [`HostRuntime`], borrowed from the host.
#[derive(Debug, Clone, Copy)]
pub struct HostSession<'a> {
    runtime: HostRuntime,
    session: ptr::NonNull<c_void>,
    host: PhantomData<&'a c_void>,
}

impl HostRuntime {
    /// The runtime of this `OrtApiBase`; `None` if it is null.
    ///
    /// # Safety
    /// `base` is null or what `OrtGetApiBase()` returned, and its library stays loaded.
    pub unsafe fn from_base(base: *const c_void) -> Option<Self> {
        // SAFETY: guaranteed by the caller.
        unsafe { base.cast::<ApiBase>().as_ref() }.map(Self)
    }

    /// The runtime that an `OrtApi` table belongs to; `None` if its library cannot be found.
    ///
    /// # Safety
    /// `api` is null or an `OrtApi` of a library that stays loaded.
    pub unsafe fn from_api(api: *const c_void) -> Option<Self> {
        if api.is_null() {
            return None;
        }
        // SAFETY: an `OrtApi` begins with a function pointer.
        loaded::by_function(unsafe { *api.cast::<*const c_void>() })
    }

    /// The runtime that this process has loaded, under the library names of Android and Linux. Loads nothing.
    pub fn loaded() -> Option<Self> {
        [c"libonnxruntime.so", c"libonnxruntime.so.1"]
            .into_iter()
            .find_map(loaded::by_name)
    }

    /// Returns its version, for example `1.31.1`.
    pub fn version(self) -> String {
        // SAFETY: the text is static and NUL-terminated.
        let text = unsafe { CStr::from_ptr((self.0.get_version_string)()) };
        text.to_string_lossy().into_owned()
    }

    /// `None` for another major version than 1.
    pub(super) fn minor(self) -> Option<u32> {
        minor_of(&self.version())
    }

    /// Makes sessions of these options keep the EP of each node.
    ///
    /// # Errors
    /// Fails if ORT is too old, or refuses the option.
    ///
    /// # Safety
    /// `options` is null or an `OrtSessionOptions` of this runtime.
    pub unsafe fn record_assignment(self, options: *mut c_void) -> Result<(), PrepareError> {
        let Some(table) = Table::of(self) else {
            let found = self.version();
            return Err(
                match self.minor().is_some_and(|minor| minor < FIRST_MINOR) {
                    true => PrepareError::TooOld { found },
                    false => PrepareError::OtherFunctions { found },
                },
            );
        };
        if options.is_null() {
            return Err(PrepareError::Refused("the options are null".to_owned()));
        }
        let add = table.add_config_entry;
        // SAFETY: the options are the caller's; both texts are NUL-terminated and copied by ORT.
        let status = unsafe { add(options, RECORD_ASSIGNMENT.as_ptr(), c"1".as_ptr()) };
        table.done(status).map_err(PrepareError::Refused)
    }

    /// Makes sessions of these options write everything to a function, at VERBOSE. Then a session formats some ten
    /// lines in each run. So make a session from a copy of the host's options just before the host's own session, and
    /// drop it at once. Options that must not take effect twice are turned off. Pass the lines to a
    /// [`LogReader`](super::log::LogReader), and the session that it returns to
    /// [`with_log`](crate::AttachRequest::with_log).
    ///
    /// # Errors
    /// Fails if ORT is older than 1.17, or refuses.
    ///
    /// # Safety
    /// `options` is null or an `OrtSessionOptions` of this runtime. `write` may be called with `parameter`, from any thread,
    /// until the options and their sessions are released.
    pub unsafe fn log_to(
        self,
        options: *mut c_void,
        write: LoggingFunction,
        parameter: *mut c_void,
    ) -> Result<(), PrepareError> {
        let Some(table) = LoggingTable::of(self) else {
            let text = format!("its functions do not fit 1.{OLDER_MINOR} or later");
            return Err(PrepareError::Refused(text));
        };
        if options.is_null() {
            return Err(PrepareError::Refused("the options are null".to_owned()));
        }
        // SAFETY: the options are the caller's, and so are function and parameter; texts are copied by ORT.
        unsafe {
            for option in NOT_TWICE {
                let added = (table.add_config_entry)(options, option.as_ptr(), c"0".as_ptr());
                table.statuses.done(added).map_err(PrepareError::Refused)?;
            }
            let set = (table.set_function)(options, write, parameter);
            table.statuses.done(set).map_err(PrepareError::Refused)?;
            let set = (table.set_severity)(options, VERBOSE);
            table.statuses.done(set).map_err(PrepareError::Refused)
        }
    }

    /// Asks the EP of these devices about the text of a compiled model. `None` without devices, if ORT is older than 1.24, or
    /// if the EP does not answer.
    ///
    /// # Safety
    /// The devices must be `OrtEpDevice`s of this runtime, in a living environment.
    #[cfg(feature = "qnn")]
    pub(super) unsafe fn compatibility(
        self,
        devices: &[*const c_void],
        text: &CStr,
    ) -> Option<Compatibility> {
        let table = Table::of(self).filter(|_| !devices.is_empty())?;
        let mut answer = 0;
        let (array, len) = (devices.as_ptr(), devices.len());
        // SAFETY: the devices are alive, the text is NUL-terminated, and `answer` is ours. ORT writes an enum of C
        // there.
        let asked = unsafe { (table.compatibility)(array, len, text.as_ptr(), &mut answer) };
        table.done(asked).ok()?;
        // OrtCompiledModelCompatibility; 0 is an EP that does not answer.
        match answer {
            1 => Some(Compatibility::Optimal),
            2 => Some(Compatibility::PreferRecompilation),
            3 => Some(Compatibility::Unsupported),
            _ => None,
        }
    }

    /// A session of this runtime; `None` if it is null.
    ///
    /// # Safety
    /// `session` is null or an `OrtSession` of this runtime, and alive as long as the result.
    pub unsafe fn session<'a>(self, session: *const c_void) -> Option<HostSession<'a>> {
        Some(HostSession {
            runtime: self,
            session: ptr::NonNull::new(session.cast_mut())?,
            host: PhantomData,
        })
    }
}

impl HostSession<'_> {
    /// Reads the assignment, as [`read`].
    pub(crate) fn assignment(&self) -> Result<Assignment, ReasonCode> {
        let table = Table::of(self.runtime).ok_or(ReasonCode::AssignmentApiUnavailable)?;
        // The error's text only says that the session option is missing.
        let assignment = table.assignment(self.session.as_ptr());
        assignment.map_err(|_| ReasonCode::AssignmentNotRecorded)
    }

    /// Reads the devices of EPs other than the CPU's to which ONNX Runtime gives inputs and outputs, each once. None if ORT is
    /// older than 1.24, or if the EPs have no devices there, as most built-in EPs.
    pub(crate) fn devices(&self) -> Vec<EpDevice> {
        let Some(table) = Table::of(self.runtime) else {
            return Vec::new();
        };
        let session = self.session.as_ptr().cast_const();
        let of = [&table.input_devices, &table.output_devices];
        let devices = of.map(|of| table.devices(of, session).unwrap_or_default());
        reported(devices.into_iter().flatten())
    }

    /// Compatibility text of a precompiled model; empty if it has none.
    pub(crate) fn ep_compatibility(&self) -> String {
        let text = Table::of(self.runtime)
            .and_then(|table| table.ep_compatibility(self.session.as_ptr()).ok());
        text.unwrap_or_default()
    }
}

type AddConfigEntry =
    unsafe extern "system" fn(*mut c_void, *const c_char, *const c_char) -> Status;
/// A list of a session or a subgraph.
type GetList =
    unsafe extern "system" fn(*const c_void, *mut *const *const c_void, *mut usize) -> Status;
type GetCount = unsafe extern "system" fn(*const c_void, *mut usize) -> Status;
/// Fills an array with one device for each input or output, or null.
type GetDevices = unsafe extern "system" fn(*const c_void, *mut *const c_void, usize) -> Status;
/// These return no status, and cannot fail.
type DeviceText = unsafe extern "system" fn(*const c_void) -> *const c_char;
type DeviceObject = unsafe extern "system" fn(*const c_void) -> *const c_void;
type DeviceNumber = unsafe extern "system" fn(*const c_void) -> i32;
type GetText = unsafe extern "system" fn(*const c_void, *mut *const c_char) -> Status;
#[cfg(feature = "qnn")]
type AskCompatibility =
    unsafe extern "system" fn(*const *const c_void, usize, *const c_char, *mut c_int) -> Status;
type GetObject = unsafe extern "system" fn(*mut *mut c_void) -> Status;
type GetMetadata = unsafe extern "system" fn(*const c_void, *mut *mut c_void) -> Status;
type LookUp = unsafe extern "system" fn(
    *const c_void,
    *mut c_void,
    *const c_char,
    *mut *mut c_char,
) -> Status;
type Free = unsafe extern "system" fn(*mut c_void, *mut c_void) -> Status;
type Release = unsafe extern "system" fn(*mut c_void);
type ErrorMessage = unsafe extern "system" fn(*const c_void) -> *const c_char;
type SetFunction = unsafe extern "system" fn(*mut c_void, LoggingFunction, *mut c_void) -> Status;
type SetNumber = unsafe extern "system" fn(*mut c_void, i32) -> Status;

/// `ORT_LOGGING_LEVEL_VERBOSE`.
const VERBOSE: i32 = 0;

/// Functions that read and release a status.
struct Statuses {
    error_message: ErrorMessage,
    release_status: Release,
}

impl Statuses {
    /// # Safety
    /// `api` is a table with the functions of [`OLDER_MINOR`].
    unsafe fn of(api: *const Function) -> Option<Self> {
        // SAFETY: as in [`Table::of`].
        unsafe {
            Some(Self {
                error_message: function(api, at::GET_ERROR_MESSAGE)?,
                release_status: function(api, at::RELEASE_STATUS)?,
            })
        }
    }

    /// Releases a status; returns ORT's message if it is an error.
    fn done(&self, status: Status) -> Result<(), String> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: it is ORT's own status with a NUL-terminated text, copied before the status is released, once.
        unsafe {
            let text = CStr::from_ptr((self.error_message)(status));
            let text = text.to_string_lossy().into_owned();
            (self.release_status)(status);
            Err(text)
        }
    }
}

/// Functions of a table of API 17 that are needed to capture a log.
struct LoggingTable {
    statuses: Statuses,
    add_config_entry: AddConfigEntry,
    set_function: SetFunction,
    set_severity: SetNumber,
}

impl LoggingTable {
    /// `None` if ORT is older, or its version is not known.
    fn of(runtime: HostRuntime) -> Option<Self> {
        if runtime.minor()? < OLDER_MINOR {
            return None;
        }
        // SAFETY: `runtime` is ORT's static table, and the version exists.
        let api = unsafe { (runtime.0.get_api)(OLDER_MINOR) };
        if api.is_null() {
            return None;
        }
        // SAFETY: the table of API 17 has functions of exactly these signatures at these positions.
        unsafe {
            Some(Self {
                statuses: Statuses::of(api)?,
                add_config_entry: function(api, at::ADD_SESSION_CONFIG_ENTRY)?,
                set_function: function(api, at::SET_USER_LOGGING_FUNCTION)?,
                set_severity: function(api, at::SET_SESSION_LOG_SEVERITY_LEVEL)?,
            })
        }
    }
}

/// Functions that return how many inputs or outputs a session has, and their devices.
struct DevicesOf {
    count: GetCount,
    devices: GetDevices,
}

/// Functions of a table of API 24: the six of assignments, the devices of a session, the question about a compiled model, and
/// older ones.
struct Table {
    statuses: Statuses,
    add_config_entry: AddConfigEntry,
    default_allocator: GetObject,
    free: Free,
    metadata: GetMetadata,
    look_up: LookUp,
    release_metadata: Release,
    #[cfg(feature = "qnn")]
    compatibility: AskCompatibility,
    subgraphs: GetList,
    ep_name: GetText,
    nodes: GetList,
    node_name: GetText,
    node_domain: GetText,
    node_op_type: GetText,
    input_devices: DevicesOf,
    output_devices: DevicesOf,
    device_ep: DeviceText,
    device_hardware: DeviceObject,
    hardware_type: DeviceNumber,
    hardware_vendor: DeviceText,
}

impl Table {
    /// `None` if ORT is older, its version is not known, or its table is not from 1.x.
    fn of(runtime: HostRuntime) -> Option<Self> {
        if runtime.minor()? < FIRST_MINOR {
            // A request for a version that the library lacks makes it write to stderr.
            return None;
        }
        // SAFETY: `runtime` is ORT's static table, and both versions exist.
        let [api, older] =
            [FIRST_MINOR, OLDER_MINOR].map(|version| unsafe { (runtime.0.get_api)(version) });
        // SAFETY: both tables are static, and have at least the functions of the older one.
        if api.is_null() || older.is_null() || !unsafe { begins_with(api, older) } {
            return None;
        }
        // SAFETY: the append-only table has functions of exactly these signatures at these positions
        // (onnxruntime_c_api.h of 1.24), after the functions of older versions. The table has at least 413 functions.
        unsafe {
            Some(Self {
                statuses: Statuses::of(api)?,
                add_config_entry: function(api, at::ADD_SESSION_CONFIG_ENTRY)?,
                default_allocator: function(api, at::GET_ALLOCATOR_WITH_DEFAULT_OPTIONS)?,
                free: function(api, at::ALLOCATOR_FREE)?,
                metadata: function(api, at::SESSION_GET_MODEL_METADATA)?,
                look_up: function(api, at::MODEL_METADATA_LOOKUP_CUSTOM_METADATA_MAP)?,
                release_metadata: function(api, at::RELEASE_MODEL_METADATA)?,
                #[cfg(feature = "qnn")]
                compatibility: function(api, at::GET_MODEL_COMPATIBILITY_FOR_EP_DEVICES)?,
                subgraphs: function(api, at::SESSION_GET_EP_GRAPH_ASSIGNMENT_INFO)?,
                ep_name: function(api, at::EP_ASSIGNED_SUBGRAPH_GET_EP_NAME)?,
                nodes: function(api, at::EP_ASSIGNED_SUBGRAPH_GET_NODES)?,
                node_name: function(api, at::EP_ASSIGNED_NODE_GET_NAME)?,
                node_domain: function(api, at::EP_ASSIGNED_NODE_GET_DOMAIN)?,
                node_op_type: function(api, at::EP_ASSIGNED_NODE_GET_OPERATOR_TYPE)?,
                input_devices: DevicesOf {
                    count: function(api, at::SESSION_GET_INPUT_COUNT)?,
                    devices: function(api, at::SESSION_GET_EP_DEVICE_FOR_INPUTS)?,
                },
                output_devices: DevicesOf {
                    count: function(api, at::SESSION_GET_OUTPUT_COUNT)?,
                    devices: function(api, at::SESSION_GET_EP_DEVICE_FOR_OUTPUTS)?,
                },
                device_ep: function(api, at::EP_DEVICE_EP_NAME)?,
                device_hardware: function(api, at::EP_DEVICE_DEVICE)?,
                hardware_type: function(api, at::HARDWARE_DEVICE_TYPE)?,
                hardware_vendor: function(api, at::HARDWARE_DEVICE_VENDOR)?,
            })
        }
    }

    fn done(&self, status: Status) -> Result<(), String> {
        self.statuses.done(status)
    }

    /// `session` is one that our caller borrows.
    fn assignment(&self, session: *const c_void) -> Result<Assignment, String> {
        let mut subgraphs = Vec::new();
        let (mut array, mut len) = (ptr::null(), 0);
        // SAFETY: the session is alive while it is borrowed, and both destinations are ours.
        self.done(unsafe { (self.subgraphs)(session, &mut array, &mut len) })?;
        // SAFETY: ORT reported success, so `array` holds `len` subgraphs that live as long as the session we borrow.
        for &subgraph in unsafe { entries(array, len) } {
            subgraphs.push(Subgraph {
                ep: self.text(self.ep_name, subgraph)?,
                nodes: self.subgraph_nodes(subgraph)?,
            });
        }
        Ok(Assignment { subgraphs })
    }

    fn subgraph_nodes(&self, subgraph: *const c_void) -> Result<Vec<AssignedNode>, String> {
        let (mut array, mut len) = (ptr::null(), 0);
        // SAFETY: `subgraph` belongs to a session that our caller borrows; both places are ours.
        self.done(unsafe { (self.nodes)(subgraph, &mut array, &mut len) })?;
        // SAFETY: ORT reported success; the nodes live as long as that session.
        let nodes = unsafe { entries(array, len) }.iter().map(|&node| {
            Ok(AssignedNode {
                name: self.text(self.node_name, node)?,
                op_type: self.text(self.node_op_type, node)?,
                domain: self.text(self.node_domain, node)?,
            })
        });
        nodes.collect()
    }

    /// Devices of the inputs or outputs, without those that have none. `session` is one that our caller borrows.
    fn devices(&self, of: &DevicesOf, session: *const c_void) -> Result<Vec<EpDevice>, String> {
        let mut len = 0;
        // SAFETY: the session is alive while it is borrowed, and `len` is ours.
        self.done(unsafe { (of.count)(session, &mut len) })?;
        let mut devices = vec![ptr::null(); len];
        // SAFETY: as above; `devices` has room for `len` pointers, and ORT writes as many.
        self.done(unsafe { (of.devices)(session, devices.as_mut_ptr(), len) })?;
        devices.retain(|device| !device.is_null());
        let described = devices.into_iter().map(|device| {
            // SAFETY: devices and their hardware belong to the environment, which outlives its sessions. ORT gives each device
            // hardware and two texts, which are copied.
            unsafe {
                let hardware = (self.device_hardware)(device);
                EpDevice {
                    ep: copied((self.device_ep)(device)),
                    device_type: device_type((self.hardware_type)(hardware)),
                    vendor: copied((self.hardware_vendor)(hardware)),
                }
            }
        });
        Ok(described.collect())
    }

    /// Copies a text of a session's object. Only called for objects of a borrowed session.
    fn text(&self, get: GetText, of: *const c_void) -> Result<String, String> {
        let mut text = ptr::null();
        // SAFETY: `of` is alive (see above), and `text` is ours.
        self.done(unsafe { get(of, &mut text) })?;
        if text.is_null() {
            return Ok(String::new());
        }
        // SAFETY: ORT reported success, so `text` is NUL-terminated and lives as long as the session; it is copied
        // before that borrow ends.
        let text = unsafe { CStr::from_ptr(text) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// `session` is one that our caller borrows.
    fn ep_compatibility(&self, session: *const c_void) -> Result<String, String> {
        let (mut allocator, mut metadata) = (ptr::null_mut(), ptr::null_mut());
        let key = format!("{EP_COMPATIBILITY}{QNN_EP}\0");
        // SAFETY: all destinations are ours. The metadata is ours until it is released, once. The text is the
        // allocator's: it is copied, then freed once.
        unsafe {
            self.done((self.default_allocator)(&mut allocator))?;
            self.done((self.metadata)(session, &mut metadata))?;
            let mut text = ptr::null_mut();
            let look_up = self.look_up;
            let found = self.done(look_up(metadata, allocator, key.as_ptr().cast(), &mut text));
            (self.release_metadata)(metadata);
            found?;
            if text.is_null() {
                return Ok(String::new());
            }
            let copied = CStr::from_ptr(text).to_string_lossy().into_owned();
            self.done((self.free)(allocator, text.cast()))?;
            Ok(clipped(&copied, MAX_EP_COMPATIBILITY_BYTES))
        }
    }
}

/// Returns the type of this `OrtHardwareDeviceType`.
pub(super) fn device_type(number: i32) -> DeviceType {
    match number {
        0 => DeviceType::Cpu,
        1 => DeviceType::Gpu,
        2 => DeviceType::Npu,
        _ => DeviceType::Unknown,
    }
}

/// Copies a text of a device.
///
/// # Safety
/// `text` is null, or alive and NUL-terminated.
pub(super) unsafe fn copied(text: *const c_char) -> String {
    match text.is_null() {
        true => String::new(),
        // SAFETY: guaranteed by the caller.
        false => unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    }
}

/// Returns the minor version of ORT 1.x, `None` for any other text.
pub(crate) fn minor_of(version: &str) -> Option<u32> {
    let minor = version.strip_prefix("1.")?.split('.').next()?;
    minor.parse().ok()
}

/// True if a table begins with the functions of an older one.
///
/// # Safety
/// Both have the functions of [`OLDER_MINOR`].
unsafe fn begins_with(api: *const Function, older: *const Function) -> bool {
    let [api, older] = [api, older].map(|table| {
        // SAFETY: guaranteed by the caller.
        unsafe { slice::from_raw_parts(table, OLDER_FUNCTIONS) }
    });
    api == older && !api.contains(&ptr::null())
}

/// Returns the function at a position of a table, `None` if it is null.
///
/// # Safety
/// The table must have that position, and `F` must be the type of its function pointer.
unsafe fn function<F>(api: *const Function, at: usize) -> Option<F> {
    const { assert!(mem::size_of::<F>() == mem::size_of::<Function>()) };
    // SAFETY: guaranteed by the caller.
    let function = unsafe { *api.add(at) };
    // SAFETY: guaranteed by the caller.
    (!function.is_null()).then(|| unsafe { mem::transmute_copy(&function) })
}

/// Returns an array from ORT as a slice, empty if there is none.
///
/// # Safety
/// `array` must hold `len` pointers for as long as the result is used, or be null.
pub(super) unsafe fn entries<'a>(array: *const *const c_void, len: usize) -> &'a [*const c_void] {
    if array.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(array, len) }
}

/// Finds libraries of this process by function or name, and loads none. Their handles are never closed, so they stay
/// loaded.
#[cfg(unix)]
mod loaded {
    use super::{CStr, HostRuntime, c_void, mem};

    pub(super) fn by_function(function: *const c_void) -> Option<HostRuntime> {
        let mut info = mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be passed, and `info` is ours; it is filled completely if the call does not return
        // zero.
        let info = unsafe {
            if libc::dladdr(function, info.as_mut_ptr()) == 0 {
                return None;
            }
            info.assume_init()
        };
        if info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name is the loader's own text.
        by_name(unsafe { CStr::from_ptr(info.dli_fname) })
    }

    pub(super) fn by_name(name: &CStr) -> Option<HostRuntime> {
        // SAFETY: RTLD_NOLOAD loads nothing, so no code of a library runs.
        let entry = unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW);
            if library.is_null() {
                return None;
            }
            libc::dlsym(library, c"OrtGetApiBase".as_ptr())
        };
        if entry.is_null() {
            return None;
        }
        // SAFETY: this is the signature of ORT's only exported entry point since 1.0; the library stays loaded.
        unsafe {
            let get: unsafe extern "C" fn() -> *const c_void = mem::transmute(entry);
            HostRuntime::from_base(get())
        }
    }
}

#[cfg(not(unix))]
mod loaded {
    use super::{CStr, HostRuntime, c_void};

    pub(super) fn by_function(_: *const c_void) -> Option<HostRuntime> {
        None
    }

    pub(super) fn by_name(_: &CStr) -> Option<HostRuntime> {
        None
    }
}

#[cfg(test)]
#[cfg(feature = "ort")]
mod tests {
    use ort::sys::OrtApi;

    use super::*;

    #[test]
    fn positions_are_those_of_the_header() {
        macro_rules! check {
            ($($member:ident = $at:expr),* $(,)?) => {
                $(assert_eq!(mem::offset_of!(OrtApi, $member) / size_of::<Function>(), $at);)*
            };
        }
        check!(
            GetErrorMessage = at::GET_ERROR_MESSAGE,
            SessionGetInputCount = at::SESSION_GET_INPUT_COUNT,
            SessionGetOutputCount = at::SESSION_GET_OUTPUT_COUNT,
            AllocatorFree = at::ALLOCATOR_FREE,
            GetAllocatorWithDefaultOptions = at::GET_ALLOCATOR_WITH_DEFAULT_OPTIONS,
            ReleaseStatus = at::RELEASE_STATUS,
            SessionGetModelMetadata = at::SESSION_GET_MODEL_METADATA,
            ModelMetadataLookupCustomMetadataMap = at::MODEL_METADATA_LOOKUP_CUSTOM_METADATA_MAP,
            ReleaseModelMetadata = at::RELEASE_MODEL_METADATA,
            AddSessionConfigEntry = at::ADD_SESSION_CONFIG_ENTRY,
            SetSessionLogSeverityLevel = at::SET_SESSION_LOG_SEVERITY_LEVEL,
            SetUserLoggingFunction = at::SET_USER_LOGGING_FUNCTION,
        );
        assert!(size_of::<OrtApi>() / size_of::<Function>() >= OLDER_FUNCTIONS);
    }
}
