//! The placement of each model version on each chipset: recorded from the real runtimes, or set by the real sessions of
//! a demo.
//!
//! The recorded placements are `tests/fixtures/placements` (onnxruntime 1.31.1 with onnxruntime-qnn 2.7.0), weighted
//! with the MACs side-cars of their models. They go through the SDK's own code for live sessions.

use std::collections::HashMap;

use epwatch_proto::{ModelHash, ModelManifest, Placement, SideCar};

use crate::assignment::Recorded;
use crate::chipsets::Chipset;
use crate::fallback::CpuWork;
use crate::scenario::{Placed, ScenarioError};

/// A recorded model: its side-car, and the placement on each chipset.
#[derive(Debug, Clone, Copy)]
pub struct RecordedModel {
    manifest: &'static str,
    placements: [(Chipset, &'static str); 5],
}

macro_rules! recorded {
    ($model:literal, $version:literal) => {
        RecordedModel {
            manifest: include_str!(concat!("../../fixtures/models/", $model, ".macs.json")),
            placements: [
                (Chipset::Sm8550, recorded!(@ $version, "SM8550")),
                (Chipset::Sm8635, recorded!(@ $version, "SM8635")),
                (Chipset::Sm8650, recorded!(@ $version, "SM8650")),
                (Chipset::Sm8750, recorded!(@ $version, "SM8750")),
                (Chipset::Sm7550, recorded!(@ $version, "SM7550")),
            ],
        }
    };
    (@ $version:literal, $chipset:literal) => {
        include_str!(concat!("../../fixtures/placements/", $version, ".", $chipset, ".json"))
    };
}

impl RecordedModel {
    /// `mixed_v1.int8`: on the NPU of every chipset.
    pub const INT8: Self = recorded!("mixed_v1.int8", "mixed_v1");
    /// `mixed_v2.head32`: SM8635 and SM7550, without FP16, leave its head to the CPU, 26 % of the MACs.
    pub const FLOAT_HEAD: Self = recorded!("mixed_v2.head32", "mixed_v2");

    fn load(&self) -> Version {
        let side_car: SideCar =
            serde_json::from_str(self.manifest).expect("the fixture is in the repository");
        let model_sha256 = side_car
            .model_hash()
            .expect("the fixture is in the repository");
        let manifest = ModelManifest::try_from(side_car).expect("the fixture is in the repository");
        let mut version = Version {
            model_sha256: Some(model_sha256),
            ..Version::default()
        };
        for (chipset, json) in &self.placements {
            let recorded: Recorded =
                serde_json::from_str(json).expect("the fixture is in the repository");
            version.on.insert(*chipset, recorded.placement(&manifest));
            version.on_cpu = Some(recorded.on_cpu(&manifest));
        }
        version
    }
}

/// The placement of each version on each chipset.
#[derive(Debug, Clone)]
pub struct Placements {
    by_version: HashMap<String, Version>,
}

#[derive(Debug, Clone, Default)]
struct Version {
    model_sha256: Option<ModelHash>,
    on: HashMap<Chipset, Placement>,
    on_cpu: Option<Placement>,
}

impl Placements {
    /// Returns the recorded placements of `models`, each under its version in the fleet.
    #[must_use]
    pub fn recorded(models: &[(&str, RecordedModel)]) -> Self {
        let versions = models
            .iter()
            .map(|(version, model)| ((*version).to_owned(), model.load()));
        Self {
            by_version: versions.collect(),
        }
    }

    /// Replaces a recorded placement by a real session's placement.
    pub fn insert(&mut self, version: &str, chipset: Chipset, placement: Placement) {
        let version = self.by_version.entry(version.to_owned()).or_default();
        version.on.insert(chipset, placement);
    }

    fn get(&self, version: &str, chipset: Chipset) -> Option<&Placement> {
        self.by_version.get(version)?.on.get(&chipset)
    }

    /// Returns the SHA-256 of the version's model file, if it is known.
    pub(crate) fn model_sha256(&self, version: &str) -> Option<ModelHash> {
        self.by_version.get(version)?.model_sha256
    }

    /// Returns a device's placement.
    pub(crate) fn placed(
        &self,
        version: &str,
        placed: Placed,
    ) -> Result<&Placement, ScenarioError> {
        let missing = |chipset| ScenarioError::NoPlacement {
            version: version.to_owned(),
            chipset,
        };
        match placed {
            Placed::As(chipset) => self
                .get(version, chipset)
                .ok_or_else(|| missing(chipset.name())),
            Placed::OnCpu => self
                .by_version
                .get(version)
                .and_then(|version| version.on_cpu.as_ref())
                .ok_or_else(|| missing("the CPU alone")),
        }
    }
}

/// Returns the part of a placement's graph that does not run on the NPU.
pub(crate) fn cpu_work(placement: &Placement) -> CpuWork {
    let n_benign = placement.n_benign_cpu_nodes();
    let n_cpu = placement.n_cpu_nodes().saturating_sub(n_benign);
    let n_computing = placement.n_nodes.saturating_sub(n_benign).max(1);
    // Shares refer to all MACs. If some MACs have no node, the share of the known part is used for all.
    let macs_share = placement
        .cpu_macs_share()
        .zip(placement.macs_attributed)
        .filter(|(_, attributed)| *attributed > 0.5)
        .map(|(share, attributed)| share / attributed);
    CpuWork {
        macs_share,
        node_share: f64::from(n_cpu) / f64::from(n_computing),
        n_npu_partitions: placement.n_npu_partitions(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fallback::slow_factor;
    use epwatch_proto::placement::QNN_EP;

    fn recorded() -> Placements {
        Placements::recorded(&[("1", RecordedModel::INT8), ("2", RecordedModel::FLOAT_HEAD)])
    }

    /// `Recorded` relies on this, because the files do not have each node's partition.
    #[test]
    fn every_recorded_assignment_has_one_npu_partition() {
        for (_, json) in RecordedModel::INT8
            .placements
            .iter()
            .chain(&RecordedModel::FLOAT_HEAD.placements)
        {
            let recorded: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!(recorded["eps"][QNN_EP]["partitions"], 1);
        }
    }

    #[test]
    fn recorded_placements_travel_as_they_are() {
        let placements = recorded();
        for version in placements.by_version.values() {
            for placement in version.on.values().chain(&version.on_cpu) {
                let wire = epwatch_proto::v1::Placement::from(placement);
                assert_eq!(&Placement::try_from(wire).unwrap(), placement);
            }
        }
    }

    #[test]
    fn the_float_head_leaves_the_npu_only_where_there_is_no_fp16() {
        let placements = recorded();
        for chipset in [Chipset::Sm8550, Chipset::Sm8650, Chipset::Sm8750] {
            let work = cpu_work(placements.get("2", chipset).unwrap());
            assert_eq!(work.macs_share, Some(0.0), "{chipset:?}");
            assert_eq!(slow_factor(work, chipset), 1.0);
        }
        for chipset in [Chipset::Sm8635, Chipset::Sm7550] {
            let placement = placements.get("2", chipset).unwrap();
            let ops = placement.cpu_ops();
            assert_eq!(ops, ["Gemm", "LayerNormalization", "Relu", "Softmax"]);
            let work = cpu_work(placement);
            assert!((work.macs_share.unwrap() - 0.261).abs() < 0.001, "{work:?}");
            assert!((3.5..4.5).contains(&slow_factor(work, chipset)));
            let before = cpu_work(placements.get("1", chipset).unwrap());
            assert_eq!(slow_factor(before, chipset), 1.0);
        }
    }

    #[test]
    fn on_the_cpu_alone_means_all_of_it() {
        let placements = recorded();
        let placement = placements.placed("2", Placed::OnCpu).unwrap();
        let work = cpu_work(placement);
        assert_eq!(work.n_npu_partitions, 0);
        assert_eq!(placement.cpu_macs_share(), Some(1.0));
        assert_eq!(slow_factor(work, Chipset::Sm8650), 12.4);
    }

    #[test]
    fn a_live_placement_takes_the_recorded_ones_place() {
        let mut placements = recorded();
        let live = placements.placed("2", Placed::OnCpu).unwrap().clone();
        placements.insert("2", Chipset::Sm8650, live.clone());
        assert_eq!(placements.get("2", Chipset::Sm8650), Some(&live));
        assert!(placements.placed("3", Placed::As(Chipset::Sm8650)).is_err());
    }
}
