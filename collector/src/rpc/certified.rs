//! A certified placement: the validated request, and its row in `certified_placements`.

use clickhouse::Row;
use epwatch_proto::placement::stored_share;
use epwatch_proto::{Chipset, Model, ParseError, Placement, PlacementSource, Runtime, v1};
use prost::Message;
use serde::Serialize;

use crate::ingest::auth::Scope;

const MAX_CHIPSET_BYTES: usize = 64;
const MAX_CERTIFIED_BY_BYTES: usize = 128;
/// A placement with all fields at their bounds has some 310 KB. A longer one is not decoded, because an empty node takes
/// two bytes encoded and over a hundred in memory.
const MAX_PLACEMENT_BYTES: usize = 512 << 10;

/// A validated request.
#[derive(Debug)]
pub(super) struct PlacementCall {
    model: Model,
    chipset: String,
    runtime: Runtime,
    placement: Placement,
    certified_by: String,
}

/// Refuses a missing message.
pub(super) fn required<T>(field: &str, value: Option<T>) -> Result<T, ParseError> {
    value.ok_or_else(|| ParseError::malformed(field, "a message", "nothing"))
}

fn text(field: &str, value: String, min: usize, max: usize) -> Result<String, ParseError> {
    let fits = (min..=max).contains(&value.len()) && !value.chars().any(char::is_control);
    if fits {
        Ok(value)
    } else {
        let expected = format!("{min} to {max} bytes without control characters");
        Err(ParseError::malformed(field, expected, value.len()))
    }
}

/// Reports have normalised codes, so a placement under another spelling would never match.
fn normalised(chipset: String) -> Result<String, ParseError> {
    let chipset = text("chipset", chipset, 1, MAX_CHIPSET_BYTES)?;
    let code = Chipset::normalise(&chipset, "", "");
    if chipset == code.as_str() || chipset.starts_with("other:") {
        Ok(chipset)
    } else {
        let expected = format!("the normalised code, {}", code.as_str());
        Err(ParseError::malformed("chipset", expected, chipset))
    }
}

fn read_placement(bytes: &[u8]) -> Result<Placement, ParseError> {
    if bytes.is_empty() || bytes.len() > MAX_PLACEMENT_BYTES {
        let expected = format!("a message of at most {MAX_PLACEMENT_BYTES} bytes");
        let got = format!("{} bytes", bytes.len());
        return Err(ParseError::malformed("placement", expected, got));
    }
    let message = v1::Placement::decode(bytes)
        .map_err(|e| ParseError::malformed("placement", "a valid message", e))?;
    Placement::try_from(message).map_err(|e| e.inside("placement"))
}

impl TryFrom<v1::PutCertifiedPlacementRequest> for PlacementCall {
    type Error = ParseError;

    fn try_from(request: v1::PutCertifiedPlacementRequest) -> Result<Self, ParseError> {
        let placement = read_placement(&request.placement)?;
        if placement.source == PlacementSource::Unavailable {
            let expected = "a placement that was read: one that is unavailable certifies nothing";
            return Err(ParseError::malformed(
                "placement.source",
                expected,
                "unavailable",
            ));
        }
        Ok(Self {
            model: Model::try_from(required("model", request.model)?)
                .map_err(|e| e.inside("model"))?,
            chipset: normalised(request.chipset)?,
            runtime: Runtime::try_from(required("runtime", request.runtime)?)
                .map_err(|e| e.inside("runtime"))?,
            placement,
            certified_by: text(
                "certified_by",
                request.certified_by,
                0,
                MAX_CERTIFIED_BY_BYTES,
            )?,
        })
    }
}

#[derive(Debug, Row, Serialize)]
pub(super) struct PlacementRow<'a> {
    app_id: &'a str,
    environment: &'a str,
    model_id: &'a str,
    model_version: &'a str,
    model_sha256: String,
    chipset: &'a str,
    stored_at: i64,
    certified_by: &'a str,
    ort_version: &'a str,
    ep_package: &'a str,
    ep_version: &'a str,
    ep_linkage: &'a str,
    backend: &'a str,
    qnn_sdk_version: &'a str,
    backend_build_id: &'a str,
    requested_eps: Vec<&'a str>,
    graph_kind: &'a str,
    placement_source: &'a str,
    fingerprint_algorithm: u32,
    fingerprint_exact: u64,
    fingerprint_normalised: u64,
    n_nodes: u32,
    npu_nodes: u32,
    npu_partitions: u32,
    cpu_nodes: u32,
    cpu_benign_nodes: u32,
    npu_macs_share: Option<f32>,
    macs_attributed: Option<f32>,
    manifest_sha256: String,
    reasons: Vec<&'a str>,
    ep: Vec<&'a str>,
    ep_nodes: Vec<u32>,
    ep_partitions: Vec<u32>,
    ep_macs_share: Vec<Option<f32>>,
    cpu_node_name: Vec<&'a str>,
    cpu_node_op_type: Vec<&'a str>,
    cpu_node_benign: Vec<bool>,
    cpu_node_reason: Vec<&'a str>,
    cpu_node_macs_share: Vec<Option<f32>>,
    cpu_nodes_truncated: bool,
}

impl PlacementCall {
    pub(super) fn row<'a>(&'a self, scope: &'a Scope, stored_at: i64) -> PlacementRow<'a> {
        let (model, runtime, placement) = (&self.model, &self.runtime, &self.placement);
        let (eps, nodes) = (placement.eps.iter(), placement.cpu_nodes.iter());
        let hex = |hash: Option<epwatch_proto::ModelHash>| {
            hash.map(|hash| hash.to_string()).unwrap_or_default()
        };
        PlacementRow {
            app_id: scope.app(),
            environment: scope.environment(),
            model_id: &model.id,
            model_version: &model.version,
            model_sha256: hex(model.sha256),
            chipset: &self.chipset,
            stored_at,
            certified_by: &self.certified_by,
            ort_version: &runtime.ort_version,
            ep_package: &runtime.ep_package,
            ep_version: &runtime.ep_version,
            ep_linkage: runtime.ep_linkage.as_str(),
            backend: runtime.backend.as_str(),
            qnn_sdk_version: &runtime.qnn_sdk_version,
            backend_build_id: &runtime.backend_build_id,
            requested_eps: placement.requested_eps.iter().map(String::as_str).collect(),
            graph_kind: placement.graph_kind.as_str(),
            placement_source: placement.source.as_str(),
            fingerprint_algorithm: placement.fingerprint_algorithm(),
            fingerprint_exact: placement.exact.map_or(0, |print| print.value),
            fingerprint_normalised: placement.normalised.map_or(0, |print| print.value),
            n_nodes: placement.n_nodes,
            npu_nodes: placement.n_npu_nodes(),
            npu_partitions: placement.n_npu_partitions(),
            cpu_nodes: placement.n_cpu_nodes(),
            cpu_benign_nodes: placement.n_benign_cpu_nodes(),
            npu_macs_share: placement.npu_macs_share().map(stored_share),
            macs_attributed: placement.macs_attributed.map(stored_share),
            manifest_sha256: hex(placement.manifest_sha256),
            reasons: placement
                .reasons
                .iter()
                .map(|reason| reason.as_str())
                .collect(),
            ep: eps.clone().map(|ep| ep.ep.as_str()).collect(),
            ep_nodes: eps.clone().map(|ep| ep.n_nodes).collect(),
            ep_partitions: eps.clone().map(|ep| ep.n_partitions.unwrap_or(0)).collect(),
            ep_macs_share: eps.map(|ep| ep.macs_share.map(stored_share)).collect(),
            cpu_node_name: nodes.clone().map(|node| node.name.as_str()).collect(),
            cpu_node_op_type: nodes.clone().map(|node| node.op_type.as_str()).collect(),
            cpu_node_benign: nodes.clone().map(|node| node.benign).collect(),
            cpu_node_reason: nodes.clone().map(|node| node.reason.as_str()).collect(),
            cpu_node_macs_share: nodes
                .map(|node| node.macs_share.map(stored_share))
                .collect(),
            cpu_nodes_truncated: placement.cpu_nodes_truncated,
        }
    }
}
