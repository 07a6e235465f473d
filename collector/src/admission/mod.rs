//! Decides which new installations of public keys may vote. An app key ships in an app, so installations can be made
//! up. New ones beyond the app's quota, or beyond a network's part of it, are `unproven`. Their reports are stored, do
//! not vote, and are in no summary.
//!
//! Ingest decides once for each report, before the report goes into the WAL. The WAL's record keeps the decision and
//! the hashes of the sender's network. A new installation within the quota is proven for good. An installation beyond
//! the quota is not remembered, so that a flood takes no memory. Each of its later reports is decided again, and the
//! first one within the quota proves it.
//!
//! Known installations and usual numbers come from the store and the WAL. They are loaded at start, and again every
//! `refresh` for installations that other collectors admitted; each collector has the whole quota in between. Until
//! the first load no installation counts as new: a store that is away must not cost a fleet its votes.

mod last_seen;
mod loader;
mod network;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use clickhouse::Row;
use epwatch_proto::InstallationId;
use epwatch_server::new_installation_quota::{
    AdmittedHistory, Decision, NetworkHashes, NewInstallationQuota, QuotaLimits,
};
use parking_lot::Mutex;
use serde::Deserialize;

use self::last_seen::LastSeenTable;
pub(crate) use self::loader::{Loader, keep_loading};
use self::network::NetworkKey;
pub(crate) use self::network::{Network, Origins, Peer};
use crate::config::NewInstallationsConfig;
use crate::metrics::Metrics;
use crate::wal_record::SenderMark;

const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;
/// The number of networks that are known, without a lock, to have no quota left for an app.
const MAX_FULL: usize = 1 << 10;

/// Decides for one collector which installations are proven.
#[derive(Debug)]
pub(crate) struct Admission {
    is_on: bool,
    /// True once the first load succeeded.
    is_ready: AtomicBool,
    /// Keyed by random bits of this process, so that no sender can make up a known hash.
    hasher: RandomState,
    known: LastSeenTable,
    /// Networks whose quota is used up, by the hash of app, network and hour.
    full: LastSeenTable,
    quota: Mutex<NewInstallationQuota>,
    /// The key for the hashes of networks; set by the first load.
    network_key: OnceLock<NetworkKey>,
    metrics: Arc<Metrics>,
}

/// The UTC day of a time, in days since 1970.
fn day_of(now_us: u64) -> u16 {
    u16::try_from(now_us / DAY_US).unwrap_or(u16::MAX)
}

impl Admission {
    pub(crate) fn new(config: &NewInstallationsConfig, metrics: Arc<Metrics>) -> Self {
        let is_on = config.is_on();
        let limits = QuotaLimits {
            at_least: config.at_least,
            per_network: config.per_network,
        };
        Self {
            is_on,
            is_ready: AtomicBool::new(false),
            hasher: RandomState::new(),
            known: LastSeenTable::new(if is_on { config.known } else { 0 }),
            full: LastSeenTable::new(MAX_FULL),
            quota: Mutex::new(NewInstallationQuota::new(limits)),
            network_key: OnceLock::new(),
            metrics,
        }
    }

    /// Returns the mark that all reports of one call share. The hashes are 0 if the network is unknown, and before the
    /// first load.
    pub(crate) fn sender(&self, is_own: bool, network: Option<Network>) -> SenderMark {
        let hashes = network.zip(self.network_key.get());
        SenderMark {
            is_unproven: false,
            is_own,
            network: hashes.map_or([0; 2], |(network, key)| key.hashes(network)),
        }
    }

    /// True if a report of this installation of a public key does not vote. A new installation takes from the quota.
    pub(crate) fn is_unproven(
        &self,
        app_id: &str,
        installation: InstallationId,
        network: NetworkHashes,
        now_us: u64,
    ) -> bool {
        if !self.is_on || !self.is_ready.load(Relaxed) {
            return false;
        }
        let (day, hour) = (day_of(now_us), now_us / HOUR_US);
        let hash = self.hash(app_id, installation.as_bytes());
        if self.known.contains(hash, day) {
            return false;
        }
        let full = self.hasher.hash_one((app_id, network[0], hour));
        if self.full.contains(full, day) {
            self.metrics.beyond_app().inc();
            return true;
        }
        let mut quota = self.quota.lock();
        // Another call of the same installation may have added it meanwhile.
        if self.known.contains(hash, day) {
            return false;
        }
        match quota.take(app_id, network, hour) {
            Decision::Proven => {
                self.known.insert(hash, day);
                self.metrics.new_installations.inc();
                false
            }
            Decision::BeyondApp => {
                // From now on the look-up above answers for further reports of this hour.
                self.full.insert(full, day);
                // Warns once a day for each app.
                let warned = self.hasher.hash_one((app_id, day));
                if self.full.insert(warned, day) {
                    let limit = quota.app_limit(app_id).unwrap_or(u64::MAX);
                    tracing::warn!(
                        app = app_id,
                        limit,
                        "more new installations in a day than usual, the rest is stored as unproven"
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

    fn hash(&self, app_id: &str, installation: &[u8; 16]) -> u64 {
        self.hasher.hash_one((app_id, installation))
    }

    /// Adds installations of one app that were proven before.
    fn add_known(&self, app_id: &str, devices: &[KnownInstallation], now_us: u64) {
        // Adds them in steps, so that calls do not wait for a million insertions.
        for devices in devices.chunks(1_000) {
            let mut quota = self.quota.lock();
            for device in devices {
                let hash = self.hash(app_id, &device.installation);
                if self.known.insert(hash, device.last_day) {
                    let network = [device.network, device.network_wide];
                    let hour = u64::from(device.proven_hour);
                    quota.count(app_id, network, hour, now_us / HOUR_US);
                }
            }
        }
    }

    fn set_history(&self, history: &AdmittedHistory, today: u16) {
        let mut quota = self.quota.lock();
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
    /// The first hour in which it was proven, in hours since 1970.
    proven_hour: u32,
    /// Its network in that hour; 0 means unknown.
    network: u32,
    network_wide: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: &str = "app";
    const UNKNOWN: NetworkHashes = [0, 0];
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
        ids.filter(|n| admission.is_unproven(APP, id(*n), UNKNOWN, day * DAY_US + 7))
            .collect()
    }

    #[test]
    fn the_end_of_a_flood_is_unproven_and_known_installations_are_not() {
        let admission = admission(100);
        let first = unproven(&admission, TODAY, 0..120);
        assert_eq!(first, (100..120).collect::<Vec<_>>());
        // The result is the same however often they report.
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
        // The store has 50 of earlier days and 90 of today; some are in the WAL too.
        let known = |n: u64, day: u16| KnownInstallation {
            installation: *id(n).as_bytes(),
            last_day: today,
            proven_hour: u32::from(day) * 24,
            network: 0,
            network_wide: 0,
        };
        let earlier: Vec<KnownInstallation> = (0..50).map(|n| known(n, today - 3)).collect();
        let of_today: Vec<KnownInstallation> = (50..140).map(|n| known(n, today)).collect();
        let now_us = TODAY * DAY_US;
        admission.add_known(APP, &earlier, now_us);
        admission.add_known(APP, &of_today, now_us);
        admission.add_known(APP, &of_today[80..], now_us);
        let found = unproven(&admission, TODAY, 0..160);
        assert_eq!(found, (150..160).collect::<Vec<_>>());
    }

    #[test]
    fn a_history_that_is_loaded_later_raises_the_limit() {
        let admission = admission(100);
        let today = u16::try_from(TODAY).unwrap();
        assert_eq!(unproven(&admission, TODAY, 0..200).len(), 100);
        let mut history = AdmittedHistory::default();
        history.add(APP.to_owned(), today - 1, 50);
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
}
