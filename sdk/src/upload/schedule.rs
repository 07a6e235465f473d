//! Schedule of uploads: when the next one is due, and its size. Time and randomness are arguments.

use std::time::Duration;

use crate::policy;

/// Requests of the collector in its last answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Advice {
    pub(crate) retry_after: Option<Duration>,
    pub(crate) next_interval: Option<Duration>,
    pub(crate) max_request_bytes: Option<u64>,
}

/// Longest wait that the collector may ask for. With longer waits, reports would become too old.
const MAX_ADVISED: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
pub(crate) struct Schedule {
    interval: Duration,
    pub(crate) next_at: Duration,
    /// End of the wait that must not be cut short.
    not_before: Duration,
    failures: u32,
    /// Bytes of reports in the next request.
    pub(crate) max_request_bytes: u64,
}

impl Schedule {
    /// The first upload is due at once, because reports of an earlier process have waited long enough.
    pub(crate) fn new(interval: Duration, now: Duration) -> Self {
        Self {
            interval,
            next_at: now,
            not_before: now,
            failures: 0,
            max_request_bytes: policy::MAX_REQUEST_BYTES,
        }
    }

    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.next_at
    }

    /// Whether a failure or the collector forbids an upload now. Waiting for the next interval does not.
    pub(crate) fn is_held(&self, now: Duration) -> bool {
        now < self.not_before
    }

    /// Makes the upload due as early as allowed, because the cause of a delay is over.
    pub(crate) fn hurry(&mut self, now: Duration) {
        self.next_at = self.not_before.max(now);
    }

    /// Nothing waits to be sent: the next upload is due after an interval.
    pub(crate) fn idle(&mut self, now: Duration) {
        self.next_at = now + self.interval;
    }

    /// Takes an answer. The next upload is due at once unless the collector asks for a wait. If the collector kept no
    /// report (`made_progress` is false) the answer counts as a failure, whatever wait it asks for. Otherwise the same
    /// request could be repeated for ever.
    pub(crate) fn answered(
        &mut self,
        now: Duration,
        advice: Advice,
        made_progress: bool,
        jitter: u64,
    ) {
        if let Some(interval) = advice.next_interval {
            self.interval = interval.clamp(policy::MIN_ADVISED_INTERVAL, MAX_ADVISED);
        }
        if let Some(bytes) = advice.max_request_bytes {
            // Leaves some bytes for the request's other fields.
            let most = bytes.saturating_sub(4 << 10).max(1);
            self.max_request_bytes = most.min(policy::MAX_REQUEST_BYTES);
        }
        if !made_progress {
            self.failed(now, advice.retry_after, jitter);
            return;
        }
        self.failures = 0;
        self.next_at = now + advice.retry_after.unwrap_or_default().min(MAX_ADVISED);
        self.not_before = self.next_at;
    }

    /// Takes a failure. Waits grow, with jitter, so that a fleet does not return all at once.
    pub(crate) fn failed(&mut self, now: Duration, retry_after: Option<Duration>, jitter: u64) {
        self.failures = self.failures.saturating_add(1);
        let doubled = policy::BACKOFF_FIRST * (1 << (self.failures - 1).min(16));
        let longest = doubled.min(policy::BACKOFF_MAX);
        // The wait is between half of the longest wait and all of it, so that devices neither retry at once nor in
        // step.
        let half = longest / 2;
        let spread = u64::try_from(half.as_millis()).unwrap_or(u64::MAX).max(1);
        let backoff = half + Duration::from_millis(jitter % spread);
        let asked = retry_after.unwrap_or_default().min(MAX_ADVISED);
        self.next_at = now + backoff.max(asked);
        self.not_before = self.next_at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn waits_grow_and_end_with_an_answer() {
        let mut schedule = Schedule::new(MINUTE, Duration::ZERO);
        assert!(schedule.is_due(Duration::ZERO));
        let mut last = Duration::ZERO;
        for _ in 0..8 {
            schedule.failed(Duration::ZERO, None, 0);
            assert!(schedule.next_at > last);
            last = schedule.next_at;
        }
        schedule.answered(last, Advice::default(), true, 0);
        assert!(schedule.is_due(last));
        schedule.idle(last);
        assert_eq!(schedule.next_at, last + MINUTE);
    }

    #[test]
    fn the_collectors_wishes_are_honoured() {
        let mut schedule = Schedule::new(MINUTE, Duration::ZERO);
        let advice = Advice {
            retry_after: Some(MINUTE * 3),
            next_interval: Some(MINUTE * 7),
            max_request_bytes: Some(100_000),
        };
        schedule.answered(Duration::ZERO, advice, true, 0);
        assert_eq!(schedule.next_at, MINUTE * 3);
        assert_eq!(schedule.max_request_bytes, 100_000 - 4096);
        schedule.idle(Duration::ZERO);
        assert_eq!(schedule.next_at, MINUTE * 7);
        schedule.failed(Duration::ZERO, Some(MINUTE * 2), 0);
        assert_eq!(schedule.next_at, MINUTE * 2);
    }

    #[test]
    fn a_requested_wait_is_not_cut_short() {
        let mut schedule = Schedule::new(MINUTE, Duration::ZERO);
        schedule.idle(Duration::ZERO);
        assert!(!schedule.is_held(Duration::ZERO));
        schedule.hurry(Duration::ZERO);
        assert!(schedule.is_due(Duration::ZERO));
        schedule.failed(Duration::ZERO, Some(MINUTE), 0);
        schedule.hurry(Duration::ZERO);
        assert!(schedule.is_held(MINUTE / 2));
        assert_eq!(schedule.next_at, MINUTE);
    }

    #[test]
    fn a_collector_that_keeps_nothing_is_not_hammered() {
        for retry_after in [None, Some(0), Some(1)] {
            let advice = Advice {
                retry_after: retry_after.map(Duration::from_millis),
                ..Advice::default()
            };
            let mut schedule = Schedule::new(MINUTE, Duration::ZERO);
            schedule.answered(Duration::ZERO, advice, false, 0);
            let first = schedule.next_at;
            assert!(first >= policy::BACKOFF_FIRST / 2, "{retry_after:?}");
            schedule.answered(Duration::ZERO, advice, false, 0);
            assert!(schedule.next_at > first, "{retry_after:?}");
            assert!(schedule.is_held(first), "{retry_after:?}");
        }
    }

    #[test]
    fn an_interval_that_would_keep_the_device_awake_is_not_taken() {
        let mut schedule = Schedule::new(MINUTE, Duration::ZERO);
        let advice = Advice {
            next_interval: Some(Duration::from_millis(1)),
            ..Advice::default()
        };
        schedule.answered(Duration::ZERO, advice, true, 0);
        schedule.idle(Duration::ZERO);
        assert_eq!(schedule.next_at, policy::MIN_ADVISED_INTERVAL);
    }

    proptest! {
        #[test]
        fn no_wait_is_over_a_day_or_none(
            failures in 1_usize..100,
            jitter in any::<u64>(),
            asked in prop::option::of(any::<u32>()),
        ) {
            let mut schedule = Schedule::new(MINUTE, Duration::ZERO);
            let asked = asked.map(|s| Duration::from_secs(u64::from(s)));
            for _ in 0..failures {
                schedule.failed(Duration::ZERO, asked, jitter);
            }
            prop_assert!(schedule.next_at >= policy::BACKOFF_FIRST / 2);
            prop_assert!(schedule.next_at <= MAX_ADVISED);
        }
    }
}
