//! The class and the severity of a verdict.

use crate::named;

/// Share of the work on the NPU below which a placement is on the CPU as a whole.
pub const TOTAL_FALLBACK_BELOW: f64 = 0.05;

named! {
    /// The kind of fault in a cohort, or the reason why none can be named.
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
        /// The model's quantisation makes its outputs wrong, on every chipset alike.
        QuantisationLoss = "quantisation_loss",
        /// The NPU's back end could not be set up.
        NpuStartFailure = "npu_start_failure",
        /// The compiled model was made for other devices, which load it nevertheless.
        CompiledForAnother = "compiled_for_another",
        /// Devices are slower, and no placement explains it.
        SlowWithoutPlacement = "slow_without_placement",
        /// Latency varies more than before.
        CvSpike = "cv_spike",
        /// The devices are slower with every model.
        ThermalOrLoad = "thermal_or_load",
        /// The reports can no longer be compared with earlier ones.
        DataQuality = "data_quality",
        /// Too few devices or references to judge.
        NotEnoughData = "not_enough_data",
        /// The cohort was compared, and nothing was found.
        Healthy = "healthy",
    }
}

impl VerdictClass {
    /// Whether the verdict says that devices are slower in all of their runs.
    #[must_use]
    pub fn is_slower(self) -> bool {
        matches!(
            self,
            Self::TotalFallback
                | Self::PartialFallback
                | Self::SomeDevicesFallback
                | Self::SlowWithoutPlacement
        )
    }

    /// Whether the verdict is about the NPU's outputs, not its speed.
    #[must_use]
    pub fn is_of_outputs(self) -> bool {
        matches!(self, Self::WrongOutputs | Self::QuantisationLoss)
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
            Self::QuantisationLoss => "outputs lost by the quantisation",
            Self::NpuStartFailure => "the NPU does not start",
            Self::CompiledForAnother => "compiled model of other devices",
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
        /// Only shown on a dashboard.
        Info = "info",
        /// A person must look at it in working hours.
        Ticket = "ticket",
        /// A person must look at it now.
        Page = "page",
    }
}
