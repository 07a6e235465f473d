//! The nodes of a launch that take longest, by the profile of its runtime.

use serde::{Deserialize, Serialize};

/// Maximum number of nodes of a profile that a report has.
pub const MOST_SHARES: usize = 20;

/// Time of nodes, in a launch whose run times are not judged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunProfile {
    /// Names of the profilers' own files, next to the launch.
    #[serde(default)]
    pub files: Vec<String>,
    /// Nodes that take longest, in descending order.
    #[serde(default)]
    pub nodes: Vec<NodeShare>,
}

/// A node's share of the time of all nodes. A partition on the NPU is one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names say it")]
pub struct NodeShare {
    pub name: String,
    #[serde(default)]
    pub op_type: String,
    pub ep: String,
    pub share: f64,
}
