//! What labs certified.

use std::collections::BTreeMap;

use crate::cohort::ModelKey;
use crate::placement::Placement;

/// Where a key proves no app or no environment.
pub(super) const ANY: &str = "*";

/// Where one version of a model runs on one chipset, as a lab certified it.
#[derive(Debug, Clone, PartialEq)]
pub struct CertifiedPlacement {
    /// Model version.
    pub model_version: String,
    /// Chipset.
    pub chipset: String,
    /// Where it runs.
    pub placement: Placement,
}

/// All of them, the latest first; app and environment may be `*`.
#[derive(Debug, Clone, Default)]
pub struct Certified(BTreeMap<String, Vec<(ModelKey, CertifiedPlacement)>>);

impl Certified {
    /// Adds one that is older than those before it.
    pub(super) fn push(&mut self, model: ModelKey, placement: CertifiedPlacement) {
        let of_model = self.0.entry(model.model_id.clone()).or_default();
        of_model.push((model, placement));
    }

    /// Puts `newer` before its own.
    pub(super) fn preceded_by(mut self, newer: &Certified) -> Certified {
        for (model_id, placements) in &newer.0 {
            let of_model = self.0.entry(model_id.clone()).or_default();
            of_model.splice(0..0, placements.iter().cloned());
        }
        self
    }

    /// Returns what was certified for a model, the latest first.
    pub(super) fn of(&self, model: &ModelKey) -> Vec<CertifiedPlacement> {
        let holds = |text: &str, wanted: &str| text == wanted || text == ANY;
        let all = self.0.get(&model.model_id).into_iter().flatten();
        let of_app = all.filter(|(key, _)| {
            holds(&key.app_id, &model.app_id) && holds(&key.environment, &model.environment)
        });
        of_app.map(|(_, placement)| placement.clone()).collect()
    }
}
