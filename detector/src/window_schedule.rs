//! Which windows are judged, and which are next. The clock may step: forward, it must not skip what
//! lies between; back, it must neither wait until it is there again nor skip what it jumped over.

use jiff::{SignedDuration, Timestamp};

use crate::config::DetectorConfig;

/// Ends that are remembered, so that a clock that comes back finds where it was. Steps of an hour: four days.
const MAX_REMEMBERED: usize = 96;

/// Ends of the windows that were judged last, in the order of judging.
#[derive(Debug, Default)]
pub(crate) struct WindowSchedule(Vec<Timestamp>);

impl WindowSchedule {
    /// Goes on after a window that another detector judged.
    pub(crate) fn until(end: Option<Timestamp>) -> Self {
        Self(end.into_iter().collect())
    }

    /// Notes that a window was judged.
    pub(crate) fn note(&mut self, end: Timestamp) {
        // A clock that stepped back makes the ends after it untrue.
        self.0.retain(|judged| *judged < end);
        if self.0.len() >= MAX_REMEMBERED {
            self.0.remove(0);
        }
        self.0.push(end);
    }

    /// Returns the ends of the windows to judge: the latest, and before it what a pause left out, a
    /// window's length apart. Nothing if the clock stands.
    pub(crate) fn to_judge(&self, latest: Timestamp, config: &DetectorConfig) -> Vec<Timestamp> {
        let Some(newest) = self.0.last() else {
            return vec![latest];
        };
        if latest == *newest {
            return Vec::new();
        }
        let went_back = latest < *newest;
        let before = self.0.iter().rev().find(|judged| **judged <= latest);
        let Some(until) = before else {
            return vec![latest];
        };
        if went_back && *until == latest {
            // It was judged, and so was all before it: once more, to forget what is ahead.
            return vec![latest];
        }
        left_out(*until, latest, config)
    }
}

fn left_out(until: Timestamp, latest: Timestamp, config: &DetectorConfig) -> Vec<Timestamp> {
    let window = SignedDuration::try_from(config.window.0).unwrap_or(SignedDuration::MAX);
    let lookback = SignedDuration::try_from(config.lookback.0).unwrap_or(SignedDuration::MAX);
    // Older reports may have left the store.
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
    ends.push(latest);
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Windows of 3 s; ends that were judged, the latest now, and what is to be judged.
    #[track_caller]
    fn check(judged: &[i64], latest: i64, expected: &[i64]) {
        let mut schedule = WindowSchedule::default();
        judged.iter().for_each(|end| schedule.note(at(*end)));
        let config = DetectorConfig::for_demo();
        let ends = schedule.to_judge(at(latest), &config);
        let expected: Vec<Timestamp> = expected.iter().map(|end| at(*end)).collect();
        assert_eq!(ends, expected);
    }

    #[test]
    fn what_a_pause_left_out_is_judged_once() {
        check(&[], 10, &[10]);
        check(&[10], 11, &[11]);
        check(&[10], 18, &[13, 16, 18]);
        check(&[10], 10, &[]);
        let long = WindowSchedule::until(Some(at(10)));
        let config = DetectorConfig::for_demo();
        assert_eq!(long.to_judge(at(100_000), &config).len(), 200);
    }

    /// It does not wait for a day until the clock is there again, and leaves nothing out.
    #[test]
    fn a_clock_that_comes_back_goes_on_where_it_left() {
        check(&[10, 11, 86_411], 12, &[12]);
        check(&[10, 11, 86_411], 20, &[14, 17, 20]);
        check(&[10, 11, 86_411], 11, &[11]);
        check(&[86_411], 12, &[12]);
        check(&[10, 11, 86_411, 12], 13, &[13]);
    }
}
