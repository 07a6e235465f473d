//! The placement of a model on a device, as references and documents hold it.

use std::fmt;

use epwatch_proto::{GraphKind, PlacementSource};
use serde::{Deserialize, Serialize};

/// How a placement was read. Only placements with equal methods are compared. Another source or fingerprint algorithm
/// counts differently, and a precompiled graph shows a partition as one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementMethod {
    /// `jit`, `epcontext` or `unknown`.
    pub graph_kind: String,
    /// `assignment_api`, `log`, `host` or `unavailable`.
    pub source: String,
    /// Version of the fingerprint's rules; 0 where there is no fingerprint.
    pub fingerprint_algorithm: u32,
}

impl PlacementMethod {
    /// Whether the placement of nodes is known at all.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let read = [
            PlacementSource::AssignmentApi,
            PlacementSource::Log,
            PlacementSource::Host,
        ];
        read.iter().any(|source| self.source == source.as_str())
    }

    /// Whether nodes can be counted. A precompiled graph has partitions instead of nodes.
    #[must_use]
    pub fn counts_nodes(&self) -> bool {
        self.graph_kind == GraphKind::Jit.as_str()
    }
}

/// One placement: how it was read, its fingerprint, and where the work went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// How it was read.
    pub method: PlacementMethod,
    /// Fingerprint of the computing nodes with names normalised; 0 where there is none.
    pub fingerprint: u64,
    /// ORT and EP version that placed the nodes.
    pub runtime: String,
    /// Nodes of all EPs.
    pub n_nodes: u32,
    /// Nodes on the accelerator that was asked for, which is the NPU for QNN.
    pub npu_nodes: u32,
    /// Nodes on the CPU or on another EP that should not be there.
    pub cpu_nodes: u32,
    /// Share of the model's MACs on the accelerator, in [0, 1], if at least 95 % of them are attributed to nodes.
    pub npu_macs_share: Option<f64>,
    /// Reason codes of the nodes on the CPU.
    pub reasons: Vec<String>,
}

/// The unit of a share of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkUnit {
    /// Multiply-accumulates.
    Macs,
    /// Graph nodes, if MACs are unknown.
    Nodes,
}

impl fmt::Display for WorkUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WorkUnit::Macs => "MACs",
            WorkUnit::Nodes => "nodes",
        })
    }
}

impl Placement {
    /// Returns the NPU's share of the work: of the MACs if known, else of the nodes that are not benign;
    /// `None` if neither is known.
    #[must_use]
    pub fn npu_share(&self) -> Option<(f64, WorkUnit)> {
        if !self.method.is_readable() {
            return None;
        }
        if let Some(share) = self.npu_macs_share {
            return Some((share, WorkUnit::Macs));
        }
        let working = self.npu_nodes.saturating_add(self.cpu_nodes);
        (self.method.counts_nodes() && working > 0).then(|| {
            let share = f64::from(self.npu_nodes) / f64::from(working);
            (share, WorkUnit::Nodes)
        })
    }
}
