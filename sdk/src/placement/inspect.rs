//! A session made to be looked at: where every node runs and why, with nothing cut off.
//!
//! A report holds what fits into a report; who inspects a model at a desk wants all of it. The
//! session is heard at VERBOSE (so it is made twice), read, and dropped.

use std::path::Path;

use epwatch_proto::{CpuNode, ModelManifest, Placement, ReasonCode, clipped};
use ort::session::{Session, builder::SessionBuilder};

use super::{
    SummaryInput, listen,
    log::{SessionLog, soc_of},
    ort::{read, record_assignment},
    start_failure_reason, status_code, summarise,
    summary::all_cpu_nodes,
};

/// Longest error text, in bytes; some name each node of a graph.
const MAX_ERROR_BYTES: usize = 4 << 10;

/// What is known of a session before it is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct InspectInput<'a> {
    /// EPs that the builder was given, the CPU EP left out.
    pub requested_eps: &'a [String],
    /// Chipset that the QNN EP was told, by number or name; empty: none.
    pub soc_model: &'a str,
    /// MACs per node of the model, if they are known.
    pub manifest: Option<&'a ModelManifest>,
    /// What was known of why the NPU will not be used.
    pub known_reasons: &'a [ReasonCode],
}

/// How making a session ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Inspection {
    /// There was one, and its nodes were placed like this. The list of CPU nodes is whole, names as
    /// ORT gives them.
    Placed(Box<Placement>),
    /// There was none.
    Failed {
        /// ORT's error in its own words, at most 4 KiB: not for a report.
        error: String,
        /// Why, as far as error and log say.
        reason: ReasonCode,
        /// ORT's status code.
        status_code: i32,
    },
}

/// Makes a session of a model file from the host's builder and says where its nodes run.
pub fn inspect_file(builder: SessionBuilder, model: &Path, input: InspectInput<'_>) -> Inspection {
    let make = |builder: &mut SessionBuilder| builder.commit_from_file(model);
    let mut builder = record_assignment(builder);
    let heard = listen(&builder, make);
    match make(&mut builder) {
        Ok(session) => Inspection::Placed(Box::new(placed(&session, &heard, input))),
        Err(error) => Inspection::Failed {
            error: clipped(error.message().trim(), MAX_ERROR_BYTES),
            reason: match start_failure_reason(error.message()) {
                ReasonCode::Unknown => heard
                    .reasons
                    .first()
                    .copied()
                    .unwrap_or(ReasonCode::Unknown),
                reason => reason,
            },
            status_code: status_code(error.code()),
        },
    }
}

fn placed(session: &Session, heard: &SessionLog, input: InspectInput<'_>) -> Placement {
    let Ok(assignment) = read(session) else {
        return heard.placement(input.requested_eps, input.manifest, input.known_reasons);
    };
    let mut placement = summarise(SummaryInput {
        assignment: &assignment,
        requested_eps: input.requested_eps,
        manifest: input.manifest,
        known_reasons: input.known_reasons,
    });
    let (nodes, names): (Vec<CpuNode>, Vec<&str>) = all_cpu_nodes(&assignment, input.manifest)
        .into_iter()
        .unzip();
    placement.cpu_nodes = nodes;
    placement.cpu_nodes_truncated = false;
    let soc = soc_of(input.soc_model).or_else(|| heard.soc());
    heard.explain(&mut placement, soc);
    // A report's names are clipped; these are read by people and compared with ORT's own.
    for (node, name) in placement.cpu_nodes.iter_mut().zip(names) {
        name.clone_into(&mut node.name);
    }
    placement
}
