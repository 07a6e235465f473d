//! A session's nodes and EPs as ONNX Runtime lists them.

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
