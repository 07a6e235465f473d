//! One cohort inside an incident: its sightings, whether they confirm the fault, and when it is clear.

use std::time::Duration;

use epwatch_model::{
    CohortVerdict, IncidentCohort, Reason, Severity, Signal, SignalId, VerdictNumbers, signed,
    start_of,
};
use jiff::Timestamp;

use crate::judge::signals::{MIN_ELIGIBLE, UNSURPRISING_P};
use crate::judge::verdict::MOST_DEVICES;

/// Chance below which a count on at least [`AT_ONCE_DEVICES`] devices needs no second window.
pub(crate) const AT_ONCE_P: f64 = 1e-8;

/// See [`AT_ONCE_P`].
pub(crate) const AT_ONCE_DEVICES: u64 = 10;

/// Without such a chance, two of this many windows must agree.
pub(crate) const CONFIRM_WITHIN_WINDOWS: u32 = 3;

/// Number of windows that share no data after which load is a ticket, because usual heat and load end earlier.
const LASTING_WINDOWS: u32 = 3;

/// Next step for load that lasts.
const LASTING_LOAD: &str = "Compare firmware, runtime and makes of these devices with others of the chipset, and look at what \
     else runs on them since then; nothing points at this model alone.";

/// Minimum ratio of two medians for which a window without a reference can be assigned to one of them.
const DISTINCT: f64 = 1.5;

/// Fraction of the share of devices hit. Without a repair, a fault does not fall below it.
pub(super) const LASTING: f64 = 2.0 / 3.0;

pub(super) fn see(cohort: &mut IncidentCohort, verdict: &CohortVerdict) {
    let end = verdict.window_end;
    // A missed window may be judged after newer ones, so this one may be earlier than `began`.
    cohort.began = cohort.began.min(start_of(end, verdict.window));
    cohort.verdict = verdict.clone();
    keep_peaks(cohort, &verdict.signals);
    cohort.clean_windows = 0;
    cohort.counted_until = end;
    cohort.mitigated_since = None;
    cohort.clean_successors = 0;
    cohort.successor_until = None;
    cohort.moved_to.clear();
    expire(cohort, end, verdict.window);
    cohort.sightings.push((end, verdict.severity));

    let is_sure = verdict.p <= AT_ONCE_P && verdict.numbers.devices_hit >= AT_ONCE_DEVICES;
    // A single sure signal makes a ticket at once, and it stays a ticket until the page is sure.
    let is_page = verdict.severity == Severity::Page;
    let has_sure_signal = is_page && verdict.signals.iter().any(is_sure_alone);
    let is_alone = verdict.reasons.contains(&Reason::NoControl);
    for severity in [Severity::Ticket, Severity::Page] {
        // Without a control, the slow-down may be load, which is over in the next window. So a page waits.
        let at_once = match severity {
            Severity::Page => is_sure && !is_alone,
            _ => is_sure || has_sure_signal,
        };
        // Overlapping windows are not independent: two sightings count if they share no data.
        let apart = cohort.sightings.iter().any(|(earlier, as_bad)| {
            *as_bad >= severity && end.duration_since(*earlier) >= signed(verdict.window)
        });
        if verdict.severity >= severity && (at_once || apart) {
            cohort.confirmed = cohort.confirmed.max(severity);
        }
    }
    if windows_apart(cohort, verdict.window) >= LASTING_WINDOWS {
        cohort.confirmed = cohort.confirmed.max(Severity::Ticket);
    }
    if cohort.confirmed > Severity::None && verdict.is_load() {
        let windows = LASTING_WINDOWS;
        cohort
            .verdict
            .reasons
            .insert(0, Reason::LoadLasts { windows });
        cohort.verdict.next_step = LASTING_LOAD.to_owned();
    }
}

/// Counts the windows in which the fault was seen and that share no data, the latest first.
fn windows_apart(cohort: &IncidentCohort, window: Duration) -> u32 {
    let (mut n, mut last) = (0, None);
    for (end, _) in cohort.sightings.iter().rev() {
        if last.is_none_or(|last: Timestamp| last.duration_since(*end) >= signed(window)) {
            (n, last) = (n + 1, Some(*end));
        }
    }
    n
}

fn keep_peaks(cohort: &mut IncidentCohort, signals: &[Signal]) {
    for fired in signals.iter().filter(|signal| signal.fires) {
        match cohort.peaks.iter_mut().find(|peak| peak.id == fired.id) {
            Some(peak) if peak.hits >= fired.hits => {}
            Some(peak) => *peak = fired.clone(),
            None => cohort.peaks.push(fired.clone()),
        }
    }
}

/// Whether the fault lasts, by the latency of a window without references. It lasts if the latency is closer to the
/// latency of the devices hit than to the reference at that time. `None` if too few devices were hit, or are left.
pub(super) fn lasts(cohort: &IncidentCohort, verdict: &CohortVerdict) -> Option<bool> {
    let seen_last = &cohort.verdict;
    let VerdictNumbers {
        devices_hit,
        devices_eligible,
        ..
    } = seen_last.numbers;
    let most_hit = devices_hit as f64 >= MOST_DEVICES * devices_eligible as f64;
    let seen = verdict.numbers.devices_seen;
    let enough = seen >= MIN_ELIGIBLE && 2 * seen >= devices_hit;
    let same_shape = seen_last.statistics.shape_key == verdict.statistics.shape_key;
    let (hit_us, before_us) = (
        seen_last.numbers.hit_p50_us?,
        seen_last.numbers.reference_p50_us?,
    );
    let is_distinct = cohort.confirmed > Severity::None && hit_us >= DISTINCT * before_us;
    if !(most_hit && enough && same_shape && is_distinct) {
        return None;
    }
    Some(verdict.statistics.p50_us? > (hit_us * before_us).sqrt())
}

/// Whether a window without a finding still has most of the hits of a confirmed fault, and chance does not explain them.
/// In a small cohort the limit of a finding is near the usual number of hits of such a fault.
pub(super) fn still_has_hits(cohort: &IncidentCohort, verdict: &CohortVerdict) -> bool {
    let share = |signal: &Signal| signal.hits as f64 / signal.devices.max(1) as f64;
    let lasts = |peak: &Signal| {
        let mut now = verdict.signals.iter();
        let now = now.find(|now| now.id == peak.id && now.devices >= MIN_ELIGIBLE);
        now.is_some_and(|now| now.p <= UNSURPRISING_P && share(now) >= LASTING * share(peak))
    };
    // Devices whose work moved are too few after a repair, and `Placement` counts them.
    let peaks = cohort.peaks.iter();
    let mut peaks = peaks.filter(|peak| peak.id != SignalId::SlowerAndMoved);
    cohort.confirmed > Severity::None && peaks.any(lasts)
}

/// Handles a window that ends before the last one counted, after a clock that had stepped forward was set back. Later
/// sightings are dropped. Clean windows are counted from zero, because some may be judged twice.
pub(super) fn go_back(cohort: &mut IncidentCohort, end: Timestamp) {
    cohort.sightings.retain(|(seen, _)| *seen <= end);
    cohort.clean_windows = 0;
    cohort.counted_until = end;
}

/// Counts a clean window if it shares no data with the last one counted.
pub(super) fn count_clean(cohort: &mut IncidentCohort, end: Timestamp, window: Duration) -> bool {
    if end.duration_since(cohort.counted_until) < signed(window) {
        return false;
    }
    cohort.clean_windows += 1;
    cohort.counted_until = end;
    expire(cohort, end, window);
    true
}

/// Drops sightings too old to confirm together with a window that ends at `end`.
fn expire(cohort: &mut IncidentCohort, end: Timestamp, window: Duration) {
    let reach = signed(window) * (CONFIRM_WITHIN_WINDOWS - 1).cast_signed();
    cohort
        .sightings
        .retain(|(seen, _)| end.duration_since(*seen) <= reach);
}

fn is_sure_alone(signal: &Signal) -> bool {
    signal.fires && signal.p <= AT_ONCE_P && signal.hits >= AT_ONCE_DEVICES
}
