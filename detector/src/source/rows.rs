//! Rows as the queries give them, field by field in their order.

use clickhouse::Row;
use serde::Deserialize;

use crate::baseline::{PlacementCount, Tally, VersionSeen, usable_macs_share};
use crate::cohort::ModelKey;
use crate::placement::{Placement, PlacementMethod};
use crate::signals::SignalId;

use super::{FoundModel, VersionHistory};

#[derive(Debug, Row, Deserialize)]
pub(super) struct ModelRow {
    app_id: String,
    environment: String,
    model_id: String,
    cohorts: u64,
}

impl From<ModelRow> for FoundModel {
    fn from(row: ModelRow) -> Self {
        FoundModel {
            model: ModelKey {
                app_id: row.app_id,
                environment: row.environment,
                model_id: row.model_id,
            },
            cohorts: row.cohorts,
        }
    }
}

/// Version, n, p10, p50, p95, CV.
pub(super) type PreviousTuple = (String, u64, f64, f64, f64, f64);
/// Firmware, runtime, n, p10, p50, p95, CV.
pub(super) type EarlierTuple = (String, String, u64, f64, f64, f64, f64);

#[derive(Debug, Row, Deserialize)]
pub(super) struct VoteRow {
    pub(super) model_version: String,
    pub(super) chipset: String,
    pub(super) firmware: String,
    pub(super) installation: [u8; 16],
    pub(super) graph_kind: String,
    pub(super) placement_source: String,
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    pub(super) shape_key: String,
    pub(super) hist_bucket: Vec<u16>,
    pub(super) hist_count: Vec<u64>,
    pub(super) n: u64,
    pub(super) sum_us: f64,
    pub(super) m2_us2: f64,
    pub(super) previous: PreviousTuple,
    pub(super) earlier: EarlierTuple,
    pub(super) absence: String,
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct EarlierRow {
    pub(super) model_version: String,
    pub(super) chipset: String,
    pub(super) firmware: String,
    pub(super) installation: [u8; 16],
    pub(super) graph_kind: String,
    pub(super) placement_source: String,
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    pub(super) shape_key: String,
    pub(super) hist_bucket: Vec<u16>,
    pub(super) hist_count: Vec<u64>,
    pub(super) n: u64,
    pub(super) sum_us: f64,
    pub(super) m2_us2: f64,
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct PlacementRow {
    pub(super) model_version: String,
    pub(super) chipset: String,
    pub(super) firmware: String,
    pub(super) installation: [u8; 16],
    pub(super) graph_kind: String,
    pub(super) placement_source: String,
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    pub(super) votes: bool,
    pub(super) directed: bool,
    pub(super) runtime: String,
    pub(super) n_nodes: u32,
    pub(super) npu_nodes: u32,
    pub(super) cpu_nodes: u32,
    pub(super) cpu_benign_nodes: u32,
    pub(super) npu_macs_share: Option<f32>,
    pub(super) macs_attributed: Option<f32>,
    pub(super) reasons: Vec<String>,
}

impl PlacementRow {
    pub(super) fn placement(&self) -> Placement {
        Placement {
            method: PlacementMethod {
                graph_kind: self.graph_kind.clone(),
                source: self.placement_source.clone(),
                fingerprint_algorithm: self.fingerprint_algorithm,
            },
            fingerprint: self.fingerprint_normalised,
            runtime: self.runtime.clone(),
            n_nodes: self.n_nodes,
            npu_nodes: self.npu_nodes,
            cpu_nodes: self.cpu_nodes.saturating_sub(self.cpu_benign_nodes),
            npu_macs_share: usable_macs_share(self.npu_macs_share, self.macs_attributed),
            reasons: self.reasons.clone(),
        }
    }
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct CensusRow {
    model_version: String,
    chipset: String,
    graph_kind: String,
    placement_source: String,
    fingerprint_algorithm: u32,
    fingerprint_normalised: u64,
    runtime: String,
    n_nodes: u32,
    npu_nodes: u32,
    cpu_nodes: u32,
    cpu_benign_nodes: u32,
    npu_macs_share: Option<f32>,
    macs_attributed: Option<f32>,
    devices: u64,
}

impl From<CensusRow> for PlacementCount {
    fn from(row: CensusRow) -> Self {
        PlacementCount {
            model_version: row.model_version,
            chipset: row.chipset,
            placement: Placement {
                method: PlacementMethod {
                    graph_kind: row.graph_kind,
                    source: row.placement_source,
                    fingerprint_algorithm: row.fingerprint_algorithm,
                },
                fingerprint: row.fingerprint_normalised,
                runtime: row.runtime,
                n_nodes: row.n_nodes,
                npu_nodes: row.npu_nodes,
                cpu_nodes: row.cpu_nodes.saturating_sub(row.cpu_benign_nodes),
                npu_macs_share: usable_macs_share(row.npu_macs_share, row.macs_attributed),
                reasons: Vec::new(),
            },
            devices: row.devices,
        }
    }
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct VersionRow {
    model_version: String,
    first_seen_ms: i64,
}

impl From<VersionRow> for VersionSeen {
    fn from(row: VersionRow) -> Self {
        VersionSeen {
            version: row.model_version,
            first_seen_ms: row.first_seen_ms,
        }
    }
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct HistoryRow {
    model_version: String,
    chipset: String,
    signal: String,
    mean_hits: f64,
    mean_devices: f64,
    max_devices: u64,
}

impl VersionHistory {
    /// `None` for signals of other programs' versions.
    pub(super) fn from_row(row: HistoryRow) -> Option<Self> {
        let rate = (row.mean_hits / row.mean_devices).clamp(0.0, 1.0);
        let hits = (rate * row.max_devices as f64).round();
        Some(VersionHistory {
            signal: SignalId::parse(&row.signal)?,
            model_version: row.model_version,
            chipset: row.chipset,
            tally: Tally {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between 0 and max_devices"
                )]
                hits: hits as u64,
                devices: row.max_devices,
            },
        })
    }
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct HistogramRow {
    pub(super) shape_key: String,
    pub(super) hist_bucket: Vec<u16>,
    pub(super) hist_count: Vec<u64>,
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct NodesRow {
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    pub(super) op_type: Vec<String>,
    pub(super) benign: Vec<bool>,
    pub(super) reason: Vec<String>,
    pub(super) macs_share: Vec<Option<f32>>,
}
