//! Computes how many new installations of an app may vote. Pure: counts and hours in, a number out.
//!
//! The quota covers the last 24 hours, so it is not granted twice around midnight. It is computed from admitted
//! installations alone: refused ones do not raise it.

use std::collections::BTreeMap;

/// The default of the least limit of an app.
pub(crate) const LEAST_LIMIT: u64 = 1_000;

/// The limit as a multiple of the usual number.
const TIMES_USUAL: u64 = 3;

/// Whole days over which the usual number is taken.
const USUAL_DAYS: u16 = 14;

const HOURS: usize = 24;

/// A count over the last 24 hours, kept by hours since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LastDay {
    latest: u64,
    by_hour: [u32; HOURS],
}

impl LastDay {
    /// Returns the count of the 24 hours that end with this one. An hour before the latest counts as the latest. If the
    /// hour is more than a day before the latest, the clock was set back, and the count starts from zero.
    pub(crate) fn count(&mut self, hour: u64) -> u64 {
        if hour > self.latest {
            let gone = (hour - self.latest).min(HOURS as u64);
            for ago in 0..gone {
                *self.slot(hour - ago) = 0;
            }
            self.latest = hour;
        } else if self.latest - hour > HOURS as u64 {
            *self = Self {
                latest: hour,
                ..Self::default()
            };
        }
        self.by_hour.iter().map(|n| u64::from(*n)).sum()
    }

    /// Adds an installation that was admitted in an hour, and drops hours older than a day.
    pub(crate) fn add(&mut self, hour: u64) {
        let _ = self.count(hour);
        let latest = self.latest;
        let slot = self.slot(latest);
        *slot = slot.saturating_add(1);
    }

    /// Adds an installation of an earlier hour, if that hour is within the last day.
    pub(crate) fn add_past(&mut self, hour: u64, now: u64) {
        let _ = self.count(now);
        if hour <= self.latest && self.latest - hour < HOURS as u64 {
            let slot = self.slot(hour);
            *slot = slot.saturating_add(1);
        }
    }

    fn slot(&mut self, hour: u64) -> &mut u32 {
        #[expect(clippy::cast_possible_truncation, reason = "below 24")]
        let at = (hour % HOURS as u64) as usize;
        &mut self.by_hour[at]
    }
}

/// Returns the usual number of new installations a day: the median over the whole days before `today`, rounded down.
///
/// `by_day` counts the installations by the day they were first received, in days since 1970. The median covers at
/// most 14 days and begins with the app's first one. A day without any counts as 0.
#[must_use]
pub(crate) fn usual_new_installations(by_day: &BTreeMap<u16, u64>, today: u16) -> u64 {
    let Some(first) = by_day.keys().next() else {
        return 0;
    };
    let from = (*first).max(today.saturating_sub(USUAL_DAYS));
    let on = |day| by_day.get(&day).copied().unwrap_or(0);
    let mut counts: Vec<u64> = (from..today).map(on).collect();
    counts.sort_unstable();
    let middle = counts.len() / 2;
    match counts.len() {
        0 => 0,
        n if n % 2 == 1 => counts[middle],
        _ => counts[middle - 1].midpoint(counts[middle]),
    }
}

/// Returns how many new installations of an app may vote in a day: three times the usual number, but not below
/// `at_least`. If `at_least` is 0, returns `None`, which means unlimited.
#[must_use]
pub(crate) fn new_installation_limit(usual: u64, at_least: u64) -> Option<u64> {
    (at_least > 0).then(|| usual.saturating_mul(TIMES_USUAL).max(at_least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_number_is_the_median_of_whole_days_since_the_first() {
        let usual = |days: &[(u16, u64)], today| {
            let days = days.iter().copied().collect();
            usual_new_installations(&days, today)
        };
        assert_eq!(usual(&[], 100), 0);
        assert_eq!(usual(&[(100, 7)], 100), 0, "today is not over");
        assert_eq!(usual(&[(99, 7)], 100), 7);
        assert_eq!(usual(&[(98, 8), (99, 5)], 100), 6);
        // One day's flood does not move the median, and days without any are part of it.
        assert_eq!(usual(&[(95, 30), (96, 40), (97, 1_000_000)], 98), 40);
        assert_eq!(usual(&[(90, 500), (99, 500)], 100), 0);
        // Older days do not count.
        assert_eq!(usual(&[(10, 900), (99, 3)], 100), 0);
    }

    #[test]
    fn the_limit_is_a_multiple_of_the_usual_number() {
        assert_eq!(new_installation_limit(20, 10), Some(60));
        assert_eq!(new_installation_limit(1, 10), Some(10));
        assert_eq!(new_installation_limit(u64::MAX, 10), Some(u64::MAX));
        assert_eq!(new_installation_limit(20, 0), None);
    }

    /// The same quota holds before and after midnight, and it comes back hour by hour.
    #[test]
    fn the_last_day_has_no_midnight() {
        let mut last = LastDay::default();
        let midnight = 20_000 * 24;
        for hour in [midnight - 1, midnight - 1, midnight, midnight + 2] {
            last.add(hour);
        }
        assert_eq!(last.count(midnight + 2), 4);
        assert_eq!(last.count(midnight + 22), 4);
        assert_eq!(last.count(midnight + 23), 2);
        assert_eq!(last.count(midnight + 25), 1);
        // A call from an earlier hour arrives after one from a later hour.
        last.add(midnight + 24);
        assert_eq!(last.count(midnight + 25), 2);
        last.add_past(midnight + 10, midnight + 25);
        last.add_past(midnight - 10, midnight + 25);
        assert_eq!(last.count(midnight + 25), 3);
        assert_eq!(last.count(midnight + 500), 0);
        // A clock that was set back.
        last.add(midnight + 500);
        assert_eq!(last.count(midnight), 0);
    }
}
