//! One day's quota of new installations, by app and by network. Pure: days and counts in, a decision out; [`super`]
//! keeps the clock and the installations.

use std::collections::{BTreeMap, HashMap};

use epwatch_server::{new_installation_limit, usual_new_installations};

use super::network::Network;
use crate::config::NewInstallationsConfig;

/// Apps with a count of their own, since without keys a sender can name any. The others share one count.
const MAX_APPS: usize = 4_096;
/// Networks with a count of their own. Each made-up network takes from its app's quota; beyond this many only
/// that quota limits.
const MAX_NETWORKS: usize = 1 << 18;

/// An app and its environment.
pub(super) type AppName = (String, String);

/// The decision on a new installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Proven,
    /// The app's quota is used up.
    BeyondApp,
    /// The network's part is used up.
    BeyondNetwork,
}

/// One day's new installations.
#[derive(Debug)]
pub(super) struct DailyQuota {
    config: NewInstallationsConfig,
    max_apps: usize,
    max_networks: usize,
    day: u16,
    usual: HashMap<AppName, u64>,
    apps: HashMap<AppName, AppCount>,
    networks: HashMap<(AppNumber, Network), u64>,
}

type AppNumber = usize;

#[derive(Debug, Clone, Copy)]
struct AppCount {
    number: AppNumber,
    taken: u64,
}

impl DailyQuota {
    pub(super) fn new(config: &NewInstallationsConfig) -> Self {
        Self {
            config: config.clone(),
            max_apps: MAX_APPS,
            max_networks: MAX_NETWORKS,
            day: 0,
            usual: HashMap::new(),
            apps: HashMap::new(),
            networks: HashMap::new(),
        }
    }

    /// Begins a day. The day before counts as the same one: a call from before midnight may get here after a call
    /// from after it.
    pub(super) fn begin(&mut self, day: u16) {
        if day == self.day || day.checked_add(1) == Some(self.day) {
            return;
        }
        self.day = day;
        self.apps.clear();
        self.networks.clear();
    }

    /// Sets the usual numbers from each app's new installations by day.
    pub(super) fn set_history(&mut self, history: &History, day: u16) {
        let apps = history.0.iter();
        self.usual = apps
            .map(|(app, days)| (app.clone(), usual_new_installations(days, day)))
            .collect();
    }

    /// Returns how many new installations of an app may vote today; `None` is no limit.
    pub(super) fn app_limit(&self, app: &AppName) -> Option<u64> {
        let usual = self.usual.get(app).copied().unwrap_or(0);
        new_installation_limit(usual, self.config.times_usual, self.config.at_least)
    }

    /// Scales `per_network` as the app's limit is above `at_least`: many phones share a carrier's few addresses, and the
    /// more the larger the app.
    fn network_limit(&self, app_limit: Option<u64>) -> u64 {
        let (per_network, at_least) = (self.config.per_network, self.config.at_least);
        let scaled = app_limit.and_then(|limit| {
            let scaled = u128::from(limit) * u128::from(per_network);
            scaled.checked_div(at_least.into())
        });
        let scaled = scaled.map_or(per_network, |n| u64::try_from(n).unwrap_or(u64::MAX));
        scaled.max(per_network)
    }

    /// Takes one new installation from the quota, if there is any left.
    pub(super) fn take(&mut self, app: &AppName, network: Option<Network>) -> Decision {
        let limit = self.app_limit(app);
        let count = self.count_of(app);
        if limit.is_some_and(|limit| count.taken >= limit) {
            return Decision::BeyondApp;
        }
        let number = count.number;
        if let Some(network) = network.filter(|_| self.config.per_network > 0) {
            let limit = self.network_limit(limit);
            let has_room = self.networks.len() < self.max_networks;
            match self.networks.get_mut(&(number, network)) {
                Some(taken) if *taken >= limit => return Decision::BeyondNetwork,
                Some(taken) => *taken += 1,
                None if has_room => drop(self.networks.insert((number, network), 1)),
                None => {}
            }
        }
        self.count_of(app).taken += 1;
        Decision::Proven
    }

    /// Counts an installation that was proven before a restart or by another collector.
    pub(super) fn count(&mut self, app: &AppName) {
        self.count_of(app).taken += 1;
    }

    fn count_of(&mut self, app: &AppName) -> &mut AppCount {
        let number = self.apps.len();
        let is_new = !self.apps.contains_key(app);
        let app = if is_new && number >= self.max_apps {
            AppName::default()
        } else {
            app.clone()
        };
        let new = AppCount { number, taken: 0 };
        self.apps.entry(app).or_insert(new)
    }
}

/// New installations by app and the day of their first report, in days since 1970.
#[derive(Debug, Default)]
pub(super) struct History(HashMap<AppName, BTreeMap<u16, u64>>);

impl History {
    pub(super) fn add(&mut self, app: AppName, day: u16, n: u64) {
        *self.0.entry(app).or_default().entry(day).or_default() += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> NewInstallationsConfig {
        NewInstallationsConfig {
            at_least: 10,
            per_network: 4,
            ..NewInstallationsConfig::default()
        }
    }

    fn app(name: &str) -> AppName {
        (name.to_owned(), "production".to_owned())
    }

    fn network(n: u8) -> Option<Network> {
        Network::of([198, 51, n, 7].into())
    }

    fn n_proven(quota: &mut DailyQuota, app: &AppName, network: Option<Network>, n: u32) -> usize {
        let decisions = (0..n).map(|_| quota.take(app, network));
        decisions
            .filter(|decision| *decision == Decision::Proven)
            .count()
    }

    #[test]
    fn each_app_has_a_quota_a_day() {
        let mut quota = DailyQuota::new(&config());
        quota.begin(100);
        assert_eq!(n_proven(&mut quota, &app("a"), None, 25), 10);
        assert_eq!(quota.take(&app("a"), None), Decision::BeyondApp);
        assert_eq!(n_proven(&mut quota, &app("b"), None, 25), 10);
        quota.begin(101);
        assert_eq!(n_proven(&mut quota, &app("a"), None, 5), 5);
        // A call from before midnight, then a clock that was set back.
        quota.begin(100);
        assert_eq!(n_proven(&mut quota, &app("a"), None, 25), 5);
        quota.begin(50);
        assert_eq!(n_proven(&mut quota, &app("a"), None, 25), 10);
    }

    #[test]
    fn the_limit_is_a_multiple_of_the_usual_number() {
        let mut quota = DailyQuota::new(&config());
        let mut history = History::default();
        for day in 90..100 {
            history.add(app("large"), day, 20);
            history.add(app("small"), day, 1);
        }
        quota.set_history(&history, 100);
        quota.begin(100);
        assert_eq!(quota.app_limit(&app("large")), Some(60));
        assert_eq!(quota.app_limit(&app("small")), Some(10));
        quota.count(&app("large"));
        assert_eq!(n_proven(&mut quota, &app("large"), None, 100), 59);
    }

    #[test]
    fn a_network_takes_its_part_and_no_more() {
        let mut quota = DailyQuota::new(&config());
        quota.begin(100);
        assert_eq!(n_proven(&mut quota, &app("a"), network(1), 25), 4);
        let decision = quota.take(&app("a"), network(1));
        assert_eq!(decision, Decision::BeyondNetwork);
        assert_eq!(n_proven(&mut quota, &app("a"), network(2), 3), 3);
        assert_eq!(n_proven(&mut quota, &app("b"), network(1), 25), 4);
        // The app's quota holds for all of its networks.
        assert_eq!(n_proven(&mut quota, &app("a"), network(3), 25), 3);
        // A larger app has more phones behind one carrier.
        let mut history = History::default();
        history.add(app("large"), 99, 100);
        quota.set_history(&history, 100);
        assert_eq!(n_proven(&mut quota, &app("large"), network(1), 500), 120);
    }

    #[test]
    fn zero_is_no_limit() {
        let mut quota = DailyQuota::new(&NewInstallationsConfig {
            at_least: 0,
            ..config()
        });
        quota.begin(100);
        assert_eq!(n_proven(&mut quota, &app("a"), None, 5_000), 5_000);
        assert_eq!(n_proven(&mut quota, &app("a"), network(1), 5_000), 4);
        let mut quota = DailyQuota::new(&NewInstallationsConfig {
            per_network: 0,
            ..config()
        });
        quota.begin(100);
        assert_eq!(n_proven(&mut quota, &app("a"), network(1), 50), 10);
    }

    #[test]
    fn made_up_apps_and_networks_take_bounded_memory() {
        let mut quota = DailyQuota::new(&config());
        (quota.max_apps, quota.max_networks) = (20, 30);
        quota.begin(100);
        for n in 0..100 {
            n_proven(&mut quota, &app(&n.to_string()), network(n), 3);
        }
        // One more that all other apps share: ten installations, from four networks.
        assert_eq!((quota.apps.len(), quota.networks.len()), (21, 24));
        let others = n_proven(&mut quota, &app("100"), network(200), 50);
        assert_eq!(others, 0);
        for n in 0..100 {
            quota.take(&app("0"), network(n));
        }
        assert!(quota.networks.len() <= 30, "{}", quota.networks.len());
    }
}
