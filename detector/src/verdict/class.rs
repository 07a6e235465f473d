//! The class and the severity of a verdict.

use crate::names::named;
use crate::signals::{PlacementChange, TOTAL_FALLBACK_BELOW};

/// Share of the eligible devices below which a fallback is [`VerdictClass::SomeDevicesFallback`].
pub(crate) const MOST_DEVICES: f64 = 0.8;

named! {
    /// The kind of fault in a cohort, or why none can be named.
    pub enum VerdictClass {
        /// Most devices run (nearly) all of the model on the CPU.
        TotalFallback = "total_fallback",
        /// Most devices run a part of the model on the CPU that belongs on the NPU.
        PartialFallback = "partial_fallback",
        /// Some devices run more of the model on the CPU.
        SomeDevicesFallback = "some_devices_fallback",
        /// Devices are slow in some of their runs or sessions.
        IntermittentFallback = "intermittent_fallback",
        /// The NPU computes wrong results.
        WrongOutputs = "wrong_outputs",
        /// The NPU's back end could not be set up.
        NpuStartFailure = "npu_start_failure",
        /// Slower without a placement that explains it.
        SlowWithoutPlacement = "slow_without_placement",
        /// Latency varies more than before.
        CvSpike = "cv_spike",
        /// The devices are slower with every model.
        ThermalOrLoad = "thermal_or_load",
        /// The reports cannot be compared as before.
        DataQuality = "data_quality",
        /// Too few devices or references to judge.
        NotEnoughData = "not_enough_data",
        /// Compared without a finding.
        Healthy = "healthy",
    }
}

impl VerdictClass {
    /// Returns the class of a placement that got worse.
    pub(super) fn of_placement(change: &PlacementChange) -> Self {
        if change.backend_code().is_some() {
            Self::NpuStartFailure
        } else if change.alternates() {
            Self::IntermittentFallback
        } else if change.share_hit() < MOST_DEVICES {
            Self::SomeDevicesFallback
        } else if change
            .hit_npu_share
            .is_some_and(|share| share < TOTAL_FALLBACK_BELOW)
        {
            Self::TotalFallback
        } else {
            Self::PartialFallback
        }
    }

    /// Whether slower devices, all of their runs, are a part of the verdict.
    pub(crate) fn is_slower(self) -> bool {
        matches!(
            self,
            Self::TotalFallback
                | Self::PartialFallback
                | Self::SomeDevicesFallback
                | Self::SlowWithoutPlacement
        )
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

named! {
    /// How soon a person must look at a verdict.
    pub enum Severity {
        /// Needs no attention.
        None = "none",
        /// To be seen on a dashboard.
        Info = "info",
        /// To be looked at in working hours.
        Ticket = "ticket",
        /// To be looked at now.
        Page = "page",
    }
}
