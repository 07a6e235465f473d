//! Rows of judged windows. The detector writes them. Pages read aggregates over many windows, which have other columns.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

/// A row of `cohort_windows_v1`: one judged window of a cohort.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/views.md has the meaning of each column")]
pub struct CohortWindowRow {
    pub window_end: i64,
    pub window_seconds: f64,
    pub app_id: String,
    pub environment: String,
    pub model_id: String,
    pub model_version: String,
    pub chipset: String,
    pub firmware: String,
    pub algo: String,
    pub follows: String,
    pub devices: u64,
    pub devices_on_chipset: u64,
    pub eligible_devices: u64,
    pub devices_hit: u64,
    pub runs: u64,
    pub p50_us: Option<f64>,
    pub p95_us: Option<f64>,
    pub cv_within: Option<f64>,
    pub cv_between: Option<f64>,
    pub dip: Option<f64>,
    pub dip_p: Option<f64>,
    pub npu_share: Option<f64>,
    pub latency_ratio: Option<f64>,
    pub deadline_us: Option<f64>,
    pub late_share: Option<f64>,
    pub signal_id: Vec<String>,
    pub signal_value: Vec<f64>,
    pub signal_p: Vec<f64>,
    pub signal_hits: Vec<u64>,
    pub signal_devices: Vec<u64>,
    pub signal_fires: Vec<bool>,
    pub verdict: String,
    pub severity: String,
    pub reasons: Vec<String>,
    pub judged_at: i64,
}

/// A row of `judged_windows_v1`: a window whose rows are all stored.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/views.md has the meaning of each column")]
pub struct JudgedWindowRow {
    pub window_end: i64,
    pub window_seconds: f64,
    pub step_seconds: f64,
    pub cohorts: u64,
    pub judged_at: i64,
}
