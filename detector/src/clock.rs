//! Where the time comes from: the system, or a test's hand.

use std::fmt::Debug;
use std::sync::Mutex;

use jiff::Timestamp;

/// A wall clock. It may jump.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Returns the time.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that stands where it is put.
#[derive(Debug)]
pub struct ManualClock(Mutex<Timestamp>);

impl ManualClock {
    /// Returns a clock that shows `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self(Mutex::new(now))
    }

    /// Puts the clock to `now`, forwards or backwards.
    pub fn set(&self, now: Timestamp) {
        *self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner()) = now;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
