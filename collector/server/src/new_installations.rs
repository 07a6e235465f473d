//! The arithmetic of the room for new installations of an app that vote. The collector's `admission/room.rs` decides by
//! it at ingest and sets the mark `is_unproven`; over recordings without the mark the detector has [`AppAdmission`].
//!
//! Pure: counts and times in, a decision out; no clock, no store. The room is one of the last 24 hours, so no midnight
//! gives it twice. It is learnt from admitted installations alone: refused ones make no room for others.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The default of the least limit of an app.
pub const LEAST_LIMIT: u64 = 1_000;

/// The limit as a multiple of the usual number.
const TIMES_USUAL: u64 = 3;

/// Whole days over which the usual number is taken.
const USUAL_DAYS: u16 = 14;

const DAY_MS: i64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;
const HOURS: usize = 24;

/// A count over the last 24 hours, by hours since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastDay {
    latest: u64,
    by_hour: [u32; HOURS],
}

impl LastDay {
    /// Returns the count of the 24 hours that end with this one. An hour before the latest counts as the latest; one
    /// more than a day before, as a clock that was set back has it, begins anew.
    pub fn count(&mut self, hour: u64) -> u64 {
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
    pub fn add(&mut self, hour: u64) {
        let _ = self.count(hour);
        let latest = self.latest;
        let slot = self.slot(latest);
        *slot = slot.saturating_add(1);
    }

    /// Adds one of an hour of the past, if it is within the last day.
    pub fn add_past(&mut self, hour: u64, now: u64) {
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
pub fn usual_new_installations(by_day: &BTreeMap<u16, u64>, today: u16) -> u64 {
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

/// Returns how many new installations of an app may vote in a day: three times the usual number, and `at_least` this
/// many. `None` is no limit, which an `at_least` of 0 stands for.
#[must_use]
pub fn new_installation_limit(usual: u64, at_least: u64) -> Option<u64> {
    (at_least > 0).then(|| usual.saturating_mul(TIMES_USUAL).max(at_least))
}

/// Admission to one app over its reports in the order of receipt, with the default limits and none for networks.
///
/// Installations of the first day are admitted, because a recording begins in the middle of an app's life.
#[derive(Debug)]
pub struct AppAdmission<Id> {
    /// Whether each was admitted.
    installations: HashMap<Id, bool>,
    /// The day of the first report of all.
    first_day: Option<u16>,
    /// Numbers of admitted installations, by the day of their first report.
    by_day: BTreeMap<u16, u64>,
    taken: LastDay,
}

impl<Id> Default for AppAdmission<Id> {
    fn default() -> Self {
        Self {
            installations: HashMap::new(),
            first_day: None,
            by_day: BTreeMap::new(),
            taken: LastDay::default(),
        }
    }
}

impl<Id: Eq + Hash> AppAdmission<Id> {
    /// Returns whether a report does not vote. A decision of the collector holds.
    pub fn is_unproven(&mut self, id: Id, received_ms: i64, decided: Option<bool>) -> bool {
        let day = u16::try_from(received_ms.div_euclid(DAY_MS).max(0)).unwrap_or(u16::MAX);
        let hour = u64::try_from(received_ms.div_euclid(HOUR_MS)).unwrap_or(0);
        let first_day = *self.first_day.get_or_insert(day);
        let is_admitted = self.installations.entry(id).or_insert(false);
        if *is_admitted {
            return decided.unwrap_or(false);
        }
        let is_unproven = decided.unwrap_or_else(|| {
            let usual = usual_new_installations(&self.by_day, day);
            let limit = new_installation_limit(usual, LEAST_LIMIT);
            day != first_day && limit.is_some_and(|limit| self.taken.count(hour) >= limit)
        });
        *is_admitted = !is_unproven;
        if !is_unproven {
            self.taken.add(hour);
            *self.by_day.entry(day).or_default() += 1;
        }
        is_unproven
    }
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

    fn unproven(
        admission: &mut AppAdmission<u64>,
        day: i64,
        ids: std::ops::Range<u64>,
        decided: Option<bool>,
    ) -> Vec<u64> {
        ids.filter(|id| admission.is_unproven(*id, day * DAY_MS, decided))
            .collect()
    }

    #[test]
    fn a_flood_after_the_first_day_is_admitted_up_to_the_limit_a_day() {
        let mut admission = AppAdmission::default();
        assert_eq!(unproven(&mut admission, 7, 0..500, None), [0; 0]);
        let flood = 500..5_000;
        let beyond: Vec<u64> = (2_000..5_000).collect();
        assert_eq!(unproven(&mut admission, 8, flood.clone(), None), beyond);
        assert_eq!(unproven(&mut admission, 8, 0..5_000, None), beyond);
        // The median of 500 and the 1,500 that were admitted, three times: all that are left.
        assert_eq!(unproven(&mut admission, 9, flood, None), [0; 0]);
    }

    /// Before and after midnight there is one room, and it comes back hour by hour.
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
        // A call from before gets here after one from later.
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

    #[test]
    fn a_decision_of_the_collector_holds() {
        let mut admission = AppAdmission::default();
        assert_eq!(unproven(&mut admission, 7, 0..2, Some(true)), [0, 1]);
        assert_eq!(unproven(&mut admission, 8, 1..9_000, Some(false)), [0; 0]);
        assert_eq!(unproven(&mut admission, 8, 1..9_000, None), [0; 0]);
        assert_eq!(unproven(&mut admission, 8, 0..1, None), [0]);
    }
}
