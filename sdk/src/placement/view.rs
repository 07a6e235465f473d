//! The placement of a session, as the app reads it.

use std::collections::BTreeMap;

use epwatch_proto as proto;

use crate::explain::{ExplainedEp, ExplainedNode, ExplainedReason};

/// Where the nodes of a session run. It does not change after the session is made.
///
/// [`ExplainedSession`](crate::ExplainedSession) has the same, with the session's runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placement<'a>(&'a proto::Placement);

impl<'a> Placement<'a> {
    pub(crate) fn of(placement: &'a proto::Placement) -> Self {
        Self(placement)
    }

    /// Returns the number of nodes; 0 if the placement is not known.
    pub fn n_nodes(self) -> u32 {
        self.0.n_nodes
    }

    /// Returns the number of nodes on the accelerator that the session asked for.
    pub fn n_npu_nodes(self) -> u32 {
        self.0.n_npu_nodes()
    }

    /// Returns the number of nodes on the CPU EP.
    pub fn n_cpu_nodes(self) -> u32 {
        self.0.n_cpu_nodes()
    }

    /// Returns the accelerator's share of the model's MACs, 0 to 1. `None` without a manifest.
    pub fn npu_macs_share(self) -> Option<f64> {
        self.0.npu_macs_share()
    }

    /// Returns the nodes of each EP, by the EP's name.
    pub fn eps(self) -> BTreeMap<String, ExplainedEp> {
        ExplainedEp::all_of(self.0)
    }

    /// Returns the nodes on the CPU, as many as fit into a report.
    pub fn cpu_nodes(self) -> Vec<ExplainedNode> {
        ExplainedNode::all_of(self.0)
    }

    /// Returns the reasons for nodes that the accelerator did not get.
    pub fn reasons(self) -> Vec<ExplainedReason> {
        ExplainedReason::all_of(self.0)
    }

    #[doc(hidden)]
    pub fn wire(self) -> &'a proto::Placement {
        self.0
    }
}
