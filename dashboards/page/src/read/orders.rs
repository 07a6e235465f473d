//! Orders of people to incidents: the orders of one incident, and the audit page.

use epwatch_model::rows::IncidentOrderRow;
use jiff::Timestamp;
use serde::Serialize;

use super::history::newest;
use super::progress::time;
use super::scope::AppScope;
use super::store::{ReadError, StoreReader, filtered};

/// An order in the audit trail.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct OrderRow {
    pub(crate) order: String,
    pub(crate) incident: String,
    pub(crate) n: u64,
    pub(crate) kind: String,
    pub(crate) who: String,
    pub(crate) ordered_at: Option<Timestamp>,
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

impl From<IncidentOrderRow> for OrderRow {
    fn from(row: IncidentOrderRow) -> Self {
        Self {
            order: row.order_id,
            incident: row.incident_id,
            n: row.order_number,
            kind: row.order_kind,
            who: row.who,
            ordered_at: time(row.ordered_at),
            until: row.until.and_then(time),
            why: row.why,
            source: row.source,
            app: row.app_id,
            environment: row.environment,
            model: row.model_id,
            version: row.model_version,
            is_counted: row.is_counted,
        }
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!("SELECT ?fields FROM incident_orders_v1 AS o ", $rest)
    };
}

/// Maximum number of orders of one incident that are shown.
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

/// Returns the latest orders of an incident in order of time. A new order's number follows the last of them.
pub(crate) async fn of_incident(
    store: &StoreReader,
    incident: &str,
) -> Result<Vec<OrderRow>, ReadError> {
    let rows: Vec<IncidentOrderRow> = store
        .rows(OF_INCIDENT, |query| query.bind(incident))
        .await?;
    let orders = rows.into_iter().map(OrderRow::from);
    Ok(newest(orders.collect(), MOST).0)
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
    scope: &AppScope,
) -> Result<OrdersPage, ReadError> {
    let rows: Vec<IncidentOrderRow> = store
        .rows(LATEST, |query| filtered(scope.bind(query), app))
        .await?;
    Ok(OrdersPage {
        app: app.map(str::to_owned),
        orders: rows.into_iter().map(OrderRow::from).collect(),
    })
}
