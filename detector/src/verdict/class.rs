//! The class and the severity of a verdict.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Share of the eligible devices below which a fallback is [`VerdictClass::SomeDevicesFallback`].
pub(crate) const MOST_DEVICES: f64 = 0.8;

/// The kind of fault in a cohort, or why none can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictClass {
    /// Most devices run (nearly) all of the model on the CPU.
    TotalFallback,
    /// Most devices run a part of the model on the CPU that belongs on the NPU.
    PartialFallback,
    /// Some devices run more of the model on the CPU.
    SomeDevicesFallback,
    /// Devices are slow in some of their runs or sessions.
    IntermittentFallback,
    /// The NPU computes wrong results.
    WrongOutputs,
    /// The NPU's back end could not be set up.
    NpuStartFailure,
    /// Slower without a placement that explains it.
    SlowWithoutPlacement,
    /// Latency varies more than before.
    CvSpike,
    /// The devices are slower with every model.
    ThermalOrLoad,
    /// The reports cannot be compared as before.
    DataQuality,
    /// Too few devices or references to judge.
    NotEnoughData,
    /// Compared without a finding.
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

/// How soon a person must look at a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Needs nobody's attention.
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
