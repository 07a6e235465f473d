//! One step in the life of all incidents. Takes the verdicts of a window, and returns the incidents that changed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use epwatch_model::{
    CLEAN_WINDOWS, Cause, CohortKey, CohortVerdict, EvidenceStrength, Headline, Incident,
    IncidentCohort, IncidentKey, Reason, Severity, State, VerdictClass, signed,
};
use jiff::Timestamp;

use super::cohort::{count_clean, go_back, lasts, see, still_has_hits};
use super::merge::merge;
use super::mitigation::{DirectedDevices, hold_directed, settle_mitigation};
use super::succession::{self, count_successor, hold_for_next_version};

/// The state of an incident's cohort in one window.
enum Observation<'a> {
    Seen(&'a CohortVerdict),
    /// The cohort is still at fault, by a verdict that this incident explains or that is weaker than its own.
    Held,
    Clean,
}

/// Applies the verdicts of one window to the incidents; returns the incidents that changed.
///
/// Incidents that are over stay in `incidents`; the caller drops them once they are delivered.
pub(crate) fn advance(
    incidents: &mut BTreeMap<IncidentKey, Incident>,
    verdicts: &[CohortVerdict],
    forget_after: Duration,
    now: Timestamp,
) -> Vec<Incident> {
    let mut touched: BTreeSet<IncidentKey> = BTreeSet::new();
    let directed = DirectedDevices::of(verdicts);
    let firmwares = verdicts.iter().map(|verdict| &verdict.key);
    let judged_firmwares: HashSet<&CohortKey> =
        firmwares.filter(|key| key.firmware.is_some()).collect();
    for verdict in verdicts {
        let cause = Cause::of(verdict.class).filter(|_| verdict.severity >= Severity::Ticket);
        let explained = cause.is_some()
            && incidents
                .values()
                .any(|open| open.key.cause.explains(verdict.class) && confirms(open, verdict));
        if let Some(cause) = cause.filter(|_| !explained) {
            let key = incident_key(&verdict.key, cause);
            let window = (verdict.window_end, verdict.window);
            let incident = incidents
                .entry(key.clone())
                .or_insert_with(|| Incident::begin(key.clone(), window, now));
            if !incident.state.is_open() {
                *incident = Incident::begin(key.clone(), window, now);
            }
            let observation = match outweighs(incident, verdict) {
                true => Observation::Held,
                false => Observation::Seen(verdict),
            };
            if observe(incident, &verdict.key, verdict, &observation) {
                touched.insert(key);
            }
        }
        touched.extend(see_load(incidents, verdict, now));
        for incident in incidents.values_mut().filter(|open| open.state.is_open()) {
            if count_successor(incident, verdict) {
                touched.insert(incident.key.clone());
            }
            let same_cause = cause == Some(incident.key.cause) && !explained;
            if same_cause {
                continue;
            }
            for cohort in cohorts_judged_by(incident, verdict, &judged_firmwares, &directed) {
                let Some(observation) = observed_without_cause(incident, &cohort, verdict, cause)
                else {
                    continue;
                };
                if observe(incident, &cohort, verdict, &observation) {
                    touched.insert(incident.key.clone());
                }
            }
        }
    }
    let Some(window_end) = verdicts.iter().map(|verdict| verdict.window_end).max() else {
        return Vec::new();
    };
    let lasting = succession::lasting(incidents);
    for incident in incidents.values_mut().filter(|open| open.state.is_open()) {
        let held = hold_directed(incident, window_end, &directed)
            | hold_for_next_version(incident, window_end, &lasting);
        if forget_vanished(incident, window_end, forget_after) || held {
            touched.insert(incident.key.clone());
        }
    }
    for key in &touched {
        if let Some(incident) = incidents.get_mut(key) {
            settle(incident, now);
        }
    }
    touched.extend(merge(incidents, now));
    // A version that is a part of an incident since this window shows its fault in this window.
    let lasting = succession::lasting(incidents);
    for incident in incidents.values_mut() {
        if hold_for_next_version(incident, window_end, &lasting) {
            touched.insert(incident.key.clone());
        }
    }
    let changed = touched.iter().filter_map(|key| incidents.get(key));
    changed.cloned().collect()
}

/// Counts a window in which something other than the model slowed down as well, because load that lasts is a ticket.
/// While people know of a fault of the version, load of the version changes nothing. Returns the incident that changed.
fn see_load(
    incidents: &mut BTreeMap<IncidentKey, Incident>,
    verdict: &CohortVerdict,
    now: Timestamp,
) -> Option<IncidentKey> {
    if !verdict.is_load() {
        return None;
    }
    let explains = |open: &Incident| {
        let is_of_version = open.key.model == verdict.key.model
            && open.key.model_version == verdict.key.model_version;
        let is_cause = matches!(open.key.cause, Cause::Slower | Cause::NpuStartFailure);
        is_of_version && is_cause && open.state.is_notified() && !open.is_of_load()
    };
    if incidents.values().any(explains) {
        return None;
    }
    let key = incident_key(&verdict.key, Cause::Slower);
    let window = (verdict.window_end, verdict.window);
    let begin = || Incident::begin(key.clone(), window, now);
    let incident = incidents.entry(key.clone()).or_insert_with(begin);
    if !incident.state.is_open() {
        *incident = begin();
    }
    let is_changed = observe(incident, &verdict.key, verdict, &Observation::Seen(verdict));
    is_changed.then_some(key)
}

fn is_uncertified(reason: &Reason) -> bool {
    matches!(reason, Reason::UncertifiedRuntime { .. })
}

fn is_as_before(reason: &Reason) -> bool {
    matches!(reason, Reason::AsBefore { .. })
}

fn incident_key(cohort: &CohortKey, cause: Cause) -> IncidentKey {
    IncidentKey {
        model: cohort.model.clone(),
        model_version: cohort.model_version.clone(),
        cause,
    }
}

/// Whether people were notified that this verdict's chipset, or the same firmware of it, is at least as bad.
fn confirms(incident: &Incident, verdict: &CohortVerdict) -> bool {
    let (model, cohort) = (&incident.key.model, &verdict.key);
    let same_version = *model == cohort.model && incident.key.model_version == cohort.model_version;
    let covers = |watched: &IncidentCohort| {
        let known = &watched.verdict.key;
        let same_firmware = known.firmware.is_none()
            || cohort.firmware.is_none()
            || known.firmware == cohort.firmware;
        known.chipset == cohort.chipset
            && same_firmware
            && watched.confirmed >= verdict.severity
            && watched.confirmed > Severity::None
    };
    same_version && incident.state.is_notified() && incident.cohorts.iter().any(covers)
}

/// Whether the confirmed verdict of the cohort is stronger evidence than this one, so that it stays. This verdict may
/// come from the few devices left after a repair, or from devices without a placement, and then lacks the ops.
fn outweighs(incident: &Incident, verdict: &CohortVerdict) -> bool {
    let cohort = watched(incident, &verdict.key);
    cohort.is_some_and(|cohort| {
        cohort.confirmed > Severity::None
            && cohort.confirmed >= verdict.severity
            && EvidenceStrength::of(cohort.verdict.class).min(EvidenceStrength::Placement)
                > EvidenceStrength::of(verdict.class)
    })
}

fn watched<'a>(incident: &'a Incident, key: &CohortKey) -> Option<&'a IncidentCohort> {
    let same_model =
        incident.key.model == key.model && incident.key.model_version == key.model_version;
    incident
        .cohorts
        .iter()
        .find(|cohort| same_model && cohort.verdict.key == *key)
}

/// Returns the cohorts that a verdict is about: its own, and firmwares of its chipset with too few devices left to be
/// judged apart. Cohorts that a directive covers are left out, because their other devices look clean.
fn cohorts_judged_by(
    incident: &Incident,
    verdict: &CohortVerdict,
    judged_firmwares: &HashSet<&CohortKey>,
    directed: &DirectedDevices<'_>,
) -> Vec<CohortKey> {
    let is_judged = |cohort: &&IncidentCohort| {
        let key = &cohort.verdict.key;
        let of_chipset = CohortKey {
            firmware: None,
            ..key.clone()
        };
        *key == verdict.key || (of_chipset == verdict.key && !judged_firmwares.contains(key))
    };
    let judged = incident.cohorts.iter().filter(is_judged);
    let judged = judged.filter(|cohort| !directed.covers(cohort));
    judged.map(|cohort| cohort.verdict.key.clone()).collect()
}

/// Returns the state of a cohort in a window whose verdict does not have this cause; `None` if it is unknown.
fn observed_without_cause(
    incident: &Incident,
    cohort: &CohortKey,
    verdict: &CohortVerdict,
    cause: Option<Cause>,
) -> Option<Observation<'static>> {
    if cause.is_some() {
        return Some(match incident.key.cause.explains(verdict.class) {
            true => Observation::Held,
            false => Observation::Clean,
        });
    }
    match verdict.class {
        // A window with most of the hits is neither clean nor faulty. Windows overlap, so a reset by each such window would keep
        // the incident of a repaired fault open for days.
        VerdictClass::Healthy => {
            let is_clean = !still_has_hits(watched(incident, cohort)?, verdict);
            is_clean.then_some(Observation::Clean)
        }
        _ if verdict.reasons.iter().any(is_as_before) => Some(Observation::Clean),
        // The only finding is that the certificate is for another runtime.
        VerdictClass::DataQuality if verdict.reasons.iter().any(is_uncertified) => {
            Some(Observation::Clean)
        }
        VerdictClass::NotEnoughData => Some(match lasts(watched(incident, cohort)?, verdict)? {
            true => Observation::Held,
            false => Observation::Clean,
        }),
        _ => None,
    }
}

/// Applies one window to a cohort, by its own verdict or the verdict of its chipset. Returns whether anything changed.
fn observe(
    incident: &mut Incident,
    key: &CohortKey,
    verdict: &CohortVerdict,
    observation: &Observation<'_>,
) -> bool {
    let at = incident
        .cohorts
        .iter()
        .position(|cohort| cohort.verdict.key == *key);
    let at = match (at, observation) {
        (Some(at), _) => at,
        (None, Observation::Seen(verdict)) => {
            incident.cohorts.push(IncidentCohort::new(verdict));
            incident.cohorts.len() - 1
        }
        (None, _) => return false,
    };
    let cohort = &mut incident.cohorts[at];
    if verdict.window_end < cohort.counted_until {
        go_back(cohort, verdict.window_end);
    }
    match observation {
        Observation::Seen(verdict) => see(cohort, verdict),
        Observation::Held => {
            cohort.clean_windows = 0;
            cohort.counted_until = verdict.window_end;
        }
        Observation::Clean => {
            if !count_clean(cohort, verdict.window_end, verdict.window) {
                return false;
            }
        }
    }
    true
}

fn forget_vanished(incident: &mut Incident, window_end: Timestamp, forget_after: Duration) -> bool {
    let before = incident.cohorts.len();
    let limit = signed(forget_after);
    for cohort in &mut incident.cohorts {
        if window_end.duration_since(cohort.counted_until) >= limit {
            cohort.clean_windows = CLEAN_WINDOWS;
        }
    }
    incident.cohorts.iter().any(|cohort| cohort.is_cleared()) && before > 0
}

/// Updates state and headline of the incident from its cohorts.
fn settle(incident: &mut Incident, now: Timestamp) {
    let still = incident.cohorts.iter().any(|cohort| !cohort.is_cleared());
    if !still {
        if incident.state.is_notified() {
            incident.state = State::Resolved;
            incident.resolved_at = Some(now);
            incident.news += 1;
        } else {
            incident.state = State::Inactive;
        }
        return;
    }
    let began = incident.cohorts.iter().map(|cohort| cohort.began).min();
    incident.started_at = began.map_or(incident.started_at, |began| began.min(incident.started_at));
    incident.cohorts.retain(|cohort| !cohort.is_cleared());
    let Some(headline) = current_headline(incident) else {
        return;
    };
    let more = match &incident.headline {
        None => true,
        Some(sent) => {
            let more_chipsets = !headline.chipsets.is_subset(&sent.chipsets);
            let found = EvidenceStrength::of(headline.class);
            let is_stronger =
                found >= EvidenceStrength::Placement && found > EvidenceStrength::of(sent.class);
            headline.severity > sent.severity
                || (headline.severity == sent.severity && (more_chipsets || is_stronger))
        }
    };
    if more {
        if incident.state == State::Pending {
            incident.state = State::Firing;
            incident.fired_at = Some(now);
        }
        incident.superseded = incident.headline.replace(headline);
        incident.news += 1;
    }
    settle_mitigation(incident, now);
}

fn current_headline(incident: &Incident) -> Option<Headline> {
    let severity = incident
        .cohorts
        .iter()
        .map(|cohort| cohort.confirmed)
        .max()?;
    if severity == Severity::None {
        return None;
    }
    let confirmed = incident
        .cohorts
        .iter()
        .filter(|cohort| cohort.confirmed == severity);
    let mut chipsets: BTreeSet<String> = confirmed
        .map(|cohort| cohort.verdict.key.chipset.clone())
        .collect();
    // A chipset that cleared stays in the headline that people were sent.
    if let Some(sent) = incident
        .headline
        .as_ref()
        .filter(|sent| sent.severity == severity)
    {
        chipsets.extend(sent.chipsets.iter().cloned());
    }
    Some(Headline {
        severity,
        class: incident.lead()?.class,
        chipsets,
    })
}
