//! Admission of new installations to the vote. An app key ships in an app, so installations can be made up. New ones
//! beyond the app's usual number, or beyond a network's part of it, are `unproven`: their reports are stored and
//! charted, and do not vote.
//!
//! Ingest decides once for each report, before it goes into the WAL, whose record keeps the decision. A new
//! installation within the day's quota is proven for good. One beyond it is not remembered, so that a flood takes no
//! memory: each of its later reports is decided again, and the first within a quota proves it. That is usually on a
//! later UTC day.
//!
//! Known installations and usual numbers come from the store and the WAL. They are loaded at start, and again every
//! `refresh` for installations that other collectors admitted; each collector has the whole quota in between. Until
//! the first load no installation counts as new: a store that is away must not cost a fleet its votes.

mod daily_quota;
mod last_seen;
mod loader;
mod network;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clickhouse::Row;
use epwatch_proto::InstallationId;
use parking_lot::Mutex;
use serde::Deserialize;

use self::daily_quota::{AppName, DailyQuota, Decision, History};
use self::last_seen::LastSeenTable;
pub(crate) use self::loader::{Loader, keep_loading};
pub(crate) use self::network::{Network, Origins, Peer};
use crate::config::NewInstallationsConfig;
use crate::metrics::Metrics;

const DAY_US: u64 = 86_400_000_000;
/// Apps of which it is known without a lock that their quota is used up.
const MAX_FULL: usize = 1 << 10;

/// Decides for one collector which installations are proven.
#[derive(Debug)]
pub(crate) struct Admission {
    is_on: bool,
    /// The first load succeeded.
    is_ready: AtomicBool,
    /// Keyed by random bits of this process, so that no sender can make up a known hash.
    hasher: RandomState,
    known: LastSeenTable,
    /// Apps whose quota is used up, by the hash of app and day.
    full: LastSeenTable,
    quota: Mutex<DailyQuota>,
    metrics: Arc<Metrics>,
}

/// The UTC day of a time, in days since 1970.
fn day_of(now_us: u64) -> u16 {
    u16::try_from(now_us / DAY_US).unwrap_or(u16::MAX)
}

impl Admission {
    pub(crate) fn new(config: &NewInstallationsConfig, metrics: Arc<Metrics>) -> Self {
        let is_on = config.is_on();
        Self {
            is_on,
            is_ready: AtomicBool::new(false),
            hasher: RandomState::new(),
            known: LastSeenTable::new(if is_on { config.known } else { 0 }),
            full: LastSeenTable::new(MAX_FULL),
            quota: Mutex::new(DailyQuota::new(config)),
            metrics,
        }
    }

    /// True if a report of this installation does not vote. A new installation takes from the quota.
    pub(crate) fn is_unproven(
        &self,
        (app_id, environment): (&str, &str),
        installation: InstallationId,
        network: Option<Network>,
        now_us: u64,
    ) -> bool {
        if !self.is_on || !self.is_ready.load(Relaxed) {
            return false;
        }
        let day = day_of(now_us);
        let hash = self.hash((app_id, environment), installation.as_bytes());
        if self.known.contains(hash, day) {
            return false;
        }
        let full = self.hasher.hash_one((app_id, environment, day));
        if self.full.contains(full, day) {
            self.metrics.beyond_app().inc();
            return true;
        }
        let mut quota = self.quota.lock();
        quota.begin(day);
        // Another call of the same installation may have been first.
        if self.known.contains(hash, day) {
            return false;
        }
        let app = (app_id.to_owned(), environment.to_owned());
        match quota.take(&app, network) {
            Decision::Proven => {
                self.known.insert(hash, day);
                self.metrics.new_installations.inc();
                false
            }
            Decision::BeyondApp => {
                // Once a day and app: later reports end at the look-up above.
                if self.full.insert(full, day) {
                    let limit = quota.app_limit(&app).unwrap_or(u64::MAX);
                    tracing::warn!(
                        app = app_id,
                        environment,
                        limit,
                        "more new installations today than usual, the rest is stored as unproven"
                    );
                }
                self.metrics.beyond_app().inc();
                true
            }
            Decision::BeyondNetwork => {
                self.metrics.beyond_network().inc();
                true
            }
        }
    }

    fn hash(&self, (app_id, environment): (&str, &str), installation: &[u8; 16]) -> u64 {
        self.hasher.hash_one((app_id, environment, installation))
    }

    /// Adds installations of one app that were proven before.
    fn add_known(&self, app: &AppName, devices: &[KnownInstallation], today: u16) {
        // In steps, so that calls do not wait for a million insertions.
        for devices in devices.chunks(1_000) {
            let mut quota = self.quota.lock();
            quota.begin(today);
            for device in devices {
                let hash = self.hash((&app.0, &app.1), &device.installation);
                if self.known.insert(hash, device.last_day) && device.proven_day == today {
                    quota.count(app);
                }
            }
        }
    }

    fn set_history(&self, history: &History, today: u16) {
        let mut quota = self.quota.lock();
        quota.begin(today);
        quota.set_history(history, today);
        // The limit may be higher now.
        self.full.clear();
    }

    fn set_ready(&self) {
        self.is_ready.store(true, Relaxed);
        self.metrics.installations_loaded.set(1);
    }
}

/// An installation that was proven before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Row, Deserialize)]
struct KnownInstallation {
    installation: [u8; 16],
    last_day: u16,
    /// The first day on which it was proven.
    proven_day: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use epwatch_server::AppAdmission;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const AT: (&str, &str) = ("app", "production");
    const TODAY: u64 = 20_000;

    fn admission(at_least: u64) -> Admission {
        let config = NewInstallationsConfig {
            at_least,
            known: 10_000,
            ..NewInstallationsConfig::default()
        };
        let admission = Admission::new(&config, Arc::default());
        admission.set_ready();
        admission
    }

    fn id(n: u64) -> InstallationId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        InstallationId::from_bytes(bytes)
    }

    fn unproven(admission: &Admission, day: u64, ids: impl Iterator<Item = u64>) -> Vec<u64> {
        ids.filter(|n| admission.is_unproven(AT, id(*n), None, day * DAY_US + 7))
            .collect()
    }

    #[test]
    fn the_end_of_a_flood_is_unproven_and_known_installations_are_not() {
        let admission = admission(100);
        let first = unproven(&admission, TODAY, 0..120);
        assert_eq!(first, (100..120).collect::<Vec<_>>());
        // However often they report.
        assert_eq!(unproven(&admission, TODAY, 0..120), first);
        let text = admission.metrics.encode();
        for line in [
            "collector_new_installations_total 100\n",
            "collector_unproven_reports_total{reason=\"app\"} 40\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn an_unproven_installation_is_proven_by_its_first_report_within_a_quota() {
        let admission = admission(100);
        unproven(&admission, TODAY, 0..120);
        assert_eq!(unproven(&admission, TODAY + 1, 90..130), [0; 0]);
        assert_eq!(unproven(&admission, TODAY + 2, 0..130), [0; 0]);
    }

    #[test]
    fn a_restart_changes_nothing_for_proven_installations() {
        let admission = admission(100);
        let today = u16::try_from(TODAY).unwrap();
        let app = (AT.0.to_owned(), AT.1.to_owned());
        // The store has 50 of earlier days and 90 of today; some are in the WAL too.
        let known = |n: u64, proven_day| KnownInstallation {
            installation: *id(n).as_bytes(),
            last_day: today,
            proven_day,
        };
        let earlier: Vec<KnownInstallation> = (0..50).map(|n| known(n, today - 3)).collect();
        let of_today: Vec<KnownInstallation> = (50..140).map(|n| known(n, today)).collect();
        admission.add_known(&app, &earlier, today);
        admission.add_known(&app, &of_today, today);
        admission.add_known(&app, &of_today[80..], today);
        let found = unproven(&admission, TODAY, 0..160);
        assert_eq!(found, (150..160).collect::<Vec<_>>());
    }

    #[test]
    fn a_history_that_is_loaded_later_raises_the_limit() {
        let admission = admission(100);
        let today = u16::try_from(TODAY).unwrap();
        assert_eq!(unproven(&admission, TODAY, 0..200).len(), 100);
        let mut history = History::default();
        history.add((AT.0.to_owned(), AT.1.to_owned()), today - 1, 50);
        admission.set_history(&history, today);
        assert_eq!(unproven(&admission, TODAY, 0..200).len(), 50);
    }

    /// A store that is away must not cost a fleet its votes.
    #[test]
    fn until_the_first_load_no_installation_is_new() {
        let admission = admission(100);
        admission.is_ready.store(false, Relaxed);
        assert_eq!(unproven(&admission, TODAY, 0..200), [0; 0]);
        admission.set_ready();
        assert_eq!(unproven(&admission, TODAY, 0..200).len(), 100);
    }

    #[test]
    fn concurrent_calls_stay_within_the_quota() {
        let admission = admission(100);
        let n_proven: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| 200 - unproven(&admission, TODAY, 0..200).len()))
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap())
                .max()
                .unwrap()
        });
        assert_eq!(n_proven, 100);
        assert_eq!(unproven(&admission, TODAY, 0..200).len(), 100);
    }

    proptest! {
        /// Over the same arrivals of some days, midnights among them, the collector's decisions and a recording's are
        /// the same. The collector loads the first day from its store.
        #[test]
        fn a_recording_without_marks_is_decided_as_at_ingest(
            usual in 0..900_u64,
            mut arrivals in prop::collection::vec((0..3 * DAY_US, 0..4_u64, 1..900_u64), 1..12),
        ) {
            arrivals.sort_unstable();
            let admission = admission(1_000);
            let app = (AT.0.to_owned(), AT.1.to_owned());
            let mut recorded = AppAdmission::default();
            let mut first_days: BTreeMap<u64, u16> = BTreeMap::new();
            let first_day = day_of(TODAY * DAY_US);
            for n in 0..usual {
                prop_assert!(!recorded.is_unproven(n, ms(TODAY * DAY_US), None));
                first_days.insert(n, first_day);
                let known = KnownInstallation {
                    installation: *id(n).as_bytes(),
                    last_day: first_day,
                    proven_day: first_day,
                };
                admission.add_known(&app, &[known], first_day);
            }
            if usual == 0 {
                // Of another installation, so that the recording begins on the same day.
                recorded.is_unproven(u64::MAX, ms(TODAY * DAY_US), None);
                first_days.insert(u64::MAX, first_day);
            }
            let mut today = first_day;
            for (at_us, from, n) in arrivals {
                let now_us = (TODAY + 1) * DAY_US + at_us;
                if day_of(now_us) != today {
                    today = day_of(now_us);
                    let mut history = History::default();
                    for day in first_days.values() {
                        history.add(app.clone(), *day, 1);
                    }
                    admission.set_history(&history, today);
                }
                // Floods overlap, so that unproven installations come again.
                for n in from * 500..from * 500 + n {
                    first_days.entry(n).or_insert(today);
                    let at_ingest = admission.is_unproven(AT, id(n), None, now_us);
                    prop_assert_eq!(at_ingest, recorded.is_unproven(n, ms(now_us), None));
                }
            }
        }
    }

    fn ms(at_us: u64) -> i64 {
        i64::try_from(at_us / 1_000).unwrap()
    }
}
