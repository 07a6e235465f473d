//! Counts of a running fleet.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts at one instant. `sealed = acked + refused + dropped + pending`, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    pub devices: u64,
    pub runs: u64,
    /// Reports sealed by devices.
    pub sealed: u64,
    /// Reports that the collector stored, or had stored before.
    pub acked: u64,
    /// Reports that the collector refused for good.
    pub refused: u64,
    /// Reports that devices gave up, for example because a spool was full.
    pub dropped: u64,
    /// Reports on devices.
    pub pending: u64,
    pub uploads: u64,
    /// Uploads that failed and will be made again.
    pub retried: u64,
}

/// The counters behind [`Progress`], shared while the fleet runs.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) devices: AtomicU64,
    pub(crate) runs: AtomicU64,
    pub(crate) sealed: AtomicU64,
    pub(crate) acked: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) uploads: AtomicU64,
    pub(crate) retried: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Progress {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Ends before beginnings: a report that is sealed meanwhile must not make `pending`
        // negative.
        let (acked, refused, dropped) = (get(&self.acked), get(&self.refused), get(&self.dropped));
        let sealed = get(&self.sealed);
        Progress {
            devices: get(&self.devices),
            runs: get(&self.runs),
            sealed,
            acked,
            refused,
            dropped,
            pending: sealed.saturating_sub(acked + refused + dropped),
            uploads: get(&self.uploads),
            retried: get(&self.retried),
        }
    }
}
