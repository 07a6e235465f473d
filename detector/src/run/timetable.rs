//! When windows end and when they are due, by the wall clock alone. The start of a detector does not matter, so a
//! restart judges nothing earlier or later. Pure: time comes in as an argument.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::run::config::DetectorConfig;

/// Shortest and longest time from the due time of a window until it counts as late.
const GRACE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15 * 60));

/// The times of one configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timetable {
    step_ms: i64,
    bucket_ms: i64,
    wait: SignedDuration,
    grace: SignedDuration,
}

impl Timetable {
    pub(crate) fn of(config: &DetectorConfig) -> Self {
        let signed = |time| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1);
        let step = config.step.0;
        Self {
            step_ms: ms(step),
            bucket_ms: ms(config.bucket.0),
            wait: signed(config.wait()),
            grace: signed((step / 4).clamp(GRACE.0, GRACE.1)),
        }
    }

    /// Returns the time from the end of one window to the end of the next one.
    pub(crate) fn step_seconds(&self) -> f64 {
        Duration::from_millis(self.step_ms.unsigned_abs()).as_secs_f64()
    }

    /// Returns the end of the n-th window since 1970: the last whole bucket of its step.
    fn nth_end(&self, n: i64) -> i64 {
        let end = n.saturating_mul(self.step_ms);
        end.div_euclid(self.bucket_ms) * self.bucket_ms
    }

    /// Returns the end of the newest window whose last reports are surely in the store.
    pub(crate) fn newest_due(&self, now: Timestamp) -> Option<Timestamp> {
        let settled = now.checked_sub(self.wait).ok()?.as_millisecond();
        let n = settled.div_euclid(self.step_ms);
        // If steps are not whole buckets, the next window may end before its step does.
        let next = Some(self.nth_end(n + 1)).filter(|end| *end <= settled);
        Timestamp::from_millisecond(next.unwrap_or_else(|| self.nth_end(n))).ok()
    }

    /// Returns the end of the first window that ends after `end`.
    pub(crate) fn after(&self, end: Timestamp) -> Timestamp {
        let (end_ms, n) = (
            end.as_millisecond(),
            end.as_millisecond().div_euclid(self.step_ms),
        );
        let mut ends = (n..n + 3).map(|n| self.nth_end(n));
        let next = ends.find(|next| *next > end_ms);
        let next = next.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        next.unwrap_or(Timestamp::MAX)
    }

    /// Returns the time from which a window is judged.
    pub(crate) fn due_at(&self, end: Timestamp) -> Timestamp {
        end.checked_add(self.wait).unwrap_or(Timestamp::MAX)
    }

    /// Returns the time from which a judgement that was due then is late.
    pub(crate) fn late_from(&self, due_at: Timestamp) -> Timestamp {
        due_at.checked_add(self.grace).unwrap_or(Timestamp::MAX)
    }

    /// Returns the time until the next window is due.
    pub(crate) fn until_next(&self, now: Timestamp) -> Duration {
        let newest = self.newest_due(now).unwrap_or(now);
        let due_at = self.due_at(self.after(newest));
        Duration::try_from(due_at.duration_since(now)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use epwatch_server::Period;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn hourly() -> DetectorConfig {
        DetectorConfig::default()
    }

    #[test]
    fn a_window_is_due_once_its_last_reports_are_stored() {
        let timetable = Timetable::of(&hourly());
        let newest = |second| timetable.newest_due(at(second)).unwrap();
        assert_eq!(newest(7_200 + 119), at(3_600));
        assert_eq!(newest(7_200 + 120), at(7_200));
        assert_eq!(timetable.after(at(3_600)), at(7_200));
        // The window before had another step, from before a change of the configuration.
        assert_eq!(timetable.after(at(3_601)), at(7_200));
        let late_from = timetable.late_from(timetable.due_at(at(7_200)));
        assert_eq!(late_from, at(7_200 + 120 + 900));
    }

    #[test]
    fn the_wait_follows_the_step() {
        for (step, wait) in [(86_400, 120), (3_600, 120), (300, 10), (60, 2), (10, 2)] {
            let step = Period(Duration::from_secs(step));
            let config = DetectorConfig { step, ..hourly() };
            assert_eq!(config.wait(), Duration::from_secs(wait), "{step}");
        }
        // Reports that are written each minute take longer.
        let slow = DetectorConfig {
            step: Period(Duration::from_secs(60)),
            batch_period: Period(Duration::from_secs(60)),
            ..hourly()
        };
        assert_eq!(slow.wait(), Duration::from_secs(120));
    }

    /// Detectors that start at ten offsets within a step, in virtual time: each judges every window at the same moment,
    /// however long it has run.
    #[test]
    fn the_start_of_a_detector_plays_no_part() {
        for (step, bucket) in [(3_600, 3_600), (300, 60), (20, 10), (90, 60), (3, 1)] {
            let seconds = |n| Period(Duration::from_secs(n));
            let config = DetectorConfig {
                step: seconds(step),
                bucket: seconds(bucket),
                ..hourly()
            };
            let timetable = Timetable::of(&config);
            let step_ms = i64::try_from(step).unwrap() * 1_000;
            let begin = 1_800_000_000_000 / step_ms * step_ms;
            for offset in 0..10 {
                let mut now = Timestamp::from_millisecond(begin + offset * step_ms / 10).unwrap();
                let mut judged = timetable.newest_due(now).unwrap();
                let late = now.duration_since(timetable.due_at(judged));
                assert!(late < SignedDuration::from_secs(2 * i64::try_from(step).unwrap()));
                for _ in 0..20 {
                    let next = timetable.after(judged);
                    now += SignedDuration::try_from(timetable.until_next(now)).unwrap();
                    assert_eq!(now, timetable.due_at(next), "step {step}, offset {offset}");
                    judged = timetable.newest_due(now).unwrap();
                    assert_eq!(judged, next, "step {step}, offset {offset}");
                    assert_eq!(judged.as_second() % i64::try_from(bucket).unwrap(), 0);
                }
            }
        }
    }
}
