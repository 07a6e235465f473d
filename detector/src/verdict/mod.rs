//! The answer about one cohort window: a class, a severity, and the numbers behind them.

mod class;
pub(crate) mod completeness;
mod finding;
mod firmware;
mod judge;
mod numbers;
mod secondary;

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::baseline::PlacementReference;
use crate::cohort::CohortKey;
use crate::describe::WindowStatistics;
use crate::reason::Reason;
use crate::signals::Signal;

pub(crate) use class::MOST_DEVICES;
pub use class::{Severity, VerdictClass};
pub(crate) use judge::doubt;
pub use judge::judge;

/// A cohort window, judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CohortVerdict {
    /// The cohort that was judged.
    pub key: CohortKey,
    /// Where the window ends.
    pub window_end: Timestamp,
    /// How long it is.
    pub window: Duration,
    /// What is the matter.
    pub class: VerdictClass,
    /// How much that asks of people.
    pub severity: Severity,
    /// Why, strongest first.
    pub reasons: Vec<Reason>,
    /// Sizes and effects.
    pub numbers: VerdictNumbers,
    /// CV and humps.
    pub statistics: WindowStatistics,
    /// Op types on the CPU of the devices hit, the costliest first.
    pub cpu_ops: Vec<String>,
    /// Share of the model's MACs that those devices run on the CPU, in [0, 1].
    pub cpu_macs_share: Option<f64>,
    /// What a person can do first.
    pub next_step: String,
    /// All signals that could be asked.
    pub signals: Vec<Signal>,
    /// Counts for the history of later versions, beside the signals.
    pub tallies: Vec<Signal>,
    /// Devices that a directive took off the NPU: they have no vote.
    pub devices_directed: u64,
    /// The version before this one, if it is known.
    pub follows: Option<String>,
    /// What its placements were compared with, where something was found: an incident holds it still.
    pub references: Vec<PlacementReference>,
    /// CV rules that fired, by name.
    pub cv_rules: Vec<String>,
    /// The chance of the deciding count in a healthy cohort; 1 if nothing was found.
    pub p: f64,
}

/// Sizes and effects of a verdict.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VerdictNumbers {
    /// Devices that vote.
    pub devices_seen: u64,
    /// Those that could be compared by the deciding signal.
    pub devices_eligible: u64,
    /// Those that the deciding signal counts as hit.
    pub devices_hit: u64,
    /// Clean runs of all voting devices.
    pub runs: u64,
    /// p50 of the devices hit over what they are compared with; without a finding, over their own
    /// earlier p50.
    pub latency_ratio: Option<f64>,
    /// Median p50 of the devices hit, in microseconds.
    pub hit_p50_us: Option<f64>,
    /// Median p50 of what they are compared with, in microseconds.
    pub reference_p50_us: Option<f64>,
    /// Share of the work on the NPU on the devices hit, in [0, 1].
    pub npu_share: Option<f64>,
    /// The same in the reference.
    pub reference_npu_share: Option<f64>,
}

/// A node that a placement left on the CPU.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuNode {
    /// Op type as ONNX names it.
    pub op_type: String,
    /// Why, in the contract's words.
    pub reason: String,
    /// Share of the model's MACs, in [0, 1].
    pub macs_share: Option<f64>,
}

/// Nodes on the CPU that should not be there, by (fingerprint algorithm, normalised fingerprint).
pub type CpuNodes = HashMap<(u32, u64), Vec<CpuNode>>;

#[cfg(test)]
mod tests;
