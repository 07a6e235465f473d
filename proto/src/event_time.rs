//! Event time of a report: an estimate of when its interval ended, by the device's clocks.
//!
//! The age of a report is the difference between two readings of one clock: at sending, and at the interval's end. A
//! device's wall time itself is never used, because phones' clocks are off by days or stand at 1970. A report without
//! any clock of its sending is a recording that another program made. Its end is compared with the receive time, if the
//! two are possible together.

use crate::{Report, SendClock};

/// An older report is stored and charted, and has no vote.
const LATE_AFTER_MS: u64 = 48 * 3_600_000;
/// No spool keeps reports for longer, so a clock with a greater difference was set in between.
const MAX_AGE_MS: u64 = 31 * 86_400_000;
/// A device clock that is ahead of the collector's by at most this counts as right.
const MAX_AHEAD_MS: i64 = 10 * 60_000;

/// When an interval ended, and which clock the estimate is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTime {
    /// Milliseconds since 1970; the receive time if nothing better is known.
    pub at_ms: i64,
    /// `uptime`, `wall_clock`, `interval_end` or `unknown`.
    pub source: &'static str,
    /// The report is over 48 h old, or of unknown age: it does not vote.
    pub is_late: bool,
    /// Device wall clock minus ours at sending; 0 when not known.
    pub clock_skew_ms: i64,
}

/// The device's clocks at the end of a report's interval.
#[derive(Debug, Clone, Copy)]
pub struct EndClock<'a> {
    /// Milliseconds since 1970.
    pub wall_unix_ms: i64,
    /// Time since boot.
    pub uptime_ms: Option<u64>,
    /// Id of the boot; empty if it is not known.
    pub boot_id: &'a str,
}

impl<'a> From<&'a Report> for EndClock<'a> {
    fn from(report: &'a Report) -> Self {
        Self {
            wall_unix_ms: report.interval_end_unix_ms,
            uptime_ms: report.uptime_at_end_ms,
            boot_id: &report.boot_id,
        }
    }
}

/// Estimates when the interval of a report ended. The report was received at `received_ms`.
pub fn estimate(received_ms: i64, sent: &SendClock, end: EndClock<'_>) -> EventTime {
    let by_receipt = || age_by_receipt(received_ms, sent, end);
    let (age_ms, source) = match (age_by_uptime(sent, end), age_by_wall(sent, end)) {
        (Some(age), _) => (age, "uptime"),
        (None, Some(age)) => (age, "wall_clock"),
        (None, None) => by_receipt().map_or((0, "unknown"), |age| (age, "interval_end")),
    };
    let age = i64::try_from(age_ms).unwrap_or(i64::MAX);
    EventTime {
        at_ms: received_ms.saturating_sub(age).max(0),
        source,
        is_late: source == "unknown" || age_ms > LATE_AFTER_MS,
        clock_skew_ms: sent
            .wall_unix_ms
            .map_or(0, |wall| wall.saturating_sub(received_ms)),
    }
}

/// Age by the time since boot, which nobody can set. `None` if the device was started again.
fn age_by_uptime(sent: &SendClock, end: EndClock<'_>) -> Option<u64> {
    if end.boot_id.is_empty() || end.boot_id != sent.boot_id {
        return None;
    }
    sent.uptime_ms?
        .checked_sub(end.uptime_ms?)
        .filter(|age| *age <= MAX_AGE_MS)
}

/// Age by the wall clock. `None` if the clock was set back in between, or ahead by more than a spool's age.
fn age_by_wall(sent: &SendClock, end: EndClock<'_>) -> Option<u64> {
    let age = sent.wall_unix_ms?.checked_sub(end.wall_unix_ms)?;
    u64::try_from(age).ok().filter(|age| *age <= MAX_AGE_MS)
}

/// Age by the receive time, if no clock of the sending is known. A device clock that is slightly ahead gives an age of
/// 0.
fn age_by_receipt(received_ms: i64, sent: &SendClock, end: EndClock<'_>) -> Option<u64> {
    let no_clock = sent.wall_unix_ms.is_none() && sent.uptime_ms.is_none();
    let age = received_ms.checked_sub(end.wall_unix_ms)?;
    let age = u64::try_from(if age > -MAX_AHEAD_MS { age.max(0) } else { age }).ok()?;
    (no_clock && age <= MAX_AGE_MS).then_some(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVED: i64 = 1_700_000_000_000;
    const HOUR: i64 = 3_600_000;

    fn clock(wall: Option<i64>, uptime_ms: Option<u64>, boot_id: &str) -> SendClock {
        SendClock {
            wall_unix_ms: wall,
            uptime_ms,
            boot_id: boot_id.to_owned(),
        }
    }

    /// `expected` is (age in hours, source, late).
    #[track_caller]
    fn check(sent: &SendClock, end: EndClock<'_>, expected: (i64, &str, bool)) {
        let found = estimate(RECEIVED, sent, end);
        let age_hours = (RECEIVED - found.at_ms) / HOUR;
        assert_eq!((age_hours, found.source, found.is_late), expected);
    }

    #[test]
    fn uptime_of_the_same_boot_is_believed_before_the_wall_clock() {
        let end = EndClock {
            wall_unix_ms: 0,
            uptime_ms: Some(0),
            boot_id: "b",
        };
        check(
            &clock(Some(RECEIVED), Some(7_200_000), "b"),
            end,
            (2, "uptime", false),
        );
        let three_days = clock(Some(0), Some(72 * 3_600_000), "b");
        check(&three_days, end, (72, "uptime", true));
    }

    #[test]
    fn a_wall_clock_that_is_wrong_by_years_still_measures_an_age() {
        let end = EndClock {
            wall_unix_ms: 5 * HOUR,
            uptime_ms: Some(9),
            boot_id: "earlier",
        };
        let sent = clock(Some(8 * HOUR), Some(1), "later");
        check(&sent, end, (3, "wall_clock", false));
        let skew = estimate(RECEIVED, &sent, end).clock_skew_ms;
        assert_eq!(skew, 8 * HOUR - RECEIVED);
    }

    #[test]
    fn a_clock_that_was_set_in_between_says_nothing() {
        let end = EndClock {
            wall_unix_ms: RECEIVED,
            uptime_ms: None,
            boot_id: "",
        };
        check(&clock(Some(0), None, ""), end, (0, "unknown", true));
        let end = EndClock {
            wall_unix_ms: 0,
            ..end
        };
        check(&clock(Some(RECEIVED), None, ""), end, (0, "unknown", true));
        check(&clock(None, Some(5), ""), end, (0, "unknown", true));
    }

    #[test]
    fn without_a_clock_of_the_sending_the_interval_end_is_held_against_the_receipt() {
        let end = |hours: i64| EndClock {
            wall_unix_ms: RECEIVED + hours * HOUR,
            uptime_ms: None,
            boot_id: "",
        };
        let none = clock(None, None, "");
        check(&none, end(-3), (3, "interval_end", false));
        check(&none, end(-72), (72, "interval_end", true));
        check(&none, end(2), (0, "unknown", true));
        check(&none, end(-24 * 365), (0, "unknown", true));
    }
}
