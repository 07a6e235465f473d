//! The early end of a repaired fault, if devices run often enough to be sure within a day.
//!
//! A one-day window still holds runs from before the repair for a day. A device that runs rarely keeps them longer,
//! because its few runs are filled up with earlier ones. So while an incident fires, a shorter window of new runs
//! alone is judged, too. If it shows nothing, and a signal that had fired is certainly gone, the fault is over. Then
//! the one-day windows are quiet for the time of three of them, and the shorter ones detect a relapse.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epwatch_model::{
    CLEAN_WINDOWS, Cause, CohortKey, CohortVerdict, Hold, Incident, IncidentCohort, IncidentKey,
    ModelKey, SignalId, State, VerdictClass, signed,
};
use jiff::Timestamp;

use crate::judge::signals::MIN_ELIGIBLE;

use super::cohort::LASTING;
use super::hold::{hold_of, quiets};

/// Shortest time without a hit after which a fault can be over.
const EARLIEST: Duration = Duration::from_secs(6 * 3_600);

/// Interval between checks for recoveries. Each check reads the incidents' models once more.
const LOOK_EVERY: Duration = Duration::from_secs(3 * 3_600);

/// Largest accepted chance that a lasting fault shows no more hits than this.
const SURE: f64 = 0.01;

/// Largest accepted chance for a firmware whose chipset is certainly clean. It is less strict, because a fault on its
/// few devices alone is unlikely.
const PART_SURE: f64 = 0.2;

/// A window that is checked for recoveries, in addition to a usual one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecoveryWindow {
    pub(crate) end: Timestamp,
    /// Length of the window: three quarters of a usual one.
    pub(crate) window: Duration,
    /// End of the first usual window in which a fault that recovered notifies again.
    quiet_until: Timestamp,
}

impl RecoveryWindow {
    /// Returns the window, in addition to the usual one, that ends then, in whole buckets. `None` if it would be
    /// shorter than [`EARLIEST`], or no check is due.
    pub(crate) fn looked_for(end: Timestamp, window: Duration, bucket: Duration) -> Option<Self> {
        let shorter = shorter(window, bucket)?;
        let every = i64::try_from(LOOK_EVERY.as_secs()).ok()?;
        let is_due = end.as_second().rem_euclid(every) == 0;
        let quiet_until = end.saturating_add(signed(CLEAN_WINDOWS * window)).ok()?;
        is_due.then_some(Self {
            end,
            window: shorter,
            quiet_until,
        })
    }
}

fn shorter(window: Duration, bucket: Duration) -> Option<Duration> {
    let bucket_s = bucket.as_secs().max(1);
    let shorter = Duration::from_secs(window.as_secs() * 3 / 4 / bucket_s * bucket_s);
    (shorter >= EARLIEST).then_some(shorter)
}

/// Returns the models whose incidents a recovery would end, or whose recovery is watched.
pub(crate) fn to_recover<'a>(incidents: impl Iterator<Item = &'a Incident>) -> BTreeSet<ModelKey> {
    let asked =
        incidents.filter(|incident| may_recover(incident) || incident.quiet_until().is_some());
    asked.map(|incident| incident.key.model.clone()).collect()
}

/// Ends the incidents that recovered by the verdicts of a shorter window; returns them.
pub(crate) fn end_recovered(
    incidents: &mut BTreeMap<IncidentKey, Incident>,
    verdicts: &[CohortVerdict],
    recovery: RecoveryWindow,
    now: Timestamp,
) -> Vec<Incident> {
    let recovered = incidents.values_mut().filter_map(|incident| {
        recover(incident, verdicts, recovery.quiet_until, now).then_some(incident)
    });
    recovered.map(|incident| incident.clone()).collect()
}

/// Ends the quiet period of recovered faults that a shorter window shows again. Returns their incidents.
pub(crate) fn end_quiet<'a>(
    held: impl Iterator<Item = &'a mut Incident>,
    verdicts: &[CohortVerdict],
) -> Vec<Incident> {
    let relapsed = held.filter_map(|incident| {
        let is_back = |verdict: &CohortVerdict| quiets(incident, verdict);
        let is_relapse = incident.quiet_until().is_some() && verdicts.iter().any(is_back);
        is_relapse.then(|| {
            incident.orders.hold = None;
            incident.clone()
        })
    });
    relapsed.collect()
}

/// Whether a cohort is certainly clean. A firmware needs less certainty if its chipset is clean.
fn has_recovered(incident: &Incident, cohort: &IncidentCohort, verdicts: &[CohortVerdict]) -> bool {
    let lasts = |cohort: &IncidentCohort| {
        let now = verdict_now(&cohort.verdict.key, verdicts)?;
        chance_it_lasts(cohort, now)
    };
    let is_at_most = |cohort, most| lasts(cohort).is_some_and(|chance| chance <= most);
    let key = &cohort.verdict.key;
    let is_whole = |other: &&IncidentCohort| {
        let other = &other.verdict.key;
        other.firmware.is_none() && other.chipset == key.chipset
    };
    let whole = incident.cohorts.iter().find(is_whole);
    let whole = whole.filter(|_| key.firmware.is_some());
    let is_whole_over = whole.is_some_and(|whole| is_at_most(whole, SURE));
    is_at_most(cohort, if is_whole_over { PART_SURE } else { SURE })
}

fn may_recover(incident: &Incident) -> bool {
    incident.state == State::Firing && incident.key.cause == Cause::Slower
}

/// Returns the time without a hit after which the incident may end, by the length of its windows.
pub(crate) fn recovers_in(incident: &Incident) -> Option<Duration> {
    let shorter = shorter(incident.lead()?.window, Duration::ZERO)?;
    may_recover(incident).then_some(shorter)
}

/// Ends it if all of its cohorts have recovered by verdicts of a shorter window. Returns whether it ended.
fn recover(
    incident: &mut Incident,
    verdicts: &[CohortVerdict],
    until: Timestamp,
    now: Timestamp,
) -> bool {
    let mut left = incident
        .cohorts
        .iter()
        .filter(|cohort| !cohort.is_cleared());
    let is_over =
        may_recover(incident) && left.all(|cohort| has_recovered(incident, cohort, verdicts));
    if !is_over {
        return false;
    }
    incident.orders.hold = Some(Hold {
        until: Some(until),
        ..hold_of(incident)
    });
    incident.state = State::Resolved;
    incident.resolved_at = Some(now);
    incident.news += 1;
    true
}

/// Returns the verdict of a shorter window on a cohort, or on its chipset where its firmware has too few devices.
fn verdict_now<'a>(key: &CohortKey, verdicts: &'a [CohortVerdict]) -> Option<&'a CohortVerdict> {
    let of = |firmware: Option<&String>| {
        verdicts.iter().find(|verdict| {
            let of_chipset = verdict.key.model == key.model
                && verdict.key.model_version == key.model_version
                && verdict.key.chipset == key.chipset;
            of_chipset && verdict.key.firmware.as_ref() == firmware
        })
    };
    of(key.firmware.as_ref()).or_else(|| of(None))
}

/// Returns the chance that the fault lasts although a shorter window looks like this. `None` if the window shows anything,
/// or too few devices ran in it.
///
/// It is the smallest chance of any signal that had fired, because devices that run rarely leave many signals open.
/// None of them may have as many hits as a fault that lasts.
fn chance_it_lasts(cohort: &IncidentCohort, now: &CohortVerdict) -> Option<f64> {
    // `SlowerAndMoved` counts only among devices whose work moved. A repair leaves no such devices, and `Placement`
    // counts them.
    let peaks = cohort.peaks.iter();
    let peaks = peaks.filter(|peak| peak.id != SignalId::SlowerAndMoved);
    let of = |id: SignalId| now.signals.iter().find(|signal| signal.id == id);
    let ran = of(SignalId::Shift).or(of(SignalId::ShiftOfModel));
    let (mut least, mut most_hit, mut seen) = (1.0_f64, 0, ran.map_or(0, |ran| ran.devices));
    for peak in peaks {
        most_hit = most_hit.max(peak.hits);
        let Some(left) = of(peak.id) else {
            continue;
        };
        let lasting = LASTING * peak.hits as f64 / peak.devices.max(1) as f64;
        let chance = chance_of_so_few(left.hits, left.devices, lasting);
        if left.fires || (left.devices >= MIN_ELIGIBLE && chance >= 1.0) {
            return None;
        }
        seen = seen.max(left.devices);
        least = least.min(chance);
    }
    let is_enough = seen >= MIN_ELIGIBLE.max(most_hit.div_ceil(2));
    (now.class == VerdictClass::Healthy && is_enough).then_some(least)
}

/// Returns Chernoff's bound of the chance of at most `hits` of `n` devices, if each is hit with this chance.
fn chance_of_so_few(hits: u64, n: u64, chance: f64) -> f64 {
    let share = hits as f64 / n.max(1) as f64;
    if share >= chance {
        return 1.0;
    }
    let part = |of: f64, expected: f64| match of > 0.0 {
        true => of * (of / expected).ln(),
        false => 0.0,
    };
    let divergence = part(share, chance) + part(1.0 - share, 1.0 - chance);
    (-(n as f64) * divergence).exp()
}
