//! Chipsets: the latency of a text transformer on their NPU, and the cost of leaving it.
//!
//! The model resembles Bert-Base-Uncased, w8a16. Measured numbers are from Qualcomm AI Hub Models v0.46.1
//! (BSD-3-Clause), the `perf.yaml` files of its repository at commit 52c080d2. They make one table of 4,557 rows;
//! "line" is the line in that table. The numbers are minimum inference times of the `qnn_dlc` runtime with no layer on
//! the CPU.

/// A chipset that simulated devices can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Chipset {
    /// Snapdragon 8 Gen 1.
    Sm8450,
    /// Snapdragon 8 Gen 2.
    Sm8550,
    /// Snapdragon 8s Gen 3: no FP16 on its HTP.
    Sm8635,
    /// Snapdragon 8 Gen 3.
    Sm8650,
    /// Snapdragon 8 Elite.
    Sm8750,
    /// Snapdragon 8 Elite Gen 5.
    Sm8850,
    /// Snapdragon 7 Gen 3: no FP16 on its HTP.
    Sm7550,
    /// Snapdragon 7 Gen 4: no FP16 on its HTP.
    Sm7750,
}

/// One chipset's figures.
struct Row {
    name: &'static str,
    device_models: [&'static str; 2],
    /// The measured latency of a run, if the chipset is in the table.
    measured_ms: Option<f64>,
    /// Cost of a run relative to SM8650, used without a measurement. It is the geometric mean over the 114 (SM8450:
    /// 107, SM7750: 32) models of at least 1 ms measured on both.
    relative_cost: f64,
}

const SM8650_MS: f64 = 9.000; // line 100

impl Chipset {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Sm8450,
        Self::Sm8550,
        Self::Sm8635,
        Self::Sm8650,
        Self::Sm8750,
        Self::Sm8850,
        Self::Sm7550,
        Self::Sm7750,
    ];

    fn row(self) -> Row {
        let row = |name, device_models, measured_ms, relative_cost| Row {
            name,
            device_models,
            measured_ms,
            relative_cost,
        };
        match self {
            Self::Sm8450 => row("SM8450", ["Sim-P450", "Sim-Q450"], None, 2.337),
            Self::Sm8550 => row("SM8550", ["Sim-P550", "Sim-Q550"], Some(13.257), 1.398), // line 96
            Self::Sm8650 => row("SM8650", ["Sim-P650", "Sim-Q650"], Some(SM8650_MS), 1.0),
            Self::Sm8750 => row("SM8750", ["Sim-P750", "Sim-Q750"], Some(7.279), 0.772), // line 102
            Self::Sm8850 => row("SM8850", ["Sim-P850", "Sim-Q850"], Some(5.191), 0.633), // line 105
            Self::Sm7750 => row("SM7750", ["Sim-P775", "Sim-Q775"], None, 1.876),
            // SM8635 is not in the table. This value is assumed: a fifth slower than SM8550's HTP generation, and 1.65
            // times SM7750's cost.
            Self::Sm8635 => row("SM8635", ["Sim-P635", "Sim-Q635"], None, 1.68),
            Self::Sm7550 => row("SM7550", ["Sim-P755", "Sim-Q755"], None, 3.1),
        }
    }

    /// The normalised name, for example `SM8650`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the chipset with this normalised name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|chipset| chipset.name() == name)
    }

    /// Returns phones with the chipset, by their `ro.product.model`. They are invented, two for each chipset, so that
    /// device models vary without naming real ones.
    pub(crate) fn device_models(self) -> [&'static str; 2] {
        self.row().device_models
    }

    /// Returns the NPU latency of one run in microseconds, before any slow-down.
    pub(crate) fn npu_latency_us(self) -> f64 {
        let row = self.row();
        let derived = SM8650_MS * row.relative_cost;
        row.measured_ms.unwrap_or(derived) * 1000.0
    }

    /// How many times slower a run is with the whole model on the CPU.
    ///
    /// The factors are medians over models that ran wholly on the CPU and wholly on the NPU of one device. The median
    /// is 12.4 over all chipsets (5 % to 95 %: 2.7 to 53); 41 models on SM7750 gave 21.35.
    pub(crate) fn total_fallback_factor(self) -> f64 {
        match self {
            Self::Sm7750 => 21.35,
            _ => 12.4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chipset_has_a_latency() {
        for chipset in Chipset::ALL {
            let us = chipset.npu_latency_us();
            assert!((1_000.0..80_000.0).contains(&us), "{chipset:?}: {us} us");
        }
    }

    #[test]
    fn measured_numbers_win_over_relative_cost() {
        assert_eq!(Chipset::Sm8550.npu_latency_us(), 13_257.0);
        let derived = Chipset::Sm8635.npu_latency_us();
        assert!((derived - 9_000.0 * 1.68).abs() < 1e-6);
    }

    #[test]
    fn names_lead_back() {
        for chipset in Chipset::ALL {
            assert_eq!(Chipset::from_name(chipset.name()), Some(chipset));
        }
        assert_eq!(Chipset::from_name("SM9999"), None);
    }
}
