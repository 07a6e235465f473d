//! One cohort inside an incident: its sightings, whether they confirm the fault, and when it is clear.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::reason::Reason;
use crate::signals::{MIN_ELIGIBLE, Signal};
use crate::verdict::{CohortVerdict, MOST_DEVICES, Severity, VerdictNumbers};

/// Chance below which a count on at least [`AT_ONCE_DEVICES`] devices needs no second window.
pub(crate) const AT_ONCE_P: f64 = 1e-8;

/// See [`AT_ONCE_P`].
pub(crate) const AT_ONCE_DEVICES: u64 = 10;

/// Number of windows of which two must agree otherwise.
pub(crate) const CONFIRM_WITHIN_WINDOWS: u32 = 3;

/// Number of windows that share no data after which load is a ticket: heat and load end.
const LASTING_WINDOWS: u32 = 3;

/// Next step for load that lasts.
const LASTING_LOAD: &str = "Compare firmware, runtime and makes of these devices with others of the chipset, and look at what \
     else runs on them since then; nothing points at this model alone.";

/// Number of clean windows that clear a cohort.
pub(crate) const CLEAN_WINDOWS: u32 = 3;

/// Ratio of two medians from which a window without a reference can be assigned to one of them.
const DISTINCT: f64 = 1.5;

/// A cohort inside an incident.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncidentCohort {
    /// Its latest verdict of this cause.
    pub verdict: CohortVerdict,
    /// Each signal that fired, when it had the most hits: once a fault is repaired, they become fewer.
    pub peaks: Vec<Signal>,
    /// Start of the window it was seen in first.
    pub began: Timestamp,
    /// Ends and severities of the windows it was seen in that still count.
    pub sightings: Vec<(Timestamp, Severity)>,
    /// The confirmed severity; `None` while it is pending.
    pub confirmed: Severity,
    /// Clean windows since it was last seen.
    pub clean_windows: u32,
    /// End of the last window that was counted, seen or clean.
    pub counted_until: Timestamp,
    /// End of the first window without it in which a directive held its devices; `None` if it was seen since,
    /// or no directive did.
    pub mitigated_since: Option<Timestamp>,
    /// Clean windows of the next version since then, or since it was seen last.
    pub clean_successors: u32,
    /// End of the last of these windows.
    pub successor_until: Option<Timestamp>,
    /// Clean versions that its devices have by now, as of that window.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved_to: Vec<MovedTo>,
}

/// A clean version that devices of a cohort have by now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedTo {
    /// Its name.
    pub version: String,
    /// Devices of the cohort that reported it last.
    pub devices: u64,
    /// All devices of the cohort.
    pub of: u64,
}

/// Returns the start of the window that ends then.
pub(super) fn start_of(window_end: Timestamp, window: Duration) -> Timestamp {
    window_end
        .saturating_sub(signed(window))
        .unwrap_or(Timestamp::MIN)
}

impl IncidentCohort {
    pub(super) fn new(verdict: &CohortVerdict) -> Self {
        IncidentCohort {
            verdict: verdict.clone(),
            peaks: Vec::new(),
            began: start_of(verdict.window_end, verdict.window),
            sightings: Vec::new(),
            confirmed: Severity::None,
            clean_windows: 0,
            counted_until: verdict.window_end,
            mitigated_since: None,
            clean_successors: 0,
            successor_until: None,
            moved_to: Vec::new(),
        }
    }

    pub(super) fn is_cleared(&self) -> bool {
        let pending_over = self.confirmed == Severity::None && self.sightings.is_empty();
        self.clean_windows >= CLEAN_WINDOWS || pending_over
    }

    /// Returns the end of the window that clears it if all windows from now on are clean.
    pub(crate) fn earliest_end(&self) -> Timestamp {
        let left = CLEAN_WINDOWS.saturating_sub(self.clean_windows);
        let wait = signed(self.verdict.window).saturating_mul(left.cast_signed());
        self.counted_until
            .saturating_add(wait)
            .unwrap_or(Timestamp::MAX)
    }

    pub(super) fn see(&mut self, verdict: &CohortVerdict) {
        let end = verdict.window_end;
        // Missed windows are judged after the newest one.
        self.began = self.began.min(start_of(end, verdict.window));
        self.verdict = verdict.clone();
        self.keep_peaks(&verdict.signals);
        self.clean_windows = 0;
        self.counted_until = end;
        self.mitigated_since = None;
        self.clean_successors = 0;
        self.successor_until = None;
        self.moved_to.clear();
        self.expire(end, verdict.window);
        self.sightings.push((end, verdict.severity));

        let is_sure = verdict.p <= AT_ONCE_P && verdict.numbers.devices_hit >= AT_ONCE_DEVICES;
        // A verdict that is sure enough for a ticket at once is a ticket until the page is sure.
        let is_page = verdict.severity == Severity::Page;
        let has_sure_signal = is_page && verdict.signals.iter().any(is_sure_alone);
        let is_alone = verdict.reasons.contains(&Reason::NoControl);
        for severity in [Severity::Ticket, Severity::Page] {
            // Load that nothing could show is over in the next window.
            let at_once = match severity {
                Severity::Page => is_sure && !is_alone,
                _ => is_sure || has_sure_signal,
            };
            // Overlapping windows are not independent: two sightings count if they share no data.
            let apart = self.sightings.iter().any(|(earlier, as_bad)| {
                *as_bad >= severity && end.duration_since(*earlier) >= signed(verdict.window)
            });
            if verdict.severity >= severity && (at_once || apart) {
                self.confirmed = self.confirmed.max(severity);
            }
        }
        if self.windows_apart(verdict.window) >= LASTING_WINDOWS {
            self.confirmed = self.confirmed.max(Severity::Ticket);
        }
        if self.confirmed > Severity::None && verdict.is_load() {
            let windows = LASTING_WINDOWS;
            self.verdict
                .reasons
                .insert(0, Reason::LoadLasts { windows });
            self.verdict.next_step = LASTING_LOAD.to_owned();
        }
    }

    /// Counts the windows that it was seen in and that share no data, the latest first.
    fn windows_apart(&self, window: Duration) -> u32 {
        let (mut n, mut last) = (0, None);
        for (end, _) in self.sightings.iter().rev() {
            if last.is_none_or(|last: Timestamp| last.duration_since(*end) >= signed(window)) {
                (n, last) = (n + 1, Some(*end));
            }
        }
        n
    }

    fn keep_peaks(&mut self, signals: &[Signal]) {
        for fired in signals.iter().filter(|signal| signal.fires) {
            match self.peaks.iter_mut().find(|peak| peak.id == fired.id) {
                Some(peak) if peak.hits >= fired.hits => {}
                Some(peak) => *peak = fired.clone(),
                None => self.peaks.push(fired.clone()),
            }
        }
    }

    /// Whether the fault lasts, by the latency of a window without references. It lasts if the latency is closer to the
    /// devices hit than to the reference of that time. `None` if too few devices were hit, or are left.
    pub(super) fn lasts(&self, verdict: &CohortVerdict) -> Option<bool> {
        let seen_last = &self.verdict;
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
        let is_distinct = self.confirmed > Severity::None && hit_us >= DISTINCT * before_us;
        if !(most_hit && enough && same_shape && is_distinct) {
            return None;
        }
        Some(verdict.statistics.p50_us? > (hit_us * before_us).sqrt())
    }

    /// Handles a window that ends before the last one counted, after a clock that had stepped forward was set
    /// back. Later sightings are dropped, and clean windows are counted from zero, since some may come twice.
    pub(super) fn go_back(&mut self, end: Timestamp) {
        self.sightings.retain(|(seen, _)| *seen <= end);
        self.clean_windows = 0;
        self.counted_until = end;
    }

    /// Counts a clean window if it shares no data with the last one counted.
    pub(super) fn count_clean(&mut self, end: Timestamp, window: Duration) -> bool {
        if end.duration_since(self.counted_until) < signed(window) {
            return false;
        }
        self.clean_windows += 1;
        self.counted_until = end;
        self.expire(end, window);
        true
    }

    /// Drops sightings too old to confirm together with a window that ends at `end`.
    fn expire(&mut self, end: Timestamp, window: Duration) {
        let reach = signed(window) * (CONFIRM_WITHIN_WINDOWS - 1).cast_signed();
        self.sightings
            .retain(|(seen, _)| end.duration_since(*seen) <= reach);
    }
}

fn is_sure_alone(signal: &Signal) -> bool {
    signal.fires && signal.p <= AT_ONCE_P && signal.hits >= AT_ONCE_DEVICES
}

pub(super) fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
