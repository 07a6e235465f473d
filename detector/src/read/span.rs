//! The time that is judged, and the earlier windows that count as the past.

use std::ops::Range;
use std::time::Duration;

use clickhouse::query::Query;
use jiff::Timestamp;

/// Start of a bucket, in seconds since 1970.
pub(super) type Bucket = u32;

/// Returns the bucket bound nearest to a time in seconds since 1970.
pub(super) fn bucket_at(seconds: i64) -> Bucket {
    Bucket::try_from(seconds.max(0)).unwrap_or(Bucket::MAX)
}

/// The span of receive time in which a window is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// End of the window, exclusive.
    pub end: Timestamp,
    /// Length of the window.
    pub window: Duration,
    /// Time before `end` in which earlier runs and placements count.
    pub lookback: Duration,
    /// Whether the window is judged alone, without earlier runs of its devices and without sums of earlier windows.
    pub stands_alone: bool,
}

/// Latest windows, including the judged one, whose counts are not part of the past yet. Otherwise a fault that grows a
/// little from window to window would become its own past.
const SETTLING_WINDOWS: i64 = 3;

/// The earlier windows that count as the past. If windows overlap, a window counts if it ends in the same eighth of a
/// window's length as the judged one. Consecutive windows within one eighth have the same past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PastSpan {
    /// The first and the last end of such a window, in seconds since 1970.
    pub(super) from_s: i64,
    pub(super) until_s: i64,
    /// End of the last window whose counts are part of the past.
    pub(super) settled_until_s: i64,
    window_s: i64,
    eighth_s: i64,
    eighth: i64,
}

impl PastSpan {
    /// Whether a window that ends then is in the right eighth.
    pub(super) fn has(&self, end_s: i64) -> bool {
        end_s.rem_euclid(self.window_s) / self.eighth_s == self.eighth
    }

    /// Binds the length of windows twice, the length of an eighth, and the number of the eighth, for the same test as
    /// [`Self::has`].
    pub(super) fn bind(&self, query: Query) -> Query {
        let query = query.bind(self.window_s).bind(self.window_s);
        query.bind(self.eighth_s).bind(self.eighth)
    }
}

impl Span {
    pub(super) fn end_s(&self) -> i64 {
        self.end.as_second()
    }

    pub(super) fn start_s(&self) -> i64 {
        self.end_s().saturating_sub_unsigned(self.window.as_secs())
    }

    pub(crate) fn start(&self) -> Timestamp {
        Timestamp::from_second(self.start_s()).unwrap_or(Timestamp::MIN)
    }

    /// Returns the look-back before the window and before `until`, in seconds.
    pub(super) fn before(&self, until: Timestamp) -> (i64, i64) {
        (self.earliest_s(), self.start_s().min(until.as_second()))
    }

    /// Returns which earlier windows are the past.
    pub(super) fn past(&self) -> PastSpan {
        let window_s = i64::try_from(self.window.as_secs()).unwrap_or(i64::MAX);
        let window_s = window_s.max(1);
        let eighth_s = (window_s / 8).max(1);
        let within_s = self.end_s().rem_euclid(window_s);
        let begins_s = self.end_s() - within_s % eighth_s;
        let before = |windows: i64| {
            let back_s = window_s.saturating_mul(windows);
            (begins_s + eighth_s - 1).saturating_sub(back_s)
        };
        let lookback_s = self.lookback.max(self.window).as_secs();
        PastSpan {
            from_s: begins_s.saturating_sub_unsigned(lookback_s).max(0),
            until_s: before(1),
            settled_until_s: before(SETTLING_WINDOWS),
            window_s,
            eighth_s,
            eighth: within_s / eighth_s,
        }
    }

    /// Returns the buckets of the look-back, window included.
    pub(super) fn buckets(&self) -> Range<Bucket> {
        let end = bucket_at(self.end_s());
        bucket_at(self.earliest_s()).min(end)..end
    }

    /// Returns the buckets of the first part of the look-back, of `part.0` in `part.1`.
    pub(super) fn first_buckets(&self, part: (u32, u32)) -> Range<Bucket> {
        let all = self.buckets();
        let length = u64::from(all.end.saturating_sub(all.start));
        let first = length * u64::from(part.0) / u64::from(part.1.max(1));
        let first = Bucket::try_from(first).unwrap_or(Bucket::MAX);
        all.start..all.start.saturating_add(first)
    }

    pub(super) fn window_buckets(&self) -> Range<Bucket> {
        bucket_at(self.start_s())..bucket_at(self.end_s())
    }

    pub(super) fn earliest_s(&self) -> i64 {
        let back = self.lookback.max(self.window).as_secs();
        self.end_s().saturating_sub_unsigned(back).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_S: i64 = 3_600;
    const DAY_S: i64 = 24 * HOUR_S;

    fn past(end_s: i64) -> PastSpan {
        let span = Span {
            end: Timestamp::from_second(end_s).unwrap(),
            window: Duration::from_secs(86_400),
            lookback: Duration::from_secs(14 * 86_400),
            stands_alone: false,
        };
        span.past()
    }

    /// Returns the ends of windows, an hour apart, that count as the past.
    fn speaking(end_s: i64) -> Vec<i64> {
        let past = past(end_s);
        let ends = past.from_s..=past.until_s;
        let ends = ends.filter(|at| at % HOUR_S == 0 && past.has(*at));
        ends.map(|at| (end_s - at) / HOUR_S).collect()
    }

    #[test]
    fn windows_a_day_apart_are_all_of_the_past() {
        for hour in 0..24 {
            let end_s = 20_000 * DAY_S + hour * HOUR_S;
            let past = past(end_s);
            let days = 1..=14;
            let ends = days.map(|day| end_s - day * DAY_S);
            for end in ends {
                assert!(past.has(end) && (past.from_s..=past.until_s).contains(&end));
                let is_settled = end <= end_s - SETTLING_WINDOWS * DAY_S;
                assert_eq!(end <= past.settled_until_s, is_settled);
            }
            assert!(past.until_s < end_s);
        }
    }

    #[test]
    fn of_windows_an_hour_apart_three_a_day_speak_and_three_ask_for_the_same() {
        let noon_s = 20_000 * DAY_S + 12 * HOUR_S;
        assert_eq!(speaking(noon_s).len(), 14 * 3);
        assert_eq!(past(noon_s), past(noon_s + HOUR_S));
        assert_eq!(past(noon_s), past(noon_s + 2 * HOUR_S));
        assert_ne!(past(noon_s), past(noon_s + 3 * HOUR_S));
        assert_ne!(past(noon_s), past(noon_s - HOUR_S));
        assert_ne!(past(noon_s), past(noon_s + DAY_S));
        let latest = speaking(noon_s + 2 * HOUR_S).into_iter().min();
        assert_eq!(latest, Some(24));
    }
}
