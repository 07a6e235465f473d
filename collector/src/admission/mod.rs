//! Who may vote: an app key ships in an app, so anyone can make up installations. New ones beyond
//! what is usual for the app, or beyond a network's part of it, are `unproven`: their reports are
//! stored and charted, and do not vote.
//!
//! It is decided once for each report, before that goes into the WAL, and kept there. A new
//! installation that finds room on its day is proven from then on, for good; one that finds none is
//! not remembered, so that a flood takes no memory. It is as new with each report that follows, and
//! proven with the first that finds room: on a later UTC day as a rule, since a day's room does not
//! come back.
//!
//! Known installations and the usual number are those of the store, read at start, together with
//! what the WAL still holds, and again from time to time for what other collectors let in (each of
//! them has the whole room in between). Until they have been read nobody is new: a store that is
//! away must not cost a fleet its votes.

mod daily_quota;
mod last_seen;
mod loader;
mod network;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use epwatch_proto::InstallationId;
use parking_lot::Mutex;

use self::daily_quota::{AppName, History, Rooms, Standing};
use self::last_seen::Known;
pub(crate) use self::loader::{Learner, keep_learning};
pub(crate) use self::network::{Network, Origins, Peer};
use crate::config::NewInstallationsConfig;
use crate::metrics::Metrics;

const DAY_US: u64 = 86_400_000_000;
/// Apps whose room is used up, as far as they need no lock to be told.
const MAX_FULL: usize = 1 << 10;

/// The standing of installations towards one collector.
#[derive(Debug)]
pub(crate) struct Standings {
    is_on: bool,
    /// The store has been read.
    is_ready: AtomicBool,
    /// Keyed by random bits of this process, so that nobody can make himself known.
    hasher: RandomState,
    known: Known,
    /// Apps whose room is used up, by the hash of app and day.
    full: Known,
    rooms: Mutex<Rooms>,
    metrics: Arc<Metrics>,
}

/// The UTC day of a time, in days since 1970.
fn day_of(now_us: u64) -> u16 {
    u16::try_from(now_us / DAY_US).unwrap_or(u16::MAX)
}

impl Standings {
    pub(crate) fn new(config: &NewInstallationsConfig, metrics: Arc<Metrics>) -> Self {
        let is_on = config.is_on();
        Self {
            is_on,
            is_ready: AtomicBool::new(false),
            hasher: RandomState::new(),
            known: Known::new(if is_on { config.known } else { 0 }),
            full: Known::new(MAX_FULL),
            rooms: Mutex::new(Rooms::new(config)),
            metrics,
        }
    }

    /// True if a report of this installation does not vote. A new one takes room.
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
        let mut rooms = self.rooms.lock();
        rooms.begin(day);
        // Two calls of one installation at once: the first one took the room.
        if self.known.contains(hash, day) {
            return false;
        }
        let app = (app_id.to_owned(), environment.to_owned());
        match rooms.take(&app, network) {
            Standing::Proven => {
                self.known.insert(hash, day);
                self.metrics.new_installations.inc();
                false
            }
            Standing::BeyondApp => {
                // Once a day and app: from here on nobody comes this far.
                if self.full.insert(full, day) {
                    let room = rooms.of_app(&app).unwrap_or(u64::MAX);
                    tracing::warn!(
                        app = app_id,
                        environment,
                        room,
                        "more new installations today than usual, the others are stored as unproven"
                    );
                }
                self.metrics.beyond_app().inc();
                true
            }
            Standing::BeyondNetwork => {
                self.metrics.beyond_network().inc();
                true
            }
        }
    }

    fn hash(&self, (app_id, environment): (&str, &str), installation: &[u8; 16]) -> u64 {
        self.hasher.hash_one((app_id, environment, installation))
    }

    /// Learns of an installation that was let in: when, and when it was last heard of.
    fn learn(&self, rooms: &mut Rooms, app: &AppName, device: &Learnt, today: u16) {
        let hash = self.hash((&app.0, &app.1), &device.installation);
        if self.known.insert(hash, device.last_day) && device.proven_day == today {
            rooms.count(app);
        }
    }

    /// Learns of many at once, those of one app.
    fn learn_all(&self, app: &AppName, devices: &[Learnt], today: u16) {
        // Calls in between must not wait for a million of them.
        for devices in devices.chunks(1_000) {
            let mut rooms = self.rooms.lock();
            rooms.begin(today);
            for device in devices {
                self.learn(&mut rooms, app, device, today);
            }
        }
    }

    fn set_history(&self, history: &History, today: u16) {
        let mut rooms = self.rooms.lock();
        rooms.begin(today);
        rooms.set_history(history, today);
        // There may be more room now than there was.
        self.full.clear();
    }

    fn set_ready(&self) {
        self.is_ready.store(true, Relaxed);
        self.metrics.installations_loaded.set(1);
    }
}

/// An installation that was let in before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Learnt {
    installation: [u8; 16],
    last_day: u16,
    /// The first day on which it was proven.
    proven_day: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: (&str, &str) = ("app", "production");
    const TODAY: u64 = 20_000;

    fn standings(at_least: u64) -> Standings {
        let config = NewInstallationsConfig {
            at_least,
            known: 10_000,
            ..NewInstallationsConfig::default()
        };
        let standings = Standings::new(&config, Arc::default());
        standings.set_ready();
        standings
    }

    fn id(n: u64) -> InstallationId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        InstallationId::from_bytes(bytes)
    }

    fn unproven(standings: &Standings, day: u64, ids: impl Iterator<Item = u64>) -> Vec<u64> {
        ids.filter(|n| standings.is_unproven(AT, id(*n), None, day * DAY_US + 7))
            .collect()
    }

    #[test]
    fn the_last_ones_of_a_flood_are_unproven_and_known_ones_are_not_concerned() {
        let standings = standings(100);
        let first = unproven(&standings, TODAY, 0..120);
        assert_eq!(first, (100..120).collect::<Vec<_>>());
        // However often they come.
        assert_eq!(unproven(&standings, TODAY, 0..120), first);
        let text = standings.metrics.encode();
        for line in [
            "collector_new_installations_total 100\n",
            "collector_unproven_reports_total{reason=\"app\"} 40\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn an_unproven_one_is_proven_by_its_first_report_that_finds_room() {
        let standings = standings(100);
        unproven(&standings, TODAY, 0..120);
        assert_eq!(unproven(&standings, TODAY + 1, 90..130), [0; 0]);
        assert_eq!(unproven(&standings, TODAY + 2, 0..130), [0; 0]);
    }

    #[test]
    fn a_restart_changes_nothing_for_those_that_were_let_in() {
        let standings = standings(100);
        let today = u16::try_from(TODAY).unwrap();
        let app = (AT.0.to_owned(), AT.1.to_owned());
        // The store knows 50 of earlier days and 90 of today, some of them also from the WAL.
        let learnt = |n: u64, proven_day| Learnt {
            installation: *id(n).as_bytes(),
            last_day: today,
            proven_day,
        };
        let earlier: Vec<Learnt> = (0..50).map(|n| learnt(n, today - 3)).collect();
        let of_today: Vec<Learnt> = (50..140).map(|n| learnt(n, today)).collect();
        standings.learn_all(&app, &earlier, today);
        standings.learn_all(&app, &of_today, today);
        standings.learn_all(&app, &of_today[80..], today);
        let found = unproven(&standings, TODAY, 0..160);
        assert_eq!(found, (150..160).collect::<Vec<_>>());
    }

    #[test]
    fn a_history_that_is_learnt_later_gives_more_room() {
        let standings = standings(100);
        let today = u16::try_from(TODAY).unwrap();
        assert_eq!(unproven(&standings, TODAY, 0..200).len(), 100);
        let mut history = History::default();
        history.add((AT.0.to_owned(), AT.1.to_owned()), today - 1, 50);
        standings.set_history(&history, today);
        assert_eq!(unproven(&standings, TODAY, 0..200).len(), 50);
    }

    /// A store that is away must not cost a fleet its votes.
    #[test]
    fn until_the_store_was_read_nobody_is_new() {
        let standings = standings(100);
        standings.is_ready.store(false, Relaxed);
        assert_eq!(unproven(&standings, TODAY, 0..200), [0; 0]);
        standings.set_ready();
        assert_eq!(unproven(&standings, TODAY, 0..200).len(), 100);
    }

    #[test]
    fn calls_at_once_let_in_no_more_than_there_is_room_for() {
        let standings = standings(100);
        let n_proven: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| 200 - unproven(&standings, TODAY, 0..200).len()))
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap())
                .max()
                .unwrap()
        });
        assert_eq!(n_proven, 100);
        assert_eq!(unproven(&standings, TODAY, 0..200).len(), 100);
    }
}
