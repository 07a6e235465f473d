//! Effects of each order of a person on an incident. Pure: the order and the time are arguments.
//!
//! The run loop reads orders from the store and applies them here by their number. An order that the state no longer
//! allows, because the incident ended in between, changes nothing.

use epwatch_model::{Cause, Incident, Order, OrderKind, OrderNews, State};
use jiff::Timestamp;

use super::hold::hold_of;

/// The reason why an order changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Void {
    #[error("the incident is over")]
    Over,
    #[error("nobody was notified of the incident")]
    Pending,
    #[error("it is in force already, or past")]
    NoChange,
    #[error("wrong outputs are never accepted")]
    WrongOutputs,
    #[error("an incident of the same fault is open")]
    Succeeded,
}

/// Applies a person's order, and notes its number. `is_succeeded` says whether another incident of the same fault is
/// open, so that this one cannot be reopened.
pub(crate) fn apply_order(
    incident: &mut Incident,
    order: &Order,
    is_succeeded: bool,
    now: Timestamp,
) -> Result<(), Void> {
    incident.orders.last = incident.orders.last.max(order.n);
    if order.kind == OrderKind::Reopen {
        return match is_succeeded {
            true => Err(Void::Succeeded),
            false => reopen(incident, now),
        };
    }
    match incident.state {
        State::Pending => return Err(Void::Pending),
        State::Firing | State::Mitigated => {}
        // A `false` order on an incident that is over needs no change here: the feedback is read from the order itself.
        State::Inactive | State::Resolved if order.kind == OrderKind::False => return Ok(()),
        State::Inactive | State::Resolved => return Err(Void::Over),
    }
    match order.kind {
        OrderKind::Ack if incident.orders.ack.is_some() => return Err(Void::NoChange),
        OrderKind::Ack => incident.orders.ack = Some(order.clone()),
        OrderKind::Mute if order.until.is_none_or(|until| until <= now) => {
            return Err(Void::NoChange);
        }
        OrderKind::Mute => {
            incident.orders.mute = Some(order.clone());
            incident.orders.was_muted = true;
        }
        OrderKind::Accept if incident.key.cause == Cause::WrongOutputs => {
            return Err(Void::WrongOutputs);
        }
        OrderKind::Resolve | OrderKind::Accept | OrderKind::False => {
            incident.orders.hold = Some(hold_of(incident));
            incident.orders.end = Some(order.clone());
            incident.orders.mute = None;
            incident.state = State::Resolved;
            incident.resolved_at = Some(now);
        }
        OrderKind::Reopen => {}
    }
    note_news(incident, order.kind);
    Ok(())
}

fn reopen(incident: &mut Incident, now: Timestamp) -> Result<(), Void> {
    let orders = &mut incident.orders;
    let is_ended = orders.hold.is_some();
    if !is_ended
        && (!incident.state.is_notified() || (orders.ack.is_none() && !orders.is_muted(now)))
    {
        return Err(Void::NoChange);
    }
    (orders.ack, orders.mute, orders.end, orders.hold) = (None, None, None, None);
    if is_ended {
        incident.resolved_at = None;
        incident.state = match incident.mitigated_at {
            Some(_) => State::Mitigated,
            None => State::Firing,
        };
    }
    note_news(incident, OrderKind::Reopen);
    Ok(())
}

/// Ends a mute that has expired. Returns whether it ended one, because people are notified again then.
pub(crate) fn expire_mute(incident: &mut Incident, now: Timestamp) -> bool {
    if incident.orders.mute.is_none() || incident.orders.is_muted(now) {
        return false;
    }
    incident.orders.mute = None;
    if incident.state.is_notified() {
        note_news(incident, OrderKind::Reopen);
    }
    true
}

/// Whether the incident's cohorts are compared with their state before it. They are while it is open or held, so that a
/// fault that lasts never looks clean. An accepted state becomes the reference instead.
pub(crate) fn pins_references(incident: &Incident) -> bool {
    let end = incident.orders.end.as_ref().map(|end| end.kind);
    incident.state.is_open() || (incident.is_held() && end != Some(OrderKind::Accept))
}

fn note_news(incident: &mut Incident, kind: OrderKind) {
    incident.news += 1;
    incident.orders.news = Some(OrderNews {
        news: incident.news,
        kind,
    });
}
