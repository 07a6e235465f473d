//! How many new installations an app may have in a day, and how many of them from one network.
//! Pure: days and counts in, a decision out.

use std::collections::{BTreeMap, HashMap};

use super::network::Network;
use crate::config::NewInstallationsConfig;

/// Whole days that the usual number is taken from.
pub(super) const USUAL_DAYS: u16 = 14;
/// Apps with a count of their own: without keys anyone names one. The others share one.
const MAX_APPS: usize = 4_096;
/// Networks with a count of their own. Each costs whoever makes it up a place of the app's room,
/// and beyond this many that room alone decides.
const MAX_NETWORKS: usize = 1 << 18;

/// An app and its environment.
pub(super) type AppName = (String, String);

/// What a new installation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Proven,
    /// More new ones than the app usually has.
    BeyondApp,
    /// More new ones than a network may have.
    BeyondNetwork,
}

/// One day's new installations.
#[derive(Debug)]
pub(super) struct Rooms {
    config: NewInstallationsConfig,
    max_apps: usize,
    max_networks: usize,
    day: u16,
    usual: HashMap<AppName, u64>,
    apps: HashMap<AppName, Room>,
    networks: HashMap<(AppNumber, Network), u64>,
}

type AppNumber = usize;

#[derive(Debug, Clone, Copy)]
struct Room {
    number: AppNumber,
    taken: u64,
}

impl Rooms {
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

    /// Begins a day. The day before is the same day still: a call that began before midnight may
    /// come here after one that began later.
    pub(super) fn begin(&mut self, day: u16) {
        if day == self.day || day.checked_add(1) == Some(self.day) {
            return;
        }
        self.day = day;
        self.apps.clear();
        self.networks.clear();
    }

    /// New installations of each app by the day they were first heard of.
    pub(super) fn set_history(&mut self, history: &History, day: u16) {
        let apps = history.0.iter();
        self.usual = apps
            .map(|(app, days)| (app.clone(), usual_number(days, day)))
            .collect();
    }

    /// New installations that an app may have today; `None` is no limit.
    pub(super) fn of_app(&self, app: &AppName) -> Option<u64> {
        let NewInstallationsConfig {
            at_least,
            times_usual,
            ..
        } = self.config;
        let usual = self.usual.get(app).copied().unwrap_or(0);
        (at_least > 0).then(|| usual.saturating_mul(times_usual.into()).max(at_least))
    }

    /// As much more than `per_network` as the app's room is more than `at_least`: many phones are
    /// behind the few addresses of their carrier, and the more so the larger the app.
    fn of_network(&self, room: Option<u64>) -> u64 {
        let (per_network, at_least) = (self.config.per_network, self.config.at_least);
        let scaled = room.and_then(|room| {
            let scaled = u128::from(room) * u128::from(per_network);
            scaled.checked_div(at_least.into())
        });
        let scaled = scaled.map_or(per_network, |n| u64::try_from(n).unwrap_or(u64::MAX));
        scaled.max(per_network)
    }

    /// Takes room for one new installation, if there is some.
    pub(super) fn take(&mut self, app: &AppName, network: Option<Network>) -> Standing {
        let limit = self.of_app(app);
        let room = self.room(app);
        if limit.is_some_and(|limit| room.taken >= limit) {
            return Standing::BeyondApp;
        }
        let number = room.number;
        if let Some(network) = network.filter(|_| self.config.per_network > 0) {
            let limit = self.of_network(limit);
            let has_room = self.networks.len() < self.max_networks;
            match self.networks.get_mut(&(number, network)) {
                Some(taken) if *taken >= limit => return Standing::BeyondNetwork,
                Some(taken) => *taken += 1,
                None if has_room => drop(self.networks.insert((number, network), 1)),
                None => {}
            }
        }
        self.room(app).taken += 1;
        Standing::Proven
    }

    /// Counts one that was let in already: before a restart, or by another collector.
    pub(super) fn count(&mut self, app: &AppName) {
        self.room(app).taken += 1;
    }

    fn room(&mut self, app: &AppName) -> &mut Room {
        let number = self.apps.len();
        let is_new = !self.apps.contains_key(app);
        let app = if is_new && number >= self.max_apps {
            AppName::default()
        } else {
            app.clone()
        };
        let new = Room { number, taken: 0 };
        self.apps.entry(app).or_insert(new)
    }
}

/// New installations by app and the day they were first heard of, in days since 1970.
#[derive(Debug, Default)]
pub(super) struct History(HashMap<AppName, BTreeMap<u16, u64>>);

impl History {
    pub(super) fn add(&mut self, app: AppName, day: u16, n: u64) {
        *self.0.entry(app).or_default().entry(day).or_default() += n;
    }
}

/// The median over the whole days before `today`, at most [`USUAL_DAYS`] and none before the
/// app's first. Days without any count.
fn usual_number(days: &BTreeMap<u16, u64>, today: u16) -> u64 {
    let Some(first) = days.keys().next() else {
        return 0;
    };
    let from = (*first).max(today.saturating_sub(USUAL_DAYS));
    let on = |day| days.get(&day).copied().unwrap_or(0);
    let mut counts: Vec<u64> = (from..today).map(on).collect();
    counts.sort_unstable();
    let middle = counts.len() / 2;
    match counts.len() {
        0 => 0,
        n if n % 2 == 1 => counts[middle],
        _ => counts[middle - 1].midpoint(counts[middle]),
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

    fn n_proven(rooms: &mut Rooms, app: &AppName, network: Option<Network>, n: u32) -> usize {
        let standings = (0..n).map(|_| rooms.take(app, network));
        standings
            .filter(|standing| *standing == Standing::Proven)
            .count()
    }

    #[test]
    fn the_usual_number_is_the_median_of_whole_days_since_the_first() {
        let usual = |days: &[(u16, u64)], today| {
            let days = days.iter().copied().collect();
            usual_number(&days, today)
        };
        assert_eq!(usual(&[], 100), 0);
        assert_eq!(usual(&[(100, 7)], 100), 0, "today is not over");
        assert_eq!(usual(&[(99, 7)], 100), 7);
        assert_eq!(usual(&[(98, 8), (99, 5)], 100), 6);
        // A flood of one day is no usual day, nor are days without any left out.
        assert_eq!(usual(&[(95, 30), (96, 40), (97, 1_000_000)], 98), 40);
        assert_eq!(usual(&[(90, 500), (99, 500)], 100), 0);
        // Older days do not count.
        assert_eq!(usual(&[(10, 900), (99, 3)], 100), 0);
    }

    #[test]
    fn an_app_has_room_for_some_and_for_others_another_day() {
        let mut rooms = Rooms::new(&config());
        rooms.begin(100);
        assert_eq!(n_proven(&mut rooms, &app("a"), None, 25), 10);
        assert_eq!(rooms.take(&app("a"), None), Standing::BeyondApp);
        assert_eq!(n_proven(&mut rooms, &app("b"), None, 25), 10);
        rooms.begin(101);
        assert_eq!(n_proven(&mut rooms, &app("a"), None, 5), 5);
        // A call that began before midnight, and then a clock that was set back.
        rooms.begin(100);
        assert_eq!(n_proven(&mut rooms, &app("a"), None, 25), 5);
        rooms.begin(50);
        assert_eq!(n_proven(&mut rooms, &app("a"), None, 25), 10);
    }

    #[test]
    fn room_is_a_multiple_of_the_usual_number() {
        let mut rooms = Rooms::new(&config());
        let mut history = History::default();
        for day in 90..100 {
            history.add(app("large"), day, 20);
            history.add(app("small"), day, 1);
        }
        rooms.set_history(&history, 100);
        rooms.begin(100);
        assert_eq!(rooms.of_app(&app("large")), Some(60));
        assert_eq!(rooms.of_app(&app("small")), Some(10));
        rooms.count(&app("large"));
        assert_eq!(n_proven(&mut rooms, &app("large"), None, 100), 59);
    }

    #[test]
    fn one_network_takes_its_part_and_no_more() {
        let mut rooms = Rooms::new(&config());
        rooms.begin(100);
        assert_eq!(n_proven(&mut rooms, &app("a"), network(1), 25), 4);
        let standing = rooms.take(&app("a"), network(1));
        assert_eq!(standing, Standing::BeyondNetwork);
        assert_eq!(n_proven(&mut rooms, &app("a"), network(2), 3), 3);
        assert_eq!(n_proven(&mut rooms, &app("b"), network(1), 25), 4);
        // The app's room is for all of its networks.
        assert_eq!(n_proven(&mut rooms, &app("a"), network(3), 25), 3);
        // A larger app has more phones behind one carrier.
        let mut history = History::default();
        history.add(app("large"), 99, 100);
        rooms.set_history(&history, 100);
        assert_eq!(n_proven(&mut rooms, &app("large"), network(1), 500), 120);
    }

    #[test]
    fn zero_is_no_limit() {
        let mut rooms = Rooms::new(&NewInstallationsConfig {
            at_least: 0,
            ..config()
        });
        rooms.begin(100);
        assert_eq!(n_proven(&mut rooms, &app("a"), None, 5_000), 5_000);
        assert_eq!(n_proven(&mut rooms, &app("a"), network(1), 5_000), 4);
        let mut rooms = Rooms::new(&NewInstallationsConfig {
            per_network: 0,
            ..config()
        });
        rooms.begin(100);
        assert_eq!(n_proven(&mut rooms, &app("a"), network(1), 50), 10);
    }

    #[test]
    fn strangers_who_make_up_apps_and_networks_find_no_end_of_memory() {
        let mut rooms = Rooms::new(&config());
        (rooms.max_apps, rooms.max_networks) = (20, 30);
        rooms.begin(100);
        for n in 0..100 {
            n_proven(&mut rooms, &app(&n.to_string()), network(n), 3);
        }
        // One more for all the others, who share its room: ten of them, from four networks.
        assert_eq!((rooms.apps.len(), rooms.networks.len()), (21, 24));
        let others = n_proven(&mut rooms, &app("100"), network(200), 50);
        assert_eq!(others, 0);
        for n in 0..100 {
            rooms.take(&app("0"), network(n));
        }
        assert!(rooms.networks.len() <= 30, "{}", rooms.networks.len());
    }
}
