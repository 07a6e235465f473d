//! Limits how much of the WAL and of the store's disk one app may use if a collector serves several. A key ships in an
//! app, so anyone may send reports with it. These reports must not fill the space that other apps need.
//!
//! An app may use [`TIMES_FREE`] times the space that is free. So one app alone gets seven eighths of the space.
//! However many apps fill up their shares, some space is left for an app that comes later. This is the dynamic
//! threshold of Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches" (1998). A
//! refused call may be retried. The WAL's space is free once the store took the reports, the store's space once its
//! oldest day expired.
//!
//! Reports in the WAL at the start belong to no app.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::wal::WalStats;

/// The most space that an app may use, as a multiple of the space that is free for all.
const TIMES_FREE: u64 = 7;
/// How many parts the WAL is divided into; the bytes of a part are counted together.
const BLOCKS: u64 = 256;

/// The space in which an app has used up its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedSpace {
    Wal,
    Store,
}

impl SharedSpace {
    pub(crate) const LABELS: [&str; 2] = ["wal", "store"];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Wal => "wal",
            Self::Store => "store",
        }
    }
}

/// An app has used up its share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{app} holds its share of the {}: {held} bytes, and {free} are free for all apps",
    match space { SharedSpace::Wal => "WAL", SharedSpace::Store => "store's disk" }
)]
pub(crate) struct ShareError {
    pub(crate) space: SharedSpace,
    app: String,
    held: u64,
    free: u64,
}

#[derive(Debug, Default)]
pub(crate) struct AppShares(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Bytes in the WAL that the store does not have. Apps come from the keys, so they are few.
    in_wal: HashMap<String, u64>,
    /// The same bytes by their position in the WAL, the oldest first.
    blocks: VecDeque<Block>,
    in_store: HashMap<String, u64>,
    free_in_store: Option<u64>,
}

/// Reports of a part of the WAL.
#[derive(Debug)]
struct Block {
    began: u64,
    /// All are below.
    end: u64,
    by_app: HashMap<String, u64>,
}

impl AppShares {
    /// Checks that an app may add so many bytes. `stored` is the WAL's position up to which the store has the reports.
    ///
    /// # Errors
    /// The app has used up its share of the WAL or of the store.
    pub(crate) fn check(
        &self,
        app: &str,
        n_bytes: u64,
        (wal, max_bytes, stored): (&WalStats, u64, u64),
    ) -> Result<(), ShareError> {
        let mut table = self.0.lock();
        table.release(stored);
        let held = table.in_wal.get(app).copied().unwrap_or(0) + n_bytes;
        let free = max_bytes.saturating_sub(wal.held_bytes + n_bytes);
        let in_wal = (SharedSpace::Wal, held, Some(free));
        let held = table.in_store.get(app).copied().unwrap_or(0);
        for (space, held, free) in [in_wal, (SharedSpace::Store, held, table.free_in_store)] {
            let Some(free) = free else { continue };
            // If nothing is free, the WAL itself refuses the reports.
            if free > 0 && held > free.saturating_mul(TIMES_FREE) {
                let app = app.to_owned();
                return Err(ShareError {
                    space,
                    app,
                    held,
                    free,
                });
            }
        }
        Ok(())
    }

    /// Counts bytes that an app added to the WAL, below `end`.
    pub(crate) fn add(&self, app: &str, n_bytes: u64, end: u64, max_bytes: u64) {
        let mut table = self.0.lock();
        *entry(&mut table.in_wal, app) += n_bytes;
        let is_in = |block: &&mut Block| end.saturating_sub(block.began) <= max_bytes / BLOCKS;
        if let Some(block) = table.blocks.back_mut().filter(is_in) {
            block.end = block.end.max(end);
            *entry(&mut block.by_app, app) += n_bytes;
        } else {
            table.blocks.push_back(Block {
                began: end,
                end,
                by_app: HashMap::from([(app.to_owned(), n_bytes)]),
            });
        }
    }

    /// Sets the sizes of apps in the store, and the store's free bytes.
    pub(crate) fn set_store(&self, in_store: HashMap<String, u64>, free: u64) {
        let mut table = self.0.lock();
        table.in_store = in_store;
        table.free_in_store = Some(free);
    }
}

impl Table {
    /// Frees the blocks that are in the store.
    fn release(&mut self, stored: u64) {
        while self.blocks.front().is_some_and(|block| block.end <= stored) {
            let block = self.blocks.pop_front().expect("there is a first one");
            for (app, n_bytes) in block.by_app {
                let held = entry(&mut self.in_wal, &app);
                *held = held.saturating_sub(n_bytes);
            }
        }
    }
}

fn entry<'a>(of: &'a mut HashMap<String, u64>, app: &str) -> &'a mut u64 {
    if !of.contains_key(app) {
        of.insert(app.to_owned(), 0);
    }
    of.get_mut(app).expect("inserted before")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 800_000;

    /// Adds to the WAL until the app's share is used. Returns what it took.
    fn fill(shares: &AppShares, app: &str, wal: &mut WalStats) -> u64 {
        let before = wal.held_bytes;
        while wal.held_bytes < MAX && shares.check(app, 100, (wal, MAX, 0)).is_ok() {
            wal.held_bytes += 100;
            wal.end += 100;
            shares.add(app, 100, wal.end, MAX);
        }
        wal.held_bytes - before
    }

    #[test]
    fn one_app_gets_all_but_an_eighth_and_those_after_it_some() {
        let shares = AppShares::default();
        let mut wal = WalStats::default();
        assert_eq!(fill(&shares, "flood", &mut wal), MAX / 8 * 7);
        let second = fill(&shares, "second", &mut wal);
        assert!(second > MAX / 10, "{second}");
        let refused = shares.check("flood", 1, (&wal, MAX, 0)).unwrap_err();
        assert_eq!(refused.space, SharedSpace::Wal);
        assert!(
            refused
                .to_string()
                .starts_with("flood holds its share of the WAL: 700001 bytes")
        );
        for n in 3..6 {
            assert!(fill(&shares, &format!("app {n}"), &mut wal) > 0);
        }
    }

    #[test]
    fn room_is_back_once_the_store_has_the_reports() {
        let shares = AppShares::default();
        let mut wal = WalStats::default();
        fill(&shares, "flood", &mut wal);
        let half = wal.end / 2;
        wal.held_bytes -= half;
        shares.check("flood", 100, (&wal, MAX, half)).unwrap();
        let held = shares.0.lock().in_wal["flood"];
        assert!(held >= half && held < half + 2 * MAX / BLOCKS, "{held}");
        assert!(shares.0.lock().blocks.len() <= 130);
        wal.held_bytes = 0;
        shares.check("flood", 100, (&wal, MAX, wal.end)).unwrap();
        assert_eq!(shares.0.lock().in_wal["flood"], 0);
        assert!(shares.0.lock().blocks.is_empty());
    }

    #[test]
    fn an_app_that_holds_most_of_the_store_is_refused_and_others_are_not() {
        let shares = AppShares::default();
        let wal = WalStats::default();
        let check = |app| {
            shares
                .check(app, 1, (&wal, MAX, 0))
                .map_err(|error| error.space)
        };
        check("flood").expect("the store was not read yet");
        let sizes = |n| HashMap::from([("flood".to_owned(), n), ("small".to_owned(), 10)]);
        shares.set_store(sizes(700), 100);
        check("flood").unwrap();
        shares.set_store(sizes(701), 100);
        assert_eq!(check("flood"), Err(SharedSpace::Store));
        check("small").unwrap();
        check("new").unwrap();
    }
}
