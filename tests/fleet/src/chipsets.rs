//! What a workload costs on a chipset's NPU, and what it costs to leave the NPU.
//!
//! Measured numbers are from Qualcomm AI Hub Models v0.46.1 (BSD-3-Clause), the `perf.yaml` files
//! of its repository at commit 52c080d2 as one table of 4,557 rows; "line" is the line in that
//! table. They are minimum inference times of the `qnn_dlc` runtime with no layer on the CPU.

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

/// What the simulated model resembles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// YOLOv8-Detection, w8a16: a small detector, 1-5 ms.
    SmallDetector,
    /// FFNet-78S, w8a8: a segmentation CNN, 6-24 ms.
    Segmentation,
    /// ConvNeXt-Base, w8a16: a classifier with transformer-like blocks, 3-9 ms.
    Classifier,
    /// Bert-Base-Uncased, w8a16: a text transformer, 5-25 ms.
    TextTransformer,
}

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

    /// The normalised name, for example `SM8650`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm8450 => "SM8450",
            Self::Sm8550 => "SM8550",
            Self::Sm8635 => "SM8635",
            Self::Sm8650 => "SM8650",
            Self::Sm8750 => "SM8750",
            Self::Sm8850 => "SM8850",
            Self::Sm7550 => "SM7550",
            Self::Sm7750 => "SM7750",
        }
    }

    /// The chipset of that normalised name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|chipset| chipset.name() == name)
    }

    /// Phones that carry it, as `ro.product.model` says them: invented, two per chipset, so that
    /// device models are an axis without naming real ones.
    #[must_use]
    pub fn device_models(self) -> [&'static str; 2] {
        match self {
            Self::Sm8450 => ["Sim-P450", "Sim-Q450"],
            Self::Sm8550 => ["Sim-P550", "Sim-Q550"],
            Self::Sm8635 => ["Sim-P635", "Sim-Q635"],
            Self::Sm8650 => ["Sim-P650", "Sim-Q650"],
            Self::Sm8750 => ["Sim-P750", "Sim-Q750"],
            Self::Sm8850 => ["Sim-P850", "Sim-Q850"],
            Self::Sm7550 => ["Sim-P755", "Sim-Q755"],
            Self::Sm7750 => ["Sim-P775", "Sim-Q775"],
        }
    }

    /// NPU latency of one run, microseconds, before anything that makes a run slower.
    #[must_use]
    pub fn npu_latency_us(self, workload: Workload) -> f64 {
        let measured = measured_ms(self, workload);
        let reference =
            || measured_ms(Self::Sm8650, workload).expect("every workload was measured on SM8650");
        measured.unwrap_or_else(|| reference() * self.relative_cost()) * 1000.0
    }

    /// Cost of a run next to the same run on SM8650, for cells that nobody measured: the geometric
    /// mean over the 114 (SM8450: 107, SM7750: 32) models of at least 1 ms measured on both.
    fn relative_cost(self) -> f64 {
        match self {
            Self::Sm8450 => 2.337,
            Self::Sm8550 => 1.398,
            Self::Sm8650 => 1.0,
            Self::Sm8750 => 0.772,
            Self::Sm8850 => 0.633,
            Self::Sm7750 => 1.876,
            // Not in the table. Assumed, not measured: the HTP generation of SM8550 a fifth
            // slower, and 1.65 times SM7750's cost.
            Self::Sm8635 => 1.68,
            Self::Sm7550 => 3.1,
        }
    }

    /// How many times slower a run is with the whole model on the CPU.
    ///
    /// Medians over the table's rows where the same model ran wholly on the CPU and wholly on the
    /// NPU of one device: 12.4 over all chipsets (5 % to 95 %: 2.7 to 53); 41 models on SM7750
    /// gave 21.35.
    #[must_use]
    pub fn total_fallback_factor(self) -> f64 {
        match self {
            Self::Sm7750 => 21.35,
            _ => 12.4,
        }
    }
}

/// Minimum inference time in milliseconds, where it was measured.
fn measured_ms(chipset: Chipset, workload: Workload) -> Option<f64> {
    use Chipset::{Sm7750, Sm8450, Sm8550, Sm8650, Sm8750, Sm8850};
    let ms = match (workload, chipset) {
        (Workload::SmallDetector, Sm8450) => 4.012, // line 4370
        (Workload::SmallDetector, Sm8550) => 3.340, // line 4372
        (Workload::SmallDetector, Sm8650) => 2.246, // line 4377
        (Workload::SmallDetector, Sm8750) => 1.538, // line 4379
        (Workload::SmallDetector, Sm7750) => 4.664, // line 4381
        (Workload::SmallDetector, Sm8850) => 1.254, // line 4383
        (Workload::Segmentation, Sm8450) => 23.855, // line 1640
        (Workload::Segmentation, Sm8550) => 16.762, // line 1643
        (Workload::Segmentation, Sm8650) => 11.715, // line 1652
        (Workload::Segmentation, Sm8750) => 8.024,  // line 1655
        (Workload::Segmentation, Sm7750) => 22.550, // line 1658
        (Workload::Segmentation, Sm8850) => 5.878,  // line 1661
        (Workload::Classifier, Sm8450) => 9.182,    // line 358
        (Workload::Classifier, Sm8550) => 5.888,    // line 359
        (Workload::Classifier, Sm8650) => 4.106,    // line 360
        (Workload::Classifier, Sm8750) => 3.310,    // line 362
        (Workload::Classifier, Sm7750) => 7.715,    // line 364
        (Workload::Classifier, Sm8850) => 2.559,    // line 366
        (Workload::TextTransformer, Sm8550) => 13.257, // line 96
        (Workload::TextTransformer, Sm8650) => 9.000, // line 100
        (Workload::TextTransformer, Sm8750) => 7.279, // line 102
        (Workload::TextTransformer, Sm8850) => 5.191, // line 105
        _ => return None,
    };
    Some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chipset_has_a_latency_for_every_workload() {
        let workloads = [
            Workload::SmallDetector,
            Workload::Segmentation,
            Workload::Classifier,
            Workload::TextTransformer,
        ];
        for workload in workloads {
            for chipset in Chipset::ALL {
                let us = chipset.npu_latency_us(workload);
                assert!(
                    (1_000.0..80_000.0).contains(&us),
                    "{chipset:?} {workload:?}: {us} us"
                );
            }
        }
    }

    #[test]
    fn measured_numbers_win_over_relative_cost() {
        assert_eq!(
            Chipset::Sm8550.npu_latency_us(Workload::TextTransformer),
            13_257.0
        );
        let derived = Chipset::Sm8635.npu_latency_us(Workload::TextTransformer);
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
