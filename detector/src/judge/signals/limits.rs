//! The limits from which a signal fires.

use epwatch_model::{Signal, SignalId};

use crate::judge::tally::Tally;

/// Number of devices below which a cohort is not judged.
pub(crate) const MIN_ELIGIBLE: u64 = 5;

/// Number of devices that must be hit before a signal fires.
pub(crate) const MIN_HITS: u64 = 3;

/// Chance above which a count does not show a fault. In a window with a finding, signals with such a chance still go
/// into the history, like all signals of a healthy window.
pub(crate) const UNSURPRISING_P: f64 = 0.05;

/// Returns a signal whose value is the share of the devices hit.
pub(super) fn counted_signal(
    id: SignalId,
    tally: Tally,
    p: f64,
    threshold: f64,
    fires: bool,
) -> Signal {
    Signal {
        id,
        value: tally.share(),
        p,
        hits: tally.hits,
        devices: tally.devices,
        threshold,
        fires,
    }
}

/// Whether there are enough devices and hits to fire, and at least this share of the devices is hit.
pub(super) fn is_enough(tally: Tally, min_share: f64) -> bool {
    tally.devices >= MIN_ELIGIBLE && tally.hits >= MIN_HITS && tally.share() >= min_share
}

/// The chance below which each kind of signal fires.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Limit for signals that decide on latency alone.
    pub p_latency: f64,
    /// Limit for `Shift`, which compares devices with their own past.
    pub p_shift: f64,
    /// Limit for placements, which do not vary with heat or load.
    pub p_placement: f64,
}

impl Limits {
    /// False alarms a day over all cohorts, shared by three signals.
    const FALSE_ALARMS_A_DAY: f64 = 0.03;

    /// Upper bound with few cohorts: at most one false page in 10,000 cohort windows. Two signals at this
    /// chance and `Shift` at [`Self::MOST_SHIFT`] use half of that, before a second window confirms.
    const MOST: f64 = 1e-5;

    /// Upper bound for `Shift`, which gets the larger part: if placements are missing or wrong, no other signal finds a
    /// fault on some devices.
    const MOST_SHIFT: f64 = 3e-5;

    /// Returns the limits for a fleet with so many disjoint cohort windows a day.
    #[must_use]
    pub fn for_windows_a_day(cohort_windows: f64) -> Self {
        let p = Self::FALSE_ALARMS_A_DAY / (3.0 * cohort_windows.max(1.0));
        Self {
            p_latency: p.min(Self::MOST),
            p_shift: p.min(Self::MOST_SHIFT),
            p_placement: 1e-3,
        }
    }

    /// Returns the limits for findings that can only become tickets. A ticket also waits for a second window, and wakes
    /// no one.
    pub(super) fn of_tickets(self) -> Self {
        Self {
            p_latency: self.p_latency * 10.0,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_cohort_windows_a_day_ask_for_more_surprise() {
        assert!((Limits::for_windows_a_day(10_000.0).p_latency - 1e-6).abs() < 1e-12);
        assert_eq!(Limits::for_windows_a_day(1.0).p_latency, 1e-5);
    }
}
