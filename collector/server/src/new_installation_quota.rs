//! The quota for new installations that vote, by app and by network. Pure: hours and counts in, a decision out. The
//! collector's `admission` keeps the clock and the installations.
//!
//! An app's quota covers all its environments and the last 24 hours. Half of it is reserved for the first installations
//! of each network. So a sender that uses up the other half leaves quota for the first phones of other networks.

use std::collections::{BTreeMap, HashMap};

use crate::new_installations::{
    LEAST_LIMIT, LastDay, new_installation_limit, usual_new_installations,
};

/// The number of apps with a count of their own. It is limited because a key may be for any app. The others share one
/// count.
const MAX_APPS: usize = 4_096;
/// The number of networks with a count of their own. Each made-up network takes from its app's quota; beyond this
/// number only that quota limits.
const MAX_NETWORKS: usize = 1 << 17;

/// How many installations of one network in a day may take from the reserved half of the quota.
const FIRST_OF_NETWORK: u64 = 3;

/// One wide network (IPv4 /16, IPv6 /32) may take one part in this many of the reserved half. Its owner has any number
/// of narrow networks.
const OF_WIDE: u64 = 16;

/// The limits of each app's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaLimits {
    /// The least limit of an app; 0 means unlimited.
    pub at_least: u64,
    /// The limit of one network. It grows with the app's limit above `at_least`; 0 means unlimited.
    pub per_network: u64,
}

impl Default for QuotaLimits {
    fn default() -> Self {
        Self {
            at_least: LEAST_LIMIT,
            per_network: 200,
        }
    }
}

/// The decision on a new installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It votes.
    Proven,
    /// The app's quota is used up.
    BeyondApp,
    /// The network's part is used up.
    BeyondNetwork,
}

/// Hashes of a network at both widths; 0 is unknown.
pub type NetworkHashes = [u32; 2];

/// Counts new installations against the quota of each app.
#[derive(Debug)]
pub struct NewInstallationQuota {
    limits: QuotaLimits,
    max_apps: usize,
    max_networks: usize,
    usual: HashMap<String, u64>,
    apps: HashMap<String, AppCount>,
    /// The networks by app, width and hash.
    networks: HashMap<(AppNumber, u8, u32), LastDay>,
    /// The hour in which old networks were last removed.
    swept: u64,
}

type AppNumber = usize;

#[derive(Debug, Clone, Default)]
struct AppCount {
    number: AppNumber,
    taken: LastDay,
    /// Installations that took from the half for the first of each network.
    first: LastDay,
}

impl NewInstallationQuota {
    /// An empty quota.
    #[must_use]
    pub fn new(limits: QuotaLimits) -> Self {
        Self {
            limits,
            max_apps: MAX_APPS,
            max_networks: MAX_NETWORKS,
            usual: HashMap::new(),
            apps: HashMap::new(),
            networks: HashMap::new(),
            swept: 0,
        }
    }

    /// Sets the usual numbers from each app's admitted installations by day.
    pub fn set_history(&mut self, history: &AdmittedHistory, day: u16) {
        let apps = history.0.iter();
        self.usual = apps
            .map(|(app, days)| (app.clone(), usual_new_installations(days, day)))
            .collect();
    }

    /// Returns how many new installations of an app may vote in a day; `None` means unlimited.
    pub fn app_limit(&self, app: &str) -> Option<u64> {
        let usual = self.usual.get(app).copied().unwrap_or(0);
        new_installation_limit(usual, self.limits.at_least)
    }

    /// Scales `per_network` by the app's limit over `at_least`. Many phones share a carrier's few addresses, and a
    /// larger app has more of them behind each address.
    fn network_limit(&self, app_limit: Option<u64>) -> u64 {
        let (per_network, at_least) = (self.limits.per_network, self.limits.at_least);
        let scaled = app_limit.and_then(|limit| {
            let scaled = u128::from(limit) * u128::from(per_network);
            scaled.checked_div(at_least.into())
        });
        let scaled = scaled.map_or(per_network, |n| u64::try_from(n).unwrap_or(u64::MAX));
        scaled.max(per_network)
    }

    /// Takes one new installation from the quota, if there is any left.
    pub fn take(&mut self, app: &str, network: NetworkHashes, hour: u64) -> Decision {
        let limit = self.app_limit(app);
        let network_limit = self.network_limit(limit);
        let limit = limit.unwrap_or(u64::MAX);
        let count = self.count_of(app, hour);
        let (number, taken) = (count.number, count.taken.count(hour));
        let first = count.first.count(hour);
        if taken >= limit {
            return Decision::BeyondApp;
        }
        let [narrow, wide] = network;
        if narrow == 0 || self.limits.per_network == 0 {
            self.count_of(app, hour).taken.add(hour);
            return Decision::Proven;
        }
        let for_first = limit / 2;
        let of_wide = (for_first / OF_WIDE).max(FIRST_OF_NETWORK);
        let [in_narrow, in_wide] = [(0, narrow), (1, wide)].map(|(width, hash)| {
            let count = self.networks.get_mut(&(number, width, hash));
            count.map_or(0, |count| count.count(hour))
        });
        let is_first = in_narrow < FIRST_OF_NETWORK && in_wide < of_wide && first < for_first;
        if !is_first {
            if in_narrow >= network_limit {
                return Decision::BeyondNetwork;
            }
            if taken - first.min(taken) >= limit - for_first {
                return Decision::BeyondApp;
            }
        }
        self.add(app, network, hour, is_first);
        Decision::Proven
    }

    fn add(&mut self, app: &str, [narrow, wide]: NetworkHashes, hour: u64, is_first: bool) {
        let count = self.count_of(app, hour);
        count.taken.add(hour);
        if is_first {
            count.first.add(hour);
        }
        let number = count.number;
        for key in [(number, 0, narrow), (number, 1, wide)] {
            if let Some(count) = self.of_network(key, hour) {
                count.add(hour);
            }
        }
    }

    /// Counts an installation that was proven before a restart or by another collector.
    pub fn count(&mut self, app: &str, network: NetworkHashes, hour: u64, now: u64) {
        let count = self.count_of(app, now);
        count.taken.add_past(hour, now);
        let (number, [narrow, wide]) = (count.number, network);
        if narrow == 0 {
            return;
        }
        let mut in_narrow = 0;
        for key in [(number, 1, wide), (number, 0, narrow)] {
            if let Some(count) = self.of_network(key, now) {
                in_narrow = count.count(now);
                count.add_past(hour, now);
            }
        }
        if in_narrow < FIRST_OF_NETWORK {
            self.count_of(app, now).first.add_past(hour, now);
        }
    }

    /// Returns a network's count; `None` if the table has no space for another network.
    fn of_network(&mut self, key: (AppNumber, u8, u32), hour: u64) -> Option<&mut LastDay> {
        let is_full = self.networks.len() >= self.max_networks;
        if is_full && self.swept != hour {
            self.swept = hour;
            self.networks.retain(|_, count| count.count(hour) > 0);
        }
        let is_full = self.networks.len() >= self.max_networks;
        if is_full && !self.networks.contains_key(&key) {
            return None;
        }
        Some(self.networks.entry(key).or_default())
    }

    fn count_of(&mut self, app: &str, hour: u64) -> &mut AppCount {
        let mut name = app;
        if !self.apps.contains_key(app) && self.apps.len() >= self.max_apps {
            name = "";
        }
        // No number is given twice, because no app is ever dropped.
        let number = self.apps.len();
        let count = self
            .apps
            .entry(name.to_owned())
            .or_insert_with(|| AppCount {
                number,
                ..AppCount::default()
            });
        let _ = count.taken.count(hour);
        count
    }
}

/// Admitted installations by app and the day of their first report, in days since 1970.
#[derive(Debug, Default)]
pub struct AdmittedHistory(HashMap<String, BTreeMap<u16, u64>>);

impl AdmittedHistory {
    /// Adds installations that were first received on a day.
    pub fn add(&mut self, app: String, day: u16, n: u64) {
        *self.0.entry(app).or_default().entry(day).or_default() += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 20_000 * 24 + 12;
    const UNKNOWN: NetworkHashes = [0, 0];

    const LIMITS: QuotaLimits = QuotaLimits {
        at_least: 100,
        per_network: 20,
    };

    /// Each in a wide network of its own.
    fn network(n: u32) -> NetworkHashes {
        [n + 1, n + 1]
    }

    fn n_proven(
        quota: &mut NewInstallationQuota,
        app: &str,
        network: NetworkHashes,
        n: u32,
        hour: u64,
    ) -> usize {
        let decisions = (0..n).map(|_| quota.take(app, network, hour));
        decisions
            .filter(|decision| *decision == Decision::Proven)
            .count()
    }

    #[test]
    fn each_app_has_a_room_that_comes_back_after_a_day() {
        let mut quota = NewInstallationQuota::new(LIMITS);
        assert_eq!(n_proven(&mut quota, "a", UNKNOWN, 250, NOON), 100);
        assert_eq!(quota.take("a", UNKNOWN, NOON), Decision::BeyondApp);
        assert_eq!(n_proven(&mut quota, "b", UNKNOWN, 50, NOON), 50);
        // The quota is not refilled at midnight.
        assert_eq!(n_proven(&mut quota, "a", UNKNOWN, 5, NOON + 12), 0);
        assert_eq!(n_proven(&mut quota, "b", UNKNOWN, 250, NOON + 23), 50);
        assert_eq!(n_proven(&mut quota, "a", UNKNOWN, 250, NOON + 24), 100);
        assert_eq!(n_proven(&mut quota, "b", UNKNOWN, 250, NOON + 24), 50);
    }

    #[test]
    fn the_limit_is_a_multiple_of_the_usual_number() {
        let mut quota = NewInstallationQuota::new(LIMITS);
        let mut history = AdmittedHistory::default();
        for day in 90..100 {
            history.add("large".into(), day, 200);
            history.add("small".into(), day, 1);
        }
        quota.set_history(&history, 100);
        assert_eq!(quota.app_limit("large"), Some(600));
        assert_eq!(quota.app_limit("small"), Some(100));
        quota.count("large", UNKNOWN, NOON - 3, NOON);
        quota.count("large", UNKNOWN, NOON - 30, NOON);
        assert_eq!(n_proven(&mut quota, "large", UNKNOWN, 1_000, NOON), 599);
    }

    /// Networks that use up their limits leave quota for the first phones of other networks.
    #[test]
    fn a_network_takes_its_part_and_leaves_room_for_first_phones_elsewhere() {
        let mut quota = NewInstallationQuota::new(LIMITS);
        // 3 of the 20 count as the first of their network.
        assert_eq!(n_proven(&mut quota, "a", network(0), 250, NOON), 20);
        assert_eq!(quota.take("a", network(0), NOON), Decision::BeyondNetwork);
        let flood: usize = (1..9)
            .map(|n| n_proven(&mut quota, "a", network(n), 250, NOON))
            .sum();
        assert_eq!(flood, 33 + 8 * 3, "the shared half is used up");
        assert_eq!(n_proven(&mut quota, "a", network(50), 10, NOON), 3);
        assert_eq!(n_proven(&mut quota, "b", network(0), 25, NOON), 20);
        // The owner of one wide network has any number of narrow ones.
        let mut quota = NewInstallationQuota::new(LIMITS);
        let narrow = (0..500).map(|n| n_proven(&mut quota, "a", [n + 1, 1], 1, NOON));
        assert_eq!(narrow.sum::<usize>(), 50 + 3);
        assert_eq!(n_proven(&mut quota, "a", [900, 2], 1, NOON), 1);
        // A restart forgets none of it.
        let mut again = NewInstallationQuota::new(LIMITS);
        for _ in 0..20 {
            again.count("a", network(0), NOON, NOON + 1);
        }
        assert_eq!(
            again.take("a", network(0), NOON + 1),
            Decision::BeyondNetwork
        );
    }

    #[test]
    fn a_larger_app_has_more_phones_behind_one_carrier() {
        let mut quota = NewInstallationQuota::new(LIMITS);
        let mut history = AdmittedHistory::default();
        history.add("large".into(), 99, 1_000);
        quota.set_history(&history, 100);
        let n = n_proven(&mut quota, "large", network(1), 5_000, NOON);
        assert_eq!(n, 600, "a fifth of 3,000");
    }

    #[test]
    fn zero_is_no_limit() {
        let mut quota = NewInstallationQuota::new(QuotaLimits {
            at_least: 0,
            ..LIMITS
        });
        assert_eq!(n_proven(&mut quota, "a", UNKNOWN, 5_000, NOON), 5_000);
        assert_eq!(n_proven(&mut quota, "a", network(1), 5_000, NOON), 20);
        let mut quota = NewInstallationQuota::new(QuotaLimits {
            per_network: 0,
            ..LIMITS
        });
        assert_eq!(n_proven(&mut quota, "a", network(1), 500, NOON), 100);
    }

    #[test]
    fn made_up_apps_and_networks_take_bounded_memory() {
        let mut quota = NewInstallationQuota::new(LIMITS);
        (quota.max_apps, quota.max_networks) = (20, 30);
        for n in 0..100 {
            n_proven(&mut quota, &n.to_string(), network(n), 3, NOON);
        }
        // There is one more count, which all other apps share.
        assert_eq!(quota.apps.len(), 21);
        assert!(quota.networks.len() <= 30, "{}", quota.networks.len());
        // Yesterday's entries are removed, which makes space.
        n_proven(&mut quota, "0", network(900), 3, NOON + 30);
        assert_eq!(quota.networks.len(), 2);
    }
}
