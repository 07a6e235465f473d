//! When a report's interval ended, as far as the device's clocks tell. Only differences of one
//! clock are used, never a device's wall time as it is: phones are wrong by days, and at 1970.

use epwatch_proto::SendClock;

/// A report older than this when it arrives is stored and charted, and has no vote.
const LATE_AFTER_MS: u64 = 48 * 3_600_000;
/// No spool keeps reports for as long; a clock that says so was set in between.
const MAX_AGE_MS: u64 = 31 * 86_400_000;

/// When it was, and who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occurred {
    /// Milliseconds since 1970; the receive time if nothing better is known.
    pub(crate) at_ms: i64,
    /// `uptime`, `wall_clock` or `unknown`.
    pub(crate) source: &'static str,
    pub(crate) is_late: bool,
    /// Device wall clock minus ours at sending; 0 when not known.
    pub(crate) clock_skew_ms: i64,
}

/// The device's clocks at the end of a report's interval.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndClock<'a> {
    pub(crate) wall_unix_ms: i64,
    pub(crate) uptime_ms: Option<u64>,
    pub(crate) boot_id: &'a str,
}

/// Estimates when the interval ended.
pub(crate) fn estimate(received_ms: i64, sent: &SendClock, end: EndClock<'_>) -> Occurred {
    let (age_ms, source) = match (age_by_uptime(sent, end), age_by_wall(sent, end)) {
        (Some(age), _) => (age, "uptime"),
        (None, Some(age)) => (age, "wall_clock"),
        (None, None) => (0, "unknown"),
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
}
