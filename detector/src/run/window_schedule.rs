//! Which windows are judged, and which are next: the newest first, then windows that a pause or a slow evaluation
//! left out. The clock may step. After a step forward no window between is skipped. After a step back, judging goes
//! on at once, and windows that the clock had jumped over are judged.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::run::config::DetectorConfig;

/// Ends that are remembered, so that a clock that comes back finds where it was. Steps of an hour: four days.
const MAX_REMEMBERED: usize = 96;

/// Ends of the windows that were judged last, and of those that were left out before the newest.
#[derive(Debug, Default)]
pub(crate) struct WindowSchedule {
    /// In the order of judging.
    judged: Vec<Timestamp>,
    /// Windows to judge when no newer one is due, a window's length apart: between them they have every report once.
    earlier: BTreeSet<Timestamp>,
}

impl WindowSchedule {
    /// Goes on after the windows that are stored, in the order of time.
    pub(crate) fn after(stored: &[Timestamp], config: &DetectorConfig) -> Self {
        let mut schedule = Self::default();
        for end in stored {
            schedule.note(*end, config);
        }
        schedule
    }

    /// Whether the newest window is still to be judged. Not if the clock stands.
    pub(crate) fn is_due(&self, newest: Timestamp) -> bool {
        self.judged.last() != Some(&newest)
    }

    /// Notes that the newest window was judged. What lies between it and the one before is left for later.
    pub(crate) fn note(&mut self, end: Timestamp, config: &DetectorConfig) {
        let before = self.judged.iter().rev().find(|judged| **judged <= end);
        if let Some(before) = before.filter(|before| **before < end) {
            self.earlier.extend(left_out(*before, end, config));
        }
        // A clock that stepped back makes the ends after it untrue.
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

    /// Windows of 3 s: ends that were judged, the newest now, whether it is judged, and what is left for later.
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
        // The load ends: each step has time for one of them.
        for _ in 0..100 {
            let oldest = schedule.earlier().unwrap();
            schedule.note_earlier(oldest);
        }
        assert_eq!((schedule.n_behind(), schedule.earlier()), (0, None));
    }

    /// It does not wait for a day until the clock is there again, and leaves nothing out.
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
