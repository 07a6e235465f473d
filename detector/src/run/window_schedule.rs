//! Decides which window is judged next: the newest first, then windows that a pause or a slow evaluation left out. The
//! clock may step. After a step forward, no window in between is skipped. After a step back, judging continues at once,
//! and windows that the clock had jumped over are judged.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::run::config::DetectorConfig;

/// Number of window ends that are remembered, so that judging can continue after the clock is set back. With steps of
/// an hour they cover four days.
const MAX_REMEMBERED: usize = 96;

/// Ends of the windows that were judged last, and of the windows that were left out before the newest.
#[derive(Debug, Default)]
pub(crate) struct WindowSchedule {
    /// The judged windows in the order of judging.
    judged: Vec<Timestamp>,
    /// Windows to judge when no newer one is due. They are a window's length apart, so together they contain every
    /// report once.
    earlier: BTreeSet<Timestamp>,
}

impl WindowSchedule {
    /// Continues after the windows that are stored, which must be in the order of time.
    pub(crate) fn after(stored: &[Timestamp], config: &DetectorConfig) -> Self {
        let mut schedule = Self::default();
        for end in stored {
            schedule.note(*end, config);
        }
        schedule
    }

    /// Whether the newest window is still to be judged. It is not if the clock stands still.
    pub(crate) fn is_due(&self, newest: Timestamp) -> bool {
        self.judged.last() != Some(&newest)
    }

    /// Notes that the newest window was judged. Windows between it and the one before are left for later.
    pub(crate) fn note(&mut self, end: Timestamp, config: &DetectorConfig) {
        let before = self.judged.iter().rev().find(|judged| **judged <= end);
        if let Some(before) = before.filter(|before| **before < end) {
            self.earlier.extend(left_out(*before, end, config));
        }
        // If the clock stepped back, later ends were never real.
        self.judged.retain(|judged| *judged < end);
        if self.judged.len() >= MAX_REMEMBERED {
            self.judged.remove(0);
        }
        self.judged.push(end);
        // Older reports may have left the store.
        let lookback = SignedDuration::try_from(config.lookback.0).unwrap_or(SignedDuration::MAX);
        let earliest = end.checked_sub(lookback).unwrap_or(Timestamp::MIN);
        self.earlier
            .retain(|earlier| (earliest..end).contains(earlier));
    }

    /// Returns the oldest window that was left out.
    pub(crate) fn earlier(&self) -> Option<Timestamp> {
        self.earlier.first().copied()
    }

    /// Notes that a window that was left out is judged, or cannot be.
    pub(crate) fn note_earlier(&mut self, end: Timestamp) {
        self.earlier.remove(&end);
    }

    /// Returns the number of windows that were left out and are not judged yet.
    pub(crate) fn n_behind(&self) -> usize {
        self.earlier.len()
    }
}

/// Returns the ends between two judged windows, a window's length apart.
fn left_out(until: Timestamp, latest: Timestamp, config: &DetectorConfig) -> Vec<Timestamp> {
    let window = SignedDuration::try_from(config.window.0).unwrap_or(SignedDuration::MAX);
    let lookback = SignedDuration::try_from(config.lookback.0).unwrap_or(SignedDuration::MAX);
    let earliest = latest.checked_sub(lookback).unwrap_or(Timestamp::MIN);
    let mut ends = Vec::new();
    let mut end = until.max(earliest);
    while let Ok(next) = end.checked_add(window) {
        if next >= latest {
            break;
        }
        ends.push(next);
        end = next;
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Checks windows of 3 s: the ends that were judged, the newest now, whether it is due, and the windows left for
    /// later.
    #[track_caller]
    fn check(judged: &[i64], newest: i64, is_due: bool, earlier: &[i64]) {
        let config = DetectorConfig::for_demo();
        let mut schedule = WindowSchedule::default();
        for end in judged {
            schedule.note(at(*end), &config);
            while let Some(earlier) = schedule.earlier() {
                schedule.note_earlier(earlier);
            }
        }
        assert_eq!(schedule.is_due(at(newest)), is_due);
        schedule.note(at(newest), &config);
        let expected: Vec<Timestamp> = earlier.iter().map(|end| at(*end)).collect();
        assert_eq!(
            schedule.earlier.iter().copied().collect::<Vec<_>>(),
            expected
        );
        assert_eq!(schedule.n_behind(), earlier.len());
    }

    #[test]
    fn the_newest_window_comes_first_and_what_a_pause_left_out_later() {
        check(&[], 10, true, &[]);
        check(&[10], 11, true, &[]);
        check(&[10], 18, true, &[13, 16]);
        check(&[10], 10, false, &[]);
    }

    /// Checks [O14]. A detector that takes 6 s of each 3 s judges the newest window each time, however long that lasts.
    /// It holds no more earlier windows than the look-back has.
    #[test]
    fn a_detector_slower_than_its_step_does_not_fall_behind() {
        let config = DetectorConfig::for_demo();
        let mut schedule = WindowSchedule::default();
        for now in (0..6_000).step_by(6) {
            let newest = at(now / 3 * 3);
            assert!(schedule.is_due(newest));
            schedule.note(newest, &config);
            assert!(schedule.n_behind() <= 200, "{}", schedule.n_behind());
        }
        assert_eq!(schedule.n_behind(), 100, "every other one of 600 s");
        // The load ends, so each step has time for one earlier window.
        for _ in 0..100 {
            let oldest = schedule.earlier().unwrap();
            schedule.note_earlier(oldest);
        }
        assert_eq!((schedule.n_behind(), schedule.earlier()), (0, None));
    }

    /// The detector does not wait for a day until the clock has caught up, and leaves no window out.
    #[test]
    fn a_clock_that_comes_back_goes_on_where_it_left() {
        check(&[10, 11, 86_411], 12, true, &[]);
        check(&[10, 11, 86_411], 20, true, &[14, 17]);
        check(&[10, 11, 86_411], 11, true, &[]);
        check(&[86_411], 12, true, &[]);
        check(&[10, 11, 86_411, 12], 13, true, &[]);
    }

    #[test]
    fn a_restart_finds_the_windows_that_were_left_out() {
        let config = DetectorConfig::for_demo();
        let schedule = WindowSchedule::after(&[10, 13, 22, 25].map(at), &config);
        assert!(!schedule.is_due(at(25)) && schedule.is_due(at(28)));
        assert_eq!(schedule.earlier(), Some(at(16)));
        assert_eq!(schedule.n_behind(), 2);
    }
}
