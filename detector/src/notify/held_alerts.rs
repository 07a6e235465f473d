//! Alerts that a channel stores by itself, as Alertmanager does. They stay active without the detector until they end.

use std::collections::BTreeMap;

use epwatch_model::Incident;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::Deserialize;

use super::error::NotifyError;

/// The labels of an alert, which identify it.
pub(super) type Labels = BTreeMap<String, String>;

/// An alert that the channel holds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldAlert {
    pub(super) labels: Labels,
    pub(super) starts_at: String,
}

impl HeldAlert {
    /// Returns the id of its incident.
    pub(crate) fn incident_id(&self) -> &str {
        self.labels.get("incident").map_or("", String::as_str)
    }
}

/// Actions of a leading detector at such a channel, in addition to the news of incidents.
pub trait HeldAlerts: Send + Sync {
    /// Returns the alerts of incidents that the channel holds, including alerts of other detectors.
    fn held_alerts(&self) -> BoxFuture<'_, Result<Vec<HeldAlert>, NotifyError>>;

    /// Whether a held alert is the current alert of an incident.
    fn is_of(&self, alert: &HeldAlert, incident: &Incident) -> bool;

    /// Ends alerts that it holds.
    fn end(&self, held: Vec<HeldAlert>, now: Timestamp) -> BoxFuture<'_, Result<(), NotifyError>>;

    /// Keeps the watchdog firing for some minutes more.
    fn send_watchdog(&self, now: Timestamp) -> BoxFuture<'_, Result<(), NotifyError>>;
}
