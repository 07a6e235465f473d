//! Safe wrapper of ONNX Runtime's graph assignment API and of its list of devices, with the only unsafe code of this
//! crate.
//!
//! The API exists since ORT 1.24. This crate is built for an older one, so that a host may bring ORT 1.17 or later:
//! the version is read first, and the newer table of functions is used only from 1.24 on. ORT promises to append to
//! the table only. Slot numbers were checked with `ort-sys` built with `api-24`, and the calls with ORT 1.20 to 1.31.
//!
//! All texts and arrays belong to the session. They are copied before the borrow of the session ends; nothing is
//! freed.

use std::{
    ffi::{CStr, c_char, c_void},
    mem, ptr, slice,
};

use epwatch_proto::ReasonCode;
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

/// Makes ORT keep the EP of each node. Older versions ignore unknown keys.
const RECORD_ASSIGNMENT: &str = "session.record_ep_graph_assignment_info";

/// Makes ORT keep the EP of each node.
pub(crate) fn record_assignment(builder: SessionBuilder) -> SessionBuilder {
    let recording = builder.with_config_entry(RECORD_ASSIGNMENT, "1");
    // An unobserved session is better than none.
    recording.unwrap_or_else(ort::Error::recover)
}

/// Returns the version of the loaded ONNX Runtime, for example `1.31.1`; `None` if it is not known.
///
/// # Panics
/// As [`ort::api`], if no library can be loaded. Call it once a session builder exists.
pub fn ort_version() -> Option<String> {
    let base = api_base()?;
    // SAFETY: `base` is ORT's static table; its text is static and NUL-terminated.
    let text = unsafe { CStr::from_ptr((base.GetVersionString)()) };
    Some(text.to_string_lossy().into_owned())
}

fn ort_minor() -> Option<u32> {
    ort_version()?.split('.').nth(1)?.parse().ok()
}

/// Whether a registered plugin offers a device of this EP. Call it once a session builder exists.
#[cfg(feature = "qnn")]
pub(crate) fn has_ep_device(ep: &str) -> bool {
    // ORT 1.22 lists devices on Windows only.
    if ort_minor().is_none_or(|minor| minor < 23) {
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
/// [`ReasonCode::AssignmentApiUnavailable`] if ORT is older than 1.24 or cannot be found in the process,
/// [`ReasonCode::AssignmentNotRecorded`] if the session did not record.
pub fn read(session: &Session) -> Result<Assignment, ReasonCode> {
    let table = Table::load().ok_or(ReasonCode::AssignmentApiUnavailable)?;
    let assignment = table.assignment(session);
    assignment.map_err(|_| ReasonCode::AssignmentNotRecorded)
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

/// The six functions.
struct Table {
    subgraphs: GetSubgraphs,
    ep_name: GetText,
    nodes: GetNodes,
    node_name: GetText,
    node_domain: GetText,
    node_op_type: GetText,
}

impl Table {
    /// `None` if ORT is older, or its version is not known.
    fn load() -> Option<Self> {
        if ort_minor()? < FIRST_MINOR {
            // A request for a version that the library lacks makes it write to stderr.
            return None;
        }
        let base = api_base()?;
        // SAFETY: `base` is ORT's static table, and the requested version exists.
        let table = unsafe { (base.GetApi)(FIRST_MINOR) }.cast::<*const c_void>();
        if table.is_null() {
            return None;
        }
        let slot = |at: usize| {
            // SAFETY: the table of API 24 has 413 slots at least, all function pointers.
            let function = unsafe { *table.add(at) };
            (!function.is_null()).then_some(function)
        };
        // SAFETY: the append-only table has functions of exactly these signatures at these positions
        // (onnxruntime_c_api.h of 1.24); none of them is null.
        unsafe {
            Some(Self {
                subgraphs: mem::transmute::<*const c_void, GetSubgraphs>(slot(
                    SESSION_GET_EP_GRAPH_ASSIGNMENT_INFO,
                )?),
                ep_name: mem::transmute::<*const c_void, GetText>(slot(
                    EP_ASSIGNED_SUBGRAPH_GET_EP_NAME,
                )?),
                nodes: mem::transmute::<*const c_void, GetNodes>(slot(
                    EP_ASSIGNED_SUBGRAPH_GET_NODES,
                )?),
                node_name: mem::transmute::<*const c_void, GetText>(slot(
                    EP_ASSIGNED_NODE_GET_NAME,
                )?),
                node_domain: mem::transmute::<*const c_void, GetText>(slot(
                    EP_ASSIGNED_NODE_GET_DOMAIN,
                )?),
                node_op_type: mem::transmute::<*const c_void, GetText>(slot(
                    EP_ASSIGNED_NODE_GET_OPERATOR_TYPE,
                )?),
            })
        }
    }

    fn assignment(&self, session: &Session) -> ort::Result<Assignment> {
        let mut subgraphs = Vec::new();
        let (mut array, mut len) = (ptr::null(), 0);
        // SAFETY: the session is alive while it is borrowed, and both places are ours.
        unsafe {
            ort::Error::result_from_status((self.subgraphs)(session.ptr(), &mut array, &mut len))?;
        }
        // SAFETY: ORT reported success, so `array` holds `len` subgraphs that live as long as the session we borrow.
        for &subgraph in unsafe { entries(array, len) } {
            subgraphs.push(Subgraph {
                ep: text(self.ep_name, subgraph)?,
                nodes: self.subgraph_nodes(subgraph)?,
            });
        }
        Ok(Assignment { subgraphs })
    }

    fn subgraph_nodes(&self, subgraph: *const c_void) -> ort::Result<Vec<AssignedNode>> {
        let (mut array, mut len) = (ptr::null(), 0);
        // SAFETY: `subgraph` belongs to a session that our caller borrows; both places are ours.
        unsafe {
            ort::Error::result_from_status((self.nodes)(subgraph, &mut array, &mut len))?;
        }
        // SAFETY: ORT reported success; the nodes live as long as that session.
        let nodes = unsafe { entries(array, len) }.iter().map(|&node| {
            Ok(AssignedNode {
                name: text(self.node_name, node)?,
                op_type: text(self.node_op_type, node)?,
                domain: text(self.node_domain, node)?,
            })
        });
        nodes.collect()
    }
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

/// Copies a text of a session's object. Only called for objects of a borrowed session.
fn text(get: GetText, of: *const c_void) -> ort::Result<String> {
    let mut text = ptr::null();
    // SAFETY: `of` is alive (see above), and `text` is ours.
    unsafe { ort::Error::result_from_status(get(of, &mut text))? };
    if text.is_null() {
        return Ok(String::new());
    }
    // SAFETY: ORT reported success, so `text` is NUL-terminated and lives as long as the session; it is copied before
    // that borrow ends.
    Ok(unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned())
}

/// ORT's entry point. `ort` does not expose its handle of the library, so the library is found by the address of one
/// of its functions. It stays loaded for the life of the process.
#[cfg(unix)]
fn api_base() -> Option<&'static sys::OrtApiBase> {
    use std::sync::OnceLock;

    static BASE: OnceLock<Option<usize>> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let function = ort::api().CreateStatus as *const c_void;
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
        // SAFETY: the name is the loader's own text; RTLD_NOLOAD loads nothing, so no code of a library runs. The
        // handle is never closed.
        let entry = unsafe {
            let library = libc::dlopen(info.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_NOW);
            if library.is_null() {
                return None;
            }
            libc::dlsym(library, c"OrtGetApiBase".as_ptr())
        };
        if entry.is_null() {
            return None;
        }
        // SAFETY: this is the signature of ORT's only exported entry point since 1.0.
        let base = unsafe {
            let get: unsafe extern "C" fn() -> *const sys::OrtApiBase = mem::transmute(entry);
            get()
        };
        (!base.is_null()).then_some(base as usize)
    });
    // SAFETY: it is the address of a static of a library that stays loaded.
    base.map(|address| unsafe { &*(address as *const sys::OrtApiBase) })
}

#[cfg(not(unix))]
fn api_base() -> Option<&'static sys::OrtApiBase> {
    None
}
