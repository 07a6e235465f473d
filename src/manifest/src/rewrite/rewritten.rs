//! The changes of a rewrite.

/// A part of the graph that was rewritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// The form before, as docs/ops.md names it.
    pub from: &'static str,
    /// The form now.
    pub to: &'static str,
    /// Nodes that are gone, as `Op name`.
    pub removed: Vec<String>,
    /// New nodes, as `Op name`.
    pub added: Vec<String>,
    /// Whether the rewrite computes with the same numbers; else it leaves out steps of 8 bits between nodes.
    pub is_exact: bool,
}

/// The result of [`rewrite`](crate::rewrite).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// In the order of the graph.
    pub rewrites: Vec<Rewrite>,
    /// Nodes that a rule is about and that could not be rewritten, each with the reason.
    pub kept: Vec<(String, String)>,
}
