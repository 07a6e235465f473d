//! Installations: the list of recent ones, and the data that one of them sent.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

use super::store::{LeftOut, ReadError, StoreReader, filtered};

/// Installations of this many last days are searched.
pub(crate) const DAYS: u32 = 14;

/// Maximum number of installations in a list.
pub(crate) const MOST: usize = 50;

/// The data that one installation sent in the last [`DAYS`]. A list that could not be read is `None`, and `null` in the
/// JSON. An empty list means that the device sent nothing of it.
#[derive(Debug, Serialize)]
pub(crate) struct InstallationPage {
    pub(crate) installation: InstallationRow,
    pub(crate) models: Option<Vec<ModelSessions>>,
    pub(crate) latencies: Option<Vec<ModelRuns>>,
    pub(crate) start_failures: Option<Vec<StartFailures>>,
    pub(crate) run_errors: Option<Vec<RunErrors>>,
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
    /// Devices to which ONNX Runtime gave inputs and outputs of its newest session.
    pub(crate) devices: Vec<String>,
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
    arrayMap(device -> toString(device), argMax(s.ep_devices, s.received_at)) AS devices,
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

/// Sessions of one model's version that could not be made for one reason. The text is the newest failure's.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct StartFailures {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) phase: String,
    pub(crate) reason: String,
    pub(crate) ort_status: i32,
    pub(crate) text: String,
    pub(crate) failures: u64,
    pub(crate) last_received_ms: i64,
}

const START_FAILURES: &str = "
SELECT toString(f.model_id) AS model, toString(f.model_version) AS version, toString(f.start_phase) AS phase,
    toString(f.start_reason) AS reason, f.ort_status AS ort_status, argMax(f.start_text, f.received_at) AS text,
    toUInt64(sum(f.failures)) AS failures, toUnixTimestamp64Milli(max(f.received_at)) AS last_received_ms
FROM start_failures_v1 AS f
WHERE f.bucket >= now('UTC') - toIntervalDay(?) AND f.installation = unhex(?)
GROUP BY f.model_id, f.model_version, f.start_phase, f.start_reason, f.ort_status
ORDER BY last_received_ms DESC, model, version, phase, reason, ort_status
LIMIT 100";

/// Runs of one model's version that ONNX Runtime ended with one status.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct RunErrors {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) ort_status: i32,
    pub(crate) errors: u64,
    pub(crate) last_received_ms: i64,
}

const RUN_ERRORS: &str = "
SELECT toString(e.model_id) AS model, toString(e.model_version) AS version, e.ort_status AS ort_status,
    toUInt64(sum(e.errors)) AS errors, toUnixTimestamp64Milli(max(e.received_at)) AS last_received_ms
FROM run_errors_v1 AS e
WHERE e.bucket >= now('UTC') - toIntervalDay(?) AND e.installation = unhex(?)
GROUP BY e.model_id, e.model_version, e.ort_status
ORDER BY last_received_ms DESC, model, version, ort_status
LIMIT 100";

/// Returns the data that an installation sent.
pub(crate) async fn read(store: &StoreReader, installation: InstallationRow) -> InstallationPage {
    let mut left_out = LeftOut::default();
    let of = |sql: clickhouse::query::Query| sql.bind(DAYS).bind(&*installation.id);
    let (models, latencies, start_failures, run_errors) = tokio::join!(
        store.rows(SESSIONS, of),
        store.rows(RUNS, of),
        store.rows(START_FAILURES, of),
        store.rows(RUN_ERRORS, of),
    );
    InstallationPage {
        models: left_out.part("sessions", models.map(Some)),
        latencies: left_out.part("latencies", latencies.map(Some)),
        start_failures: left_out.part("sessions that could not be made", start_failures.map(Some)),
        run_errors: left_out.part("failed runs", run_errors.map(Some)),
        left_out,
        installation,
    }
}
