//! All incidents a detector knows, and which of them the store does not know yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::incident::{Incident, IncidentKey, State, advance};
use crate::verdict::{CohortVerdict, Severity};

/// Incidents open and closed.
#[derive(Debug, Default)]
pub(crate) struct IncidentSet {
    open: BTreeMap<IncidentKey, Incident>,
    /// Over, but not every notifier knows.
    closed: Vec<Incident>,
    /// Changed and not stored.
    unsaved: BTreeMap<String, Incident>,
    /// Notifiers and the least severity each is for.
    notifiers: BTreeMap<String, Severity>,
}

impl IncidentSet {
    pub(crate) fn new(notifiers: BTreeMap<String, Severity>, remembered: Vec<Incident>) -> Self {
        let mut book = IncidentSet {
            notifiers,
            ..IncidentSet::default()
        };
        for incident in remembered {
            if incident.state.is_open() {
                book.open.insert(incident.key.clone(), incident);
            } else {
                book.closed.push(incident);
            }
        }
        book.drop_told();
        book
    }

    /// Takes one window's verdicts in.
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

    /// Notes that a notifier told people.
    pub(crate) fn delivered(&mut self, incident_id: &str, notifier: &str, news: u64) {
        let all = self.open.values_mut().chain(&mut self.closed);
        let Some(incident) = all.into_iter().find(|incident| incident.id == incident_id) else {
            return;
        };
        incident.delivered.insert(notifier.to_owned(), news);
        self.unsaved.insert(incident.id.clone(), incident.clone());
        self.drop_told();
    }

    /// Everything notifiers should look at.
    pub(crate) fn snapshot(&self) -> Vec<Incident> {
        self.open.values().chain(&self.closed).cloned().collect()
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = &Incident> {
        self.open.values()
    }

    pub(crate) fn n_open(&self) -> usize {
        self.open.len()
    }

    /// What the store does not know yet.
    pub(crate) fn unsaved(&self) -> Vec<Incident> {
        self.unsaved.values().cloned().collect()
    }

    /// Notes that the store took these.
    pub(crate) fn saved(&mut self, saved: &[Incident]) {
        for incident in saved {
            if self.unsaved.get(&incident.id) == Some(incident) {
                self.unsaved.remove(&incident.id);
            }
        }
    }

    fn drop_told(&mut self) {
        let notifiers = &self.notifiers;
        self.closed.retain(|incident| {
            notifiers
                .iter()
                .any(|(name, least)| incident.severity() >= *least && incident.has_news_for(name))
        });
    }

    /// Chipsets and causes that are firing, for logs.
    pub(crate) fn firing(&self) -> BTreeSet<String> {
        let firing = self
            .open
            .values()
            .filter(|incident| incident.state == State::Firing);
        firing.map(|incident| incident.id.clone()).collect()
    }
}
