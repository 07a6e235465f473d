//! Where series lie while they are recorded: a few shards, so that threads keep apart.
//!
//! A thread stays with the shard where it last found room, all begin with the first: a session
//! that one thread at a time runs, whichever it is, fills one shard only, and threads that meet
//! part at once. A run waits for nobody but the sealer's swap, and for that a bounded number of
//! turns: moving on would begin the series anew elsewhere, and that allocates.

use std::{
    cell::Cell,
    hint, mem,
    sync::atomic::{
        AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    thread,
};

use try_lock::{Locked, TryLock};

use super::{
    key::{P95s, SeriesKey},
    series::{Recorded, Series},
};
use crate::policy;

/// Times that a shard is tried again while the sealer swaps: a few microseconds, of which the
/// swap needs a part.
const TURNS: u32 = 100;

/// Times that all shards are tried. Two threads and a sealer hold three of four, but may all move
/// on while we look.
const SWEEPS: usize = 2;

thread_local! {
    /// A small number of this thread's own, 0 before it has one.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    /// The shard where this thread last found room.
    static HOME: Cell<usize> = const { Cell::new(0) };
}

/// A small number of this thread's own.
#[inline]
pub(super) fn thread_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    match NUMBER.get() {
        0 => {
            let number = NEXT.fetch_add(1, Relaxed);
            NUMBER.set(number);
            number
        }
        number => number,
    }
}

#[derive(Debug, Default)]
pub(super) struct Shards([Shard; policy::SHARDS]);

/// On cache lines of its own: threads that keep apart must not share them by accident. 128 bytes,
/// since processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    /// Not std's mutex: half of its cost is to look for threads to wake, and here none ever waits.
    live: TryLock<Live>,
    /// Counts the sealer's swaps at their beginning and at their end: odd while there is one.
    swaps: AtomicU32,
}

#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) series: Vec<Series>,
    /// Where the last run was, which is where the next one will be.
    last: usize,
}

impl Live {
    #[inline]
    pub(super) fn position(&mut self, key: SeriesKey) -> Option<usize> {
        if self.series.get(self.last).is_some_and(|s| s.key == key) {
            return Some(self.last);
        }
        self.last = self.series.iter().position(|s| s.key == key)?;
        Some(self.last)
    }

    pub(super) fn begin(&mut self, series: Series) -> usize {
        self.series.push(series);
        self.last = self.series.len() - 1;
        self.last
    }
}

impl Shards {
    /// Uses a shard that nobody holds, the thread's own first. `None`: all are held.
    #[inline]
    pub(super) fn with_free<T>(&self, record: impl FnOnce(&mut Live) -> T) -> Option<T> {
        let home = HOME.get() % policy::SHARDS;
        match self.0[home].live.try_lock() {
            Some(mut live) => Some(record(&mut live)),
            None => Some(record(&mut *self.free_elsewhere(home)?)),
        }
    }

    #[cold]
    fn free_elsewhere(&self, home: usize) -> Option<Locked<'_, Live>> {
        for step in 0..SWEEPS * policy::SHARDS {
            let at = (home + step) % policy::SHARDS;
            if let Some(live) = self.0[at].try_live() {
                HOME.set(at);
                return Some(live);
            }
        }
        None
    }

    /// Holds the thread's own shard, as another thread would.
    #[cfg(test)]
    pub(super) fn hold(&self) -> Locked<'_, Live> {
        let home = HOME.get() % policy::SHARDS;
        self.0[home].live.try_lock().expect("nobody else is here")
    }

    /// Gives every shard's series, one shard after another. For the sealer: it waits for a run.
    pub(super) fn with_each(&self, mut change: impl FnMut(&mut Live)) {
        for shard in &self.0 {
            shard.while_swapping(&mut change);
        }
    }

    /// Swaps what one series of a shard recorded for something empty, which then counts against
    /// its p95 of `p95s`. A series that recorded nothing gives its place back.
    pub(super) fn swap(
        &self,
        shard: usize,
        at: usize,
        empty: &mut Box<Recorded>,
        p95s: &P95s,
    ) -> Swapped {
        let mut swapped = Swapped::End;
        self.0[shard].while_swapping(|live| {
            let Some(series) = live.series.get_mut(at) else {
                return;
            };
            if series.recorded.sums.n() == 0 {
                swapped = Swapped::Unused(live.series.remove(at));
                return;
            }
            empty.compare_with(p95s[usize::from(series.key.shape().0)]);
            std::mem::swap(&mut series.recorded, empty);
            swapped = Swapped::Used(series.key);
        });
        swapped
    }
}

/// What was at a place of a shard.
#[derive(Debug)]
pub(super) enum Swapped {
    /// Nothing: those before were all.
    End,
    /// A series that recorded nothing; it is out, and the next one is in its place.
    Unused(Series),
    /// A series that goes on, empty.
    Used(SeriesKey),
}

impl Shard {
    fn try_live(&self) -> Option<Locked<'_, Live>> {
        let mut swaps = self.swaps.load(Acquire);
        for _ in 0..TURNS {
            if let Some(live) = self.live.try_lock() {
                return Some(live);
            }
            // A swap that ended since the lock was tried is no reason to move on.
            let before = mem::replace(&mut swaps, self.swaps.load(Acquire));
            let is_held_by_a_run = swaps == before && swaps.is_multiple_of(2);
            if is_held_by_a_run {
                break;
            }
            hint::spin_loop();
        }
        None
    }

    fn while_swapping(&self, change: impl FnOnce(&mut Live)) {
        self.swaps.fetch_add(1, AcqRel);
        // A run holds it for nanoseconds, unless its thread was put aside meanwhile. A run that finds
        // it held by us must see the count that we raised: by acquiring alone, ARM may show them in
        // reverse.
        let mut live = loop {
            match self.live.try_lock_explicit(AcqRel, Release) {
                Some(live) => break live,
                None => thread::yield_now(),
            }
        };
        change(&mut live);
        drop(live);
        self.swaps.fetch_add(1, AcqRel);
    }
}
