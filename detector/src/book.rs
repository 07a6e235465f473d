//! All incidents a detector knows, and which of them the store does not know yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::incident::{Incident, IncidentKey, State, advance};
use crate::verdict::{CohortVerdict, Severity};

/// Incidents open and closed.
#[derive(Debug, Default)]
pub(crate) struct Book {
    open: BTreeMap<IncidentKey, Incident>,
    /// Over, but not every notifier knows.
    closed: Vec<Incident>,
    /// Changed and not stored.
    unsaved: BTreeMap<String, Incident>,
    /// Notifiers and the least severity each is for.
    notifiers: BTreeMap<String, Severity>,
}

impl Book {
    pub(crate) fn new(
        notifiers: BTreeMap<String, Severity>,
        remembered: Vec<Incident>,
        now: Timestamp,
    ) -> Self {
        let mut book = Book {
            notifiers,
            ..Book::default()
        };
        for incident in remembered {
            if incident.state.is_open() {
                book.reopen(incident, now);
            } else {
                book.closed.push(incident);
            }
        }
        book.drop_told();
        book
    }

    fn reopen(&mut self, incident: Incident, now: Timestamp) {
        let incident = match self.open.remove(&incident.key) {
            None => incident,
            Some(known) => {
                let (kept, over) = known.united(incident, now);
                let (id, goes_on_as) = (&over.id, &kept.id);
                tracing::warn!(id, goes_on_as, "two open incidents are one");
                self.unsaved.insert(over.id.clone(), over.clone());
                self.unsaved.insert(kept.id.clone(), kept.clone());
                self.closed
                    .extend(Some(over).filter(|over| over.state == State::Resolved));
                kept
            }
        };
        self.open.insert(incident.key.clone(), incident);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::Cause;
    use crate::notify::{Notification, block};
    use crate::testing::at;

    /// Open incidents of one version, as a program stored them that told their causes apart.
    const APART: &str = include_str!("../../tests/fixtures/incidents/cpu_fallback_and_slow.jsonl");

    fn apart() -> Vec<Incident> {
        let lines = APART.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// A page that cannot be read is forgotten, and nobody is told its end.
    #[test]
    fn incidents_of_earlier_programs_are_read_and_told_as_before() {
        let told: Vec<String> = apart()
            .into_iter()
            .map(|incident| block(&Notification::news(incident)))
            .collect();
        let as_before = "all 60 of those are slower: median latency 23.6 ms against 8.1 ms";
        assert!(told[0].contains(as_before), "{}", told[0]);
        assert!(!told[2].contains("ever starts"), "{}", told[2]);
        assert!(
            told[2].contains("backend_setup_failed on 12"),
            "{}",
            told[2]
        );
    }

    #[test]
    fn incidents_of_causes_that_became_one_go_on_as_the_one_that_tells_more() {
        let pager = BTreeMap::from([("pager".to_owned(), Severity::Page)]);
        for order in [[0, 1], [1, 0]] {
            let mut stored = apart();
            let [fallback, slow] = order.map(|one| stored[one].clone());
            stored.splice(0..2, [fallback, slow]);
            let book = Book::new(pager.clone(), stored, at(7_200));
            assert_eq!(book.n_open(), 2);
            let kept = book.open().find(|i| i.key.cause == Cause::Slower).unwrap();
            let apart = apart();
            assert_eq!(kept.id, apart[0].id);
            assert_eq!(kept.state, State::Firing);
            // What only the other told of: people hear that this one grew by it.
            assert_eq!(kept.chipsets(), ["SM7550", "SM8635"]);
            assert_eq!(kept.cohorts.len(), 3);
            assert_eq!(kept.lead().unwrap().cpu_ops, ["Gemm", "LayerNormalization"]);
            let over = &book.closed[0];
            assert_eq!((&over.id, over.state), (&apart[1].id, State::Resolved));
            assert!(over.has_news_for("pager"));
            let told = block(&Notification::news(over.clone()));
            assert!(
                told.contains(&format!("goes on as incident {}", kept.id)),
                "{told}"
            );
            let unsaved: Vec<String> = book.unsaved().into_iter().map(|i| i.id).collect();
            assert!(unsaved.contains(&kept.id) && unsaved.contains(&over.id));
            assert_eq!(unsaved.len(), 2);
        }
    }
}
