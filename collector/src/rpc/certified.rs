//! A certified placement: the validated request, and its row in `certified_placements`.

use std::sync::Arc;

use clickhouse::Row;
use epwatch_proto::device::is_vendor_fingerprint_hash;
use epwatch_proto::placement::stored_share;
use epwatch_proto::{
    Chipset, Model, ModelHash, ParseError, Placement, PlacementSource, Runtime, hex, v1,
};
use epwatch_store::native::encode::{ColumnDef, column};
use prost::Message;
use serde::Deserialize;

use super::block::{Fill, required};
use crate::encode::{TIME, U32S, WORD, WORDS};
use crate::ingest::auth::Scope;

const MAX_CHIPSET_BYTES: usize = 64;
const MAX_CERTIFIED_BY_BYTES: usize = 128;
/// Longest run time: an hour.
const MAX_LATENCY_US: u64 = 3_600_000_000;
/// A placement with all fields at their bounds has some 310 KB. A longer one is not decoded, because an empty node takes
/// two bytes encoded and over a hundred in memory.
const MAX_PLACEMENT_BYTES: usize = 512 << 10;

/// A validated request.
#[derive(Debug)]
pub(super) struct PlacementCall {
    scope: Arc<Scope>,
    stored_at_ms: i64,
    model: Model,
    chipset: String,
    runtime: Runtime,
    placement: Placement,
    certified_by: String,
    latency: v1::CertifiedLatency,
    replace: bool,
    firmware: String,
}

/// The model file that was certified last under an id and version.
#[derive(Debug, Row, Deserialize)]
pub(super) struct CertifiedModel {
    pub(super) sha256: String,
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

/// The firmware is empty, or a hash in the form that reports use.
fn read_firmware(firmware: String) -> Result<String, ParseError> {
    match is_vendor_fingerprint_hash(&firmware) {
        true => Ok(firmware),
        false => {
            let expected = "32 lower-case hexadecimal digits or nothing";
            Err(ParseError::malformed("firmware", expected, firmware))
        }
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

/// Returns zeros if no launches were measured.
fn read_latency(latency: Option<v1::CertifiedLatency>) -> Result<v1::CertifiedLatency, ParseError> {
    let Some(latency) = latency else {
        return Ok(v1::CertifiedLatency::default());
    };
    let v1::CertifiedLatency {
        launches,
        runs,
        p10_us,
        p50_us,
        p95_us,
    } = latency;
    let malformed = |field, expected, got| Err(ParseError::malformed(field, expected, got));
    if runs < u64::from(launches.max(1)) || launches == 0 {
        let got = format!("{launches} launches, {runs} runs");
        return malformed("latency.launches", "at least 1, each with a run", got);
    }
    if !(1 <= p10_us && p10_us <= p50_us && p50_us <= p95_us && p95_us <= MAX_LATENCY_US) {
        let expected = "p10, p50 and p95 from 1 us to an hour, in ascending order";
        let got = format!("{p10_us}, {p50_us}, {p95_us}");
        return malformed("latency.p10_us", expected, got);
    }
    Ok(latency)
}

impl PlacementCall {
    pub(super) fn read(
        request: v1::PutCertifiedPlacementRequest,
        scope: Arc<Scope>,
        stored_at_ms: i64,
    ) -> Result<Self, ParseError> {
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
            scope,
            stored_at_ms,
            model: Model::try_from(required("model", request.model)?)
                .map_err(|e| e.inside("model"))?,
            chipset: normalised(request.chipset)?,
            runtime: Runtime::try_from(required("runtime", request.runtime)?)
                .map_err(|e| e.inside("runtime"))?,
            placement,
            latency: read_latency(request.latency)?,
            replace: request.replace,
            firmware: read_firmware(request.firmware)?,
            certified_by: text(
                "certified_by",
                request.certified_by,
                0,
                MAX_CERTIFIED_BY_BYTES,
            )?,
        })
    }
}

impl PlacementCall {
    /// Selects the model file that was certified last under this id and version; `None` if any may be stored.
    pub(super) fn certified_model_sql(&self) -> Option<String> {
        self.model.sha256.filter(|_| !self.replace)?;
        // Names are untrusted text from the sender.
        let quoted = |text: &str| format!("unhex('{}')", hex(text.as_bytes()));
        Some(format!(
            "SELECT model_sha256 AS sha256 FROM certified_placements WHERE app_id = {} AND environment = {} \
             AND model_id = {} AND model_version = {} AND model_sha256 != '' ORDER BY stored_at DESC LIMIT 1",
            quoted(self.scope.app()),
            quoted(self.scope.environment()),
            quoted(&self.model.id),
            quoted(&self.model.version)
        ))
    }

    /// Returns why this placement may not be stored, if the certified one is of another model file.
    pub(super) fn refusal(&self, certified: &CertifiedModel) -> Option<String> {
        let own = hash(self.model.sha256);
        (certified.sha256 != own).then(|| {
            format!(
                "{} {} is certified with another model file, SHA-256 {}..., and this one has {}...; give this file a version \
                 of its own, or replace the certificate (epwatch gate --replace)",
                self.model.id,
                self.model.version,
                certified.sha256.get(..12).unwrap_or_default(),
                own.get(..12).unwrap_or_default()
            )
        })
    }
}

fn hash(hash: Option<ModelHash>) -> String {
    hash.map_or_else(String::new, |hash| hash.to_string())
}

/// One line per column.
#[rustfmt::skip]
pub(super) static CERTIFIED: [ColumnDef<Fill<PlacementCall>>; 46] = [
    column("app_id", WORD, |c, p| c.word(p.scope.app())),
    column("environment", WORD, |c, p| c.word(p.scope.environment())),
    column("model_id", WORD, |c, p| c.word(&p.model.id)),
    column("model_version", WORD, |c, p| c.word(&p.model.version)),
    column("model_sha256", "String", |c, p| c.text(&hash(p.model.sha256))),
    column("chipset", WORD, |c, p| c.word(&p.chipset)),
    column("firmware", WORD, |c, p| c.word(&p.firmware)),
    column("stored_at", TIME, |c, p| c.put(p.stored_at_ms)),
    column("certified_by", "String", |c, p| c.text(&p.certified_by)),
    column("ort_version", WORD, |c, p| c.word(&p.runtime.ort_version)),
    column("ep_package", WORD, |c, p| c.word(&p.runtime.ep_package)),
    column("ep_version", WORD, |c, p| c.word(&p.runtime.ep_version)),
    column("ep_linkage", WORD, |c, p| c.word(p.runtime.ep_linkage.as_str())),
    column("backend", WORD, |c, p| c.word(p.runtime.backend.as_str())),
    column("qnn_sdk_version", WORD, |c, p| c.word(&p.runtime.qnn_sdk_version)),
    column("backend_build_id", WORD, |c, p| c.word(&p.runtime.backend_build_id)),
    column("requested_eps", WORDS, |c, p| c.list(&p.placement.requested_eps, |c, ep| c.word(ep))),
    column("graph_kind", WORD, |c, p| c.word(p.placement.graph_kind.as_str())),
    column("placement_source", WORD, |c, p| c.word(p.placement.source.as_str())),
    column("fingerprint_algorithm", "UInt32", |c, p| c.put(p.placement.fingerprint_algorithm())),
    column("fingerprint_exact", "UInt64", |c, p| c.put(p.placement.exact.map_or(0, |print| print.value))),
    column("fingerprint_normalised", "UInt64", |c, p| c.put(p.placement.normalised.map_or(0, |print| print.value))),
    column("n_nodes", "UInt32", |c, p| c.put(p.placement.n_nodes)),
    column("npu_nodes", "UInt32", |c, p| c.put(p.placement.n_npu_nodes())),
    column("npu_partitions", "UInt32", |c, p| c.put(p.placement.n_npu_partitions())),
    column("cpu_nodes", "UInt32", |c, p| c.put(p.placement.n_cpu_nodes())),
    column("cpu_benign_nodes", "UInt32", |c, p| c.put(p.placement.n_benign_cpu_nodes())),
    column("npu_macs_share", "Nullable(Float32)", |c, p| c.maybe(p.placement.npu_macs_share().map(stored_share))),
    column("macs_attributed", "Nullable(Float32)", |c, p| c.maybe(p.placement.macs_attributed.map(stored_share))),
    column("manifest_sha256", "String", |c, p| c.text(&hash(p.placement.manifest_sha256))),
    column("reasons", WORDS, |c, p| c.list(&p.placement.reasons, |c, reason| c.word(reason.as_str()))),
    column("ep", WORDS, |c, p| c.list(&p.placement.eps, |c, ep| c.word(&ep.ep))),
    column("ep_nodes", U32S, |c, p| c.list(&p.placement.eps, |c, ep| c.put(ep.n_nodes))),
    column("ep_partitions", U32S, |c, p| c.list(&p.placement.eps, |c, ep| c.put(ep.n_partitions.unwrap_or(0)))),
    column("ep_macs_share", "Array(Nullable(Float32))", |c, p| c.list(&p.placement.eps, |c, ep| c.maybe(ep.macs_share.map(stored_share)))),
    column("cpu_node_name", "Array(String)", |c, p| c.list(&p.placement.cpu_nodes, |c, node| c.text(&node.name))),
    column("cpu_node_op_type", WORDS, |c, p| c.list(&p.placement.cpu_nodes, |c, node| c.word(&node.op_type))),
    column("cpu_node_benign", "Array(Bool)", |c, p| c.list(&p.placement.cpu_nodes, |c, node| c.put(node.benign))),
    column("cpu_node_reason", WORDS, |c, p| c.list(&p.placement.cpu_nodes, |c, node| c.word(node.reason.as_str()))),
    column("cpu_node_macs_share", "Array(Nullable(Float32))", |c, p| c.list(&p.placement.cpu_nodes, |c, node| c.maybe(node.macs_share.map(stored_share)))),
    column("cpu_nodes_truncated", "Bool", |c, p| c.put(p.placement.cpu_nodes_truncated)),
    column("latency_launches", "UInt32", |c, p| c.put(p.latency.launches)),
    column("latency_runs", "UInt64", |c, p| c.put(p.latency.runs)),
    column("latency_p10_us", "UInt64", |c, p| c.put(p.latency.p10_us)),
    column("latency_p50_us", "UInt64", |c, p| c.put(p.latency.p50_us)),
    column("latency_p95_us", "UInt64", |c, p| c.put(p.latency.p95_us)),
];
