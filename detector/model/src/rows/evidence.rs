//! Rows of evidence. The detector writes them and pages read them.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

/// A row of `cohort_evidence_v1`: the histograms and ratios behind a verdict.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/views.md has the meaning of each column")]
pub struct CohortEvidenceRow {
    pub place: i64,
    pub window_end: i64,
    pub window_seconds: f64,
    pub app_id: String,
    pub environment: String,
    pub model_id: String,
    pub model_version: String,
    pub chipset: String,
    pub algo: String,
    pub verdict: String,
    pub severity: String,
    pub shape_key: String,
    pub runs: u64,
    pub p10_us: Option<f64>,
    pub p50_us: Option<f64>,
    pub p90_us: Option<f64>,
    pub hist_first: i32,
    pub hist_runs: Vec<u64>,
    pub reference_version: String,
    pub reference_runs: u64,
    pub reference_p50_us: Option<f64>,
    pub reference_hist_first: i32,
    pub reference_hist_runs: Vec<u64>,
    pub ratio_first: i32,
    pub ratio_npu_devices: Vec<u32>,
    pub ratio_cpu_devices: Vec<u32>,
    pub devices_without_past: u64,
    pub mixture_slow_share: Option<f64>,
    pub mixture_fast_us: Option<f64>,
    pub mixture_slow_us: Option<f64>,
    pub mixture_separation: Option<f64>,
    pub mode_fast_us: Option<f64>,
    pub mode_slow_us: Option<f64>,
    pub valley_depth: Option<f64>,
    pub npu_share: Option<f64>,
    pub reference_npu_share: Option<f64>,
    pub judged_at: i64,
}
