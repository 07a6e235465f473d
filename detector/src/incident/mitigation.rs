//! Incidents whose devices lose their vote because a directive took them off the NPU.
//!
//! The remaining devices look clean although nothing was repaired. A cohort stays mitigated while the directive covers
//! the devices hit. Clean windows clear it once the directive no longer covers them, or clean windows of the next
//! version.

use std::collections::BTreeMap;

use epwatch_model::{CohortVerdict, Incident, IncidentCohort, ModelKey, Severity, State};
use jiff::Timestamp;

/// Devices under a directive in one window, by model, version and chipset.
pub(super) struct DirectedDevices<'a>(BTreeMap<(&'a ModelKey, &'a str, &'a str), u64>);

impl<'a> DirectedDevices<'a> {
    pub(super) fn of(verdicts: &'a [CohortVerdict]) -> Self {
        let mut devices = BTreeMap::new();
        // The number is known for chipsets, not for single firmwares.
        for verdict in verdicts.iter().filter(|v| v.key.firmware.is_none()) {
            let key = &verdict.key;
            if verdict.devices_directed > 0 {
                devices.insert(
                    (&key.model, &*key.model_version, &*key.chipset),
                    verdict.devices_directed,
                );
            }
        }
        Self(devices)
    }

    /// Whether at least half as many devices are under a directive as were hit. A few devices that still obey a revoked
    /// directive must not keep an incident open.
    pub(super) fn covers(&self, cohort: &IncidentCohort) -> bool {
        let key = &cohort.verdict.key;
        let directed = self
            .0
            .get(&(&key.model, &*key.model_version, &*key.chipset));
        let hit = cohort.verdict.numbers.devices_hit;
        cohort.confirmed > Severity::None
            && directed.is_some_and(|devices| devices.saturating_mul(2) >= hit)
    }
}

/// Keeps cohorts mitigated that were not seen in this window and whose devices are under a directive. Returns whether
/// there are any.
pub(super) fn hold_directed(
    incident: &mut Incident,
    end: Timestamp,
    directed: &DirectedDevices<'_>,
) -> bool {
    if !incident.state.is_notified() {
        return false;
    }
    let mut any = false;
    for cohort in &mut incident.cohorts {
        let is_counted = cohort.verdict.window_end >= end || cohort.counted_until >= end;
        if is_counted || cohort.is_cleared() || !directed.covers(cohort) {
            continue;
        }
        cohort.mitigated_since.get_or_insert(end);
        cohort.clean_windows = 0;
        cohort.counted_until = end;
        any = true;
    }
    any
}

/// Changes the state between firing and mitigated. Both changes are news: the directive works, or the fault is back.
pub(super) fn settle_mitigation(incident: &mut Incident, now: Timestamp) {
    let confirmed = || {
        let cohorts = incident.cohorts.iter();
        cohorts.filter(|cohort| cohort.confirmed > Severity::None)
    };
    let all_held =
        confirmed().all(|cohort| cohort.mitigated_since.is_some()) && confirmed().next().is_some();
    match (incident.state, all_held) {
        (State::Firing, true) => {
            incident.state = State::Mitigated;
            incident.mitigated_at = Some(now);
            incident.news += 1;
        }
        (State::Mitigated, false) => {
            incident.state = State::Firing;
            incident.mitigated_at = None;
            incident.returned_at = Some(now);
            // The earlier growth is old news; this news is the return.
            incident.superseded = None;
            incident.news += 1;
        }
        _ => {}
    }
}
