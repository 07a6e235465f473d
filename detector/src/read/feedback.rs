//! Incidents that people called false, for a replay to count. Windows and verdicts never read them, because one wrong
//! order would make the detector blind.

use clickhouse::{Client, Row};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::{SourceError, failed};

/// An incident that a person called false.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FalseIncident {
    /// Its id.
    pub incident: String,
    /// App id.
    pub app: String,
    /// Environment of the app.
    pub environment: String,
    /// Model id.
    pub model: String,
    /// Version of the model.
    pub version: String,
    /// Its chipsets.
    pub chipsets: Vec<String>,
    /// Its verdict's name.
    pub verdict: String,
    /// `ticket` or `page`.
    pub severity: String,
    /// Signals that fired in its windows.
    pub signals: Vec<String>,
    /// The person who called it false.
    pub who: String,
    /// The person's reason.
    pub why: String,
    /// Start of its first window.
    pub started_at: Timestamp,
    /// Its last change.
    #[serde(skip)]
    pub changed_at: Timestamp,
}

/// Incidents of a span of time: how many fired, and which of them people called false.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Feedback {
    /// Incidents that fired.
    pub fired: u64,
    /// Incidents that people called false, in order of time.
    pub called_false: Vec<FalseIncident>,
}

#[derive(Debug, Row, Deserialize)]
struct FalseRow {
    incident_id: String,
    app_id: String,
    environment: String,
    model_id: String,
    model_version: String,
    chipsets: Vec<String>,
    verdict: String,
    severity: String,
    signals: Vec<String>,
    who: String,
    why: String,
    started_ms: i64,
    changed_ms: i64,
}

/// A replay counts each of them, but people read only the first ones.
const CALLED_FALSE: &str = "
    SELECT f.incident_id AS incident_id, toString(f.app_id) AS app_id, toString(f.environment) AS environment,
        toString(f.model_id) AS model_id, toString(f.model_version) AS model_version,
        arrayMap(name -> toString(name), f.chipsets) AS chipsets, toString(f.verdict) AS verdict,
        toString(f.severity) AS severity, f.signals AS signals, f.who AS who, f.why AS why,
        toInt64(toUnixTimestamp64Milli(f.started_at)) AS started_ms, toInt64(toUnixTimestamp64Milli(f.changed_at)) AS changed_ms
    FROM false_incidents_v1 AS f
    WHERE f.started_at >= fromUnixTimestamp64Milli(?) AND f.started_at < fromUnixTimestamp64Milli(?)
    ORDER BY f.started_at, f.incident_id
    LIMIT 10000";

const FIRED: &str = "
    SELECT count() FROM incidents_v1
    WHERE state IN ('firing', 'mitigated', 'resolved')
        AND started_at >= fromUnixTimestamp64Milli(?) AND started_at < fromUnixTimestamp64Milli(?)";

/// Reads the feedback on incidents that began in a time.
pub(super) async fn feedback(
    client: &Client,
    (from, until): (Timestamp, Timestamp),
) -> Result<Feedback, SourceError> {
    let between = |sql| {
        let query = client.query(sql).bind(from.as_millisecond());
        query.bind(until.as_millisecond())
    };
    let fired = between(FIRED).fetch_one::<u64>().await;
    let fired = fired.map_err(failed("the incidents of the time"))?;
    let rows = between(CALLED_FALSE).fetch_all::<FalseRow>().await;
    let rows = rows.map_err(failed("the incidents that people called false"))?;
    Ok(Feedback {
        fired,
        called_false: rows.into_iter().filter_map(FalseRow::incident).collect(),
    })
}

impl FalseRow {
    fn incident(self) -> Option<FalseIncident> {
        Some(FalseIncident {
            started_at: Timestamp::from_millisecond(self.started_ms).ok()?,
            changed_at: Timestamp::from_millisecond(self.changed_ms).ok()?,
            incident: self.incident_id,
            app: self.app_id,
            environment: self.environment,
            model: self.model_id,
            version: self.model_version,
            chipsets: self.chipsets,
            verdict: self.verdict,
            severity: self.severity,
            signals: self.signals,
            who: self.who,
            why: self.why,
        })
    }
}
