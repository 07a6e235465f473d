//! Installations: the list of recent ones, and the data that one of them sent.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

use super::store::{LeftOut, ReadError, StoreReader, filtered};

/// Installations of this many last days are searched.
pub(crate) const DAYS: u32 = 14;

/// Maximum number of installations in a list.
pub(crate) const MOST: usize = 50;

/// The data that one installation sent in the last [`DAYS`].
#[derive(Debug, Serialize)]
pub(crate) struct InstallationPage {
    pub(crate) installation: InstallationRow,
    pub(crate) models: Vec<ModelSessions>,
    pub(crate) latencies: Vec<ModelRuns>,
    pub(crate) left_out: LeftOut,
}

/// An installation, described by its newest report.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct InstallationRow {
    /// 32 hexadecimal digits.
    pub(crate) id: String,
    pub(crate) app: String,
    pub(crate) environment: String,
    pub(crate) app_version: String,
    pub(crate) chipset: String,
    /// Manufacturer and model.
    pub(crate) device: String,
    pub(crate) firmware: String,
    /// Versions of ONNX Runtime and of the EP.
    pub(crate) runtime: String,
    pub(crate) sdk_version: String,
    pub(crate) reports: u64,
    /// Reports that came too late for their window.
    pub(crate) late: u64,
    /// Reports without a vote, because the installation was new.
    pub(crate) unproven: u64,
    pub(crate) first_received_ms: i64,
    pub(crate) last_received_ms: i64,
}

// An open bucket may list two copies of a report; counting stream and sequence counts it once.
const INSTALLATIONS: &str = "
SELECT lower(hex(r.installation)) AS id,
    toString(argMax(r.app_id, r.received_at)) AS app,
    toString(argMax(r.environment, r.received_at)) AS environment,
    toString(argMax(r.app_version, r.received_at)) AS app_version,
    toString(argMax(r.chipset, r.received_at)) AS chipset,
    trimBoth(concat(toString(argMax(r.device_manufacturer, r.received_at)), ' ',
        toString(argMax(r.device_model, r.received_at)))) AS device,
    toString(argMax(r.firmware, r.received_at)) AS firmware,
    argMax(if(r.ep_version = '', toString(r.ort_version), concat(r.ort_version, '/', r.ep_version)), r.received_at) AS runtime,
    toString(argMax(r.sdk_version, r.received_at)) AS sdk_version,
    uniqExact(r.stream_id, r.sequence) AS reports,
    uniqExactIf((r.stream_id, r.sequence), r.is_late) AS late,
    uniqExactIf((r.stream_id, r.sequence), r.is_unproven) AS unproven,
    toUnixTimestamp64Milli(min(r.received_at)) AS first_received_ms,
    toUnixTimestamp64Milli(max(r.received_at)) AS last_received_ms
FROM settled_reports_v1 AS r
WHERE r.bucket >= now('UTC') - toIntervalDay(?) AND startsWith(lower(hex(r.installation)), ?)
  AND (? = 0 OR r.app_id = ?)
GROUP BY r.installation
ORDER BY last_received_ms DESC, id
LIMIT ?";

/// Returns installations whose id begins with these digits, the one that reported last first; at most [`MOST`].
pub(crate) async fn list(
    store: &StoreReader,
    days: u32,
    digits: &str,
    app: Option<&str>,
) -> Result<Vec<InstallationRow>, ReadError> {
    let scope =
        |sql: clickhouse::query::Query| filtered(sql.bind(days).bind(digits), app).bind(MOST);
    store.rows(INSTALLATIONS, scope).await
}

/// Sessions of one model's version. The placement is the placement of the newest session.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct ModelSessions {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) sessions: u64,
    pub(crate) placement_source: String,
    pub(crate) n_nodes: u64,
    pub(crate) npu_nodes: u64,
    pub(crate) cpu_nodes: u64,
    /// Reason codes of all its sessions.
    pub(crate) reasons: Vec<String>,
}

const SESSIONS: &str = "
SELECT toString(s.model_id) AS model, toString(s.model_version) AS version,
    uniqExact(s.session_uid) AS sessions,
    toString(argMax(s.placement_source, s.received_at)) AS placement_source,
    toUInt64(argMax(s.n_nodes, s.received_at)) AS n_nodes,
    toUInt64(argMax(s.npu_nodes, s.received_at)) AS npu_nodes,
    toUInt64(argMax(s.cpu_nodes, s.received_at)) AS cpu_nodes,
    arrayMap(reason -> toString(reason), arraySort(groupUniqArrayArray(s.reasons))) AS reasons
FROM device_sessions_v1 AS s
WHERE s.bucket >= now('UTC') - toIntervalDay(?) AND s.installation = unhex(?)
GROUP BY s.model_id, s.model_version
ORDER BY model, version
LIMIT 100";

/// Runs of one model's version, in all phases and contexts.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct ModelRuns {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) runs: u64,
    pub(crate) mean_us: f64,
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
}

const RUNS: &str = "
SELECT toString(s.model_id) AS model, toString(s.model_version) AS version,
    toUInt64(sum(s.n)) AS runs, toFloat64(sum(s.sum_us)) / sum(s.n) AS mean_us,
    toFloat64(min(s.min_us)) AS min_us, toFloat64(max(s.max_us)) AS max_us
FROM device_series_v1 AS s
WHERE s.bucket >= now('UTC') - toIntervalDay(?) AND s.installation = unhex(?) AND s.n > 0
GROUP BY s.model_id, s.model_version
ORDER BY model, version
LIMIT 100";

/// Returns the data that an installation sent.
pub(crate) async fn read(store: &StoreReader, installation: InstallationRow) -> InstallationPage {
    let mut left_out = LeftOut::default();
    let of = |sql: clickhouse::query::Query| sql.bind(DAYS).bind(&*installation.id);
    let (models, latencies) = tokio::join!(store.rows(SESSIONS, of), store.rows(RUNS, of));
    InstallationPage {
        models: left_out.part("sessions", models),
        latencies: left_out.part("latencies", latencies),
        left_out,
        installation,
    }
}
