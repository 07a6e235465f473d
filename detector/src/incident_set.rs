//! The incidents of a detector: open ones, closed ones with notifications outstanding, and which of them are
//! not stored yet.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::incident::{Incident, IncidentKey, State, advance};
use crate::notify::Audience;
use crate::verdict::CohortVerdict;

/// Open incidents by key, and those that are over but not yet delivered or stored.
#[derive(Debug, Default)]
pub(crate) struct IncidentSet {
    open: BTreeMap<IncidentKey, Incident>,
    /// Over, but not delivered to every notifier.
    closed: Vec<Incident>,
    /// Changed since they were stored, by id.
    unsaved: BTreeMap<String, Incident>,
    /// What each notifier delivers, by its name.
    notifiers: BTreeMap<String, Audience>,
}

impl IncidentSet {
    pub(crate) fn new(notifiers: BTreeMap<String, Audience>, stored: Vec<Incident>) -> Self {
        let mut set = IncidentSet {
            notifiers,
            ..IncidentSet::default()
        };
        for incident in stored {
            if incident.state.is_open() {
                set.open.insert(incident.key.clone(), incident);
            } else {
                set.closed.push(incident);
            }
        }
        set.drop_delivered();
        set
    }

    /// Applies the verdicts of one window.
    pub(crate) fn advance(
        &mut self,
        verdicts: &[CohortVerdict],
        forget_after: Duration,
        now: Timestamp,
    ) {
        for changed in advance(&mut self.open, verdicts, forget_after, now) {
            if !changed.state.is_open() {
                self.open.remove(&changed.key);
                if changed.state == State::Resolved {
                    self.closed.push(changed.clone());
                }
            }
            self.unsaved.insert(changed.id.clone(), changed);
        }
    }

    /// Records that a notifier delivered an incident up to `news`.
    pub(crate) fn delivered(&mut self, incident_id: &str, notifier: &str, news: u64) {
        let all = self.open.values_mut().chain(&mut self.closed);
        let Some(incident) = all.into_iter().find(|incident| incident.id == incident_id) else {
            return;
        };
        incident.delivered.insert(notifier.to_owned(), news);
        self.unsaved.insert(incident.id.clone(), incident.clone());
        self.drop_delivered();
    }

    /// Sets the hash of the model's file of an open incident.
    pub(crate) fn set_model_file(&mut self, id: &str, sha256: String) {
        let Some(incident) = self.open.values_mut().find(|incident| incident.id == id) else {
            return;
        };
        incident.model_sha256 = Some(sha256);
        self.unsaved.insert(incident.id.clone(), incident.clone());
    }

    /// Returns the incidents that notifiers act on: open ones, and closed ones with news to deliver.
    pub(crate) fn snapshot(&self) -> Vec<Incident> {
        self.open.values().chain(&self.closed).cloned().collect()
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = &Incident> {
        self.open.values()
    }

    pub(crate) fn n_open(&self) -> usize {
        self.open.len()
    }

    /// Returns the incidents that changed since they were stored.
    pub(crate) fn unsaved(&self) -> Vec<Incident> {
        self.unsaved.values().cloned().collect()
    }

    /// Records that these states are stored. An incident that changed since stays unsaved.
    pub(crate) fn saved(&mut self, saved: &[Incident]) {
        for incident in saved {
            if self.unsaved.get(&incident.id) == Some(incident) {
                self.unsaved.remove(&incident.id);
            }
        }
    }

    fn drop_delivered(&mut self) {
        let notifiers = &self.notifiers;
        self.closed.retain(|incident| {
            notifiers
                .iter()
                .any(|(name, audience)| audience.takes(incident) && incident.has_news_for(name))
        });
    }

    /// Returns the incidents that are firing, by id.
    pub(crate) fn firing(&self) -> BTreeMap<String, IncidentKey> {
        let open = self.open.values();
        let firing = open.filter(|incident| incident.state == State::Firing);
        firing
            .map(|incident| (incident.id.clone(), incident.key.clone()))
            .collect()
    }
}
