//! Time as an argument: one instant on a device's clocks, and the process's real clocks.
//!
//! `mono` is for order and durations. `wall_unix_ms` is only reported, because a phone's clock may show any time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One instant on a device's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time since an origin that is fixed for the life of the process.
    pub mono: Duration,
    /// Wall clock of the device, in milliseconds since 1970.
    pub wall_unix_ms: i64,
    /// Time since boot in milliseconds, sleep included. `None` if not known.
    pub uptime_ms: Option<u64>,
}

impl Now {
    /// An instant of a simulated device whose clocks agree.
    #[cfg(any(feature = "simulation", feature = "fuzzing"))]
    pub fn simulated(mono: Duration, wall_unix_ms: i64) -> Self {
        let uptime_ms = u64::try_from(mono.as_millis()).ok();
        Self {
            mono,
            wall_unix_ms,
            uptime_ms,
        }
    }
}

/// Real clocks of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
    /// The instant of `origin` by [`Self::system`].
    system_origin: Duration,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            origin: Instant::now(),
            system_origin: Self::system(),
        }
    }

    /// The system's monotonic clock as a number, for hosts that cannot make an [`Instant`].
    #[cfg(unix)]
    #[inline]
    pub(crate) fn system() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::try_from(now).unwrap_or_default()
    }

    #[cfg(not(unix))]
    pub(crate) fn system() -> Duration {
        static ORIGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        ORIGIN.elapsed()
    }

    /// Converts a reading of [`Self::system`].
    #[inline]
    pub(crate) fn mono_of_system(&self, at: Duration) -> Duration {
        at.saturating_sub(self.system_origin)
    }

    /// Converts an instant that the caller has already read.
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

/// The wall clock, clamped to what a report may hold.
pub(crate) fn wall_unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX));
    ms.clamp(0, epwatch_proto::MAX_UNIX_MS)
}

/// Time since boot on Linux and Android, sleep included. It comes from the clock and not from `/proc/uptime`: Android's
/// apps may not read that file, and callers' threads should not.
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
        // /proc truncates to hundredths of a second.
        let (before, after) = (u128::from(before), u128::from(after));
        assert!(
            before <= theirs + 20 && theirs <= after,
            "{before} {theirs} {after}"
        );
    }
}
