//! When a report's interval ended, as far as the device's clocks tell. Differences of one clock are
//! used, never a device's wall time as it is: phones are wrong by days, and at 1970. Only where no
//! clock came with the sending (recorded reports of other makers) is the end of the interval taken
//! against the receive time, if the two are possible together.

use crate::SendClock;

/// A report older than this when it arrives is stored and charted, and has no vote.
const LATE_AFTER_MS: u64 = 48 * 3_600_000;
/// No spool keeps reports for as long; a clock that says so was set in between.
const MAX_AGE_MS: u64 = 31 * 86_400_000;

/// A device clock that is ahead of the collector's by no more is taken as right.
const MAX_AHEAD_MS: i64 = 10 * 60_000;

/// When it was, and who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurred {
    /// Milliseconds since 1970; the receive time if nothing better is known.
    pub at_ms: i64,
    /// `uptime`, `wall_clock`, `interval_end` or `unknown`.
    pub source: &'static str,
    /// Over 48 h old, or of unknown age: it does not vote.
    pub is_late: bool,
    /// Device wall clock minus ours at sending; 0 when not known.
    pub clock_skew_ms: i64,
}

/// The device's clocks at the end of a report's interval.
#[derive(Debug, Clone, Copy)]
pub struct EndClock<'a> {
    /// Wall clock, in milliseconds since 1970.
    pub wall_unix_ms: i64,
    /// Time since boot, in milliseconds.
    pub uptime_ms: Option<u64>,
    /// Which boot; empty: not known.
    pub boot_id: &'a str,
}

/// Estimates when the interval ended.
pub fn estimate(received_ms: i64, sent: &SendClock, end: EndClock<'_>) -> Occurred {
    let by_receipt = || age_by_receipt(received_ms, sent, end);
    let (age_ms, source) = match (age_by_uptime(sent, end), age_by_wall(sent, end)) {
        (Some(age), _) => (age, "uptime"),
        (None, Some(age)) => (age, "wall_clock"),
        (None, None) => by_receipt().map_or((0, "unknown"), |age| (age, "interval_end")),
    };
    let age = i64::try_from(age_ms).unwrap_or(i64::MAX);
    Occurred {
        at_ms: received_ms.saturating_sub(age).max(0),
        source,
        is_late: source == "unknown" || age_ms > LATE_AFTER_MS,
        clock_skew_ms: sent
            .wall_unix_ms
            .map_or(0, |wall| wall.saturating_sub(received_ms)),
    }
}

/// Time since boot, which nobody can set, while the device was not started again.
fn age_by_uptime(sent: &SendClock, end: EndClock<'_>) -> Option<u64> {
    if end.boot_id.is_empty() || end.boot_id != sent.boot_id {
        return None;
    }
    sent.uptime_ms?
        .checked_sub(end.uptime_ms?)
        .filter(|age| *age <= MAX_AGE_MS)
}

/// The wall clock, unless it was set back in between, or further ahead than a spool is old.
fn age_by_wall(sent: &SendClock, end: EndClock<'_>) -> Option<u64> {
    let age = sent.wall_unix_ms?.checked_sub(end.wall_unix_ms)?;
    u64::try_from(age).ok().filter(|age| *age <= MAX_AGE_MS)
}

/// The interval's end against the receive time, where nothing is known of the sending. A clock that
/// is ahead by a little is a clock.
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
