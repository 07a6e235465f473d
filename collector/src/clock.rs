//! Where the time comes from: the system, or a test's hand.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A wall clock. It may jump; who needs order makes it monotone (as the WAL does).
pub trait Clock: Debug + Send + Sync + 'static {
    /// Microseconds since 1970.
    fn now_us(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_us(&self) -> u64 {
        let since_1970 = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A clock that stands where it is put.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Returns a clock that shows `now_us`.
    #[must_use]
    pub fn at(now_us: u64) -> Self {
        Self(AtomicU64::new(now_us))
    }

    /// Puts the clock to `now_us`, forwards or backwards.
    pub fn set(&self, now_us: u64) {
        self.0.store(now_us, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
