//! The store's time that pages may use. Readers have a burst, and after it a steady quarter of the store's time. So
//! endless reloads do not delay an evaluation.

use std::time::Duration;

use tokio::time::Instant;

/// Seconds of queries that may be used at once: tens of first views.
const BURST_SECONDS: f64 = 10.0;

/// Query seconds that are added to the budget in each second. Two queries at once without a pause would use 2.
const REFILL: f64 = 0.5;

/// The budget's debt is at most this many seconds. They are earned back before waiting readers give up.
const MOST_OWED: f64 = 2.0;

#[derive(Debug)]
pub(crate) struct QueryBudget {
    /// Query seconds that are left. Below 0 if a query took longer than was left.
    seconds: f64,
    burst: f64,
    at: Instant,
}

impl QueryBudget {
    /// The burst is multiplied by `timeout_factor`.
    pub(crate) fn new(timeout_factor: u32, now: Instant) -> Self {
        let burst = BURST_SECONDS * f64::from(timeout_factor);
        Self {
            seconds: burst,
            burst,
            at: now,
        }
    }

    /// Returns how long the next query waits.
    pub(crate) fn wait(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.seconds = (self.seconds + passed * REFILL).min(self.burst);
        Duration::from_secs_f64((-self.seconds).max(0.0) / REFILL)
    }

    pub(crate) fn spend(&mut self, took: Duration) {
        self.seconds = (self.seconds - took.as_secs_f64()).max(-MOST_OWED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_does_not_wait_and_a_storm_takes_its_share() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut budget = QueryBudget::new(1, start);
        budget.spend(Duration::from_secs(10));
        assert_eq!(budget.wait(start), Duration::ZERO);
        budget.spend(Duration::from_secs(2));
        assert_eq!(budget.wait(start), Duration::from_secs(4));
        // Asking costs nothing.
        assert_eq!(budget.wait(at(2.0)), Duration::from_secs(2));
        assert_eq!(budget.wait(at(4.0)), Duration::ZERO);
        // A quiet hour earns one burst and no more.
        assert_eq!(budget.wait(at(3_604.0)), Duration::ZERO);
        budget.spend(Duration::from_secs(60));
        assert_eq!(budget.wait(at(3_604.0)), Duration::from_secs(4));
    }

    /// Two threads may read the clock in a different order than they wait.
    #[test]
    fn an_earlier_moment_gives_nothing() {
        let start = Instant::now();
        let mut budget = QueryBudget::new(1, start + Duration::from_secs(5));
        budget.spend(Duration::from_secs(13));
        assert_eq!(budget.wait(start), Duration::from_secs(4));
        let later = start + Duration::from_secs(7);
        assert_eq!(budget.wait(later), Duration::from_secs(2));
    }
}
