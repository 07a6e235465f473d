//! Placements from the store's counts of nodes, and how two placements compare.

use epwatch_model::{Placement, PlacementMethod, WorkUnit};

/// Minimum share of a model's MACs that must be attributed to nodes before MAC shares are used.
const MIN_MACS_ATTRIBUTED: f64 = 0.95;

/// Nodes and MACs of a session's placement, as the store keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct NodeCounts {
    pub(crate) n_nodes: u32,
    pub(crate) npu_nodes: u32,
    pub(crate) cpu_nodes: u32,
    pub(crate) cpu_benign_nodes: u32,
    pub(crate) npu_macs_share: Option<f32>,
    pub(crate) macs_attributed: Option<f32>,
}

impl NodeCounts {
    /// Counts the nodes that are off the accelerator and should be on it. They include nodes that TensorRT leaves to
    /// CUDA.
    fn elsewhere(self) -> u32 {
        let on_others = self.n_nodes.saturating_sub(self.npu_nodes);
        let all = on_others.max(self.cpu_nodes);
        all.saturating_sub(self.cpu_benign_nodes)
    }

    /// Returns a placement without reasons; `fingerprint` is the normalised one.
    pub(crate) fn placement(
        self,
        method: PlacementMethod,
        fingerprint: u64,
        runtime: String,
    ) -> Placement {
        Placement {
            method,
            fingerprint,
            runtime,
            n_nodes: self.n_nodes,
            npu_nodes: self.npu_nodes,
            cpu_nodes: self.elsewhere(),
            npu_macs_share: usable_macs_share(self.npu_macs_share, self.macs_attributed),
            reasons: Vec::new(),
        }
    }
}

/// Returns a MAC share if enough of the model's MACs were attributed to nodes.
fn usable_macs_share(share: Option<f32>, attributed: Option<f32>) -> Option<f64> {
    let attributed = f64::from(attributed?);
    // 0.95 as an `f32` is slightly less than 0.95.
    (attributed >= MIN_MACS_ATTRIBUTED - 1e-6).then_some(f64::from(share?))
}

/// Returns the largest rise of a share that counting noise explains: 2 points of MACs or 3 of nodes.
pub(crate) fn noise(unit: WorkUnit) -> f64 {
    match unit {
        WorkUnit::Macs => 0.02,
        WorkUnit::Nodes => 0.03,
    }
}

/// The share of work that moved to the CPU between two placements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rise {
    /// Share on the CPU now minus share before, in [-1, 1].
    pub(crate) by: f64,
    /// The unit that both placements have.
    pub(crate) unit: WorkUnit,
}

impl Rise {
    /// Whether the rise is above the noise of counting.
    #[must_use]
    pub(crate) fn is_worse(&self) -> bool {
        self.by > noise(self.unit)
    }
}

/// Returns the rise of the CPU's share of the work over `reference`; `None` if the two are not comparable.
#[must_use]
pub(crate) fn rise_over(now: &Placement, reference: &Placement) -> Option<Rise> {
    if now.method != reference.method || !now.method.is_readable() {
        return None;
    }
    let same = now.fingerprint != 0 && now.fingerprint == reference.fingerprint;
    let macs = now.npu_macs_share.zip(reference.npu_macs_share);
    let by = match macs {
        _ if same => 0.0,
        Some((now, before)) => before - now,
        None => cpu_node_share(now)? - cpu_node_share(reference)?,
    };
    let unit = if macs.is_some() {
        WorkUnit::Macs
    } else {
        WorkUnit::Nodes
    };
    Some(Rise { by, unit })
}

fn cpu_node_share(of: &Placement) -> Option<f64> {
    (of.method.counts_nodes() && of.n_nodes > 0)
        .then(|| f64::from(of.cpu_nodes) / f64::from(of.n_nodes))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A placement read by the assignment API: nodes on the NPU and on the CPU, benign ones aside.
    pub(crate) fn placed(fingerprint: u64, npu: u32, cpu: u32, macs: Option<f64>) -> Placement {
        Placement {
            method: PlacementMethod {
                graph_kind: "jit".into(),
                source: "assignment_api".into(),
                fingerprint_algorithm: 1,
            },
            fingerprint,
            runtime: "1.31.1/2.7.0".into(),
            n_nodes: npu + cpu,
            npu_nodes: npu,
            cpu_nodes: cpu,
            npu_macs_share: macs,
            reasons: Vec::new(),
        }
    }

    #[track_caller]
    fn check(now: &Placement, before: &Placement, worse: Option<bool>) {
        assert_eq!(rise_over(now, before).map(|rise| rise.is_worse()), worse);
    }

    #[test]
    fn work_that_moved_to_the_cpu_is_worse() {
        check(&placed(2, 25, 5, None), &placed(1, 42, 0, None), Some(true));
        check(
            &placed(2, 40, 0, Some(0.97)),
            &placed(1, 40, 0, Some(1.0)),
            Some(true),
        );
    }

    #[test]
    fn two_points_of_macs_and_three_of_nodes_are_counting() {
        check(
            &placed(2, 30, 10, Some(0.985)),
            &placed(1, 40, 0, Some(1.0)),
            Some(false),
        );
        check(
            &placed(2, 98, 2, None),
            &placed(1, 100, 0, None),
            Some(false),
        );
        check(
            &placed(2, 96, 4, None),
            &placed(1, 100, 0, None),
            Some(true),
        );
    }

    /// A runtime that renames nodes keeps the normalised fingerprint, whatever it counts.
    #[test]
    fn equal_fingerprints_mean_no_change() {
        check(
            &placed(7, 20, 9, None),
            &placed(7, 42, 0, None),
            Some(false),
        );
        check(
            &placed(7, 20, 9, Some(0.5)),
            &placed(7, 42, 0, Some(1.0)),
            Some(false),
        );
    }

    #[test]
    fn other_methods_and_precompiled_node_counts_do_not_compare() {
        let before = placed(1, 42, 0, None);
        let mut log = placed(2, 20, 20, None);
        log.method.source = "log".into();
        check(&log, &before, None);
        let mut newer = placed(2, 20, 20, None);
        newer.method.fingerprint_algorithm = 2;
        check(&newer, &before, None);
        let precompiled = |fingerprint, npu, cpu| {
            let mut placement = placed(fingerprint, npu, cpu, None);
            placement.method.graph_kind = "epcontext".into();
            placement
        };
        check(&precompiled(2, 1, 1), &precompiled(1, 1, 0), None);
        assert_eq!(precompiled(2, 1, 1).npu_share(), None);
        let mut blind = placed(0, 0, 0, None);
        blind.method.source = "unavailable".into();
        check(&blind, &blind.clone(), None);
    }

    #[test]
    fn mac_shares_need_95_percent_attributed() {
        assert_eq!(usable_macs_share(Some(0.5), Some(0.95)), Some(0.5));
        assert_eq!(usable_macs_share(Some(0.5), Some(0.94)), None);
        assert_eq!(usable_macs_share(Some(0.5), None), None);
    }
}
