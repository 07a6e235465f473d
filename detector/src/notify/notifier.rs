//! The trait of a notifier, and the notification that it delivers.

use std::fmt;
use std::time::Duration;

use epwatch_model::{Incident, OrderKind, State, named};
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;

use super::audience::Audience;
use super::error::NotifyError;
use super::held_alerts::HeldAlerts;

/// A channel to people.
pub trait Notifier: fmt::Debug + Send + Sync + 'static {
    /// Returns its name: a metric label, and the key of its deliveries in incidents.
    fn name(&self) -> &str;

    /// Returns the incidents that it delivers.
    fn audience(&self) -> Audience {
        Audience::default()
    }

    /// Returns the interval at which a firing incident is sent again; `None` for channels that keep state.
    fn repeat_every(&self) -> Option<Duration> {
        None
    }

    /// Returns the alerts that the channel holds; `None` for a channel that stores none by itself.
    fn held_alerts(&self) -> Option<&dyn HeldAlerts> {
        None
    }

    /// Checks whether the receiver would accept a page, without notifying anybody; `None` if the channel has no such
    /// check.
    fn probe(&self, _now: Timestamp) -> BoxFuture<'_, Option<Result<(), NotifyError>>> {
        std::future::ready(None).boxed()
    }

    /// Delivers the state of an incident. The same news may come twice after a crash.
    ///
    /// # Errors
    /// The notification was not delivered; [`NotifyError::retry`] returns whether to try again.
    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>>;
}

/// Returns the occasion of an order that leaves the incident open.
fn of_order(kind: OrderKind) -> Occasion {
    match kind {
        OrderKind::Ack => Occasion::Acknowledged,
        OrderKind::Mute => Occasion::Muted,
        OrderKind::Reopen | OrderKind::Resolve | OrderKind::Accept | OrderKind::False => {
            Occasion::Reopened
        }
    }
}

/// The state of an incident, and the reason to send it now.
#[derive(Debug, Clone, PartialEq)]
pub struct Notification {
    /// The incident as it is now.
    pub incident: Incident,
    /// The reason to send it.
    pub occasion: Occasion,
}

named! {
    /// The reason why an incident is sent.
    pub enum Occasion {
        /// The incident fired.
        Firing = "firing",
        /// The incident grew: worse, or more chipsets.
        Grown = "grown",
        /// A directive took its devices off the NPU.
        Mitigated = "mitigated",
        /// The fault is back after a mitigation.
        Returned = "returned",
        /// A person works on it.
        Acknowledged = "acknowledged",
        /// A person muted it: only a channel that holds alerts by itself receives this.
        Muted = "muted",
        /// An order that kept it quiet was cancelled, or a mute is over.
        Reopened = "reopened",
        /// Nothing is new; the incident is sent again because the channel keeps no state.
        Repeated = "repeated",
        /// The incident is over.
        Resolved = "resolved",
        /// A test of the channel, without an incident.
        Test = "test",
    }
}

impl Notification {
    /// The news of a changed incident.
    #[must_use]
    pub fn news(incident: Incident) -> Self {
        let by_order = incident.orders.news;
        let by_order = by_order.filter(|order| order.news == incident.news);
        let occasion = match (incident.state, by_order) {
            (State::Resolved, _) => Occasion::Resolved,
            (_, Some(order)) => of_order(order.kind),
            (State::Mitigated, _) => Occasion::Mitigated,
            _ if incident.superseded.is_some() => Occasion::Grown,
            _ if incident.returned_at.is_some() => Occasion::Returned,
            _ => Occasion::Firing,
        };
        Self { incident, occasion }
    }

    /// The same news again, for a channel that forgets.
    #[must_use]
    pub fn repeated(incident: Incident) -> Self {
        Self {
            incident,
            occasion: Occasion::Repeated,
        }
    }
}
