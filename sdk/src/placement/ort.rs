//! Safe wrapper of ONNX Runtime's graph assignment API and of its list of devices, with the only unsafe code of this
//! crate.
//!
//! The API exists since ORT 1.24. This crate is built for an older one, so that a host may bring ORT 1.17 or later. The
//! version is read first, and the newer table of functions is used only from 1.24 on. ORT 1.x promises to append to the
//! table only. A table of another major version is not called, nor one that does not begin with the older one's
//! functions. Slot numbers were checked with `ort-sys` built with `api-24`, and the calls with ORT 1.20 to 1.31.
//!
//! The library is `ort`'s, or the one of a host in another language ([`HostRuntime`]). Calls for such a host go through
//! its own table only: `ort::api()` would load a library, or panic.
//!
//! All texts and arrays belong to the session. They are copied before the borrow of the session ends; nothing but
//! statuses and metadata is freed.

use std::{
    ffi::{CStr, c_char, c_void},
    marker::PhantomData,
    mem, ptr, slice,
    sync::OnceLock,
};

use epwatch_proto::{ReasonCode, clipped, placement::QNN_EP};
use ort::{
    AsPointer,
    session::{Session, builder::SessionBuilder},
    sys,
};

/// The first minor version with the assignment API.
pub(crate) const FIRST_MINOR: u32 = 24;

// Positions in OrtApi, all of whose members are function pointers.
const SESSION_GET_EP_GRAPH_ASSIGNMENT_INFO: usize = 407;
const EP_ASSIGNED_SUBGRAPH_GET_EP_NAME: usize = 408;
const EP_ASSIGNED_SUBGRAPH_GET_NODES: usize = 409;
const EP_ASSIGNED_NODE_GET_NAME: usize = 410;
const EP_ASSIGNED_NODE_GET_DOMAIN: usize = 411;
const EP_ASSIGNED_NODE_GET_OPERATOR_TYPE: usize = 412;

/// Metadata key of a precompiled model, before the EP's name.
pub(crate) const EP_COMPATIBILITY: &str = "ep_compatibility_info.";

/// Longest compatibility text that a report holds, in bytes.
pub(crate) const MAX_EP_COMPATIBILITY_BYTES: usize = 512;

/// ORT's assignment of nodes to EPs, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// One entry per partition; on the CPU EP, one per node.
    pub subgraphs: Vec<Subgraph>,
}

/// Nodes that one EP took together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subgraph {
    /// For example `QNNExecutionProvider`.
    pub ep: String,
    /// Nodes in ORT's order.
    pub nodes: Vec<AssignedNode>,
}

/// A node after ORT's first optimisations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AssignedNode {
    /// May be empty.
    pub name: String,
    /// ONNX op type.
    pub op_type: String,
    /// Empty for ONNX's own domain.
    pub domain: String,
}

/// Session option that makes ORT keep the EP of each node. Older versions ignore unknown keys.
const RECORD_ASSIGNMENT: &CStr = c"session.record_ep_graph_assignment_info";

/// Makes ORT keep the EP of each node.
pub(crate) fn record_assignment(builder: SessionBuilder) -> SessionBuilder {
    let key = RECORD_ASSIGNMENT.to_str().unwrap_or_default();
    let recording = builder.with_config_entry(key, "1");
    // An unobserved session is better than none.
    recording.unwrap_or_else(ort::Error::recover)
}

/// Returns the version of the loaded ONNX Runtime, for example `1.31.1`; `None` if it is not known.
///
/// # Panics
/// As [`ort::api`], if no library can be loaded. Call it once a session builder exists.
pub fn ort_version() -> Option<String> {
    Some(HostRuntime::of_ort()?.version())
}

/// Whether a registered plugin offers a device of this EP. Call it once a session builder exists.
#[cfg(feature = "qnn")]
pub(crate) fn has_ep_device(ep: &str) -> bool {
    // ORT 1.22 lists devices on Windows only.
    let minor = HostRuntime::of_ort().and_then(HostRuntime::minor);
    if minor.is_none_or(|minor| minor < 23) {
        return false;
    }
    let (api, mut environment) = (ort::api(), ptr::null_mut());
    let level = sys::OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING;
    // SAFETY: ORT has one environment and counts its users; as one exists, this returns it. The place is ours.
    let made = unsafe { (api.CreateEnv)(level, c"epwatch".as_ptr(), &mut environment) };
    // SAFETY: it is ORT's own status, and ownership passes to `ort`.
    if unsafe { ort::Error::result_from_status(made) }.is_err() {
        return false;
    }
    let (mut array, mut len) = (ptr::null(), 0);
    // SAFETY: the environment is alive until it is released below, and both places are ours.
    let listed = unsafe {
        ort::Error::result_from_status((api.GetEpDevices)(environment, &mut array, &mut len))
    };
    // SAFETY: ORT reported success, so `array` holds `len` devices of the environment, each with a NUL-terminated name.
    let has_one = listed.is_ok()
        && unsafe {
            entries(array.cast(), len).iter().any(|device| {
                CStr::from_ptr((api.EpDevice_EpName)(device.cast())).to_bytes() == ep.as_bytes()
            })
        };
    // SAFETY: it ends the use that began above, once.
    unsafe { (api.ReleaseEnv)(environment) };
    has_one
}

/// Reads the assignment of a session made with `session.record_ep_graph_assignment_info=1`, node by node.
///
/// # Errors
/// [`ReasonCode::AssignmentApiUnavailable`] if ORT is older than 1.24, [`ReasonCode::RuntimeNotKnown`] if it cannot be
/// found in the process,
/// [`ReasonCode::AssignmentNotRecorded`] if the session did not record.
pub fn read(session: &Session) -> Result<Assignment, ReasonCode> {
    let runtime = HostRuntime::of_ort().ok_or(ReasonCode::RuntimeNotKnown)?;
    // SAFETY: it is a session of that library, and alive while it is borrowed.
    let session = unsafe { runtime.session(session.ptr().cast()) };
    session.map_or(Err(ReasonCode::Unknown), |session| session.assignment())
}

/// A session's options cannot be prepared; the session works without.
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
        "failed to prepare a session for its placement: the functions of ONNX Runtime {found} are not those of \
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

/// The ONNX Runtime of a host that does not call it through `ort`, for example from a JVM or C. It is never loaded here,
/// and stays the host's.
#[derive(Debug, Clone, Copy)]
pub struct HostRuntime(&'static sys::OrtApiBase);

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
        unsafe { base.cast::<sys::OrtApiBase>().as_ref() }.map(Self)
    }

    /// The runtime of `ort`. Its handle of the library is not exposed, so the library is found by a function of it.
    fn of_ort() -> Option<Self> {
        static BASE: OnceLock<Option<HostRuntime>> = OnceLock::new();
        *BASE.get_or_init(|| {
            let api: *const sys::OrtApi = ort::api();
            // SAFETY: `ort` holds a table of functions of a library that it never unloads.
            unsafe { Self::from_api(api.cast()) }
        })
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
        let text = unsafe { CStr::from_ptr((self.0.GetVersionString)()) };
        text.to_string_lossy().into_owned()
    }

    /// `None` for another major version than 1.
    fn minor(self) -> Option<u32> {
        minor_of(&self.version())
    }

    /// Makes sessions of these options keep the EP of each node.
    ///
    /// # Errors
    /// If ORT is too old, or refuses the option.
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
        let add = table.api.AddSessionConfigEntry;
        // SAFETY: the options are the caller's; both texts are NUL-terminated and copied by ORT.
        let status = unsafe { add(options.cast(), RECORD_ASSIGNMENT.as_ptr(), c"1".as_ptr()) };
        table.done(status).map_err(PrepareError::Refused)
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
        // An error's text is about the missing option.
        let assignment = table.assignment(self.session.as_ptr().cast());
        assignment.map_err(|_| ReasonCode::AssignmentNotRecorded)
    }

    /// Compatibility text of a precompiled model; empty if it has none.
    pub(crate) fn ep_compatibility(&self) -> String {
        let text = Table::of(self.runtime)
            .and_then(|table| table.ep_compatibility(self.session.as_ptr().cast()).ok());
        text.unwrap_or_default()
    }
}

type GetSubgraphs = unsafe extern "system" fn(
    *const sys::OrtSession,
    *mut *const *const c_void,
    *mut usize,
) -> sys::OrtStatusPtr;
type GetNodes = unsafe extern "system" fn(
    *const c_void,
    *mut *const *const c_void,
    *mut usize,
) -> sys::OrtStatusPtr;
type GetText = unsafe extern "system" fn(*const c_void, *mut *const c_char) -> sys::OrtStatusPtr;

/// A table of API 24: its six functions of assignments, and the older ones by name.
struct Table {
    api: &'static sys::OrtApi,
    subgraphs: GetSubgraphs,
    ep_name: GetText,
    nodes: GetNodes,
    node_name: GetText,
    node_domain: GetText,
    node_op_type: GetText,
}

impl Table {
    /// `None` if ORT is older, its version is not known, or its functions are not from 1.x.
    fn of(runtime: HostRuntime) -> Option<Self> {
        if runtime.minor()? < FIRST_MINOR {
            // A request for a version that the library lacks makes it write to stderr.
            return None;
        }
        // SAFETY: `runtime` is ORT's static table, and both versions exist.
        let [api, older] = [FIRST_MINOR, sys::ORT_API_VERSION]
            .map(|version| unsafe { (runtime.0.GetApi)(version) });
        // SAFETY: both tables are static, and have the functions of the older one at least.
        if api.is_null() || older.is_null() || !unsafe { begins_with(api, older) } {
            return None;
        }
        // SAFETY: the append-only table has functions of exactly these signatures at these positions
        // (onnxruntime_c_api.h of 1.24); it begins with the functions of the older versions.
        unsafe {
            Some(Self {
                api: api.as_ref()?,
                subgraphs: slot(api, SESSION_GET_EP_GRAPH_ASSIGNMENT_INFO)?,
                ep_name: slot(api, EP_ASSIGNED_SUBGRAPH_GET_EP_NAME)?,
                nodes: slot(api, EP_ASSIGNED_SUBGRAPH_GET_NODES)?,
                node_name: slot(api, EP_ASSIGNED_NODE_GET_NAME)?,
                node_domain: slot(api, EP_ASSIGNED_NODE_GET_DOMAIN)?,
                node_op_type: slot(api, EP_ASSIGNED_NODE_GET_OPERATOR_TYPE)?,
            })
        }
    }

    /// Takes a status: ORT's message if there is one.
    fn done(&self, status: sys::OrtStatusPtr) -> Result<(), String> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: it is ORT's own status with a NUL-terminated text, copied before the status is released, once.
        unsafe {
            let text = CStr::from_ptr((self.api.GetErrorMessage)(status.0));
            let text = text.to_string_lossy().into_owned();
            (self.api.ReleaseStatus)(status.0);
            Err(text)
        }
    }

    /// `session` is one that our caller borrows.
    fn assignment(&self, session: *const sys::OrtSession) -> Result<Assignment, String> {
        let mut subgraphs = Vec::new();
        let (mut array, mut len) = (ptr::null(), 0);
        // SAFETY: the session is alive while it is borrowed, and both places are ours.
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
    fn ep_compatibility(&self, session: *const sys::OrtSession) -> Result<String, String> {
        let (mut allocator, mut metadata) = (ptr::null_mut(), ptr::null_mut());
        let key = format!("{EP_COMPATIBILITY}{QNN_EP}\0");
        // SAFETY: all places are ours. The metadata is ours until it is released, once. The text is the allocator's:
        // it is copied, then freed once.
        unsafe {
            let api = self.api;
            self.done((api.GetAllocatorWithDefaultOptions)(&mut allocator))?;
            self.done((api.SessionGetModelMetadata)(session, &mut metadata))?;
            let mut text = ptr::null_mut();
            let lookup = api.ModelMetadataLookupCustomMetadataMap;
            let found = self.done(lookup(metadata, allocator, key.as_ptr().cast(), &mut text));
            (api.ReleaseModelMetadata)(metadata);
            found?;
            if text.is_null() {
                return Ok(String::new());
            }
            let copied = CStr::from_ptr(text).to_string_lossy().into_owned();
            self.done((api.AllocatorFree)(allocator, text.cast()))?;
            Ok(clipped(&copied, MAX_EP_COMPATIBILITY_BYTES))
        }
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
/// Both have the functions that `sys::OrtApi` has.
unsafe fn begins_with(api: *const sys::OrtApi, older: *const sys::OrtApi) -> bool {
    const KNOWN: usize = mem::size_of::<sys::OrtApi>() / mem::size_of::<*const c_void>();
    let [api, older] = [api, older].map(|table| {
        // SAFETY: guaranteed by the caller; all members are function pointers.
        unsafe { slice::from_raw_parts(table.cast::<*const c_void>(), KNOWN) }
    });
    api == older && !api.contains(&ptr::null())
}

/// Returns the function at a position of a table, `None` if it is null.
///
/// # Safety
/// `F` must be the type of that function pointer.
unsafe fn slot<F>(api: *const sys::OrtApi, at: usize) -> Option<F> {
    const { assert!(mem::size_of::<F>() == mem::size_of::<*const c_void>()) };
    // SAFETY: the table of API 24 has 413 slots at least, all function pointers.
    let function = unsafe { *api.cast::<*const c_void>().add(at) };
    // SAFETY: guaranteed by the caller.
    (!function.is_null()).then(|| unsafe { mem::transmute_copy(&function) })
}

/// Returns an array of ORT's as a slice, empty if there is none.
///
/// # Safety
/// `array` must hold `len` pointers for as long as the result is used, or be null.
unsafe fn entries<'a>(array: *const *const c_void, len: usize) -> &'a [*const c_void] {
    if array.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(array, len) }
}

/// Libraries of this process by function or name, without loading one. Their handles are never closed, so they stay.
#[cfg(unix)]
mod loaded {
    use super::{CStr, HostRuntime, c_void, mem, sys};

    pub(super) fn by_function(function: *const c_void) -> Option<HostRuntime> {
        let mut info = mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be passed, and the place for the result is ours; the result is whole where it is
        // not zero.
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
            let get: unsafe extern "C" fn() -> *const sys::OrtApiBase = mem::transmute(entry);
            HostRuntime::from_base(get().cast())
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
