//! Incidents that people called false, counted in a replay's summary by verdict and signal, and whether the replay
//! raises them again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::read::{FalseIncident, Feedback};
use epwatch_model::Incident;

/// Incidents of the replayed time that people called false.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CalledFalse {
    /// Incidents of this time in the store about which people were notified.
    pub fired: u64,
    /// Incidents called false that this replay raises again.
    pub raised_again: u64,
    /// Incidents called false, by verdict.
    pub by_verdict: BTreeMap<String, u64>,
    /// Incidents called false in whose windows a signal fired, by signal.
    pub by_signal: BTreeMap<String, u64>,
    /// Each incident called false, in order of time.
    pub incidents: Vec<FalseInReplay>,
}

/// An incident that was called false, and whether the replay raises it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FalseInReplay {
    /// The incident and the reason.
    #[serde(flatten)]
    pub incident: FalseIncident,
    /// Whether an incident of the same fault fired in this replay at that time.
    pub is_raised_again: bool,
}

/// An incident that fired in the replay: the constant part of its id, and the start of its first window.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Raised {
    fingerprint: String,
    started_at: Timestamp,
}

impl Raised {
    pub(super) fn of(incident: &Incident) -> Self {
        Self {
            fingerprint: incident.key.fingerprint(),
            started_at: incident.started_at,
        }
    }

    /// Windows of a replay may begin at other times, so the same fault may begin a window earlier.
    fn is(&self, called: &FalseIncident, window: jiff::SignedDuration) -> bool {
        let from = called.started_at.saturating_sub(window);
        let from = from.unwrap_or(Timestamp::MIN);
        let same = called.incident.split('-').next() == Some(&*self.fingerprint);
        same && (from..=called.changed_at).contains(&self.started_at)
    }
}

/// Counts the feedback; `None` if nothing was called false.
pub(super) fn counted(
    feedback: Feedback,
    raised: impl Iterator<Item = Raised> + Clone,
    window: jiff::SignedDuration,
) -> Option<CalledFalse> {
    if feedback.called_false.is_empty() {
        return None;
    }
    let mut all = CalledFalse {
        fired: feedback.fired,
        raised_again: 0,
        by_verdict: BTreeMap::new(),
        by_signal: BTreeMap::new(),
        incidents: Vec::new(),
    };
    for incident in feedback.called_false {
        let is_raised_again = raised.clone().any(|raised| raised.is(&incident, window));
        all.raised_again += u64::from(is_raised_again);
        *all.by_verdict.entry(incident.verdict.clone()).or_default() += 1;
        for signal in &incident.signals {
            *all.by_signal.entry(signal.clone()).or_default() += 1;
        }
        all.incidents.push(FalseInReplay {
            incident,
            is_raised_again,
        });
    }
    Some(all)
}
