//! What became of an incident: its changes, what people were told, and when each notifier had delivered it.

use clickhouse::Row;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::progress::time;
use super::store::{ReadError, StoreReader};

/// A state or severity that an incident came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct IncidentChange {
    pub(crate) at: Option<Timestamp>,
    pub(crate) state: String,
    pub(crate) severity: String,
    pub(crate) devices_hit: u64,
    pub(crate) devices_seen: u64,
}

/// What people were told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct IncidentNews {
    pub(crate) news: u64,
    pub(crate) at: Option<Timestamp>,
    /// As notifications have it, with lines.
    pub(crate) text: String,
}

/// A notifier had delivered the news up to a number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct IncidentDelivery {
    pub(crate) notifier: String,
    pub(crate) news: u64,
    pub(crate) at: Option<Timestamp>,
}

/// The history of one incident, each list in order of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct IncidentHistory {
    pub(crate) changes: Vec<IncidentChange>,
    pub(crate) news: Vec<IncidentNews>,
    pub(crate) deliveries: Vec<IncidentDelivery>,
}

#[derive(Debug, Row, Deserialize)]
struct ChangeRow {
    changed: i64,
    state: String,
    severity: String,
    hit: u64,
    seen: u64,
}

const CHANGES: &str = "
SELECT toInt64(toUnixTimestamp64Milli(c.changed_at)) AS changed, toString(c.state) AS state,
    toString(c.severity) AS severity, c.devices_hit AS hit, c.devices_seen AS seen
FROM incident_changes_v1 AS c
WHERE c.incident_id = ?
ORDER BY changed
LIMIT 5000";

#[derive(Debug, Row, Deserialize)]
struct NewsRow {
    number: u64,
    told: i64,
    text: String,
}

const NEWS: &str = "
SELECT n.news AS number, toInt64(toUnixTimestamp64Milli(n.told_at)) AS told, n.notification AS text
FROM incident_news_v1 AS n
WHERE n.incident_id = ?
ORDER BY number DESC
LIMIT 30";

#[derive(Debug, Row, Deserialize)]
struct DeliveryRow {
    notifier: String,
    number: u64,
    delivered: i64,
}

const DELIVERIES: &str = "
SELECT d.notifier AS notifier, d.news AS number, toInt64(toUnixTimestamp64Milli(d.delivered_at)) AS delivered
FROM incident_deliveries_v1 AS d
WHERE d.incident_id = ?
ORDER BY delivered, notifier
LIMIT 500";

pub(super) async fn read(
    store: &StoreReader,
    incident: &str,
) -> Result<IncidentHistory, ReadError> {
    let changes: Vec<ChangeRow> = store.rows(CHANGES, |query| query.bind(incident)).await?;
    let mut news: Vec<NewsRow> = store.rows(NEWS, |query| query.bind(incident)).await?;
    let deliveries: Vec<DeliveryRow> = store.rows(DELIVERIES, |query| query.bind(incident)).await?;
    news.reverse();
    let mut history = IncidentHistory::default();
    for row in changes {
        let last = history.changes.last();
        let is_new =
            last.is_none_or(|last| last.state != row.state || last.severity != row.severity);
        if is_new {
            history.changes.push(IncidentChange {
                at: time(row.changed),
                state: row.state,
                severity: row.severity,
                devices_hit: row.hit,
                devices_seen: row.seen,
            });
        }
    }
    history.news = news.into_iter().map(IncidentNews::from).collect();
    history.deliveries = deliveries.into_iter().map(IncidentDelivery::from).collect();
    Ok(history)
}

impl From<NewsRow> for IncidentNews {
    fn from(row: NewsRow) -> Self {
        Self {
            news: row.number,
            at: time(row.told),
            text: row.text,
        }
    }
}

impl From<DeliveryRow> for IncidentDelivery {
    fn from(row: DeliveryRow) -> Self {
        Self {
            notifier: row.notifier,
            news: row.number,
            at: time(row.delivered),
        }
    }
}
