//! Prevents receive times from a clock that jumped ahead. Receive times never fall, so all later reports would get one
//! wrong time until the clock has caught up with it.

use super::error::WalError;

/// Smaller steps count as corrections, for example of a clock that was never set before.
const MAX_JUMP_US: u64 = 3_600_000_000;

/// Compares a wall clock with a steady clock, which nobody sets.
#[derive(Debug, Default)]
pub(super) struct ClockJump {
    /// The latest wall time, and the steady clock's time at that moment.
    reference: Option<(u64, u64)>,
}

impl ClockJump {
    /// Returns the wall time if it may be taken; `newest_us` is the latest receive time.
    ///
    /// # Errors
    /// `WalError::ClockJumped` for as long as the wall clock is ahead of the time that passed.
    pub(super) fn check(
        &mut self,
        wall_us: u64,
        steady_us: Option<u64>,
        newest_us: u64,
    ) -> Result<u64, WalError> {
        let Some(steady_us) = steady_us else {
            return Ok(wall_us);
        };
        let (wall_then, steady_then) = *self.reference.get_or_insert((wall_us, steady_us));
        let expected = wall_then.saturating_add(steady_us.saturating_sub(steady_then));
        let ahead_us = wall_us.saturating_sub(expected.max(newest_us));
        if ahead_us > MAX_JUMP_US {
            let ahead_seconds = ahead_us / 1_000_000;
            return Err(WalError::ClockJumped { ahead_seconds });
        }
        if wall_us > expected {
            self.reference = Some((wall_us, steady_us));
        }
        Ok(wall_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = MAX_JUMP_US;

    #[test]
    fn a_jump_is_refused_until_the_clock_is_back() {
        let mut jump = ClockJump::default();
        let mut check = |wall, steady, newest| jump.check(wall, Some(steady), newest).is_ok();
        assert!(check(1_000 * HOUR, 5 * HOUR, 0), "the first time is taken");
        assert!(check(1_001 * HOUR, 6 * HOUR, 0), "an hour passed");
        assert!(!check(2_000 * HOUR, 6 * HOUR, 0));
        assert!(!check(2_000 * HOUR, 7 * HOUR, 0));
        assert!(check(1_003 * HOUR, 8 * HOUR, 0), "it was set right");
        assert!(check(1_004 * HOUR, 8 * HOUR, 0), "a correction by an hour");
        assert!(
            check(900 * HOUR, 8 * HOUR, 0),
            "back: the WAL keeps its time"
        );
        assert!(check(1_005 * HOUR, 9 * HOUR, 0), "and forward again");
        // The machine slept, and the steady clock went on.
        assert!(check(1_105 * HOUR, 109 * HOUR, 0));
        // The clock was ahead before the start, and is ahead again.
        assert!(check(3_000 * HOUR, 109 * HOUR, 3_000 * HOUR));
    }

    #[test]
    fn without_a_steady_clock_each_time_is_taken() {
        let mut jump = ClockJump::default();
        assert!(jump.check(1, None, 0).is_ok());
        assert!(jump.check(1_000 * HOUR, None, 0).is_ok());
    }
}
