//! Placements that models were certified with.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

use super::store::{ReadError, StoreReader, filtered};

/// Maximum number of certificates in a list.
pub(crate) const MOST: usize = 500;

/// A certificate: a model's version on one chipset and firmware with one runtime.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct CertificateRow {
    pub(crate) app: String,
    pub(crate) environment: String,
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) chipset: String,
    /// Hash of the firmware that it was measured on; empty if none is known.
    pub(crate) firmware: String,
    /// Versions of ONNX Runtime and of the EP.
    pub(crate) runtime: String,
    /// Hash of the model file; empty if the certifier gave none.
    pub(crate) model_sha256: String,
    pub(crate) certified_by: String,
    pub(crate) stored_at_ms: i64,
    /// Share of the MACs that run on the NPU, in [0, 1]; `None` if it is not known.
    pub(crate) npu_macs_share: Option<f32>,
    pub(crate) npu_partitions: u32,
    /// Nodes that compute on the CPU.
    pub(crate) cpu_nodes: u32,
    /// Launches that were measured; 0 without any.
    pub(crate) latency_launches: u32,
    pub(crate) latency_p50_us: u64,
    /// Whether a later certificate of this version is for another model file.
    pub(crate) is_replaced: bool,
}

const CERTIFICATES: &str = "
SELECT toString(c.app_id) AS app,
    toString(c.environment) AS environment,
    toString(c.model_id) AS model,
    toString(c.model_version) AS version,
    toString(c.chipset) AS chipset,
    toString(c.firmware) AS firmware,
    if(c.ep_version = '', toString(c.ort_version), concat(c.ort_version, '/', c.ep_version)) AS runtime,
    c.model_sha256 AS model_sha256,
    c.certified_by AS certified_by,
    toUnixTimestamp64Milli(c.stored_at) AS stored_at_ms,
    c.npu_macs_share AS npu_macs_share,
    c.npu_partitions AS npu_partitions,
    toUInt32(greatest(toInt64(c.cpu_nodes) - toInt64(c.cpu_benign_nodes), 0)) AS cpu_nodes,
    c.latency_launches AS latency_launches,
    c.latency_p50_us AS latency_p50_us,
    toBool(c.model_sha256 != first_value(c.model_sha256) OVER (
        PARTITION BY c.app_id, c.environment, c.model_id, c.model_version ORDER BY c.stored_at DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)) AS is_replaced
FROM certified_placements_v1 AS c
WHERE (? = 0 OR c.app_id = ?)
ORDER BY stored_at_ms DESC, chipset, firmware, runtime
LIMIT ?";

/// Returns the certificates of an app or of all, the latest first; at most [`MOST`].
pub(crate) async fn list(
    store: &StoreReader,
    app: Option<&str>,
) -> Result<Vec<CertificateRow>, ReadError> {
    let scope = |sql: clickhouse::query::Query| filtered(sql, app).bind(MOST);
    store.rows(CERTIFICATES, scope).await
}
