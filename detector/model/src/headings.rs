//! Verdicts and signals in the words of epwatch's page and of Grafana's dashboards.

use crate::class::VerdictClass;
use crate::signal::SignalId;

impl VerdictClass {
    /// Returns the class as a heading or a label.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Self::TotalFallback => "Total CPU fallback",
            Self::PartialFallback => "Partial CPU fallback",
            Self::SomeDevicesFallback => "CPU fallback on some devices",
            Self::IntermittentFallback => "Intermittent CPU fallback",
            Self::WrongOutputs => "Wrong outputs",
            Self::QuantisationLoss => "Outputs lost by the quantisation",
            Self::NpuStartFailure => "The NPU does not start",
            Self::CompiledForAnother => "Compiled model of other devices",
            Self::SlowWithoutPlacement => "Slower, cause unknown",
            Self::CvSpike => "Latency varies more",
            Self::ThermalOrLoad => "Devices hot or busy",
            Self::DataQuality => "Counted differently",
            Self::NotEnoughData => "Not enough data",
            Self::Healthy => "Healthy",
        }
    }
}

impl SignalId {
    /// Returns the question that the signal answers; `None` for counts that are kept as history.
    #[must_use]
    pub const fn question(self) -> Option<&'static str> {
        Some(match self {
            Self::SlowerAndMoved => "Placement got worse and the device is slower",
            Self::Placement => "More of the model on the CPU than before",
            Self::Certificate => "More of the model on the CPU than certified",
            Self::Median => "Median device against its own past",
            Self::Shift => "Devices slower than their own past",
            Self::ShiftOfModel => "Devices slower than others of their make were",
            Self::Tail => "Devices with many runs far beyond their own p95",
            Self::NearTail => "Devices with slow runs that are a group of their own",
            Self::Moved => "Median moved while the fastest runs did not",
            Self::Start => "The NPU does not start",
            Self::Outputs => "Outputs differ from the CPU's",
            Self::OutputHash => "Outputs differ between devices",
            Self::OutputDrop => "Outputs off by more than rounding",
            Self::CvIncrease => "Spread within a device grew",
            Self::ShiftBeyond(_) | Self::TailBeyond(_) | Self::NearTailBeyond(_) => return None,
        })
    }
}
