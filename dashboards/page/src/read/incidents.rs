//! Incidents as rows: what the list and other pages show of them.

use clickhouse::Row;
use epwatch_model::{Severity, State, VerdictClass};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::progress::time;
use super::store::{ReadError, StoreReader};

/// An incident in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct IncidentRow {
    pub(crate) incident: String,
    pub(crate) state: String,
    pub(crate) severity: String,
    pub(crate) verdict: String,
    pub(crate) app: String,
    pub(crate) environment: String,
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) chipsets: Vec<String>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) changed_at: Option<Timestamp>,
    pub(crate) devices_hit: u64,
    pub(crate) devices_seen: u64,
    pub(crate) latency_ratio: Option<f64>,
    pub(crate) cpu_ops: Vec<String>,
    pub(crate) cpu_macs_share: Option<f64>,
    /// The name in the acknowledgement that is in force.
    pub(crate) acknowledged_by: Option<String>,
    /// End of a mute that is in force.
    pub(crate) muted_until: Option<Timestamp>,
    /// The incident that is sent in place of this one, which has the same cause.
    pub(crate) part_of: Option<String>,
}

#[derive(Debug, Row, Deserialize)]
pub(crate) struct IncidentSelect {
    incident: String,
    state: String,
    severity: String,
    verdict: String,
    app: String,
    environment: String,
    model: String,
    version: String,
    chipsets: Vec<String>,
    started: i64,
    changed: i64,
    devices_hit: u64,
    devices_seen: u64,
    latency_ratio: Option<f64>,
    cpu_ops: Vec<String>,
    cpu_macs_share: Option<f64>,
    acknowledged_by: String,
    muted_until: String,
    part_of: String,
    pub(super) document: String,
}

impl IncidentSelect {
    /// Returns the model and its version.
    pub(super) fn version(&self) -> (String, String) {
        (self.model.clone(), self.version.clone())
    }
}

impl From<IncidentSelect> for IncidentRow {
    fn from(row: IncidentSelect) -> Self {
        Self {
            incident: row.incident,
            state: row.state,
            severity: row.severity,
            verdict: row.verdict,
            app: row.app,
            environment: row.environment,
            model: row.model,
            version: row.version,
            chipsets: row.chipsets,
            started_at: time(row.started),
            changed_at: time(row.changed),
            devices_hit: row.devices_hit,
            devices_seen: row.devices_seen,
            latency_ratio: row.latency_ratio,
            cpu_ops: row.cpu_ops,
            cpu_macs_share: row.cpu_macs_share,
            acknowledged_by: Some(row.acknowledged_by).filter(|who| !who.is_empty()),
            muted_until: row.muted_until.parse().ok(),
            part_of: Some(row.part_of).filter(|id| !id.is_empty()),
        }
    }
}

macro_rules! select {
    ($document:literal, $rest:literal) => {
        concat!(
            "SELECT i.incident_id AS incident, i.state AS state, i.severity AS severity, i.verdict AS verdict, i.app_id AS app,
                i.environment AS environment, i.model_id AS model, i.model_version AS version, i.chipsets AS chipsets,
                i.started_at AS started, i.changed_at AS changed, i.devices_hit AS devices_hit,
                i.devices_seen AS devices_seen, i.latency_ratio AS latency_ratio, i.cpu_ops AS cpu_ops,
                i.cpu_macs_share AS cpu_macs_share,
                JSONExtractString(i.document, 'orders', 'ack', 'who') AS acknowledged_by,
                JSONExtractString(i.document, 'orders', 'mute', 'until') AS muted_until,
                JSONExtractString(i.document, 'part_of') AS part_of, ",
            $document,
            " AS document FROM incidents_v1 AS i ",
            $rest
        )
    };
}
pub(super) use select;

const OPEN: &str = select!(
    "i.document",
    "WHERE i.app_id = ? AND i.environment = ? AND i.state IN ('firing', 'mitigated')
     ORDER BY i.severity = 'page' DESC, i.started_at, i.incident_id
     LIMIT 50"
);

impl IncidentRow {
    /// Returns the model, or the app if the incident is about it as a whole.
    pub(crate) fn subject(&self) -> &str {
        match self.model.is_empty() {
            true => &self.app,
            false => &self.model,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state().is_some_and(State::is_notified)
    }

    /// Whether the incident is open and not a part of another one, so its notifications are sent.
    pub(crate) fn is_told(&self) -> bool {
        self.is_open() && self.part_of.is_none()
    }

    pub(crate) fn state(&self) -> Option<State> {
        State::parse(&self.state)
    }

    /// Returns the verdict's class; `None` for a class that only a newer detector knows.
    pub(crate) fn class(&self) -> Option<VerdictClass> {
        VerdictClass::parse(&self.verdict)
    }

    /// Whether a person has to look at the verdict.
    pub(crate) fn is_finding(&self) -> bool {
        Severity::parse(&self.severity).is_some_and(|severity| severity >= Severity::Ticket)
    }
}

/// Returns the open incidents of an app with their documents.
pub(super) async fn open(
    store: &StoreReader,
    (app, environment): (&str, &str),
) -> Result<Vec<IncidentSelect>, ReadError> {
    store
        .rows(OPEN, |query| query.bind(app).bind(environment))
        .await
}
