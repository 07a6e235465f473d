//! An order's way into the store.

use std::time::Duration;

use clickhouse::{Client, Row};
use epwatch_model::{OrderKind, State, VerdictClass};
use epwatch_proto::visible;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio::time::Instant;

use super::new_order::{BadField, NewOrder};
use crate::read::document::IncidentDocument;
use crate::read::incident::one;
use crate::read::incidents::IncidentRow;
use crate::read::orders::{self, OrderRow};
use crate::read::scope::AppScope;
use crate::read::store::{ReadError, StoreReader};
use crate::text::time::ago;

/// An order must have counted for this long before its author hears that it counts. This is longer than an insert usually takes.
/// An earlier order with the same number is therefore visible by then.
const SETTLE: Duration = Duration::from_millis(300);

/// A lagging replica may hide a stored order for this long. Then its author is told to look later.
const MAX_HIDDEN: Duration = Duration::from_secs(30);

/// Pause between two readings of an order that is hidden.
const READ_PAUSE: Duration = Duration::from_millis(250);

/// Time limit of the insert.
const INSERT_TIMEOUT: Duration = Duration::from_secs(5);

/// An order that counts.
#[derive(Debug, Serialize)]
pub struct SubmittedOrder {
    #[serde(flatten)]
    order: OrderRow,
}

/// The reasons for which an order does not count.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// A field cannot be used.
    #[error(transparent)]
    Field(#[from] BadField),
    /// No incident has this id.
    #[error(
        "no incident has the id {0}; `epwatch incident` lists ids, and the id of a page that just came may follow \
         seconds later"
    )]
    Unknown(String),
    /// The incident's state does not allow it.
    #[error("{0}")]
    State(String),
    /// Somebody else was first.
    #[error(
        "{who} was first: {kind} {ago}, because: {why}; look at the incident again before you order anything"
    )]
    CameSecond {
        /// The other person.
        who: String,
        /// The other order.
        kind: String,
        /// Time since the other order, as a text.
        ago: String,
        /// The other's reason.
        why: String,
    },
    /// The order is stored, but the store does not show it yet. To give it again would make a second order.
    #[error(
        "the order is stored, and the store does not show it yet; look at the incident in a minute \
         before you order it again"
    )]
    Hidden,
    /// The store is unreachable, slow, or refuses the write.
    #[error("failed to store it: {0}")]
    Store(String),
}

impl From<ReadError> for OrderError {
    fn from(error: ReadError) -> Self {
        Self::Store(error.to_string())
    }
}

#[derive(Debug, Row, Serialize)]
struct OrderInsert<'a> {
    order_id: &'a str,
    incident_id: &'a str,
    order_number: u64,
    order_kind: &'a str,
    who: &'a str,
    until: Option<i64>,
    why: &'a str,
    source: &'a str,
    app_id: &'a str,
    environment: &'a str,
    model_id: &'a str,
    model_version: &'a str,
}

/// Checks an order, stores it, and returns it once it is certain that it counts.
///
/// # Errors
/// A field, the incident's state or an earlier order forbids it, or the store does not take it.
pub async fn order(client: Client, new: NewOrder) -> Result<SubmittedOrder, OrderError> {
    let store = StoreReader::for_command(client.clone());
    submit(&client, &store, &AppScope::all(), new).await
}

/// Checks and stores an order, and reads the store within the limits of pages. An incident out of scope is unknown.
pub(crate) async fn submit(
    client: &Client,
    store: &StoreReader,
    scope: &AppScope,
    new: NewOrder,
) -> Result<SubmittedOrder, OrderError> {
    let new = new.checked()?;
    let found = one(store, &new.incident).await?;
    let Some((row, document)) = found.filter(|(row, _)| scope.has(&row.app)) else {
        return Err(OrderError::Unknown(visible(&new.incident)));
    };
    let now = Timestamp::now();
    let trail = orders::of_incident(store, &new.incident).await?;
    let last = orders::last_number(&trail);
    if let Some(seen) = new.seen.filter(|seen| *seen != last) {
        return Err(came_second(&trail, seen + 1, now));
    }
    OrderPreconditions::of(&row, &document, &trail, now)
        .allows(new.kind, &row, now)
        .map_err(OrderError::State)?;
    let id = random_id().ok_or_else(|| OrderError::Store("no random bytes".to_owned()))?;
    let until = new.mute_for.and_then(|length| {
        let length = SignedDuration::try_from(length).ok()?;
        now.checked_add(length).ok()
    });
    let n = last + 1;
    let insert = OrderInsert {
        order_id: &id,
        incident_id: &new.incident,
        order_number: n,
        order_kind: new.kind.as_str(),
        who: &new.who,
        until: until.map(Timestamp::as_millisecond),
        why: &new.why,
        source: new.source,
        app_id: &row.app,
        environment: &row.environment,
        model_id: &row.model,
        model_version: &row.version,
    };
    tokio::time::timeout(
        INSERT_TIMEOUT * store.timeout_factor(),
        append(client, &insert),
    )
    .await
    .map_err(|_| OrderError::from(ReadError::Slow))?
    .map_err(|error| OrderError::from(ReadError::from(error)))?;
    let trail = read_back(store, &new.incident, &id).await?;
    let mine = trail.iter().find(|order| order.order == id);
    match mine.filter(|order| order.is_counted) {
        Some(order) => Ok(SubmittedOrder {
            order: order.clone(),
        }),
        None => Err(came_second(&trail, n, now)),
    }
}

/// Returns the orders of an incident, as the store shows them a moment after it began to show the order `id`. A store that
/// shows a row shows the rows before it.
async fn read_back(
    store: &StoreReader,
    incident: &str,
    id: &str,
) -> Result<Vec<OrderRow>, OrderError> {
    let deadline = Instant::now() + MAX_HIDDEN;
    loop {
        // The order is already stored, so a failed read must not look like a failed write.
        let trail = orders::of_incident(store, incident).await;
        let is_shown = |trail: &Vec<OrderRow>| trail.iter().any(|order| order.order == id);
        if trail.is_ok_and(|trail| is_shown(&trail)) {
            break;
        }
        if Instant::now() >= deadline {
            return Err(OrderError::Hidden);
        }
        tokio::time::sleep(READ_PAUSE).await;
    }
    loop {
        tokio::time::sleep(SETTLE).await;
        match orders::of_incident(store, incident).await {
            Ok(trail) => return Ok(trail),
            Err(_) if Instant::now() < deadline => {}
            Err(_) => return Err(OrderError::Hidden),
        }
    }
}

async fn append(client: &Client, row: &OrderInsert<'_>) -> clickhouse::error::Result<()> {
    let mut insert = client.insert::<OrderInsert<'_>>("incident_orders").await?;
    insert.write(row).await?;
    insert.end().await
}

/// Returns the error that names the person whose order took the number first.
fn came_second(trail: &[OrderRow], n: u64, now: Timestamp) -> OrderError {
    let first = trail.iter().find(|order| order.is_counted && order.n >= n);
    match first {
        Some(order) => OrderError::CameSecond {
            who: visible(&order.who),
            kind: order.kind.clone(),
            ago: order.ordered_at.map_or_else(String::new, |at| ago(at, now)),
            why: visible(&order.why),
        },
        None => OrderError::State(
            "the form names orders that are not there; open the incident again".to_owned(),
        ),
    }
}

pub(super) fn random_id() -> Option<String> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes).ok()?;
    Some(epwatch_proto::hex(&bytes))
}

impl SubmittedOrder {
    /// Returns two lines for a person: the order, and what happens now.
    #[must_use]
    pub fn text(&self) -> String {
        let order = &self.order;
        let until = order
            .until
            .map_or_else(String::new, |at| format!(" until {at:.0}"));
        format!(
            "{} of incident {}{until} by {}: {}\nThe detector that runs obeys within seconds; `epwatch incident {}` shows it",
            order.kind,
            visible(&order.incident),
            visible(&order.who),
            visible(&order.why),
            visible(&order.incident)
        )
    }
}

/// An incident's stored state, with the effect of the orders that the detector has not carried out yet.
struct OrderPreconditions {
    is_open: bool,
    /// An order ended the incident, but the fault lasts.
    is_held: bool,
    acked: Option<String>,
    is_muted: bool,
    /// The person who called it false.
    called_false: Option<String>,
}

impl OrderPreconditions {
    fn of(
        row: &IncidentRow,
        document: &IncidentDocument,
        trail: &[OrderRow],
        now: Timestamp,
    ) -> Self {
        let done = document.orders();
        let by = |order: &OrderRow| {
            let at = order.ordered_at.map(|at| ago(at, now));
            format!("{} {}", visible(&order.who), at.unwrap_or_default())
        };
        let acked = done.ack.as_ref().map(|ack| visible(&ack.who));
        let mut state = Self {
            is_open: row.is_open(),
            is_held: done.hold.is_some(),
            acked,
            is_muted: done.mute.is_some(),
            called_false: orders::called_false(trail).map(by),
        };
        for order in trail
            .iter()
            .filter(|order| order.is_counted && order.n > done.last)
        {
            match OrderKind::parse(&order.kind) {
                Some(OrderKind::Ack) => state.acked = Some(by(order)),
                Some(OrderKind::Mute) => state.is_muted = true,
                // For an incident that is over, the order is only feedback.
                Some(OrderKind::False) if !state.is_open => {}
                Some(OrderKind::Resolve | OrderKind::Accept | OrderKind::False) => {
                    (state.is_open, state.is_held) = (false, true);
                }
                Some(OrderKind::Reopen) => {
                    state.is_open |= state.is_held;
                    state.is_held = false;
                    (state.acked, state.is_muted) = (None, false);
                }
                None => {}
            }
        }
        state
    }

    /// Checks that an order changes something; the error is a line for the person.
    fn allows(&self, kind: OrderKind, row: &IncidentRow, now: Timestamp) -> Result<(), String> {
        let id = visible(&row.incident);
        if row.state() == Some(State::Pending) {
            return Err(format!(
                "incident {id} is pending: nobody was notified of it, so {kind} changes nothing"
            ));
        }
        if kind == OrderKind::Reopen {
            let is_any = self.is_held
                || self.acked.is_some()
                || self.is_muted
                || self.called_false.is_some();
            return match is_any {
                true => Ok(()),
                false => Err(format!(
                    "no order of incident {id} is in force to take back"
                )),
            };
        }
        if kind == OrderKind::False {
            return match &self.called_false {
                Some(who) => Err(format!("incident {id} was called false already, by {who}")),
                None => Ok(()),
            };
        }
        if !self.is_open {
            let since = row.changed_at.map(|at| ago(at, now)).unwrap_or_default();
            let reopen = match self.is_held {
                true => "; reopen takes that order back",
                false => "",
            };
            return Err(format!("incident {id} is over, {since}{reopen}"));
        }
        if let (OrderKind::Ack, Some(who)) = (kind, &self.acked) {
            return Err(format!("incident {id} is acknowledged already, by {who}"));
        }
        if kind == OrderKind::Accept && row.class().is_some_and(VerdictClass::is_of_outputs) {
            return Err(format!(
                "incident {id} is of wrong outputs, which are never accepted; resolve ends it"
            ));
        }
        Ok(())
    }
}
