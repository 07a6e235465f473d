//! Shards of a session's series, so that threads do not contend.
//!
//! A thread stays with the shard that it last found free, and all threads begin with the first shard. So if only one
//! thread at a time runs a session, it fills one shard, whichever thread that is. Threads that collide move apart at
//! once. A run waits only for the sealer's swap, and only for a bounded number of attempts. Moving to another shard
//! would begin the series again there, which allocates.

use std::{
    cell::Cell,
    hint, mem,
    sync::atomic::{
        AtomicU32, AtomicUsize,
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

/// Maximum number of attempts on a shard while the sealer swaps. They take a few microseconds, and the swap takes less.
const TURNS: u32 = 100;

/// Maximum number of attempts on all shards. Two threads and a sealer lock only three of four shards, but may move to
/// others during an attempt.
const SWEEPS: usize = 2;

thread_local! {
    /// Number of this thread, 0 before it has one.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    /// The shard that this thread last found free.
    static HOME: Cell<usize> = const { Cell::new(0) };
}

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

/// The shards of a session. Their number is a power of two, so that a thread's shard is found without a division.
#[derive(Debug)]
pub(super) struct Shards(Box<[Shard]>);

/// Shards of new sessions.
static N_SHARDS: AtomicUsize = AtomicUsize::new(policy::MIN_SHARDS);

/// Gives sessions from now on a shard for each processor, rounded up to a power of two. It reads files, so the SDK's thread calls it.
pub(crate) fn count_processors() {
    let n_processors = thread::available_parallelism().map_or(1, usize::from);
    N_SHARDS.store(shards_for(n_processors), Relaxed);
}

fn shards_for(n_processors: usize) -> usize {
    let n = n_processors.clamp(policy::MIN_SHARDS, policy::MAX_SHARDS);
    n.next_power_of_two()
}

impl Default for Shards {
    fn default() -> Self {
        Self::new(N_SHARDS.load(Relaxed))
    }
}

/// A shard has cache lines of its own, so that separate threads do not share one by accident. It takes 128 bytes,
/// because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    /// This is not std's mutex, because half of that mutex's cost is the check for waiting threads. No thread ever
    /// waits here.
    live: TryLock<Live>,
    /// Counts the beginning and the end of each swap, so the number is odd during a swap.
    swaps: AtomicU32,
}

#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) series: Vec<Series>,
    /// Position of the last run, where the next one probably goes.
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
    fn new(n: usize) -> Self {
        Self((0..n).map(|_| Shard::default()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The shard of this thread.
    #[inline]
    fn home(&self) -> usize {
        HOME.get() & (self.0.len() - 1)
    }

    /// Uses a free shard, and tries the thread's own shard first. `None` if all are locked.
    #[inline]
    pub(super) fn with_free<T>(&self, record: impl FnOnce(&mut Live) -> T) -> Option<T> {
        let home = self.home();
        match self.0[home].live.try_lock() {
            Some(mut live) => Some(record(&mut live)),
            None => Some(record(&mut *self.free_elsewhere(home)?)),
        }
    }

    #[cold]
    fn free_elsewhere(&self, home: usize) -> Option<Locked<'_, Live>> {
        for step in 0..SWEEPS * self.len() {
            let at = (home + step) & (self.len() - 1);
            if let Some(live) = self.0[at].try_live() {
                HOME.set(at);
                return Some(live);
            }
        }
        None
    }

    /// Locks the thread's own shard, as another thread would.
    #[cfg(test)]
    pub(super) fn hold(&self) -> Locked<'_, Live> {
        self.0[self.home()]
            .live
            .try_lock()
            .expect("nobody else is here")
    }

    /// Visits every shard in turn. Only the sealer calls this, because it waits until a run has ended.
    pub(super) fn with_each(&self, mut change: impl FnMut(&mut Live)) {
        for shard in &*self.0 {
            shard.while_swapping(&mut change);
        }
    }

    /// Swaps a series' data for the empty buffer. Later runs are compared with the series' p95 in `p95s`. Removes a
    /// series without runs.
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

/// Result of a swap.
#[derive(Debug)]
pub(super) enum Swapped {
    /// There is no series at this position.
    End,
    /// The series had no runs and was removed; the next one has its position.
    Unused(Series),
    /// The series continues with an empty buffer.
    Used(SeriesKey),
}

impl Shard {
    fn try_live(&self) -> Option<Locked<'_, Live>> {
        let mut swaps = self.swaps.load(Acquire);
        for _ in 0..TURNS {
            if let Some(live) = self.live.try_lock() {
                return Some(live);
            }
            // If a swap has ended since the attempt, there is no reason to move to another shard.
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
        // A run holds the lock for nanoseconds, unless its thread was descheduled. A run that finds the lock held by
        // the sealer must see the raised count; with acquire alone ARM may show them in reverse order.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_sessions_have_a_shard_for_each_processor_within_bounds() {
        for (n_processors, expected) in [
            (1, 4),
            (4, 4),
            (5, 8),
            (8, 8),
            (12, 16),
            (17, 32),
            (32, 32),
            (256, 32),
        ] {
            assert_eq!(shards_for(n_processors), expected, "{n_processors}");
        }
        count_processors();
        let n_processors = thread::available_parallelism().unwrap().get();
        let n = Shards::default().len();
        assert!(n >= n_processors.min(32), "{n} for {n_processors}");
        assert!(n.is_power_of_two(), "{n}");
    }
}
