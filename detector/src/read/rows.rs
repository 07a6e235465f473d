//! Rows as the queries give them, field by field in their order.

use clickhouse::Row;
use serde::Deserialize;

use crate::baseline::{PlacementCount, VersionSeen, usable_macs_share};
use crate::cohort::ModelKey;
use crate::placement::{Placement, PlacementMethod};
use crate::signals::SignalId;
use crate::tally::Tally;
use crate::verdict::{CpuNode, CpuNodes};

use super::{FoundModel, VersionHistory, VersionOnChipset};

fn model_key(app_id: &str, environment: &str, model_id: &str) -> ModelKey {
    ModelKey {
        app_id: app_id.to_owned(),
        environment: environment.to_owned(),
        model_id: model_id.to_owned(),
    }
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct ModelRow {
    app_id: String,
    environment: String,
    model_id: String,
    cohorts: u64,
    sessions: u64,
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
            sessions: row.sessions,
        }
    }
}

/// Receive time in milliseconds, stream, sequence and session: reports that were uploaded together have
/// one receive time.
pub(super) type At = (i64, u64, u64, u64);
/// Version, n, p10, p50, p95, CV.
pub(super) type PreviousTuple<'a> = (&'a str, u64, f64, f64, f64, f64);
/// n, p10, p50, p95, CV.
pub(super) type EarlierTuple = (u64, f64, f64, f64, f64);

/// Which device ran which version, and where: what votes of one input shape are told apart by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran<'a> {
    pub(super) model_version: &'a str,
    pub(super) chipset: &'a str,
    pub(super) firmware: &'a str,
    pub(super) installation: [u8; 16],
    pub(super) graph_kind: &'a str,
    pub(super) placement_source: &'a str,
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
}

/// The clean runs of a series.
#[derive(Debug)]
pub(super) struct VoteRow<'a> {
    pub(super) ran: Ran<'a>,
    pub(super) device_model: &'a str,
    pub(super) shape_key: &'a str,
    pub(super) hist_bucket: Vec<u16>,
    pub(super) hist_count: Vec<u64>,
    pub(super) n: u64,
    pub(super) sum_us: f64,
    pub(super) m2_us2: f64,
    pub(super) previous: PreviousTuple<'a>,
    pub(super) earlier: EarlierTuple,
    pub(super) absence: &'a str,
    /// The latest says what the device was used to.
    pub(super) at: At,
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct EarlierRow<'a> {
    pub(super) app_id: &'a str,
    pub(super) environment: &'a str,
    pub(super) model_id: &'a str,
    pub(super) model_version: &'a str,
    pub(super) chipset: &'a str,
    pub(super) firmware: &'a str,
    pub(super) installation: [u8; 16],
    pub(super) graph_kind: &'a str,
    pub(super) placement_source: &'a str,
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    pub(super) shape_key: &'a str,
    pub(super) hist_bucket: Vec<u16>,
    pub(super) hist_count: Vec<u64>,
    pub(super) n: u64,
    pub(super) sum_us: f64,
    pub(super) m2_us2: f64,
}

impl EarlierRow<'_> {
    pub(super) fn ran(&self) -> Ran<'_> {
        Ran {
            model_version: self.model_version,
            chipset: self.chipset,
            firmware: self.firmware,
            installation: self.installation,
            graph_kind: self.graph_kind,
            placement_source: self.placement_source,
            fingerprint_algorithm: self.fingerprint_algorithm,
            fingerprint_normalised: self.fingerprint_normalised,
        }
    }
}

/// Where a session ran.
#[derive(Debug)]
pub(super) struct PlacementRow<'a> {
    pub(super) ran: Ran<'a>,
    pub(super) votes: bool,
    pub(super) directed: bool,
    pub(super) fingerprint_exact: u64,
    pub(super) numbers: PlacementNumbers<&'a str>,
    pub(super) reasons: Vec<&'a str>,
}

impl PlacementRow<'_> {
    pub(super) fn placement(&self) -> Placement {
        let mut reasons: Vec<String> = self.reasons.iter().copied().map(str::to_owned).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let ran = &self.ran;
        let (kind, source) = (ran.graph_kind.to_owned(), ran.placement_source.to_owned());
        let method = (kind, source, ran.fingerprint_algorithm);
        Placement {
            reasons,
            ..placement_of(method, ran.fingerprint_normalised, &self.numbers)
        }
    }
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct CensusRow {
    pub(super) app_id: String,
    pub(super) environment: String,
    pub(super) model_id: String,
    pub(super) model_version: String,
    pub(super) chipset: String,
    pub(super) graph_kind: String,
    pub(super) placement_source: String,
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    /// Whether its devices vote; others only tell when it was first received.
    pub(super) votes: bool,
    pub(super) numbers: PlacementNumbers,
    pub(super) devices: u64,
    pub(super) devices_before: u64,
    pub(super) first_seen_ms: i64,
}

impl CensusRow {
    pub(super) fn model_key(&self) -> ModelKey {
        model_key(&self.app_id, &self.environment, &self.model_id)
    }
}

/// A session: where it ran, by number, and the report that it came in.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenRow {
    pub(super) place: u64,
    pub(super) device: [u8; 16],
    pub(super) at_s: u32,
    pub(super) at_ms: i64,
    /// Names a report's copy at its first session, else 0.
    pub(super) copy: u64,
}

/// A place that sessions ran at.
#[derive(Debug)]
pub(super) struct PlaceRow<'a> {
    pub(super) place: u64,
    pub(super) app_id: &'a str,
    pub(super) environment: &'a str,
    pub(super) model_id: &'a str,
    pub(super) model_version: &'a str,
    pub(super) chipset: &'a str,
    pub(super) graph_kind: &'a str,
    pub(super) placement_source: &'a str,
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    pub(super) fingerprint_exact: u64,
    pub(super) votes: bool,
    pub(super) numbers: PlacementNumbers<&'a str>,
}

/// A report without a session.
#[derive(Debug, Row, Deserialize)]
pub(super) struct SessionlessRow<'a> {
    pub(super) app_id: &'a str,
    pub(super) environment: &'a str,
    pub(super) device: u128,
    pub(super) at_s: u32,
    pub(super) at_ms: i64,
    pub(super) copy: u64,
}

impl From<CensusRow> for PlacementCount {
    fn from(row: CensusRow) -> Self {
        let method = (
            row.graph_kind,
            row.placement_source,
            row.fingerprint_algorithm,
        );
        PlacementCount {
            model_version: row.model_version,
            chipset: row.chipset,
            placement: placement_of(method, row.fingerprint_normalised, &row.numbers),
            devices: row.devices,
            devices_before: row.devices_before,
        }
    }
}

/// Runtime, nodes, those on the NPU, on the CPU, benign ones of these; MACs on the NPU, attributed.
pub(super) type PlacementNumbers<S = String> = (S, u32, u32, u32, u32, Option<f32>, Option<f32>);

/// A placement without reasons. Its method: graph kind, source, algorithm.
pub(super) fn placement_of<S: AsRef<str>>(
    (graph_kind, source, fingerprint_algorithm): (String, String, u32),
    fingerprint: u64,
    numbers: &PlacementNumbers<S>,
) -> Placement {
    let (runtime, n_nodes, npu_nodes, cpu_nodes, benign, macs, attributed) = numbers;
    Placement {
        method: PlacementMethod {
            graph_kind,
            source,
            fingerprint_algorithm,
        },
        fingerprint,
        runtime: runtime.as_ref().to_owned(),
        n_nodes: *n_nodes,
        npu_nodes: *npu_nodes,
        cpu_nodes: cpu_nodes.saturating_sub(*benign),
        npu_macs_share: usable_macs_share(*macs, *attributed),
        reasons: Vec::new(),
    }
}

#[derive(Debug)]
pub(super) struct VersionRow {
    pub(super) model_version: String,
    pub(super) first_seen_ms: i64,
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
    app_id: String,
    environment: String,
    model_id: String,
    model_version: String,
    chipset: String,
    signal: String,
    mean_hits: f64,
    mean_devices: f64,
    max_devices: u64,
    since_s: i64,
}

impl HistoryRow {
    pub(super) fn model_key(&self) -> ModelKey {
        model_key(&self.app_id, &self.environment, &self.model_id)
    }
}

impl VersionHistory {
    /// `None` for signals of other programs' versions.
    pub(super) fn from_row(row: HistoryRow) -> Option<Self> {
        Some(VersionHistory {
            signal: SignalId::parse(&row.signal)?,
            model_version: row.model_version,
            chipset: row.chipset,
            tally: Tally::from_means(row.mean_hits, row.mean_devices, row.max_devices),
            since_s: row.since_s,
        })
    }
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct HistogramRow {
    pub(super) shape_key: String,
    pub(super) hist_bucket: Vec<u16>,
    pub(super) hist_count: Vec<u64>,
}

#[derive(Debug, Clone, Row, Deserialize)]
pub(super) struct NodesRow {
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    pub(super) op_type: Vec<String>,
    pub(super) benign: Vec<bool>,
    pub(super) reason: Vec<String>,
    pub(super) macs_share: Vec<Option<f32>>,
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct ArrivalRow {
    pub(super) app_id: String,
    pub(super) environment: String,
    /// Nobody where it stands for several that were new before.
    pub(super) installation: [u8; 16],
    pub(super) at_ms: i64,
    pub(super) devices: u64,
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct SelfRow {
    pub(super) app_id: String,
    pub(super) environment: String,
    pub(super) model_id: String,
    pub(super) model_version: String,
    pub(super) chipset: String,
    pub(super) installation: [u8; 16],
    pub(super) device_model: String,
    pub(super) shape_key: String,
    pub(super) hist_bucket: Vec<u16>,
    pub(super) hist_count: Vec<u64>,
    pub(super) n: u64,
    pub(super) sum_us: f64,
    pub(super) m2_us2: f64,
}

impl SelfRow {
    pub(super) fn version_on_chipset(&self) -> VersionOnChipset {
        let model = model_key(&self.app_id, &self.environment, &self.model_id);
        (model, self.model_version.clone(), self.chipset.clone())
    }
}

/// Returns the nodes that should not be there, by algorithm and fingerprint; the first row says.
pub(super) fn unexpected(rows: Vec<NodesRow>) -> CpuNodes {
    let mut nodes = CpuNodes::new();
    for row in rows {
        let id = (row.fingerprint_algorithm, row.fingerprint_normalised);
        nodes.entry(id).or_insert_with(|| row.unexpected_nodes());
    }
    nodes
}

impl NodesRow {
    fn unexpected_nodes(self) -> Vec<CpuNode> {
        let rest = self
            .benign
            .into_iter()
            .zip(self.reason)
            .zip(self.macs_share);
        let all = self.op_type.into_iter().zip(rest);
        all.filter(|(_, ((benign, _), _))| !benign)
            .map(|(op_type, ((_, reason), macs_share))| CpuNode {
                op_type,
                reason,
                macs_share: macs_share.map(f64::from),
            })
            .collect()
    }
}
