//! Rows of incidents and of people's orders. The detector writes incidents. `epwatch incident` and pages write orders.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

/// A row of `incidents_v1`: the current state of an incident. Lists of pages leave out `document`, which is most of its
/// bytes, so they select columns of their own.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/views.md has the meaning of each column")]
pub struct StoredIncidentRow {
    pub incident_id: String,
    pub changed_at: i64,
    pub state: String,
    pub severity: String,
    pub verdict: String,
    pub app_id: String,
    pub environment: String,
    pub model_id: String,
    pub model_version: String,
    pub chipsets: Vec<String>,
    pub started_at: i64,
    pub devices_hit: u64,
    pub devices_seen: u64,
    pub latency_ratio: Option<f64>,
    pub cv_within: Option<f64>,
    pub cv_between: Option<f64>,
    pub dip: Option<f64>,
    pub cpu_ops: Vec<String>,
    pub cpu_macs_share: Option<f64>,
    pub summary: String,
    pub notification: String,
    pub document: String,
}

/// A row of `incident_orders_v1`: a person's order. A writer leaves `ordered_at` and `is_counted` to the store.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/views.md has the meaning of each column")]
pub struct IncidentOrderRow {
    pub order_id: String,
    pub incident_id: String,
    pub order_number: u64,
    pub order_kind: String,
    pub who: String,
    pub ordered_at: i64,
    pub until: Option<i64>,
    pub why: String,
    pub source: String,
    pub app_id: String,
    pub environment: String,
    pub model_id: String,
    pub model_version: String,
    pub is_counted: bool,
}
