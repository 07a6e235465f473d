//! Pauses between tries of a call that failed.

use std::time::Duration;

/// Doubles the pause after each failed try, up to a limit.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Returns pauses from `first` to `max`; if `max` is shorter, all of them are `max`.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Self {
        let first = first.min(max);
        Self {
            first,
            next: first,
            max,
        }
    }

    /// Returns the pause after one more failure.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// Starts with the first pause again, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let millis = Duration::from_millis;
        let mut backoff = Backoff::new(millis(50), millis(150));
        let pauses = [(); 4].map(|()| backoff.pause());
        assert_eq!(pauses, [50, 100, 150, 150].map(millis));
        backoff.reset();
        assert_eq!(backoff.pause(), millis(50));
        assert_eq!(Backoff::new(millis(50), millis(10)).pause(), millis(10));
    }
}
