//! The incidents of a detector, and which of them are not stored yet. An incident is open, or it is closed with
//! outstanding notifications or a fault that an order keeps quiet.

use std::collections::BTreeMap;
use std::time::Duration;

use epwatch_model::{
    Cause, CohortVerdict, FailedAttempts, Incident, IncidentKey, Order, Severity, State,
};
use jiff::{SignedDuration, Timestamp};

use crate::incident::{
    RecoveryWindow, advance, apply_order, end_quiet, end_recovered, expire_mute, quieted,
};
use crate::notify::{AttemptOutcome, Audience, Delivered};

/// Open incidents by key, and those that are over but not yet delivered or stored.
#[derive(Debug, Default)]
pub(crate) struct IncidentSet {
    open: BTreeMap<IncidentKey, Incident>,
    /// Incidents that are over, but not delivered to every notifier, or held by an order.
    closed: Vec<Incident>,
    /// Incidents that changed since they were stored, by id.
    unsaved: BTreeMap<String, Incident>,
    /// The incidents that each notifier delivers, by its name.
    notifiers: BTreeMap<String, Audience>,
    /// When the last incident of a key ended.
    ended: BTreeMap<IncidentKey, Timestamp>,
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
                set.note_end(&incident);
                set.closed.push(incident);
            }
        }
        set.drop_done();
        set
    }

    /// Applies the verdicts of one window.
    pub(crate) fn advance(
        &mut self,
        verdicts: &[CohortVerdict],
        forget_after: Duration,
        now: Timestamp,
    ) {
        let held = self.closed.iter_mut().filter(|incident| incident.is_held());
        let (verdicts, changed) = quieted(held, verdicts, forget_after);
        for incident in changed {
            self.unsaved.insert(incident.id.clone(), incident);
        }
        let changed = advance(&mut self.open, &verdicts, forget_after, now);
        self.note(changed);
    }

    /// Applies the verdicts of a window that was skipped, after newer ones were judged. It can show a fault without a
    /// notification so far. It does not change incidents that are open or ended later, because newer windows decided
    /// about them.
    pub(crate) fn look_back(
        &mut self,
        verdicts: &[CohortVerdict],
        forget_after: Duration,
        now: Timestamp,
    ) {
        let forgotten = SignedDuration::try_from(forget_after).unwrap_or(SignedDuration::MAX);
        self.ended
            .retain(|_, ended| now.duration_since(*ended) < forgotten);
        let is_new = |verdict: &&CohortVerdict| {
            let same = |key: &IncidentKey| {
                let cause = Cause::of(verdict.class);
                key.model == verdict.key.model
                    && key.model_version == verdict.key.model_version
                    && (Some(key.cause) == cause || key.cause.explains(verdict.class))
            };
            let mut ended = self.ended.iter();
            let held = self.closed.iter().filter(|incident| incident.is_held());
            verdict.severity >= Severity::Ticket
                && !self.open.keys().any(same)
                && !held.map(|incident| &incident.key).any(same)
                && !ended.any(|(key, ended)| same(key) && *ended >= verdict.window_end)
        };
        let found: Vec<CohortVerdict> = verdicts.iter().filter(is_new).cloned().collect();
        let mut began = BTreeMap::new();
        let changed = advance(&mut began, &found, forget_after, now);
        self.open.extend(began);
        self.note(changed);
    }

    /// Ends the incidents that recovered by the verdicts of a shorter window, and ends the quiet of incidents that
    /// relapsed.
    pub(crate) fn recover(
        &mut self,
        verdicts: &[CohortVerdict],
        recovery: RecoveryWindow,
        now: Timestamp,
    ) {
        for relapsed in end_quiet(self.closed.iter_mut(), verdicts) {
            self.unsaved.insert(relapsed.id.clone(), relapsed);
        }
        let ended = end_recovered(&mut self.open, verdicts, recovery, now);
        self.note(ended);
    }

    fn note(&mut self, changed: Vec<Incident>) {
        for changed in changed {
            if !changed.state.is_open() {
                self.open.remove(&changed.key);
                self.note_end(&changed);
                if changed.state == State::Resolved {
                    self.closed.push(changed.clone());
                }
            }
            self.unsaved.insert(changed.id.clone(), changed);
        }
        self.drop_done();
    }

    fn note_end(&mut self, incident: &Incident) {
        if let Some(at) = incident.resolved_at {
            let ended = self.ended.entry(incident.key.clone()).or_insert(at);
            *ended = at.max(*ended);
        }
    }

    /// Returns the ids of the incidents that orders may be about, each with the number of its last order.
    pub(crate) fn to_be_ordered(&self) -> BTreeMap<String, u64> {
        self.in_mind()
            .map(|incident| (incident.id.clone(), incident.orders.last))
            .collect()
    }

    /// Ends mutes that have expired, and applies people's orders by their numbers. Returns whether anything changed.
    pub(crate) fn apply_orders(&mut self, orders: &[(String, Order)], now: Timestamp) -> bool {
        let mut changed = false;
        for incident in self.open.values_mut() {
            if expire_mute(incident, now) {
                changed = true;
                self.unsaved.insert(incident.id.clone(), incident.clone());
            }
        }
        for (id, order) in orders {
            let Some(mut incident) = self.take(id) else {
                continue;
            };
            if incident.orders.last < order.n {
                changed = true;
                let is_succeeded = self.open.contains_key(&incident.key);
                let done = apply_order(&mut incident, order, is_succeeded, now);
                let (order, n) = (order.kind.as_str(), order.n);
                match done {
                    Ok(()) => tracing::info!(incident = id, order, n, "an order is obeyed"),
                    Err(why) => {
                        tracing::warn!(incident = id, order, n, %why, "an order changes nothing");
                    }
                }
                self.unsaved.insert(incident.id.clone(), incident.clone());
            }
            if incident.state.is_open() {
                self.open.insert(incident.key.clone(), incident);
            } else {
                self.note_end(&incident);
                self.closed.push(incident);
            }
        }
        self.drop_done();
        changed
    }

    fn take(&mut self, id: &str) -> Option<Incident> {
        let open = self.open.values().find(|incident| incident.id == id);
        if let Some(key) = open.map(|incident| incident.key.clone()) {
            return self.open.remove(&key);
        }
        let at = self.closed.iter().position(|incident| incident.id == id)?;
        Some(self.closed.remove(at))
    }

    /// Records the result of a notifier's attempts to deliver an incident up to a number of news.
    pub(crate) fn delivered(&mut self, done: Delivered) {
        let all = self.open.values_mut().chain(&mut self.closed);
        let Some(incident) = all
            .into_iter()
            .find(|incident| incident.id == done.incident_id)
        else {
            return;
        };
        let name = done.notifier;
        match done.outcome {
            AttemptOutcome::Taken => {
                incident.failing.remove(&name);
                incident.refused.remove(&name);
                incident.delivered.insert(name, done.news);
            }
            AttemptOutcome::GivenUp => {
                incident.failing.remove(&name);
                incident.refused.insert(name.clone(), done.news);
                incident.delivered.insert(name, done.news);
            }
            AttemptOutcome::Failed { times, at, answer } => {
                let first = FailedAttempts {
                    since: at,
                    times: 0,
                    answer: String::new(),
                };
                let failing = incident.failing.entry(name).or_insert(first);
                failing.times = failing.times.saturating_add(times);
                failing.answer = answer;
            }
        }
        self.unsaved.insert(incident.id.clone(), incident.clone());
        self.drop_done();
    }

    /// Returns the attempts that fail at present, over all incidents, by the notifier's name. Muted incidents, and
    /// notifiers that the config no longer names, are left out.
    pub(crate) fn failing(&self) -> BTreeMap<String, FailedAttempts> {
        let mut all: BTreeMap<String, FailedAttempts> = BTreeMap::new();
        let incidents = self.open.values().chain(&self.closed);
        for incident in incidents.filter(|incident| incident.orders.mute.is_none()) {
            for (name, failing) in &incident.failing {
                let audience = self.notifiers.get(name);
                if !audience.is_some_and(|audience| audience.takes(incident)) {
                    continue;
                }
                match all.get_mut(name) {
                    None => drop(all.insert(name.clone(), failing.clone())),
                    Some(of) => {
                        of.times = of.times.saturating_add(failing.times);
                        of.since = of.since.min(failing.since);
                    }
                }
            }
        }
        all
    }

    /// Sets the hash of the model's file of an open incident.
    pub(crate) fn set_model_file(&mut self, id: &str, sha256: String) {
        let Some(incident) = self.open.values_mut().find(|incident| incident.id == id) else {
            return;
        };
        incident.model_sha256 = Some(sha256);
        self.unsaved.insert(incident.id.clone(), incident.clone());
    }

    /// Returns the incidents that notifiers act on: open ones, closed ones with news to deliver, and held ones.
    pub(crate) fn snapshot(&self) -> Vec<Incident> {
        self.open.values().chain(&self.closed).cloned().collect()
    }

    /// Returns open incidents and held ones.
    pub(crate) fn in_mind(&self) -> impl Iterator<Item = &Incident> + Clone {
        let held = self.closed.iter().filter(|incident| incident.is_held());
        self.open.values().chain(held)
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

    /// Drops incidents that are over, delivered and not held.
    fn drop_done(&mut self) {
        let notifiers = &self.notifiers;
        self.closed.retain(|incident| {
            let mut notifiers = notifiers.iter();
            incident.is_held()
                || notifiers
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

#[cfg(test)]
mod tests;
