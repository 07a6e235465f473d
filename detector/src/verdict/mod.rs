//! The answer about one cohort window: a class, a severity, and the numbers behind them.

pub(crate) mod completeness;
mod firmware;
mod judge;
mod numbers;
mod secondary;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::baseline::PlacementReference;
use crate::cohort::CohortKey;
use crate::describe::WindowStatistics;
use crate::reason::Reason;
use crate::signals::Signal;

pub use judge::judge;
pub(crate) use judge::{MOST_DEVICES, backend_code, doubt, many_are_new};

/// What is the matter with a cohort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictClass {
    /// Most devices run (nearly) all of the model on the CPU.
    TotalFallback,
    /// Most devices run a part of the model on the CPU that they should not.
    PartialFallback,
    /// Some devices run more of the model on the CPU.
    SomeDevicesFallback,
    /// Devices are slow in some of their runs or sessions.
    IntermittentFallback,
    /// The NPU computes something else than it should.
    WrongOutputs,
    /// The NPU's back end could not be set up.
    NpuStartFailure,
    /// Slower, and placements do not say why.
    SlowWithoutPlacement,
    /// Latency varies more than it used to.
    CvSpike,
    /// The devices are slower, whatever they run.
    ThermalOrLoad,
    /// What arrives cannot be compared as before.
    DataQuality,
    /// There is too little to say anything.
    NotEnoughData,
    /// Compared, and nothing found.
    Healthy,
}

impl VerdictClass {
    /// Every class.
    pub const ALL: [VerdictClass; 12] = [
        Self::TotalFallback,
        Self::PartialFallback,
        Self::SomeDevicesFallback,
        Self::IntermittentFallback,
        Self::WrongOutputs,
        Self::NpuStartFailure,
        Self::SlowWithoutPlacement,
        Self::CvSpike,
        Self::ThermalOrLoad,
        Self::DataQuality,
        Self::NotEnoughData,
        Self::Healthy,
    ];

    /// Returns the name used in the store, in JSON and in labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TotalFallback => "total_fallback",
            Self::PartialFallback => "partial_fallback",
            Self::SomeDevicesFallback => "some_devices_fallback",
            Self::IntermittentFallback => "intermittent_fallback",
            Self::WrongOutputs => "wrong_outputs",
            Self::NpuStartFailure => "npu_start_failure",
            Self::SlowWithoutPlacement => "slow_without_placement",
            Self::CvSpike => "cv_spike",
            Self::ThermalOrLoad => "thermal_or_load",
            Self::DataQuality => "data_quality",
            Self::NotEnoughData => "not_enough_data",
            Self::Healthy => "healthy",
        }
    }

    /// Returns the class as a title for people.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::TotalFallback => "total CPU fallback",
            Self::PartialFallback => "partial CPU fallback",
            Self::SomeDevicesFallback => "CPU fallback on some devices",
            Self::IntermittentFallback => "intermittent CPU fallback",
            Self::WrongOutputs => "wrong outputs",
            Self::NpuStartFailure => "the NPU does not start",
            Self::SlowWithoutPlacement => "slower, placements do not say why",
            Self::CvSpike => "latency varies more than before",
            Self::ThermalOrLoad => "devices hot or busy",
            Self::DataQuality => "placements are counted differently",
            Self::NotEnoughData => "not enough data",
            Self::Healthy => "healthy",
        }
    }
}

impl fmt::Display for VerdictClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How much a verdict asks of people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing.
    None,
    /// To be seen on a dashboard.
    Info,
    /// To be looked at in working hours.
    Ticket,
    /// To be looked at now.
    Page,
}

impl Severity {
    /// Returns the name used in the store, in JSON and in labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Info => "info",
            Self::Ticket => "ticket",
            Self::Page => "page",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A cohort window, judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CohortVerdict {
    /// Who.
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
    pub numbers: Numbers,
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
pub struct Numbers {
    /// Devices that vote.
    pub devices_seen: u64,
    /// Those that could be compared by the deciding signal.
    pub devices_eligible: u64,
    /// Those hit.
    pub devices_hit: u64,
    /// Clean runs.
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
