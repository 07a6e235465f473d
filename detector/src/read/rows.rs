//! Rows as the queries give them, field by field in their order.

use clickhouse::Row;
use serde::Deserialize;

use crate::cohort::ModelKey;
use crate::placement::{NodeCounts, Placement, PlacementMethod};
use crate::signals::SignalId;
use crate::tally::Tally;
use crate::verdict::{CpuNode, CpuNodes};

use super::{VersionHistory, VersionOnChipset};

fn model_key(app_id: &str, environment: &str, model_id: &str) -> ModelKey {
    ModelKey {
        app_id: app_id.to_owned(),
        environment: environment.to_owned(),
        model_id: model_id.to_owned(),
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
    pub(super) runtime: &'a str,
    pub(super) counts: NodeCounts,
    pub(super) reasons: Vec<&'a str>,
}

impl PlacementRow<'_> {
    pub(super) fn placement(&self) -> Placement {
        let mut reasons: Vec<String> = self.reasons.iter().copied().map(str::to_owned).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let ran = &self.ran;
        let method = PlacementMethod {
            graph_kind: ran.graph_kind.to_owned(),
            source: ran.placement_source.to_owned(),
            fingerprint_algorithm: ran.fingerprint_algorithm,
        };
        let (fingerprint, runtime) = (ran.fingerprint_normalised, self.runtime.to_owned());
        Placement {
            reasons,
            ..self.counts.placement(method, fingerprint, runtime)
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
