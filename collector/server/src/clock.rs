//! The wall clock as an argument: the system's clock, or one that a test sets.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// A wall clock. It may jump; callers that need order make it monotone, as the WAL does.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Microseconds since 1970.
    fn now_us(&self) -> u64;

    /// Microseconds of a clock that nobody sets, and that goes on while the machine sleeps. `None` if the system has no
    /// such clock: then jumps of the wall clock are not noticed.
    fn steady_us(&self) -> Option<u64> {
        None
    }

    /// The wall clock's time as a timestamp.
    fn now(&self) -> Timestamp {
        i64::try_from(self.now_us())
            .ok()
            .and_then(|us| Timestamp::from_microsecond(us).ok())
            .unwrap_or(Timestamp::MAX)
    }
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_us(&self) -> u64 {
        let since_1970 = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
    }

    /// Linux's time since the boot. The WAL reads it for each group, so it comes from the clock and from no file.
    #[cfg(target_os = "linux")]
    fn steady_us(&self) -> Option<u64> {
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let since_boot = std::time::Duration::try_from(since_boot).ok()?;
        u64::try_from(since_boot.as_micros()).ok()
    }
}

/// A clock that stands still until it is set.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Returns a clock that shows `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self::at_us(us_since_1970(now))
    }

    /// Returns a clock that shows `now_us` microseconds since 1970.
    #[must_use]
    pub fn at_us(now_us: u64) -> Self {
        Self(AtomicU64::new(now_us))
    }

    /// Sets the clock to `now`, forwards or backwards.
    pub fn set(&self, now: Timestamp) {
        self.set_us(us_since_1970(now));
    }

    /// Sets the clock to `now_us` microseconds since 1970, forwards or backwards.
    pub fn set_us(&self, now_us: u64) {
        self.0.store(now_us, Ordering::SeqCst);
    }
}

fn us_since_1970(time: Timestamp) -> u64 {
    u64::try_from(time.as_microsecond()).expect("tests take place after 1970")
}

impl Clock for ManualClock {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_show_the_same_time() {
        let clock = ManualClock::at_us(1_800_000_000_000_001);
        assert_eq!(clock.now().as_microsecond(), 1_800_000_000_000_001);
        let later = Timestamp::from_second(1_900_000_000).unwrap();
        clock.set(later);
        assert_eq!(
            (clock.now(), clock.now_us()),
            (later, 1_900_000_000_000_000)
        );
        clock.set_us(u64::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_steady_time_is_the_kernel_s_uptime() {
        let before = SystemClock.steady_us().unwrap();
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        let after = SystemClock.steady_us().unwrap();
        let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
        // The file has hundredths of a second, rounded down.
        let uptime = std::time::Duration::from_secs_f64(seconds).as_micros();
        assert!(uptime + 10_000 >= u128::from(before), "{text} {before}");
        assert!(uptime <= u128::from(after), "{text} {after}");
    }
}
