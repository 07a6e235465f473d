//! Incidents with one cause: a fault that continues in the next version, or one driver that slows several models of an
//! app. The first incident is sent. The others are parts of it, and stay quiet as long as it covers them. If the next
//! version has the fault too, the first one's acknowledgement ends, and it is sent again.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use epwatch_model::{CohortKey, CohortVerdict, Incident, IncidentKey, Reason};
use jiff::Timestamp;

/// Makes incidents that fire now parts of an earlier one, and separates parts that it no longer covers. Returns the
/// incidents that changed.
pub(super) fn merge(
    incidents: &mut BTreeMap<IncidentKey, Incident>,
    now: Timestamp,
) -> Vec<IncidentKey> {
    let mut changed = Vec::new();
    for key in incidents.keys().cloned().collect::<Vec<_>>() {
        let incident = &incidents[&key];
        // An incident that people were notified of stays an incident of its own.
        let fires_now = incident.fired_at == Some(now) && incident.delivered.is_empty();
        if !incident.state.is_notified() || !(fires_now || incident.part_of.is_some()) {
            continue;
        }
        let whole = incidents.values().find(|other| {
            let same = incident.part_of.is_none() || incident.part_of.as_ref() == Some(&other.id);
            same && covers(other, incident) && has_cause_of(other, incident, incidents)
        });
        let (id, name) = (whole.map(|whole| whole.id.clone()), name(incident));
        let is_next_version = whole.is_some_and(|whole| whole.key.model == key.model);
        let next_steps = match is_next_version {
            true => next_steps(incident),
            false => Vec::new(),
        };
        let whole = whole.map(|whole| whole.key.clone());
        if incident.part_of == id {
            continue;
        }
        if let Some(whole) = whole.and_then(|key| incidents.get_mut(&key)) {
            whole.parts.insert(name);
            take_next_steps(whole, &next_steps);
            if is_next_version && whole.orders.ack.take().is_some() {
                // The person who acknowledged it may believe that the next version is the fix.
                whole.superseded.clone_from(&whole.headline);
                whole.news += 1;
            }
            changed.push(whole.key.clone());
        }
        if let Some(incident) = incidents.get_mut(&key) {
            incident.part_of = id;
            // The part was never sent, so its growth is not news.
            incident.superseded = None;
            changed.push(key);
        }
    }
    changed
}

/// Returns the next step of each cohort.
fn next_steps(incident: &Incident) -> Vec<(CohortKey, String)> {
    let verdicts = incident.cohorts.iter().map(|cohort| &cohort.verdict);
    let steps = verdicts.map(|verdict| (verdict.key.clone(), verdict.next_step.clone()));
    steps.collect()
}

/// Takes over the next steps of the next version: its devices no longer have the version that the earlier steps name.
fn take_next_steps(whole: &mut Incident, next_steps: &[(CohortKey, String)]) {
    for cohort in &mut whole.cohorts {
        let key = &cohort.verdict.key;
        let mut all = next_steps.iter();
        let is_same =
            |next: &CohortKey| (&next.chipset, &next.firmware) == (&key.chipset, &key.firmware);
        if let Some((_, step)) = all.find(|(next, _)| is_same(next)) {
            cohort.verdict.next_step.clone_from(step);
        }
    }
}

/// Returns model and version.
fn name(incident: &Incident) -> String {
    format!(
        "{} {}",
        incident.key.model.model_id, incident.key.model_version
    )
}

/// Whether this incident's notification already says all that the other's would: at least as severe, on the same
/// chipsets.
fn covers(incident: &Incident, other: &Incident) -> bool {
    let (app, of) = (&incident.key.model, &other.key.model);
    let same_app = (&app.app_id, &app.environment) == (&of.app_id, &of.environment);
    let order = |one: &Incident| (one.fired_at, Reverse(one.severity()), one.key.clone());
    let chipsets = incident.chipsets();
    incident.state.is_notified()
        && incident.part_of.is_none()
        && same_app
        && incident.key.cause == other.key.cause
        && order(incident) < order(other)
        && incident.severity() >= other.severity()
        && other
            .chipsets()
            .iter()
            .all(|chipset| chipsets.contains(chipset))
}

fn has_cause_of(
    incident: &Incident,
    other: &Incident,
    all: &BTreeMap<IncidentKey, Incident>,
) -> bool {
    if incident.key.model != other.key.model {
        return slows_all_models(incident)
            || slows_all_models(other)
            || same_firmware(incident, other);
    }
    // The version before is this incident or a part of it, or both follow the same version.
    let mut before = all.values().filter(|one| {
        let is_in = one.id == incident.id || one.part_of.as_ref() == Some(&incident.id);
        is_in && one.key.model == other.key.model
    });
    let follows = other.lead().and_then(|lead| lead.follows.as_deref());
    before.any(|one| {
        let its = one.lead().and_then(|lead| lead.follows.as_deref());
        follows == Some(&*one.key.model_version) || (follows.is_some() && follows == its)
    })
}

fn reasons(incident: &Incident) -> impl Iterator<Item = &Reason> {
    incident
        .lead()
        .into_iter()
        .flat_map(|lead: &CohortVerdict| &lead.reasons)
}

/// Whether its devices are slower with their other models as well.
fn slows_all_models(incident: &Incident) -> bool {
    reasons(incident).any(|reason| {
        matches!(
            reason,
            Reason::PeerControl { slowed: true, .. }
                | Reason::CohortControl { .. }
                | Reason::PeersMoved { .. }
        )
    })
}

fn same_firmware(incident: &Incident, other: &Incident) -> bool {
    let firmware = |reason: &Reason| match reason {
        Reason::Firmware { firmware, .. } => Some(firmware.clone()),
        _ => None,
    };
    let own = reasons(incident).find_map(firmware);
    own.is_some() && own == reasons(other).find_map(firmware)
}
