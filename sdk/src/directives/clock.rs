//! The server's time on a device whose wall clock may be wrong.
//!
//! Directives begin and end by the collector's clock, and every answer carries the server's time. From then on the time
//! since boot is added, also across restarts of the process. After a reboot, or if the time since boot is not known,
//! the wall clock is used again. But the result never falls behind the server's time plus the time measured since then.
//! So a clock that is set back cannot extend a directive beyond the time that the device is up. A clock that is set
//! ahead can end a directive early, but only until the next answer. No directive is forgotten by the wall clock alone.
//!
//! The server's time is as trustworthy as its connection: TLS, not a signature, protects it. Before the first answer
//! there are no directives, and the wall clock is used.

use std::time::Duration;

use crate::time::Now;

/// 2020-01-01. Every real server's time is later; an answer without a time has 0.
const EARLIEST_UNIX_MS: i64 = 1_577_836_800_000;

/// The time that directives are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerTime {
    /// Best estimate of the server's clock.
    pub(crate) estimate_unix_ms: i64,
    /// Lower bound: the server's clock is certainly not earlier.
    pub(crate) least_unix_ms: i64,
}

/// The server's time at an instant of a boot, as stored on disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Anchor {
    /// 0 before the first answer.
    pub(crate) unix_ms: i64,
    pub(crate) uptime_ms: Option<u64>,
    pub(crate) boot_id: String,
}

/// This process's estimate of the server's clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServerClock {
    /// The server's clock is not earlier than this at `at`.
    least_unix_ms: i64,
    at: Duration,
    uptime_ms: Option<u64>,
    /// Whether the time was counted without a gap since the server's answer.
    is_exact: bool,
}

impl ServerClock {
    /// Resumes from the stored time.
    pub(crate) fn resumed(anchor: &Anchor, now: Now, boot_id: &str) -> Self {
        if anchor.unix_ms < EARLIEST_UNIX_MS {
            return Self::default();
        }
        let is_same_boot = !boot_id.is_empty() && anchor.boot_id == boot_id;
        let since = match (anchor.uptime_ms, now.uptime_ms) {
            (Some(then), Some(now)) if is_same_boot => now.checked_sub(then),
            _ => None,
        };
        let elapsed = since.and_then(|ms| i64::try_from(ms).ok());
        Self {
            least_unix_ms: anchor.unix_ms.saturating_add(elapsed.unwrap_or(0)),
            at: now.mono,
            uptime_ms: now.uptime_ms,
            is_exact: elapsed.is_some(),
        }
    }

    /// Takes the server's time from an answer.
    pub(crate) fn set_server_time(&mut self, server_unix_ms: i64, now: Now) {
        if (EARLIEST_UNIX_MS..=epwatch_proto::MAX_UNIX_MS).contains(&server_unix_ms) {
            *self = Self {
                least_unix_ms: server_unix_ms,
                at: now.mono,
                uptime_ms: now.uptime_ms,
                is_exact: true,
            };
        }
    }

    /// Advances the clock by the time since boot, which includes the device's sleep.
    pub(crate) fn advance(&mut self, now: Now) {
        // If the time since boot is missing once, it is safe to wait. Advancing by the monotonic clock would count the
        // same span twice.
        let is_unknown_now = self.uptime_ms.is_some() && now.uptime_ms.is_none();
        if !self.is_known() || is_unknown_now {
            return;
        }
        let least_unix_ms = self.least(now);
        *self = Self {
            least_unix_ms,
            at: now.mono,
            uptime_ms: now.uptime_ms,
            is_exact: self.is_exact,
        };
    }

    pub(crate) fn time(&self, now: Now) -> ServerTime {
        if !self.is_known() {
            return ServerTime {
                estimate_unix_ms: now.wall_unix_ms,
                least_unix_ms: 0,
            };
        }
        let least_unix_ms = self.least(now);
        let estimate_unix_ms = match self.is_exact {
            true => least_unix_ms,
            false => least_unix_ms.max(now.wall_unix_ms),
        };
        ServerTime {
            estimate_unix_ms,
            least_unix_ms,
        }
    }

    pub(crate) fn anchor(&self, now: Now, boot_id: &str) -> Anchor {
        if !self.is_known() {
            return Anchor::default();
        }
        // An inexact time must not become exact: the time between two boots is not known.
        let uptime_ms = self.is_exact.then_some(now.uptime_ms).flatten();
        Anchor {
            unix_ms: self.least(now),
            uptime_ms,
            boot_id: match uptime_ms {
                Some(_) => boot_id.to_owned(),
                None => String::new(),
            },
        }
    }

    fn is_known(&self) -> bool {
        self.least_unix_ms >= EARLIEST_UNIX_MS
    }

    fn least(&self, now: Now) -> i64 {
        let by_mono = now.mono.saturating_sub(self.at).as_millis();
        let by_uptime = match (self.uptime_ms, now.uptime_ms) {
            (Some(then), Some(now)) => now.saturating_sub(then),
            _ => 0,
        };
        let by_mono = u64::try_from(by_mono).unwrap_or(u64::MAX);
        let elapsed = i64::try_from(by_mono.max(by_uptime)).unwrap_or(i64::MAX);
        self.least_unix_ms.saturating_add(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: i64 = 1_800_000_000_000;
    const HOUR: i64 = 3_600_000;

    fn now(mono_s: u64, wall_unix_ms: i64, uptime_ms: Option<u64>) -> Now {
        Now {
            mono: Duration::from_secs(mono_s),
            wall_unix_ms,
            uptime_ms,
        }
    }

    #[test]
    fn after_an_answer_the_wall_clock_counts_no_more() {
        let mut clock = ServerClock::default();
        let wrong = 5;
        assert_eq!(clock.time(now(1, wrong, None)).estimate_unix_ms, wrong);
        clock.set_server_time(SERVER, now(10, wrong, Some(1_000)));
        let later = clock.time(now(70, i64::MAX / 2, None));
        assert_eq!(later.estimate_unix_ms, SERVER + 60_000);
        // The monotonic clock stops while a device sleeps; the time since boot does not.
        let slept = clock.time(now(70, wrong, Some(1_000 + 3_600_000)));
        assert_eq!(slept.estimate_unix_ms, SERVER + HOUR);
        clock.set_server_time(0, now(80, wrong, None));
        assert!(clock.time(now(80, wrong, None)).least_unix_ms > SERVER);
    }

    #[test]
    fn a_span_counts_once_where_the_time_since_boot_is_not_known_for_once() {
        let mut clock = ServerClock::default();
        clock.set_server_time(SERVER, now(10, 5, Some(10_000)));
        clock.advance(now(70, 5, None));
        let between = clock.time(now(70, 5, None));
        assert_eq!(between.least_unix_ms, SERVER + 60_000);
        clock.advance(now(130, 5, Some(130_000)));
        let after = clock.time(now(130, 5, Some(130_000)));
        assert_eq!(after.least_unix_ms, SERVER + 120_000);
    }

    #[test]
    fn a_restart_in_the_same_boot_counts_on() {
        let mut clock = ServerClock::default();
        clock.set_server_time(SERVER, now(10, 5, Some(50_000)));
        let anchor = clock.anchor(now(20, 5, Some(60_000)), "boot");
        let next = ServerClock::resumed(&anchor, now(0, 5, Some(100_000)), "boot");
        let judged = next.time(now(0, 7, Some(100_000)));
        assert_eq!(judged.estimate_unix_ms, SERVER + 50_000);
        assert_eq!(judged.least_unix_ms, judged.estimate_unix_ms);
    }

    #[test]
    fn after_a_reboot_the_wall_clock_may_be_ahead_and_never_behind() {
        let anchor = Anchor {
            unix_ms: SERVER,
            uptime_ms: Some(50_000),
            boot_id: "one".to_owned(),
        };
        let next = ServerClock::resumed(&anchor, now(0, 0, Some(1_000)), "two");
        let behind = next.time(now(60, 0, Some(61_000)));
        assert_eq!(behind.estimate_unix_ms, SERVER + 60_000);
        let ahead = next.time(now(60, SERVER + HOUR, None));
        assert_eq!(ahead.estimate_unix_ms, SERVER + HOUR);
        assert_eq!(ahead.least_unix_ms, SERVER + 60_000);
        // The wall clock's time is not stored as the time of the server.
        let kept = next.anchor(now(60, SERVER + HOUR, Some(61_000)), "two");
        assert_eq!((kept.unix_ms, kept.uptime_ms), (SERVER + 60_000, None));
    }
}
