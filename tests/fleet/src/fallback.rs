//! The slow-down of a run by the nodes that left the NPU. It follows from the placement alone.
//!
//! Amdahl's law over the model's multiply-accumulates (MACs). `s` is the share of them on the CPU. `R` is the chipset's
//! cost of the whole model on the CPU in units of the NPU's. `c` is the cost of one more hand-over of tensors:
//!
//! `slow_factor = (1 - s) + s * R + c * (extra NPU partitions + [some computing node is on the CPU])`
//!
//! With `R` = 12.4 (median total fallback in the field) a quarter of the MACs gives 3.9, and 18 % gives 3.1. The
//! field's median partial fallback is 3.4. The field's values scatter far around such a curve (5 % to 95 %: 0.3 to 77).
//! No formula over `s` can explain this (Spearman 0.42). This formula gives their middle.

use crate::chipsets::Chipset;

/// Cost of one more hand-over between NPU and CPU, as a share of the run on the NPU. Assumed: no
/// public measurement separates it.
const CROSSING: f64 = 0.03;

/// The part of a graph that does not run on the NPU, without benign nodes (edge QuantizeLinear and DequantizeLinear).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CpuWork {
    /// Share of the model's MACs on the CPU, 0 to 1; `None` without a manifest.
    pub(crate) macs_share: Option<f64>,
    /// Share of the computing nodes on the CPU, 0 to 1, used if the MACs are not known.
    pub(crate) node_share: f64,
    /// Partitions on the NPU.
    pub(crate) n_npu_partitions: u32,
}

impl CpuWork {
    /// Everything on the NPU.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self {
        macs_share: Some(0.0),
        node_share: 0.0,
        n_npu_partitions: 1,
    };

    fn share(self) -> f64 {
        self.macs_share.unwrap_or(self.node_share).clamp(0.0, 1.0)
    }
}

/// Returns how many times longer a run takes than with every computing node on the NPU.
pub(crate) fn slow_factor(work: CpuWork, chipset: Chipset) -> f64 {
    let share = work.share();
    let total = chipset.total_fallback_factor();
    if work.n_npu_partitions == 0 {
        return total;
    }
    let crossings =
        f64::from(work.n_npu_partitions - 1) + f64::from(u8::from(work.node_share > 0.0));
    (1.0 - share) + share * total + CROSSING * crossings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factor(macs_share: f64) -> f64 {
        let work = CpuWork {
            macs_share: Some(macs_share),
            node_share: macs_share,
            n_npu_partitions: 1,
        };
        slow_factor(work, Chipset::Sm8650)
    }

    #[test]
    fn nothing_on_the_cpu_costs_nothing() {
        assert_eq!(slow_factor(CpuWork::NONE, Chipset::Sm8635), 1.0);
    }

    #[test]
    fn more_macs_on_the_cpu_cost_more() {
        let factors: Vec<f64> = (1..=10)
            .map(|tenth| factor(f64::from(tenth) / 10.0))
            .collect();
        assert!(
            factors.windows(2).all(|pair| pair[0] < pair[1]),
            "{factors:?}"
        );
    }

    #[test]
    fn a_quarter_costs_about_the_fields_median_partial_fallback() {
        assert!((3.0..4.5).contains(&factor(0.26)), "{}", factor(0.26));
        assert!((2.8..3.4).contains(&factor(0.18)), "{}", factor(0.18));
    }

    #[test]
    fn no_npu_partition_is_a_total_fallback_whatever_the_manifest_says() {
        let work = CpuWork {
            macs_share: None,
            node_share: 1.0,
            n_npu_partitions: 0,
        };
        assert_eq!(slow_factor(work, Chipset::Sm8650), 12.4);
        assert_eq!(slow_factor(work, Chipset::Sm7750), 21.35);
    }

    #[test]
    fn nodes_stand_in_where_macs_are_unknown() {
        let work = CpuWork {
            macs_share: None,
            node_share: 0.5,
            n_npu_partitions: 1,
        };
        assert!((slow_factor(work, Chipset::Sm8650) - factor(0.5)).abs() < 1e-9);
    }
}
