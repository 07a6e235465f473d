//! The history of an incident: its changes, the news that people were sent, and when each notifier delivered it.
//!
//! If a list is too long, only the newest rows are kept, and `is_cut` is true.

use clickhouse::Row;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::progress::time_of_ms;
use super::store::{ReadError, StoreReader};

/// Maximum number of rows of each list.
const MOST_CHANGES: usize = 500;
const MOST_NEWS: usize = 30;
const MOST_DELIVERIES: usize = 500;

/// A change of an incident's state or severity.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct IncidentChange {
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) at: Option<Timestamp>,
    pub(crate) state: String,
    pub(crate) severity: String,
    pub(crate) devices_hit: u64,
    pub(crate) devices_seen: u64,
}

/// News of an incident as it was sent to people.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct IncidentNews {
    pub(crate) news: u64,
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) at: Option<Timestamp>,
    /// The text as in notifications, with line breaks.
    pub(crate) text: String,
}

/// The time at which a notifier had delivered the news up to a number, or its receiver had refused it for good.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct IncidentDelivery {
    pub(crate) notifier: String,
    pub(crate) news: u64,
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) at: Option<Timestamp>,
    pub(crate) is_refused: bool,
}

/// All deliveries of one notifier. News that was replaced by later news before it was sent does not count. Nor do
/// repeats.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct IncidentChannel {
    pub(crate) notifier: String,
    pub(crate) told: u64,
    pub(crate) refused: u64,
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) last_told_at: Option<Timestamp>,
}

/// The history of one incident, each list in order of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct IncidentHistory {
    pub(crate) changes: Vec<IncidentChange>,
    pub(crate) news: Vec<IncidentNews>,
    pub(crate) deliveries: Vec<IncidentDelivery>,
    pub(crate) channels: Vec<IncidentChannel>,
    /// Whether older rows are left out.
    pub(crate) is_cut: bool,
}

/// The view also has a row for each change of the number of devices hit.
const CHANGES: &str = "
SELECT at, state, severity, devices_hit, devices_seen
FROM (
    SELECT toInt64(toUnixTimestamp64Milli(c.changed_at)) AS at, toString(c.state) AS state,
        toString(c.severity) AS severity, c.devices_hit AS devices_hit, c.devices_seen AS devices_seen,
        any((state, severity)) OVER (ORDER BY c.changed_at ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS before
    FROM incident_changes_v1 AS c
    WHERE c.incident_id = ?
)
WHERE before != (state, severity)
ORDER BY at DESC
LIMIT ?";

const NEWS: &str = "
SELECT n.news AS news, toInt64(toUnixTimestamp64Milli(n.told_at)) AS at, n.notification AS text
FROM incident_news_v1 AS n
WHERE n.incident_id = ?
ORDER BY news DESC
LIMIT ?";

const DELIVERIES: &str = "
SELECT d.notifier AS notifier, d.news AS news, toInt64(toUnixTimestamp64Milli(d.delivered_at)) AS at,
    d.is_refused AS is_refused
FROM incident_deliveries_v1 AS d
WHERE d.incident_id = ?
ORDER BY at DESC, notifier DESC
LIMIT ?";

const CHANNELS: &str = "
SELECT d.notifier AS notifier, countIf(NOT d.is_refused) AS told, countIf(d.is_refused) AS refused,
    toInt64(toUnixTimestamp64Milli(maxIf(d.delivered_at, NOT d.is_refused))) AS last_told_at
FROM incident_deliveries_v1 AS d
WHERE d.incident_id = ?
GROUP BY notifier
ORDER BY notifier
LIMIT 100";

pub(super) async fn read(
    store: &StoreReader,
    incident: &str,
) -> Result<IncidentHistory, ReadError> {
    // Reads one row more than is kept, to see whether there are more.
    let of = |most: usize| {
        move |query: clickhouse::query::Query| query.bind(incident).bind(most as u64 + 1)
    };
    let (changes, news, deliveries, channels) = tokio::try_join!(
        store.rows(CHANGES, of(MOST_CHANGES)),
        store.rows(NEWS, of(MOST_NEWS)),
        store.rows(DELIVERIES, of(MOST_DELIVERIES)),
        store.rows(CHANNELS, |query| query.bind(incident)),
    )?;
    let (changes, some_changes) = newest(changes, MOST_CHANGES);
    let (news, some_news) = newest(news, MOST_NEWS);
    let (deliveries, some_deliveries) = newest(deliveries, MOST_DELIVERIES);
    Ok(IncidentHistory {
        changes,
        news,
        deliveries,
        channels,
        is_cut: some_changes || some_news || some_deliveries,
    })
}

/// Takes rows with the newest first. Returns the newest rows in order of time, and whether older ones are left out.
pub(super) fn newest<T>(mut rows: Vec<T>, most: usize) -> (Vec<T>, bool) {
    let is_cut = rows.len() > most;
    rows.truncate(most);
    rows.reverse();
    (rows, is_cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_cut_keeps_the_newest_in_order_of_time() {
        let numbers = |rows: Vec<u64>| newest(rows, 3);
        assert_eq!(numbers(vec![9, 8, 7]), (vec![7, 8, 9], false));
        assert_eq!(numbers(vec![9, 8, 7, 6]), (vec![7, 8, 9], true));
    }
}
