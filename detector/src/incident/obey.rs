//! Effects of each order of a person on an incident. Pure: the order and the time are arguments.
//!
//! The run loop reads orders from the store and hands them in by their number. An order that the state does not allow any
//! more, because the incident ended in between, changes nothing.

use jiff::Timestamp;

use super::hold::hold_of;
use super::model::{Cause, Incident, State};
use super::order::{Order, OrderKind, OrderNews};

/// Why an order changes nothing.
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

impl Incident {
    /// Does what a person ordered, and notes that the order was handed in. `is_succeeded` says whether another incident
    /// of the same fault is open, so that this one cannot be.
    pub(crate) fn obey(
        &mut self,
        order: &Order,
        is_succeeded: bool,
        now: Timestamp,
    ) -> Result<(), Void> {
        self.orders.last = self.orders.last.max(order.n);
        if order.kind == OrderKind::Reopen {
            return match is_succeeded {
                true => Err(Void::Succeeded),
                false => self.reopen(now),
            };
        }
        match self.state {
            State::Pending => return Err(Void::Pending),
            State::Firing | State::Mitigated => {}
            State::Inactive | State::Resolved => return Err(Void::Over),
        }
        match order.kind {
            OrderKind::Ack if self.orders.ack.is_some() => return Err(Void::NoChange),
            OrderKind::Ack => self.orders.ack = Some(order.clone()),
            OrderKind::Mute if order.until.is_none_or(|until| until <= now) => {
                return Err(Void::NoChange);
            }
            OrderKind::Mute => {
                self.orders.mute = Some(order.clone());
                self.orders.was_muted = true;
            }
            OrderKind::Accept if self.key.cause == Cause::WrongOutputs => {
                return Err(Void::WrongOutputs);
            }
            OrderKind::Resolve | OrderKind::Accept => {
                self.orders.hold = Some(hold_of(self));
                self.orders.end = Some(order.clone());
                self.orders.mute = None;
                self.state = State::Resolved;
                self.resolved_at = Some(now);
            }
            OrderKind::Reopen => {}
        }
        self.note_news(order.kind);
        Ok(())
    }

    fn reopen(&mut self, now: Timestamp) -> Result<(), Void> {
        let orders = &mut self.orders;
        let is_ended = orders.hold.is_some();
        if !is_ended
            && (!self.state.is_notified() || (orders.ack.is_none() && !orders.is_muted(now)))
        {
            return Err(Void::NoChange);
        }
        (orders.ack, orders.mute, orders.end, orders.hold) = (None, None, None, None);
        if is_ended {
            self.resolved_at = None;
            self.state = match self.mitigated_at {
                Some(_) => State::Mitigated,
                None => State::Firing,
            };
        }
        self.note_news(OrderKind::Reopen);
        Ok(())
    }

    /// Ends a mute whose time has come. Returns whether it did: people are notified again then.
    pub(crate) fn expire_mute(&mut self, now: Timestamp) -> bool {
        if self.orders.mute.is_none() || self.orders.is_muted(now) {
            return false;
        }
        self.orders.mute = None;
        if self.state.is_notified() {
            self.note_news(OrderKind::Reopen);
        }
        true
    }

    /// Whether a person or a repair ended it and its fault stays quiet.
    pub(crate) fn is_held(&self) -> bool {
        self.orders.hold.is_some()
    }

    /// Whether its cohorts are compared with their state before it. They are while it is open and while it is held, so
    /// that a fault that lasts never looks clean. An accepted state is the reference.
    pub(crate) fn pins_references(&self) -> bool {
        let end = self.orders.end.as_ref().map(|end| end.kind);
        self.state.is_open() || (self.is_held() && end != Some(OrderKind::Accept))
    }

    fn note_news(&mut self, kind: OrderKind) {
        self.news += 1;
        self.orders.news = Some(OrderNews {
            news: self.news,
            kind,
        });
    }
}
