//! A placement that the host has read itself.
//!
//! Bindings of ONNX Runtime for Python, Node or C# return the list of nodes and EPs, but no pointers. Apps with such a
//! binding pass the list. Apps with another runtime pass that runtime's own answer.

use std::time::Duration;

use epwatch_proto::{Accelerator, placement::MAX_NODES};
use epwatch_sdk::{
    HostAssignment, Watch,
    placement::{AssignedNode, Assignment, Subgraph},
};

use crate::{
    model::EpwModel,
    session::{EpwSession, Observed, SESSIONS, request},
    status::{EpwStatus, Failure, guarded},
    text::{self, EpwText, ResultPlace, Texts, array},
    watch::EpwWatch,
};

/// Longest texts of a list together, in bytes. The names of a graph with 100,000 nodes take some 10 MB.
const MAX_TEXT_BYTES: usize = 64 << 20;

/// A node of a session's graph, and the EP that runs it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwNode {
    /// The node's name; may be empty.
    pub name: EpwText,
    /// ONNX op type.
    pub op_type: EpwText,
    /// Empty for ONNX's own domain.
    pub domain: EpwText,
    /// The EP, for example "QNNExecutionProvider"; for another runtime the accelerator, for example "GPU" or "CPU".
    pub ep: EpwText,
    /// Number of the node's subgraph in the runtime's list. Nodes of a subgraph follow each other.
    pub subgraph: u64,
}

/// A session's placement as the host has read it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwAssignment {
    /// sizeof(EpwAssignment)
    pub size: usize,
    /// ONNX Runtime's version, for example "1.31.1", or another runtime's name and version, for example "LiteRT 2.3.0".
    /// Empty if it is not known. A version without a name is refused if a node is on "CPU", which ONNX Runtime calls
    /// "CPUExecutionProvider".
    pub runtime: EpwText,
    /// Nodes in the runtime's order. NULL if the runtime returned no list. ONNX Runtime returns none if it is older
    /// than 1.24, or if the session was made without session.record_ep_graph_assignment_info=1.
    pub nodes: *const EpwNode,
    /// Length of nodes, at most 1,000,000.
    pub n_nodes: usize,
    /// For a precompiled model its metadata ep_compatibility_info.QNNExecutionProvider, else empty.
    pub ep_compatibility: EpwText,
}

// SAFETY: all fields are numbers, pointers, or texts made of both.
unsafe impl text::Versioned for EpwAssignment {
    const NAME: &'static str = "EpwAssignment";
}

/// # Safety
/// The array and its texts must be valid.
unsafe fn assignment_of(given: &EpwAssignment) -> Result<Option<Assignment>, Failure> {
    if given.nodes.is_null() && given.n_nodes == 0 {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let nodes = unsafe { array(given.nodes, given.n_nodes, MAX_NODES as usize)? };
    let lengths = nodes
        .iter()
        .flat_map(|node| [node.name, node.op_type, node.domain, node.ep])
        .map(|text| text.length);
    if lengths.fold(0, usize::saturating_add) > MAX_TEXT_BYTES {
        let text =
            format!("the texts of the nodes are longer than {MAX_TEXT_BYTES} bytes together");
        return Err(Failure::invalid(text));
    }
    let mut subgraphs: Vec<Subgraph> = Vec::new();
    let mut number = 0;
    for node in nodes {
        let texts = Texts::default();
        // SAFETY: guaranteed by the caller.
        let text = |text: EpwText| unsafe { texts.get(text) };
        let (ep, added) = (
            text(node.ep),
            AssignedNode {
                name: text(node.name).to_owned(),
                op_type: text(node.op_type).to_owned(),
                domain: text(node.domain).to_owned(),
            },
        );
        texts.checked()?;
        if ep.is_empty() {
            return Err(Failure::invalid("a node has no EP"));
        }
        match subgraphs.last_mut() {
            Some(last) if number == node.subgraph && last.ep == ep => last.nodes.push(added),
            _ => subgraphs.push(Subgraph {
                ep: ep.to_owned(),
                nodes: vec![added],
            }),
        }
        number = node.subgraph;
    }
    Ok(Some(Assignment { subgraphs }))
}

/// Refuses the text of a runtime other than ONNX Runtime that has no name: a number alone is a version of ONNX Runtime.
pub(crate) fn check_is_named(runtime: &str) -> Result<(), Failure> {
    match runtime.starts_with(char::is_alphabetic) {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "runtime is {runtime:?}; expected another runtime's name and version, for example \"LiteRT 2.3.0\""
        ))),
    }
}

/// # Safety
/// The texts and the nodes must be valid.
pub(crate) unsafe fn observe(
    watch: Watch,
    model: &EpwModel,
    given: &EpwAssignment,
) -> Result<u64, Failure> {
    let creation = (model.creation_ns > 0).then(|| Duration::from_nanos(model.creation_ns));
    // SAFETY: guaranteed by the caller.
    let session = unsafe {
        let read = HostAssignment {
            runtime: given.runtime.get()?.to_owned(),
            assignment: assignment_of(given)?,
            devices: Vec::new(),
            ep_compatibility: given.ep_compatibility.get()?.to_owned(),
        };
        let subgraphs = read.assignment.iter().flat_map(|read| &read.subgraphs);
        let is_on_other_cpu = |of: &Subgraph| {
            !of.ep.ends_with("ExecutionProvider") && Accelerator::of_ep(&of.ep) == Accelerator::Cpu
        };
        // Such a node would count as a node of the NPU.
        if subgraphs.into_iter().any(is_on_other_cpu) {
            check_is_named(&read.runtime)?;
        }
        request(&watch, None, model)?.observe_assignment(read, creation)
    };
    SESSIONS.insert(Observed { session, watch })
}

/// Observes a session by a placement that the host has read. It replaces epw_observe where a binding of ONNX Runtime
/// returns the EP of each node but no OrtSession, and for hosts with another runtime. With ONNX Runtime, set the
/// session option session.record_ep_graph_assignment_info to "1" before the session is made. Without a list runs are
/// measured, and epw_explain_session has the reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_observe_assignment(
    watch: EpwWatch,
    model: *const EpwModel,
    assignment: *const EpwAssignment,
    observed: *mut EpwSession,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties.
    guarded(|| unsafe {
        let observed = ResultPlace::of(observed)?;
        let (model, given) = (text::read(model)?, text::read(assignment)?);
        let watch = crate::watch::watch(watch.id)?;
        let id = self::observe(watch, &model, &given)?;
        Ok(observed.write(EpwSession { id }))
    })
}
