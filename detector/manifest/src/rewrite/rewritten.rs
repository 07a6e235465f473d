//! The changes of a rewrite.

/// A part of the graph that was rewritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// The original form, by its name in docs/ops.md.
    pub from: &'static str,
    /// The form now.
    pub to: &'static str,
    /// Removed nodes, as `Op name`.
    pub removed: Vec<String>,
    /// New nodes, as `Op name`.
    pub added: Vec<String>,
    /// Whether the rewrite computes with the same numbers; otherwise it omits 8-bit quantisation steps between nodes.
    pub is_exact: bool,
}

/// The result of [`rewrite`](crate::rewrite).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// The rewrites, in the order of the graph.
    pub rewrites: Vec<Rewrite>,
    /// Nodes that match a rule but could not be rewritten, each with the reason.
    pub kept: Vec<(String, String)>,
}
