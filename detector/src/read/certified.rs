//! What labs certified, as the collector keeps it.

use std::collections::BTreeMap;

use clickhouse::{Client, Row};
use serde::Deserialize;

use crate::cohort::ModelKey;
use crate::placement::Placement;

use super::rows::{PlacementNumbers, placement_of};
use super::{SourceError, failed};

/// Every certification, the latest first. Labs certify by hand, so they are few.
const CERTIFIED: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised,
        (concat(ort_version, '/', ep_version), n_nodes, npu_nodes, cpu_nodes, cpu_benign_nodes,
            npu_macs_share, macs_attributed) AS numbers
    FROM certified_placements_v1
    ORDER BY stored_at DESC, ort_version, ep_version";

/// Where a key proves no app or no environment.
pub(super) const ANY: &str = "*";

#[derive(Debug, Row, Deserialize)]
struct CertifiedRow {
    app_id: String,
    environment: String,
    model_id: String,
    model_version: String,
    chipset: String,
    graph_kind: String,
    placement_source: String,
    fingerprint_algorithm: u32,
    fingerprint_normalised: u64,
    numbers: PlacementNumbers,
}

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

pub(super) async fn read(client: &Client) -> Result<Certified, SourceError> {
    let client = client.clone().with_validation(false);
    let rows = client.query(CERTIFIED).fetch_all::<CertifiedRow>().await;
    let rows = rows.map_err(failed("certified placements"))?;
    let mut certified = Certified::default();
    for row in rows {
        let method = (
            row.graph_kind,
            row.placement_source,
            row.fingerprint_algorithm,
        );
        let placement = placement_of(method, row.fingerprint_normalised, &row.numbers);
        let model = ModelKey {
            app_id: row.app_id,
            environment: row.environment,
            model_id: row.model_id,
        };
        let placement = CertifiedPlacement {
            model_version: row.model_version,
            chipset: row.chipset,
            placement,
        };
        certified.push(model, placement);
    }
    Ok(certified)
}

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
