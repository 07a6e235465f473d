//! A safe wrapper over ONNX Runtime's graph assignment API, the only unsafe code of this crate.
//!
//! The API came with ORT 1.24. This crate is built against an older one, so that a host may bring
//! ORT 1.17 or later: the version text is read first, and only from 1.24 on the newer table of
//! functions is asked for and its slots used. The table is append-only by ORT's promise; slot
//! numbers were checked against `ort-sys` built with `api-24`, and the calls on ORT 1.20 to 1.31.
//!
//! All texts and arrays belong to the session: they are copied before the borrow of the session
//! ends, and nothing is freed.

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

/// The first minor version that has the assignment API.
const FIRST_MINOR: u32 = 24;

// Positions in OrtApi, all of whose members are function pointers.
const SESSION_GET_EP_GRAPH_ASSIGNMENT_INFO: usize = 407;
const EP_ASSIGNED_SUBGRAPH_GET_EP_NAME: usize = 408;
const EP_ASSIGNED_SUBGRAPH_GET_NODES: usize = 409;
const EP_ASSIGNED_NODE_GET_NAME: usize = 410;
const EP_ASSIGNED_NODE_GET_DOMAIN: usize = 411;
const EP_ASSIGNED_NODE_GET_OPERATOR_TYPE: usize = 412;

/// What ORT assigned to whom, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// One entry a partition; on the CPU EP, one a node.
    pub subgraphs: Vec<Subgraph>,
}

/// Nodes that one EP took together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subgraph {
    /// For example `QNNExecutionProvider`.
    pub ep: String,
    /// Its nodes.
    pub nodes: Vec<AssignedNode>,
}

/// One node as ORT names it after its first optimisations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedNode {
    /// Name; may be empty.
    pub name: String,
    /// Op type.
    pub op_type: String,
    /// Domain; empty for ONNX's own.
    pub domain: String,
}

/// Makes ORT remember which EP got which node. Older versions take unknown keys and ignore them.
const RECORD_ASSIGNMENT: &str = "session.record_ep_graph_assignment_info";

/// Has ORT remember which EP got which node.
pub(crate) fn record_assignment(builder: SessionBuilder) -> SessionBuilder {
    let recording = builder.with_config_entry(RECORD_ASSIGNMENT, "1");
    // Not observed is better than not made.
    recording.unwrap_or_else(ort::Error::recover)
}

/// Version of the loaded ONNX Runtime, for example `1.31.1`; `None` if it cannot be told.
///
/// # Panics
/// As [`ort::api`], where no library can be loaded: call it once a session builder exists.
pub fn ort_version() -> Option<String> {
    let base = api_base()?;
    // SAFETY: `base` is ORT's static table; the text it gives is static and NUL-terminated.
    let text = unsafe { CStr::from_ptr((base.GetVersionString)()) };
    Some(text.to_string_lossy().into_owned())
}

/// Reads the assignment of a session that was made with
/// `session.record_ep_graph_assignment_info=1`, node for node.
///
/// # Errors
/// [`ReasonCode::AssignmentApiUnavailable`] where ORT is older than 1.24 or cannot be found again
/// in the process, [`ReasonCode::AssignmentNotRecorded`] where the session did not record.
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

/// The six calls.
struct Table {
    subgraphs: GetSubgraphs,
    ep_name: GetText,
    nodes: GetNodes,
    node_name: GetText,
    node_domain: GetText,
    node_op_type: GetText,
}

impl Table {
    /// `None` where ORT is older, or its version cannot be told.
    fn load() -> Option<Self> {
        let version = ort_version()?;
        let minor: u32 = version.split('.').nth(1)?.parse().ok()?;
        if minor < FIRST_MINOR {
            // Asking for more than a library has makes it write to stderr.
            return None;
        }
        let base = api_base()?;
        // SAFETY: `base` is ORT's static table, and a version it has is asked for.
        let table = unsafe { (base.GetApi)(FIRST_MINOR) }.cast::<*const c_void>();
        if table.is_null() {
            return None;
        }
        let slot = |at: usize| {
            // SAFETY: the table of API 24 has 413 slots at least, all function pointers.
            let function = unsafe { *table.add(at) };
            (!function.is_null()).then_some(function)
        };
        // SAFETY: at these positions of the append-only table stand, for ever, functions of
        // exactly these signatures (onnxruntime_c_api.h of 1.24); none of them is null.
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
        // SAFETY: ORT reported success, so `array` holds `len` subgraphs that live as long as the
        // session we borrow.
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

/// An array of ORT's, empty where there is none.
///
/// # Safety
/// `array` must hold `len` pointers for as long as the result is used, or be null.
unsafe fn entries<'a>(array: *const *const c_void, len: usize) -> &'a [*const c_void] {
    if array.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { slice::from_raw_parts(array, len) }
}

/// A copy of a text that belongs to a session; only called for objects of a borrowed one.
fn text(get: GetText, of: *const c_void) -> ort::Result<String> {
    let mut text = ptr::null();
    // SAFETY: `of` is alive (see above), and `text` is ours.
    unsafe { ort::Error::result_from_status(get(of, &mut text))? };
    if text.is_null() {
        return Ok(String::new());
    }
    // SAFETY: ORT reported success, so `text` is NUL-terminated and lives as long as the session;
    // it is copied before that borrow ends.
    Ok(unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned())
}

/// ORT's entry point. `ort` keeps its handle of the library to itself, so the library is found
/// again by the address of one of its functions; it stays loaded for the life of the process.
#[cfg(unix)]
fn api_base() -> Option<&'static sys::OrtApiBase> {
    use std::sync::OnceLock;

    static BASE: OnceLock<Option<usize>> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let function = ort::api().CreateStatus as *const c_void;
        let mut info = mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked for, and the place for the answer is ours; the answer
        // is whole where it is not zero.
        let info = unsafe {
            if libc::dladdr(function, info.as_mut_ptr()) == 0 {
                return None;
            }
            info.assume_init()
        };
        if info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name is the loader's own text; RTLD_NOLOAD loads nothing, so no code of a
        // library runs. The handle is kept for ever.
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
        // SAFETY: this is the signature of ORT's one exported entry point since 1.0.
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
