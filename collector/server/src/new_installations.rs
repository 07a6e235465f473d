//! The limit of new installations of an app that may vote in a day: the one rule behind the mark `is_unproven`.
//!
//! The collector applies it at ingest, the detector over reports without the mark. Pure: counts in, a limit out; no clock, no store.

use std::collections::BTreeMap;

/// Whole days over which the usual number is taken.
pub const USUAL_DAYS: u16 = 14;

/// Returns the usual number of new installations a day: the median over the whole days before `today`.
///
/// `by_day` counts the installations by the day they were first received, in days since 1970. The median covers at
/// most [`USUAL_DAYS`] days and begins with the app's first one. A day without any counts as 0.
#[must_use]
pub fn usual_new_installations(by_day: &BTreeMap<u16, u64>, today: u16) -> u64 {
    let Some(first) = by_day.keys().next() else {
        return 0;
    };
    let from = (*first).max(today.saturating_sub(USUAL_DAYS));
    let on = |day| by_day.get(&day).copied().unwrap_or(0);
    usual_number((from..today).map(on).collect()).unwrap_or(0)
}

/// Returns the median of counts of new installations, rounded down; `None` without counts.
#[must_use]
pub fn usual_number(mut counts: Vec<u64>) -> Option<u64> {
    counts.sort_unstable();
    let middle = counts.len() / 2;
    match counts.len() {
        0 => None,
        n if n % 2 == 1 => Some(counts[middle]),
        _ => Some(counts[middle - 1].midpoint(counts[middle])),
    }
}

/// Returns how many new installations of an app may vote in a day: `times_usual` times the usual number, and
/// `at_least` this many. `None` is no limit, which an `at_least` of 0 stands for.
#[must_use]
pub fn new_installation_limit(usual: u64, times_usual: u32, at_least: u64) -> Option<u64> {
    (at_least > 0).then(|| usual.saturating_mul(times_usual.into()).max(at_least))
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
        assert_eq!(new_installation_limit(20, 3, 10), Some(60));
        assert_eq!(new_installation_limit(1, 3, 10), Some(10));
        assert_eq!(new_installation_limit(u64::MAX, 3, 10), Some(u64::MAX));
        assert_eq!(new_installation_limit(20, 3, 0), None);
    }
}
