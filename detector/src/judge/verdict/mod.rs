//! Verdicts: the class and the severity of one cohort window, with the numbers behind them. [`judge`] makes them from
//! the evidence of the signals. `evaluate` lowers verdicts that depend on new installations.

mod certificate;
pub(crate) mod completeness;
mod finding;
mod firmware;
mod input_shape;
mod judge;
mod numbers;
mod quiet;
mod secondary;

use std::collections::HashMap;

pub(crate) use finding::MOST_DEVICES;
pub use judge::{SEES_DOUBLE, SEES_DOUBLE_WITH_PLACEMENT, judge};
pub(crate) use judge::{doubt, doubt_networks};
pub(crate) use quiet::quiet;

/// A node that a placement left on the CPU.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuNode {
    /// Op type as ONNX names it.
    pub op_type: String,
    /// The contract's reason code.
    pub reason: String,
    /// Share of the model's MACs, in [0, 1].
    pub macs_share: Option<f64>,
}

/// Nodes on the CPU that are not benign, by (fingerprint algorithm, normalised fingerprint).
pub type CpuNodes = HashMap<(u32, u64), Vec<CpuNode>>;

#[cfg(test)]
mod tests;
