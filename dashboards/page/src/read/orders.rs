//! Orders of people to incidents: the orders of one incident, and the audit page.

use clickhouse::Row;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::history::newest;
use super::progress::time_of_ms;
use super::scope::Scope;
use super::store::{ReadError, StoreReader, filtered};

/// An order in the audit trail.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct OrderRow {
    pub(crate) order: String,
    pub(crate) incident: String,
    pub(crate) n: u64,
    pub(crate) kind: String,
    pub(crate) who: String,
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) ordered_at: Option<Timestamp>,
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) until: Option<Timestamp>,
    pub(crate) why: String,
    pub(crate) source: String,
    pub(crate) app: String,
    pub(crate) environment: String,
    pub(crate) model: String,
    pub(crate) version: String,
    /// Whether it came first with its number.
    pub(crate) is_counted: bool,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT o.order_id AS `order`, o.incident_id AS incident, o.order_number AS n, toString(o.order_kind) AS kind, o.who AS who,
                toInt64(toUnixTimestamp64Milli(o.ordered_at)) AS ordered_at,
                ifNull(toInt64(toUnixTimestamp64Milli(o.until)), 0) AS until, o.why AS why,
                toString(o.source) AS source, toString(o.app_id) AS app, toString(o.environment) AS environment,
                toString(o.model_id) AS model, toString(o.model_version) AS version, CAST(o.is_counted, 'Bool') AS is_counted
             FROM incident_orders_v1 AS o ",
            $rest
        )
    };
}

/// Orders of one incident that are shown.
const MOST: usize = 1_000;

const OF_INCIDENT: &str = select!(
    "WHERE o.incident_id = ? ORDER BY o.order_number DESC, o.ordered_at DESC, o.order_id DESC LIMIT 1000"
);

const LATEST: &str = select!(
    "WHERE (? = 1 OR has(?, o.app_id)) AND (? = 0 OR o.app_id = ?) ORDER BY o.ordered_at DESC, o.order_id LIMIT 500"
);

/// The audit page.
#[derive(Debug, Serialize)]
pub(crate) struct OrdersPage {
    pub(crate) app: Option<String>,
    pub(crate) orders: Vec<OrderRow>,
}

/// Returns the latest orders of an incident, the first first. An order to come is the next after the last of them.
pub(crate) async fn of_incident(
    store: &StoreReader,
    incident: &str,
) -> Result<Vec<OrderRow>, ReadError> {
    let rows = store
        .rows(OF_INCIDENT, |query| query.bind(incident))
        .await?;
    Ok(newest(rows, MOST).0)
}

/// Returns the number of the last order; 0 without one.
pub(crate) fn last_number(trail: &[OrderRow]) -> u64 {
    trail.iter().map(|order| order.n).max().unwrap_or(0)
}

/// Returns the order that called an incident false, if none took it back.
pub(crate) fn called_false(trail: &[OrderRow]) -> Option<&OrderRow> {
    let spoken = trail.iter().filter(|order| order.is_counted);
    let spoken = spoken.filter(|order| matches!(&*order.kind, "false" | "reopen"));
    let last = spoken.max_by_key(|order| order.n);
    last.filter(|order| order.kind == "false")
}

pub(crate) async fn read(
    store: &StoreReader,
    app: Option<&str>,
    scope: &Scope,
) -> Result<OrdersPage, ReadError> {
    let orders = store
        .rows(LATEST, |query| filtered(scope.bind(query), app))
        .await?;
    Ok(OrdersPage {
        app: app.map(str::to_owned),
        orders,
    })
}
