//! The version that a cohort is compared with: the last one before it that has no open incident on its chipset. A
//! version at fault is not a reference, because the next version with the same fault would look healthy.
//!
//! Called by `evaluate`, for windows of the timetable and for a replay alike. Pure: no I/O, no clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::judge::baseline::{VersionSeen, previous_version};
use crate::judge::pinned_references::PinnedReferences;
use crate::judge::window::{CohortWindow, MissingBaseline, SelfBaselineKind};

/// If a version ran for this many windows before its incident began, its runs before the incident are a reference. A
/// fault that comes with a version may need as many windows until it shows.
const HEALTHY_WINDOWS: u32 = 3;

/// The version that a cohort is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PastVersion {
    /// Its name; `None` if no version before the cohort's is a reference.
    pub(crate) version: Option<String>,
    /// End, exclusive, of its runs that count; `None` means the start of the window.
    pub(crate) until: Option<Timestamp>,
    /// Versions that were passed over because they have an open incident on the chipset, the latest first.
    pub(crate) at_fault: Vec<String>,
    /// End, exclusive, of the cohort's own earlier runs that count, if its devices came back from the versions at fault. It
    /// is the start of the first of their incidents. Later runs may have the fault too, if its cause is not the version.
    pub(crate) own_until: Option<Timestamp>,
}

impl PastVersion {
    /// Finds the version for a cohort, among the versions that its devices name and the versions in the store. Baselines from
    /// the store replace these names, so they are filled in later.
    pub(crate) fn of(
        window: &CohortWindow,
        seen: &[VersionSeen],
        pinned: &PinnedReferences,
    ) -> Self {
        let own = &window.key.model_version;
        let direct = previous_version(own, &named_by_devices(window), seen);
        let mut past = Self::default();
        let mut before = direct;
        let mut first_fault: Option<Timestamp> = None;
        while let Some(version) = before.filter(|version| version != own) {
            let began = pinned.version_began(&window.key, &version);
            let is_past = match began {
                None => true,
                Some(began) => ran_before(seen, &version, began, window.length),
            };
            if is_past {
                (past.version, past.until) = (Some(version), began);
                return past;
            }
            first_fault = first_fault.into_iter().chain(began).min();
            let came_back = first_fault
                .filter(|first_fault| ran_before(seen, own, *first_fault, window.length));
            past.own_until = came_back;
            before = seen_before(seen, [own, &version], &past.at_fault);
            past.at_fault.push(version);
        }
        past
    }
}

/// Removes self baselines from versions with an open incident. The store has the devices' runs on the version before.
pub(crate) fn drop_faulty_pasts(window: &mut CohortWindow, pinned: &PinnedReferences) {
    let key = window.key.clone();
    let mut known: BTreeMap<Arc<str>, bool> = BTreeMap::new();
    let latencies = window.votes.iter_mut();
    for latency in latencies.filter_map(|vote| vote.latency.as_mut()) {
        let Ok(SelfBaselineKind::PreviousVersion(version)) = latency
            .device_baseline
            .as_ref()
            .map(|earlier| &earlier.kind)
        else {
            continue;
        };
        let is_faulty = known
            .entry(version.clone())
            .or_insert_with(|| pinned.version_began(&key, version).is_some());
        if *is_faulty {
            latency.device_baseline = Err(MissingBaseline::AtFault(version.clone()));
            (latency.against_self, latency.own_against_self) = (None, None);
        }
    }
}

/// Counts the versions that devices ran before.
fn named_by_devices(window: &CohortWindow) -> BTreeMap<Arc<str>, u64> {
    let mut named: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    for latency in window.votes.iter().filter_map(|vote| vote.latency.as_ref()) {
        let name = match &latency.device_baseline {
            Ok(earlier) => match &earlier.kind {
                SelfBaselineKind::PreviousVersion(name) => name,
                _ => continue,
            },
            Err(MissingBaseline::AtFault(name)) => name,
            Err(_) => continue,
        };
        *named.entry(name.clone()).or_default() += 1;
    }
    named
}

/// Whether a version ran for some windows before its incident began.
fn ran_before(seen: &[VersionSeen], version: &str, began: Timestamp, window: Duration) -> bool {
    let first = seen.iter().find(|one| one.version == version);
    let healthy_ms = i64::try_from((HEALTHY_WINDOWS * window).as_millis()).unwrap_or(i64::MAX);
    first.is_some_and(|first| {
        first.first_seen_ms.saturating_add(healthy_ms) <= began.as_millisecond()
    })
}

/// Returns the latest version that was first seen before all of `later`, without those in `left_out`.
fn seen_before(seen: &[VersionSeen], later: [&String; 2], left_out: &[String]) -> Option<String> {
    let first_ms = |version: &String| {
        let found = seen.iter().find(|one| one.version == *version);
        found.map(|one| one.first_seen_ms)
    };
    let until_ms = later.into_iter().filter_map(first_ms).min()?;
    let candidates = seen.iter().filter(|one| {
        one.first_seen_ms < until_ms
            && !later.contains(&&one.version)
            && !left_out.contains(&one.version)
    });
    let latest = candidates.max_by_key(|one| one.first_seen_ms);
    latest.map(|one| one.version.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::advance;
    use crate::testing::{Fleet, at, judged, reference};

    const WINDOW_S: i64 = 3_600;
    const FORGET: Duration = Duration::from_secs(14 * 86_400);

    /// An incident of 2.0.0 that was seen first in the window that ends then.
    fn pinned(end_s: i64) -> PinnedReferences {
        let window = CohortWindow {
            end: at(end_s),
            ..Fleet::with_fallback(1.0).window()
        };
        let verdict = judged(&window, None, &reference());
        let mut open = BTreeMap::new();
        advance(&mut open, &[verdict], FORGET, at(end_s));
        PinnedReferences::of(open.values())
    }

    /// Versions a day apart, 2.0.0 at `second_s`.
    fn seen(second_s: i64) -> Vec<VersionSeen> {
        let seen = |version: &str, second: i64| VersionSeen {
            devices: 60,
            version: version.into(),
            first_seen_ms: at(second).as_millisecond(),
        };
        vec![
            seen("0.9.0", second_s - 172_800),
            seen("1.0.0", second_s - 86_400),
            seen("2.0.0", second_s),
            seen("2.0.1", second_s + 86_400),
        ]
    }

    fn window(version: &'static str, before: &'static str) -> CohortWindow {
        let fleet = Fleet {
            version,
            before: Some(before),
            ..Fleet::default()
        };
        fleet.window()
    }

    #[track_caller]
    fn check(version: &'static str, before: &'static str, expected: (Option<&str>, &[&str])) {
        let past = PastVersion::of(&window(version, before), &seen(0), &pinned(WINDOW_S));
        assert_eq!(past.version.as_deref(), expected.0, "{past:?}");
        assert_eq!(past.at_fault, expected.1, "{past:?}");
        assert_eq!(past.until, None);
    }

    #[test]
    fn a_version_with_an_open_incident_is_passed_over() {
        check("2.0.1", "2.0.0", (Some("1.0.0"), &["2.0.0"]));
        check("2.0.1", "1.0.0", (Some("1.0.0"), &[]));
        check("2.0.0", "1.0.0", (Some("1.0.0"), &[]));
    }

    /// The devices rolled back from 2.0.0 to 1.0.0.
    #[test]
    fn a_version_is_not_its_own_past() {
        check("1.0.0", "2.0.0", (Some("0.9.0"), &["2.0.0"]));
    }

    /// What 1.0.0 does since then may have the same fault, so it is not a past.
    #[test]
    fn the_own_past_of_devices_that_came_back_ends_before_the_incident() {
        let own_until = |version: &'static str, ran_s: i64| {
            let began = ran_s - 86_400;
            let pinned = pinned(began + WINDOW_S);
            PastVersion::of(&window(version, "2.0.0"), &seen(0), &pinned).own_until
        };
        assert_eq!(own_until("1.0.0", 86_400), Some(at(0)));
        let few = 2 * WINDOW_S;
        assert_eq!(own_until("1.0.0", few), None);
        assert_eq!(own_until("2.0.1", 86_400), None);
    }

    #[test]
    fn a_fault_that_came_to_a_version_later_leaves_its_runs_of_before() {
        let began = 7 * WINDOW_S;
        let pinned = pinned(began + WINDOW_S);
        let past = PastVersion::of(&window("2.0.1", "2.0.0"), &seen(0), &pinned);
        assert_eq!(past.version.as_deref(), Some("2.0.0"));
        assert_eq!(past.until, Some(at(began)));
    }

    #[test]
    fn what_devices_learnt_on_a_version_at_fault_is_dropped_and_its_name_kept() {
        let mut window = window("2.0.1", "2.0.0");
        drop_faulty_pasts(&mut window, &pinned(WINDOW_S));
        assert_eq!(window.share_with_past(), 0.0);
        let past = PastVersion::of(&window, &seen(0), &pinned(WINDOW_S));
        assert_eq!(past.at_fault, ["2.0.0"]);
        let mut of_healthy = self::window("2.0.1", "1.0.0");
        drop_faulty_pasts(&mut of_healthy, &pinned(WINDOW_S));
        assert_eq!(of_healthy.share_with_past(), 1.0);
    }
}
