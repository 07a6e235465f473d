//! Rate limits of keys, installations and networks: token buckets that time fills and reports empty. A key can be
//! extracted from its app, so anyone may hold it. Reports above a limit are refused as over quota, may be retried, and
//! never reach the WAL.
//!
//! Memory is bounded. A bucket that is full again is dropped, which changes nothing. While all buckets of a table are
//! in use, new senders share one bucket.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::time::Duration;

use epwatch_proto::InstallationId;
use parking_lot::{Mutex, MutexGuard};

use crate::admission::Network;
use crate::config::LimitsConfig;
use crate::ingest::auth::Caller;

/// Number of buckets of each kind; each takes some 50 bytes.
const MAX_BUCKETS: usize = 1 << 18;
/// A sweep of a full table takes some milliseconds.
const SWEEP_PERIOD_US: u64 = 100_000;
/// A table of this size stays in the processor's caches. A larger table is swept when it has doubled since the last
/// sweep. So the sweeps cost each new sender the visit of two buckets.
const SMALL: usize = 1 << 12;

/// The limits of one collector's reports.
#[derive(Debug)]
pub(crate) struct ReportLimits {
    installations: Buckets<InstallationId>,
    keys: Buckets<String>,
}

impl ReportLimits {
    pub(crate) fn new(config: &LimitsConfig) -> Self {
        let (limits, bursts) = (config, &config.bursts);
        let installations = (
            limits.reports_per_installation,
            bursts.reports_per_installation,
        );
        let keys = (limits.reports_per_key, bursts.reports_per_key);
        Self {
            installations: Buckets::new(installations, MAX_BUCKETS),
            keys: Buckets::new(keys, MAX_BUCKETS),
        }
    }

    /// Locks the installations' buckets for the reports of one call.
    pub(crate) fn of_installations(&self) -> OpenBuckets<'_, InstallationId> {
        self.installations.open()
    }

    /// Takes a call's reports from its key's bucket.
    pub(crate) fn take_call(
        &self,
        key: impl FnOnce() -> String,
        n_reports: usize,
        now_us: u64,
    ) -> Result<(), Duration> {
        if self.keys.is_unlimited() {
            return Ok(());
        }
        let n_reports = n_reports.max(1) as u64;
        self.keys.open().take(key(), n_reports, now_us)
    }

    /// Gives back what [`Self::take_call`] took, for a call of which no report was kept.
    pub(crate) fn give_back_call(&self, key: impl FnOnce() -> String, n_reports: usize) {
        if !self.keys.is_unlimited() {
            let n_reports = n_reports.max(1) as u64;
            self.keys.open().give_back(&key(), n_reports);
        }
    }

    /// Gives back a report to the quota of each of these installations.
    pub(crate) fn give_back_reports(&self, installations: &[InstallationId]) {
        let mut quota = self.of_installations();
        for installation in installations {
            quota.give_back(installation, 1);
        }
    }
}

/// The limits of one collector's deletions, so that one public key, or one machine, does not block deletions
/// of other apps.
#[derive(Debug)]
pub(crate) struct DeletionLimits {
    networks: Buckets<Network>,
    keys: Buckets<String>,
}

impl DeletionLimits {
    pub(crate) fn new(config: &LimitsConfig) -> Self {
        let (limits, bursts) = (config, &config.bursts);
        let networks = (limits.deletions_per_network, bursts.deletions_per_network);
        let keys = (limits.deletions_per_key, bursts.deletions_per_key);
        Self {
            networks: Buckets::new(networks, MAX_BUCKETS),
            keys: Buckets::new(keys, MAX_BUCKETS),
        }
    }

    /// Takes one deletion of a caller; `Err` is the delay until the next. A deletion from a network over its limit
    /// takes nothing from the limit of its key.
    pub(crate) fn take(&self, caller: &Caller, now_us: u64) -> Result<(), Duration> {
        if let Some(network) = caller.network {
            self.networks.open().take(network, 1, now_us)?;
        }
        let key = caller.scope.describe();
        self.keys.open().take(key, 1, now_us)
    }
}

/// The limits on what one key of kind `pipeline` stores, so that a stolen key does not fill the store.
#[derive(Debug)]
pub(crate) struct PipelineLimits {
    pub(crate) manifests: Buckets<String>,
    pub(crate) placements: Buckets<String>,
}

impl PipelineLimits {
    pub(crate) fn new(config: &LimitsConfig) -> Self {
        let (limits, bursts) = (config, &config.bursts);
        let manifests = (limits.manifests_per_key, bursts.manifests_per_key);
        let placements = (limits.placements_per_key, bursts.placements_per_key);
        Self {
            manifests: Buckets::new(manifests, MAX_BUCKETS),
            placements: Buckets::new(placements, MAX_BUCKETS),
        }
    }
}

/// Token buckets of one rate.
#[derive(Debug)]
pub(crate) struct Buckets<K> {
    /// Microseconds in which the bucket refills by one report; 0 turns the limit off.
    refill_us: u64,
    /// Microseconds to fill an empty bucket.
    full_us: u64,
    most: usize,
    table: Mutex<BucketTable<K>>,
}

#[derive(Debug)]
struct BucketTable<K> {
    /// Time at which each bucket is full. A full bucket is equivalent to a missing one.
    full_at_us: HashMap<K, u64>,
    /// The time at which the shared bucket is full, for senders without a bucket of their own.
    others_full_at_us: u64,
    swept_at_us: u64,
    /// Number of buckets that triggers a sweep.
    sweep_at: usize,
}

impl<K: Eq + Hash> Buckets<K> {
    /// Returns buckets for a rate a minute, where 0 turns the limit off, and a burst.
    pub(crate) fn new((per_minute, burst): (u32, u32), most: usize) -> Self {
        let refill_us = 60_000_000_u64.checked_div(per_minute.into());
        let refill_us = refill_us.map_or(0, |us| us.max(1));
        Self {
            refill_us,
            full_us: refill_us * u64::from(burst.max(1)),
            most,
            table: Mutex::new(BucketTable {
                full_at_us: HashMap::new(),
                others_full_at_us: 0,
                swept_at_us: 0,
                sweep_at: SMALL.min(most),
            }),
        }
    }

    fn is_unlimited(&self) -> bool {
        self.refill_us == 0
    }

    pub(crate) fn open(&self) -> OpenBuckets<'_, K> {
        OpenBuckets {
            buckets: self,
            table: (!self.is_unlimited()).then(|| self.table.lock()),
        }
    }

    /// A report delays the time at which the bucket is full by its refill time. A call larger than the bucket passes
    /// when the bucket is full, because otherwise it could never pass.
    fn take_from(&self, full_at_us: &mut u64, n: u64, now_us: u64) -> Result<(), Duration> {
        let most = now_us.saturating_add(self.full_us);
        // After the clock was set back, a bucket must not stay empty for longer than it takes to fill.
        let full_at = (*full_at_us).clamp(now_us, most);
        *full_at_us = full_at;
        let after = full_at.saturating_add(self.refill_us.saturating_mul(n));
        if after > most && full_at > now_us {
            let wait = (after - most).min(full_at - now_us);
            return Err(Duration::from_micros(wait));
        }
        *full_at_us = after.min(most);
        Ok(())
    }
}

/// Locked token buckets; if the limit is off, nothing is locked.
#[derive(Debug)]
pub(crate) struct OpenBuckets<'a, K> {
    buckets: &'a Buckets<K>,
    table: Option<MutexGuard<'a, BucketTable<K>>>,
}

impl<K: Eq + Hash> OpenBuckets<'_, K> {
    /// Takes `n` from the bucket of `key`; `Err` is the delay until they fit.
    pub(crate) fn take(&mut self, key: K, n: u64, now_us: u64) -> Result<(), Duration> {
        let buckets = self.buckets;
        let Some(table) = self.table.as_deref_mut() else {
            return Ok(());
        };
        if table.full_at_us.len() >= table.sweep_at {
            table.sweep(now_us, buckets.full_us, buckets.most);
        }
        let has_room = table.full_at_us.len() < buckets.most;
        match table.full_at_us.entry(key) {
            Entry::Occupied(entry) => buckets.take_from(entry.into_mut(), n, now_us),
            Entry::Vacant(entry) if has_room => {
                // The table's memory is only written here. A read would wait until the memory is in a cache.
                let mut full_at_us = 0;
                let taken = buckets.take_from(&mut full_at_us, n, now_us);
                entry.insert(full_at_us);
                taken
            }
            Entry::Vacant(_) => buckets.take_from(&mut table.others_full_at_us, n, now_us),
        }
    }

    /// Gives back `n` to the bucket of `key`. A bucket that was swept meanwhile is full.
    pub(crate) fn give_back(&mut self, key: &K, n: u64) {
        let buckets = self.buckets;
        let Some(table) = self.table.as_deref_mut() else {
            return;
        };
        let is_table_full = table.full_at_us.len() >= buckets.most;
        let full_at_us = match table.full_at_us.get_mut(key) {
            Some(of_key) => of_key,
            None if is_table_full => &mut table.others_full_at_us,
            None => return,
        };
        *full_at_us = full_at_us.saturating_sub(buckets.refill_us.saturating_mul(n));
    }
}

impl<K: Eq + Hash> BucketTable<K> {
    fn sweep(&mut self, now_us: u64, full_us: u64, most: usize) {
        let is_due = now_us >= self.swept_at_us.saturating_add(SWEEP_PERIOD_US);
        let has_room = self.full_at_us.len() < most;
        if has_room || is_due || now_us < self.swept_at_us {
            self.swept_at_us = now_us;
            // A later time means that the clock was set back.
            let not_full = now_us + 1..=now_us.saturating_add(full_us);
            self.full_at_us.retain(|_, at_us| not_full.contains(at_us));
            self.sweep_at = (2 * self.full_at_us.len()).clamp(SMALL.min(most), most);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::BurstsConfig;

    const SECOND: u64 = 1_000_000;

    fn installation(n: u64) -> InstallationId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        InstallationId::from_bytes(bytes)
    }

    #[test]
    fn a_burst_passes_then_the_rate_and_the_wait_is_told() {
        let buckets = Buckets::new((60, 3), 10);
        let now = 1_000 * SECOND;
        for _ in 0..3 {
            assert_eq!(buckets.open().take("a", 1, now), Ok(()));
        }
        assert_eq!(
            buckets.open().take("a", 1, now),
            Err(Duration::from_secs(1))
        );
        assert_eq!(
            buckets.open().take("b", 1, now),
            Ok(()),
            "others are not concerned"
        );
        assert_eq!(buckets.open().take("a", 1, now + SECOND), Ok(()));
        assert!(buckets.open().take("a", 1, now + SECOND).is_err());
        assert_eq!(buckets.open().take("a", 3, now + 100 * SECOND), Ok(()));
        assert!(buckets.open().take("a", 1, now + 100 * SECOND).is_err());
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_no_more() {
        let buckets = Buckets::new((60, 3), 2);
        let now = 1_000 * SECOND;
        let takes = |key, n| buckets.open().take(key, n, now).is_ok();
        assert!(takes("a", 3) && !takes("a", 1));
        buckets.open().give_back(&"a", 2);
        assert!(takes("a", 2) && !takes("a", 1));
        // Gives back more than a bucket can contain.
        buckets.open().give_back(&"a", 100);
        assert!(takes("a", 3) && !takes("a", 1));
        // Senders without a bucket share one.
        assert!(takes("b", 3) && takes("c", 3) && !takes("d", 1));
        buckets.open().give_back(&"c", 3);
        assert!(takes("d", 3) && !takes("c", 1));
        let open = Buckets::new((0, 3), 2);
        open.open().give_back(&"a", 1);
    }

    #[test]
    fn what_is_larger_than_a_bucket_passes_when_that_is_full() {
        let buckets = Buckets::new((60, 3), 10);
        let now = 1_000 * SECOND;
        assert_eq!(buckets.open().take("a", 50, now), Ok(()));
        assert_eq!(
            buckets.open().take("a", 50, now + SECOND),
            Err(Duration::from_secs(2))
        );
        assert_eq!(buckets.open().take("a", 50, now + 3 * SECOND), Ok(()));
    }

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_out() {
        let buckets = Buckets::new((60, 2), 10);
        assert_eq!(buckets.open().take("a", 1, 1_000_000 * SECOND), Ok(()));
        let waited = buckets.open().take("a", 1, 10 * SECOND).unwrap_err();
        assert!(waited <= Duration::from_secs(2), "{waited:?}");
        assert_eq!(buckets.open().take("a", 1, 13 * SECOND), Ok(()));
    }

    #[test]
    fn memory_is_bounded_and_newcomers_share_what_is_left() {
        let buckets = Buckets::new((60, 1), 100);
        let now = 1_000 * SECOND;
        let passed = (0..1_000).filter(|n| buckets.open().take(*n, 1, now).is_ok());
        assert_eq!(passed.count(), 101);
        assert_eq!(buckets.table.lock().full_at_us.len(), 100);
        // Once buckets are full again, they are dropped and make space for others.
        assert_eq!(buckets.open().take(5_000, 1, now + 10 * SECOND), Ok(()));
        assert_eq!(buckets.table.lock().full_at_us.len(), 1);
    }

    #[test]
    fn installations_and_keys_have_limits_of_their_own_and_zero_is_none() {
        let limits = ReportLimits::new(&LimitsConfig {
            reports_per_installation: 60,
            reports_per_key: 60,
            bursts: BurstsConfig {
                reports_per_installation: 2,
                reports_per_key: 3,
                ..LimitsConfig::default().bursts
            },
            ..LimitsConfig::default()
        });
        let now = 1_000 * SECOND;
        let sent = (0..10).filter(|_| {
            limits
                .of_installations()
                .take(installation(1), 1, now)
                .is_ok()
        });
        assert_eq!(sent.count(), 2);
        assert_eq!(
            limits.of_installations().take(installation(2), 1, now),
            Ok(())
        );
        let key = || "app/production".to_owned();
        assert_eq!(limits.take_call(key, 2, now), Ok(()));
        // A call without reports costs too.
        assert_eq!(limits.take_call(key, 0, now), Ok(()));
        assert!(limits.take_call(key, 1, now).is_err());
        let open = ReportLimits::new(&LimitsConfig {
            reports_per_installation: 0,
            reports_per_key: 0,
            ..LimitsConfig::default()
        });
        assert!((0..10_000).all(|_| {
            open.of_installations()
                .take(installation(1), 1, now)
                .is_ok()
        }));
        assert_eq!(open.take_call(|| unreachable!("not asked"), 9, now), Ok(()));
    }

    #[test]
    fn deletions_of_a_network_and_of_a_key_are_limited_apart() {
        let limits = DeletionLimits::new(&LimitsConfig {
            deletions_per_network: 60,
            deletions_per_key: 60,
            bursts: BurstsConfig {
                deletions_per_network: 2,
                deletions_per_key: 3,
                ..LimitsConfig::default().bursts
            },
            ..LimitsConfig::default()
        });
        let now = 1_000 * SECOND;
        let caller = |address: Option<[u8; 4]>| Caller {
            scope: Arc::default(),
            network: address.and_then(|address| Network::of(address.into())),
            private_peer: None,
        };
        let flood = caller(Some([8, 8, 8, 8]));
        let passed = (0..10).filter(|_| limits.take(&flood, now).is_ok());
        assert_eq!(passed.count(), 2);
        assert_eq!(limits.take(&caller(Some([9, 9, 9, 9])), now), Ok(()));
        let unknown = caller(None);
        let wait = Err(Duration::from_secs(1));
        assert_eq!(limits.take(&unknown, now), wait, "the key's are used up");
        assert_eq!(limits.take(&unknown, now + SECOND), Ok(()));
    }
}
