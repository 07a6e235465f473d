//! Incidents whose devices left their version. If the version that they have now is clean, the incident ends. If it has
//! the same fault, the incident stays open, because the update does not repair it.

use std::collections::{BTreeMap, BTreeSet};

use epwatch_model::{
    CLEAN_WINDOWS, CohortVerdict, Incident, IncidentCohort, IncidentKey, MovedTo, Reason, Severity,
    State, TakenOver, VerdictClass, signed,
};
use jiff::Timestamp;

use super::cohort::{lasts, still_has_hits};

/// Below this share of its devices, the devices that still have the version are too few for a page.
const FEW_LEFT: f64 = 0.04;

/// Counts clean windows of the versions that devices of the incident now have. While a directive covers these devices,
/// clean windows of the next version count. Returns whether anything changed.
pub(super) fn count_successor(incident: &mut Incident, verdict: &CohortVerdict) -> bool {
    let key = &verdict.key;
    let version = &incident.key.model_version;
    if key.model != incident.key.model || key.firmware.is_some() || key.model_version == *version {
        return false;
    }
    let is_next = verdict.follows.as_ref() == Some(version);
    let mut taken = verdict.takes_over.iter();
    let taken = taken.find(|taken| taken.version == *version);
    let is_mitigated = incident.state == State::Mitigated;
    let mut any = false;
    for cohort in &mut incident.cohorts {
        let counts = match is_mitigated {
            true => is_next && cohort.mitigated_since.is_some(),
            false => taken.is_some() && incident.state == State::Firing,
        };
        if !counts || cohort.verdict.key.chipset != key.chipset {
            continue;
        }
        if !is_clean(cohort, verdict) {
            // The fault was seen in the version that its devices moved to, so that version does not end it.
            any |= !cohort.moved_to.is_empty();
            cohort
                .moved_to
                .retain(|moved| moved.version != key.model_version);
            continue;
        }
        any |= count_clean_version(cohort, verdict, taken);
    }
    any
}

/// Keeps cohorts open on chipsets where the same model's next version is a part of this incident. The part is open, so
/// the fault lasts although no device has this version any more. Returns whether there are any.
pub(super) fn hold_for_next_version(
    incident: &mut Incident,
    window_end: Timestamp,
    lasting: &BTreeMap<String, BTreeSet<String>>,
) -> bool {
    let Some(chipsets) = lasting
        .get(&incident.id)
        .filter(|_| incident.state.is_notified())
    else {
        return false;
    };
    let mut any = false;
    for cohort in &mut incident.cohorts {
        let lasts = chipsets.contains(&cohort.verdict.key.chipset);
        if lasts && !cohort.is_cleared() && cohort.counted_until < window_end {
            cohort.clean_windows = 0;
            cohort.counted_until = window_end;
            any = true;
        }
    }
    any
}

/// Returns the chipsets on which a later version of the same model is a part of an incident, by the incident's id.
pub(super) fn lasting(
    incidents: &BTreeMap<IncidentKey, Incident>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut lasting: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let by_id = |id: &String| incidents.values().find(|whole| whole.id == *id);
    for part in incidents.values().filter(|one| one.state.is_open()) {
        let whole = part.part_of.as_ref().and_then(by_id);
        if let Some(whole) = whole.filter(|whole| whole.key.model == part.key.model) {
            let chipsets = lasting.entry(whole.id.clone()).or_default();
            chipsets.extend(part.chipsets());
        }
    }
    lasting
}

/// Whether a version shows no fault: it is healthy, or it has no reference and is as fast as the cohort was before its
/// fault. If few devices were hit, the cohort's latency shows nothing, and the devices' own past before the fault does.
fn is_clean(cohort: &IncidentCohort, verdict: &CohortVerdict) -> bool {
    let is_as_before_fault = |reason: &Reason| {
        matches!(
            reason,
            Reason::AsBefore {
                before: Some(_),
                ..
            }
        )
    };
    match verdict.class {
        VerdictClass::Healthy => !still_has_hits(cohort, verdict),
        VerdictClass::NotEnoughData => match lasts(cohort, verdict) {
            Some(lasts) => !lasts,
            None => verdict.reasons.iter().any(is_as_before_fault),
        },
        _ => false,
    }
}

/// Counts a clean window of a version that the cohort's devices now have. The cohort is cleared after the usual number
/// of clean windows. All devices must have moved, unless a directive covers them.
fn count_clean_version(
    cohort: &mut IncidentCohort,
    verdict: &CohortVerdict,
    taken: Option<&TakenOver>,
) -> bool {
    let end = verdict.window_end;
    if let Some(taken) = taken {
        let version = &verdict.key.model_version;
        cohort.moved_to.retain(|moved| moved.version != *version);
        cohort.moved_to.push(MovedTo {
            version: version.clone(),
            devices: taken.here,
            of: taken.devices,
        });
    }
    let until = cohort.successor_until;
    // A window in which other devices still show the fault is not clean, whichever version is judged first.
    let is_apart = end > cohort.verdict.window_end
        && until.is_none_or(|until| end.duration_since(until) >= signed(verdict.window));
    if is_apart {
        cohort.successor_until = Some(end);
        cohort.clean_successors += 1;
    }
    let is_held = cohort.mitigated_since.is_some();
    let all_moved = taken.is_some_and(|taken| {
        cohort.has_moved() && taken.left as f64 <= FEW_LEFT * taken.devices as f64
    });
    if cohort.clean_successors >= CLEAN_WINDOWS && (is_held || all_moved) {
        cohort.clean_windows = CLEAN_WINDOWS;
    }
    is_apart || cohort.clean_windows >= CLEAN_WINDOWS || cohort.confirmed > Severity::None
}
