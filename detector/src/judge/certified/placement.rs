//! Placements that labs certified: rows of `certified_placements_v1`, from the store or from a file.

use std::collections::BTreeMap;

use clickhouse::Row;
use epwatch_model::{ModelKey, PlacementMethod};
use epwatch_proto::device::runtime_name;
use serde::{Deserialize, Deserializer};

use crate::judge::baseline::{BaselineLatency, Certificate};
use crate::judge::placement::NodeCounts;

/// Stands for any app or environment, if the key proves none.
const ANY: &str = "*";

/// The placement that a lab or a pipeline certified for one version of a model on one chipset.
#[derive(Debug, Clone, PartialEq)]
pub struct CertifiedPlacement {
    /// Model version.
    pub model_version: String,
    /// Normalised chipset.
    pub chipset: String,
    /// The placement and its latency, with their origin.
    pub certificate: Certificate,
}

/// One certification, with the columns of `certified_placements_v1`. A file may leave some of them out.
#[derive(Debug, Row, Deserialize)]
pub(crate) struct CertifiedRow {
    #[serde(default = "any")]
    app_id: String,
    #[serde(default = "any")]
    environment: String,
    model_id: String,
    model_version: String,
    pub(super) chipset: String,
    #[serde(default)]
    pub(super) firmware: String,
    #[serde(default = "jit")]
    graph_kind: String,
    #[serde(default = "assignment_api")]
    placement_source: String,
    fingerprint_algorithm: u32,
    #[serde(default, deserialize_with = "number_or_text")]
    fingerprint_normalised: u64,
    #[serde(default)]
    certified_by: String,
    #[serde(default)]
    ort_version: String,
    #[serde(default)]
    ep_version: String,
    pub(super) n_nodes: u32,
    pub(super) npu_nodes: u32,
    #[serde(default)]
    pub(super) cpu_nodes: u32,
    #[serde(default)]
    pub(super) cpu_benign_nodes: u32,
    #[serde(default)]
    pub(super) npu_macs_share: Option<f32>,
    #[serde(default)]
    pub(super) macs_attributed: Option<f32>,
    #[serde(default)]
    latency_runs: u64,
    #[serde(default)]
    pub(super) latency_p50_us: u64,
    #[serde(default)]
    pub(super) latency_p95_us: u64,
}

fn any() -> String {
    ANY.to_owned()
}

fn jit() -> String {
    "jit".to_owned()
}

fn assignment_api() -> String {
    "assignment_api".to_owned()
}

/// With some settings the store writes 64-bit numbers as text, because JavaScript has only 53 bits.
fn number_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    if !deserializer.is_human_readable() {
        return u64::deserialize(deserializer);
    }
    match Either::deserialize(deserializer)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

impl CertifiedRow {
    fn into_placement(self) -> (ModelKey, CertifiedPlacement) {
        let method = PlacementMethod {
            graph_kind: self.graph_kind,
            source: self.placement_source,
            fingerprint_algorithm: self.fingerprint_algorithm,
        };
        let counts = NodeCounts {
            n_nodes: self.n_nodes,
            npu_nodes: self.npu_nodes,
            cpu_nodes: self.cpu_nodes,
            cpu_benign_nodes: self.cpu_benign_nodes,
            npu_macs_share: self.npu_macs_share,
            macs_attributed: self.macs_attributed,
        };
        let runtime = runtime_name(&self.ort_version, &self.ep_version);
        let model = ModelKey::of((&self.app_id, &self.environment), &self.model_id);
        let placement = CertifiedPlacement {
            model_version: self.model_version,
            chipset: self.chipset,
            certificate: Certificate {
                certified_by: self.certified_by,
                firmware: self.firmware,
                placement: counts.placement(method, self.fingerprint_normalised, runtime),
                latency: (self.latency_p50_us > 0).then_some(BaselineLatency {
                    n: self.latency_runs,
                    p50_us: self.latency_p50_us as f64,
                    p95_us: self.latency_p95_us as f64,
                }),
            },
        };
        (model, placement)
    }
}

/// All certified placements by model, the latest first; app and environment may be `*`.
#[derive(Debug, Clone, Default)]
pub struct Certified(BTreeMap<String, Vec<(ModelKey, CertifiedPlacement)>>);

impl Certified {
    /// Takes certifications, the latest first.
    pub(crate) fn from_rows(rows: impl IntoIterator<Item = CertifiedRow>) -> Self {
        let mut certified = Self::default();
        for (model, placement) in rows.into_iter().map(CertifiedRow::into_placement) {
            let of_model = certified.0.entry(model.model_id.clone()).or_default();
            of_model.push((model, placement));
        }
        certified
    }

    /// Returns these certifications with `newer` before them.
    pub(crate) fn preceded_by(mut self, newer: &Certified) -> Certified {
        for (model_id, placements) in &newer.0 {
            let of_model = self.0.entry(model_id.clone()).or_default();
            of_model.splice(0..0, placements.iter().cloned());
        }
        self
    }

    /// Returns what was certified for a model, the latest first.
    pub(crate) fn of(&self, model: &ModelKey) -> Vec<CertifiedPlacement> {
        let holds = |text: &str, wanted: &str| text == wanted || text == ANY;
        let all = self.0.get(&model.model_id).into_iter().flatten();
        let of_app = all.filter(|(key, _)| {
            holds(&key.app_id, &model.app_id) && holds(&key.environment, &model.environment)
        });
        of_app.map(|(_, placement)| placement.clone()).collect()
    }
}
