//! The answer about one chipset, as its process passes it to `inspect`.

use std::{collections::BTreeMap, ops::Deref};

use epwatch_gate::time::{NodeWork, TimeRange};
use epwatch_manifest::{CrossingTensors, GraphFacts, Place, SidesOfNodes};
use epwatch_proto::{Placement, ReasonCode, placement::CPU_EP};
use epwatch_sdk::{ExplainedEp, ExplainedNode, ExplainedReason, placement::PartitionSize};
use serde::{Deserialize, Serialize};

/// The result of a chipset's session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Placed {
        placed: Box<Placed>,
        /// Names of the nodes on the NPU.
        npu_nodes: Vec<String>,
        /// The message `Placement`, in base64.
        encoded: String,
    },
    Failed(Failed),
    /// Error of a session for the CPU alone; `None` if the session was made.
    OnCpu(Option<CpuError>),
    /// The file is not an ONNX model, so there is no answer for any chipset.
    NoModel(String),
    /// An argument of the command line that is wrong for every chipset.
    WrongUse(String),
    /// A signal ended the process. Only the parent gives this answer and the following ones.
    Crashed(Crash),
    TimedOut(String),
    /// The process ended without an answer, not by a fault of the model.
    Unanswered(String),
    /// The model's ops are in a library that was not given.
    NeedsCustomOps(String),
    /// A session that says nothing about the chipset.
    Unproven(String),
}

/// A session that the chipset refuses.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Failed {
    pub(super) error: String,
    pub(super) reason: String,
    /// A way out, in addition to the reason's own.
    pub(super) way_out: Option<String>,
}

impl Failed {
    pub(super) fn without_reason(error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            reason: ReasonCode::Unknown.as_str().to_owned(),
            way_out: None,
        }
    }
}

/// ONNX Runtime's error when it makes no session for the CPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CpuError {
    pub(super) error: String,
    pub(super) status_code: i32,
}

/// A process that a signal ended while it made the session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Crash {
    /// For example `SIGSEGV`.
    pub(super) signal: String,
    /// The last node that was passed to QNN.
    pub(super) node: Option<NodeName>,
}

/// A node of the model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NodeName {
    pub(super) name: String,
    pub(super) op_type: String,
}

impl Crash {
    /// Returns the failure of this runtime in words, and the way out.
    pub(super) fn in_words(&self, runtime: &str) -> (String, Option<String>) {
        let what = format!(
            "{runtime} crashed ({}) while it made the session, as it would in the app",
            self.signal
        );
        let Some(NodeName { name, op_type }) = &self.node else {
            return (what, None);
        };
        let name = if name.is_empty() { "(unnamed)" } else { name };
        let way_out = format!(
            "Replace {op_type}, or keep it off the NPU: --ep-option op_affinity=FILE with {{\"op_type\":{{\"{op_type}\":\"cpu\"}}}}, in the app too."
        );
        let error = format!("{what}; the last node that it was told of is {op_type} {name}");
        (error, Some(way_out))
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
    pub(crate) cpu_nodes: Vec<InspectedNode>,
    /// Sizes of the NPU's partitions, in ONNX Runtime's order; empty without its assignment API.
    pub(crate) npu_partitions: Vec<PartitionSize>,
    /// Fingerprint of the pairs of node and EP; `null` without nodes.
    pub(crate) fingerprint: Option<String>,
    /// Fingerprint of the computing nodes, with names normalised over runtime versions.
    pub(crate) fingerprint_normalised: Option<String>,
    /// Reasons why nodes are not on the NPU.
    pub(crate) reasons: Vec<ExplainedReason>,
    /// Tensors between NPU and CPU; left out if they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) crossings: Option<CrossingTensors>,
}

/// A node on the CPU, with its place in the graph.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct InspectedNode {
    #[serde(flatten)]
    pub(crate) node: ExplainedNode,
    /// The node's place in the graph; left out if the model has no node of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<Place>,
    /// Estimated time of the node on the CPU in a run; left out if a size is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<TimeRange>,
}

/// Returns the nodes without their places in the graph, which are not known.
pub(crate) fn each(nodes: Vec<ExplainedNode>) -> Vec<InspectedNode> {
    let each = nodes.into_iter();
    each.map(|node| InspectedNode {
        node,
        place: None,
        time: None,
    })
    .collect()
}

impl Deref for InspectedNode {
    type Target = ExplainedNode;

    fn deref(&self) -> &ExplainedNode {
        &self.node
    }
}

impl Placed {
    pub(crate) fn of(placement: &Placement, npu_partitions: Vec<PartitionSize>) -> Self {
        Self {
            source: placement.source.as_str().to_owned(),
            graph_kind: Some(placement.graph_kind.as_str().to_owned()),
            eps: ExplainedEp::all_of(placement),
            cpu_nodes: each(ExplainedNode::all_of(placement)),
            npu_partitions,
            fingerprint: placement.exact.map(|f| f.to_string()),
            fingerprint_normalised: placement.normalised.map(|f| f.to_string()),
            reasons: placement.reasons.iter().copied().map(Into::into).collect(),
            crossings: None,
        }
    }

    /// Removes the shares of MACs if nodes that compute are on both sides, since a part is uncounted.
    pub(crate) fn forget_shares(&mut self, ep: &str) {
        let has_npu = ep != CPU_EP && self.eps.get(ep).is_some_and(|npu| npu.nodes > 0);
        let is_split = has_npu && self.cpu_nodes.iter().any(|node| !node.benign);
        if !is_split {
            return;
        }
        for found in self.eps.values_mut() {
            found.macs_share = None;
        }
        for node in &mut self.cpu_nodes {
            node.node.macs_share = None;
        }
        for partition in &mut self.npu_partitions {
            partition.macs_share = None;
        }
    }

    /// Adds the places of the CPU's nodes and the tensors that cross to this EP, by the model's graph.
    pub(crate) fn locate(&mut self, facts: &GraphFacts, ep: &str, npu_nodes: &[String]) {
        let cpu: Vec<(&str, &str)> = self
            .cpu_nodes
            .iter()
            .map(|n| (&*n.name, &*n.op_type))
            .collect();
        let partitions = self.eps.get(ep).and_then(|npu| npu.partitions);
        let found = facts.placed(SidesOfNodes {
            cpu: &cpu,
            npu: (!npu_nodes.is_empty()).then_some(npu_nodes),
            partitions: partitions.unwrap_or(0) as usize,
        });
        self.crossings = found.crossings;
        let has_npu = partitions.is_some_and(|n| n > 0);
        for (node, place) in self.cpu_nodes.iter_mut().zip(found.places) {
            node.place = place.filter(|_| has_npu);
            node.time = facts.size_of(&node.name).map(|size| {
                TimeRange::of_node(NodeWork {
                    macs: size.macs,
                    bytes: size.bytes,
                    is_8bit: facts.is_8bit(&node.name),
                })
            });
            // Without the graph, each QuantizeLinear next to the NPU counts as an edge.
            if let Some(place) = node.place.filter(|_| node.benign) {
                node.node.benign = place.is_benign();
                let edge = ReasonCode::EdgeQuantization.as_str();
                if !place.is_benign() && node.reason == edge {
                    ReasonCode::Unknown
                        .as_str()
                        .clone_into(&mut node.node.reason);
                }
            }
        }
    }
}
