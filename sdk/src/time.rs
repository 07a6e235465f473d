//! Time as the deciding code sees it: passed in, never read.
//!
//! Two clocks, never mixed: `mono` orders and measures, `wall_unix_ms` is only reported. A
//! simulated fleet passes whatever it likes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One instant on a device's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time since an origin that stays the same for the life of the process.
    pub mono: Duration,
    /// Wall clock in milliseconds since 1970, as the device says it.
    pub wall_unix_ms: i64,
    /// Time since boot, sleep included, in milliseconds; `None`: not known.
    pub uptime_ms: Option<u64>,
}

impl Now {
    /// An instant of a simulated device whose clocks agree.
    pub fn simulated(mono: Duration, wall_unix_ms: i64) -> Self {
        let uptime_ms = u64::try_from(mono.as_millis()).ok();
        Self {
            mono,
            wall_unix_ms,
            uptime_ms,
        }
    }
}

/// The process's real clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// Monotonic time of an instant that was read anyway.
    #[inline]
    pub(crate) fn mono(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.origin)
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            mono: self.mono(Instant::now()),
            wall_unix_ms: wall_unix_ms(),
            uptime_ms: uptime_ms(),
        }
    }
}

/// Wall clock; clamped to what a report may hold, since a phone's clock can say anything.
pub(crate) fn wall_unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX));
    ms.clamp(0, epwatch_proto::MAX_UNIX_MS)
}

/// Linux and Android: sleep counts too. A clock, not `/proc/uptime`, which Android's apps may not
/// read and callers' threads should not.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn uptime_ms() -> Option<u64> {
    let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let since_boot = Duration::try_from(since_boot).ok()?;
    u64::try_from(since_boot.as_millis()).ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn uptime_ms() -> Option<u64> {
    None
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn the_time_since_boot_is_the_system_s() {
        let before = uptime_ms().unwrap();
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        let after = uptime_ms().unwrap();
        let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
        let theirs = Duration::from_secs_f64(seconds).as_millis();
        // It is told in hundredths of a second, cut.
        let (before, after) = (u128::from(before), u128::from(after));
        assert!(
            before <= theirs + 20 && theirs <= after,
            "{before} {theirs} {after}"
        );
    }
}
