//! Two open incidents of one key: causes that an earlier program told apart are one now.

use jiff::Timestamp;

use super::{Incident, State, Watched, evidence};

impl Incident {
    /// Makes one incident of two of the same key: the one that tells more goes on, with the cohorts of
    /// both; the other is over. Returns them in this order.
    pub(crate) fn united(self, other: Incident, now: Timestamp) -> (Incident, Incident) {
        let (mut kept, mut over) = if other.tells() > self.tells() {
            (other, self)
        } else {
            (self, other)
        };
        for cohort in &over.cohorts {
            let key = &cohort.verdict.key;
            let known = kept.cohorts.iter_mut().find(|c| c.verdict.key == *key);
            match known {
                None => kept.cohorts.push(cohort.clone()),
                Some(known) if says(cohort) > says(known) => *known = cohort.clone(),
                Some(_) => {}
            }
        }
        kept.settle(now);
        over.goes_on_as = Some(kept.id.clone());
        if over.state.is_told() {
            over.state = State::Resolved;
            over.resolved_at = Some(now);
            over.news += 1;
        } else {
            over.state = State::Inactive;
        }
        (kept, over)
    }

    /// How much people know by it.
    fn tells(&self) -> impl Ord + use<> {
        let evidence = self.lead().map(|lead| evidence(lead.class));
        (self.state.is_told(), self.severity(), evidence)
    }
}

fn says(cohort: &Watched) -> impl Ord + use<> {
    (cohort.confirmed, evidence(cohort.verdict.class))
}
