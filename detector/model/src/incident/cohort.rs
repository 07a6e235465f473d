//! One cohort inside an incident, as its document holds it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::class::Severity;
use crate::signal::Signal;
use crate::verdict::CohortVerdict;

/// Number of clean windows that clear a cohort.
pub const CLEAN_WINDOWS: u32 = 3;

/// Share of a cohort's devices whose last report must be of a clean version. The others did not report since, and some
/// devices never report again.
const MOST_MOVED: f64 = 0.9;

/// A cohort inside an incident.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IncidentCohort {
    /// Its latest verdict of this cause.
    pub verdict: CohortVerdict,
    /// Each signal that fired, as it was with the most hits. Once a fault is repaired, its hits become fewer.
    pub peaks: Vec<Signal>,
    /// Start of the first window in which the fault was seen.
    pub began: Timestamp,
    /// Ends and severities of the windows in which the fault was seen and that still count.
    pub sightings: Vec<(Timestamp, Severity)>,
    /// The confirmed severity; `None` while it is pending.
    pub confirmed: Severity,
    /// Clean windows since it was last seen.
    pub clean_windows: u32,
    /// End of the last window that was counted, seen or clean.
    pub counted_until: Timestamp,
    /// End of the first window without the fault in which a directive covered the devices. `None` if the fault was seen
    /// since, or no directive covers them.
    pub mitigated_since: Option<Timestamp>,
    /// Clean windows of the next version since `mitigated_since`, or since the fault was last seen.
    pub clean_successors: u32,
    /// End of the last of these clean windows.
    pub successor_until: Option<Timestamp>,
    /// Clean versions that its devices now have, as of the window that ends at `successor_until`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved_to: Vec<MovedTo>,
}

/// A clean version that devices of a cohort now have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MovedTo {
    /// Its name.
    pub version: String,
    /// Devices of the cohort whose last report was of this version.
    pub devices: u64,
    /// All devices of the cohort.
    pub of: u64,
}

/// Returns the start of the window that ends then.
#[must_use]
pub fn start_of(window_end: Timestamp, window: Duration) -> Timestamp {
    window_end
        .saturating_sub(signed(window))
        .unwrap_or(Timestamp::MIN)
}

impl IncidentCohort {
    /// Returns the cohort of a first verdict, which is not confirmed yet.
    #[must_use]
    pub fn new(verdict: &CohortVerdict) -> Self {
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

    /// Whether the fault is over: clean for long enough, or never confirmed and no longer seen.
    #[must_use]
    pub fn is_cleared(&self) -> bool {
        let pending_over = self.confirmed == Severity::None && self.sightings.is_empty();
        self.clean_windows >= CLEAN_WINDOWS || pending_over
    }

    /// Whether nearly all of its devices have a clean version.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        let moved: u64 = self.moved_to.iter().map(|moved| moved.devices).sum();
        let last = self.moved_to.last();
        last.is_some_and(|last| moved as f64 >= MOST_MOVED * last.of as f64)
    }

    /// Whether its devices have a clean version, and no window has shown the fault since.
    pub(super) fn is_left(&self) -> bool {
        self.has_moved() && self.clean_successors > 0
    }

    /// Returns the clean windows since the fault was last seen, its own or the next version's.
    pub(super) fn clean_so_far(&self) -> u32 {
        let most = self.clean_windows.max(self.clean_successors);
        most.min(CLEAN_WINDOWS)
    }

    /// Returns the end of the window that clears it if all windows from now on are clean.
    #[must_use]
    pub fn earliest_end(&self) -> Timestamp {
        let end = |counted: u32, until: Timestamp| {
            let left = CLEAN_WINDOWS.saturating_sub(counted).cast_signed();
            let wait = signed(self.verdict.window).saturating_mul(left);
            until.saturating_add(wait).unwrap_or(Timestamp::MAX)
        };
        let own = end(self.clean_windows, self.counted_until);
        let of_next = self.successor_until;
        of_next.map_or(own, |until| own.min(end(self.clean_successors, until)))
    }
}

/// Returns the duration as one that can be added to a time, capped at the longest such duration.
#[must_use]
pub fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
