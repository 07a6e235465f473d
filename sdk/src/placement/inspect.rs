//! Inspection of a model on a developer's machine: where every node runs and why, without the limits of a report.
//!
//! A session is made, which logs at VERBOSE meanwhile. Its placement is read, and it is dropped without a run.

use std::path::Path;

use epwatch_proto::{CpuNode, Placement, ReasonCode, chipset::soc_by_soc_model, clipped};
use ort::session::{Session, builder::SessionBuilder};

use super::{
    PlacementInput,
    log::SessionLog,
    log_capture::VerboseBuilder,
    of_session::recorded,
    ort::{read, record_assignment},
    start_failure_reason, status_code, summarise,
    summary::{PartitionSize, all_cpu_nodes, npu_nodes, npu_partitions},
};

/// Longest error text, in bytes. Some name each node of a graph.
const MAX_ERROR_BYTES: usize = 4 << 10;

/// Result of an inspection.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Inspection {
    /// The session was made.
    Placed {
        /// The list of CPU nodes is complete, with ORT's own names.
        placement: Box<Placement>,
        /// Sizes of the NPU's partitions, in ORT's order; empty if ORT is older than its assignment API.
        npu_partitions: Vec<PartitionSize>,
        /// Names of all nodes on the NPU, in ORT's order; empty if ORT is older, or its log names none.
        npu_nodes: Vec<String>,
    },
    /// The session could not be made.
    Failed {
        /// ORT's error, at most 4 KiB. It must not go into a report.
        error: String,
        /// The reason, as far as the error and the log show it.
        reason: ReasonCode,
        /// ORT's status code.
        status_code: i32,
    },
}

/// Makes a session of a model file from the host's builder, and returns where its nodes run.
pub fn inspect_file(
    builder: SessionBuilder,
    model: &Path,
    input: PlacementInput<'_>,
) -> Inspection {
    inspected(builder, |builder| builder.commit_from_file(model), input)
}

/// Makes a session of a model in memory from the host's builder, and returns where its nodes run.
pub fn inspect_bytes(
    builder: SessionBuilder,
    model: &[u8],
    input: PlacementInput<'_>,
) -> Inspection {
    inspected(builder, |builder| builder.commit_from_memory(model), input)
}

fn inspected(
    builder: SessionBuilder,
    make: impl Fn(&mut SessionBuilder) -> ort::Result<Session>,
    input: PlacementInput<'_>,
) -> Inspection {
    let mut builder = record_assignment(builder);
    let mut verbose = VerboseBuilder::of(&builder);
    let made = match &mut verbose {
        Some(verbose) => make(&mut verbose.builder),
        None => make(&mut builder),
    };
    let error = made.as_ref().err().map(ort::Error::message);
    let captured = verbose.as_ref().map(|verbose| verbose.log(error));
    let captured = captured.unwrap_or_default();
    match made {
        Ok(session) => {
            let (placement, npu_partitions, npu_nodes) = placed(&session, &captured, input);
            Inspection::Placed {
                placement: Box::new(placement),
                npu_partitions,
                npu_nodes,
            }
        }
        Err(error) => {
            let status_code = status_code(error.code());
            Inspection::Failed {
                error: clipped(error.message().trim(), MAX_ERROR_BYTES),
                reason: start_failure_reason(status_code, error.message(), captured.first_reason()),
                status_code,
            }
        }
    }
}

fn placed(
    session: &Session,
    captured: &SessionLog,
    input: PlacementInput<'_>,
) -> (Placement, Vec<PartitionSize>, Vec<String>) {
    let read = read(session);
    let is_whole = read.is_ok();
    let Ok(assignment) = recorded(read, input.requested_eps) else {
        // The log has the nodes that ORT's API leaves out.
        let logged = captured.assignment().filter(|_| is_whole);
        let nodes = logged.map_or_else(Vec::new, |assignment| npu_nodes(&assignment));
        return (captured.placement(input), Vec::new(), nodes);
    };
    let mut placement = summarise(&assignment, input);
    let (nodes, names): (Vec<CpuNode>, Vec<&str>) = all_cpu_nodes(&assignment, input.manifest)
        .into_iter()
        .unzip();
    placement.cpu_nodes = nodes;
    placement.cpu_nodes_truncated = false;
    let soc = soc_by_soc_model(input.soc_model).or_else(|| captured.soc());
    captured.explain(&mut placement, soc);
    // Names in a report are clipped. These names are for people and are compared with ORT's own, so they are whole.
    for (node, name) in placement.cpu_nodes.iter_mut().zip(names) {
        name.clone_into(&mut node.name);
    }
    let partitions = npu_partitions(&assignment, input.manifest);
    (placement, partitions, npu_nodes(&assignment))
}
