//! The document of `demo --json`, read from the public views.

use std::collections::BTreeMap;

use clickhouse::{Client, Row};
use serde::{Deserialize, Serialize};

use super::pager::Page;
use crate::ledger::ReportLedger;

/// The one document of `demo --json`.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) seconds: f64,
    /// From the start of the command to the first page; `null` without one.
    pub(super) first_page_seconds: Option<f64>,
    /// Sessions of ONNX Runtime and QNN.
    pub(super) real_sessions: Vec<RealSession>,
    /// The reason why there are no real sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_real_sessions: Option<String>,
    /// Notifications as people get them, in the order of sending.
    pub(super) pages: Vec<Page>,
    pub(super) incidents: Vec<Incident>,
    pub(super) ledger: ReportLedger,
}

/// One session on the emulator.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RealSession {
    pub(super) chipset: String,
    pub(super) model: String,
    pub(super) version: String,
    pub(super) placement_source: String,
    pub(super) eps: BTreeMap<String, EpNodes>,
    /// Op types of the CPU's nodes, without benign ones.
    pub(super) cpu_ops: Vec<String>,
}

/// Nodes that one EP runs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct EpNodes {
    pub(super) nodes: u32,
    /// `null` for the CPU, where each node is a partition.
    pub(super) partitions: Option<u32>,
}

/// One incident, with its state at the end.
#[derive(Debug, Serialize, Deserialize, Row)]
pub(super) struct Incident {
    /// The incident's name in its page.
    pub(super) incident: String,
    pub(super) state: String,
    pub(super) severity: String,
    pub(super) app: String,
    pub(super) model: String,
    pub(super) version: String,
    pub(super) chipsets: Vec<String>,
    pub(super) verdict: String,
    pub(super) devices_hit: u64,
    pub(super) devices_seen: u64,
    pub(super) latency_ratio: Option<f64>,
    /// CV of all clean runs: within and between devices together.
    pub(super) cv: Option<f64>,
    pub(super) cv_within: Option<f64>,
    pub(super) cv_between: Option<f64>,
    pub(super) dip: Option<f64>,
    pub(super) cpu_ops: Vec<String>,
    pub(super) cpu_macs_share: Option<f64>,
    pub(super) summary: String,
}

const INCIDENTS: &str = "
SELECT
    toString(incident_id) AS incident, toString(state) AS state, toString(severity) AS severity, toString(app_id) AS app,
    toString(model_id) AS model, toString(model_version) AS version,
    CAST(chipsets, 'Array(String)') AS chipsets, toString(verdict) AS verdict,
    devices_hit, devices_seen, latency_ratio,
    sqrt(pow(cv_within, 2) + pow(cv_between, 2)) AS cv, cv_within, cv_between, dip,
    CAST(cpu_ops, 'Array(String)') AS cpu_ops, cpu_macs_share, summary
FROM incidents_v1
WHERE state IN ('firing', 'resolved')
ORDER BY started_at, incident_id";

const LEDGER: &str = "
SELECT
    sum(recorded) AS recorded, sum(stored) AS stored, sum(dropped) AS dropped, sum(refused) AS refused,
    assumeNotNull((SELECT sum(duplicate) FROM duplicates_v1)) AS duplicate, sum(missing) AS missing
FROM loss_ledger_v1";

pub(super) async fn incidents(store: &Client) -> anyhow::Result<Vec<Incident>> {
    Ok(store.query(INCIDENTS).fetch_all().await?)
}

pub(super) async fn ledger(store: &Client) -> anyhow::Result<ReportLedger> {
    Ok(store.query(LEDGER).fetch_one().await?)
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.first_page_seconds {
            Some(seconds) => writeln!(f, "first page after {seconds:.0} s")?,
            None => writeln!(f, "nobody was paged")?,
        }
        for incident in &self.incidents {
            writeln!(
                f,
                "{} {} ({}): {}",
                incident.severity, incident.verdict, incident.state, incident.summary
            )?;
        }
        let ReportLedger {
            recorded,
            stored,
            dropped,
            refused,
            duplicate,
            missing,
        } = &self.ledger;
        write!(
            f,
            "{recorded} reports recorded = {stored} stored + {dropped} dropped + {refused} refused + \
             {missing} missing; {duplicate} came twice and count once"
        )
    }
}
