//! What is the matter with a cohort, and how much that asks of people.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Share of the eligible devices below which a fallback is one of some devices.
pub(crate) const MOST_DEVICES: f64 = 0.8;

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
    /// Every class, for metrics that begin at zero.
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
    /// Asks nothing of people.
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
