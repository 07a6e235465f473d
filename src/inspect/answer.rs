//! The answer about one chipset, as its process passes it to `inspect`.

use std::collections::BTreeMap;

use epwatch_proto::{Placement, ReasonCode};
use epwatch_sdk::{ExplainedEp, ExplainedNode, ExplainedReason, placement::PartitionSize};
use serde::{Deserialize, Serialize};

/// The result of a chipset's session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Placed {
        placed: Placed,
        /// The message `Placement`, in base64.
        encoded: String,
    },
    Failed {
        error: String,
        reason: String,
    },
    /// The file is no ONNX model, for whatever chipset.
    NoModel(String),
    /// Given by the parent alone.
    TimedOut(String),
}

impl Answer {
    pub(super) fn without_reason(error: impl Into<String>) -> Self {
        Self::Failed {
            error: error.into(),
            reason: ReasonCode::Unknown.as_str().to_owned(),
        }
    }
}

/// The placement of one session; empty if it could not be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Placed {
    /// `assignment_api`, `log` or `unavailable`.
    pub(crate) source: String,
    pub(crate) graph_kind: Option<String>,
    pub(crate) eps: BTreeMap<String, ExplainedEp>,
    /// All nodes on the CPU, in ONNX Runtime's order.
    pub(crate) cpu_nodes: Vec<ExplainedNode>,
    /// Of the NPU, in ONNX Runtime's order; empty without its assignment API.
    pub(crate) npu_partitions: Vec<PartitionSize>,
    /// Fingerprint of the pairs of node and EP; `null` without nodes.
    pub(crate) fingerprint: Option<String>,
    /// Fingerprint of the computing nodes, with names normalised over runtime versions.
    pub(crate) fingerprint_normalised: Option<String>,
    /// Reasons why nodes are not on the NPU.
    pub(crate) reasons: Vec<ExplainedReason>,
}

impl Placed {
    pub(crate) fn of(placement: &Placement, npu_partitions: Vec<PartitionSize>) -> Self {
        Self {
            source: placement.source.as_str().to_owned(),
            graph_kind: Some(placement.graph_kind.as_str().to_owned()),
            eps: ExplainedEp::all_of(placement),
            cpu_nodes: ExplainedNode::all_of(placement),
            npu_partitions,
            fingerprint: placement.exact.map(|f| f.to_string()),
            fingerprint_normalised: placement.normalised.map(|f| f.to_string()),
            reasons: placement.reasons.iter().copied().map(Into::into).collect(),
        }
    }
}
