//! One series while it is recorded: histogram, moments, and the facts of its order.

use std::time::Duration;

use epwatch_proto::{
    ExceedCounts, Phase, SessionAge,
    histogram::{HIGHEST_US, LOWEST_US, SIGNIFICANT_DIGITS},
    latency::MAX_FIRST_RUNS,
};
use hdrhistogram::Histogram;

use crate::{
    conditions::PackedConditions,
    moments::Moments,
    names::NameId,
    policy::{LOW_CREEP, SLOW_FACTOR},
};

/// What a series is known by inside its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SeriesKey {
    pub(crate) phase: Phase,
    pub(crate) conditions: PackedConditions,
    pub(crate) shape: NameId,
    pub(crate) age: SessionAge,
}

impl SeriesKey {
    /// Where runs go once a session has as many series as it may.
    pub(crate) fn overflow(self) -> Self {
        Self {
            phase: self.phase,
            conditions: PackedConditions::UNKNOWN,
            shape: NameId::OTHER,
            age: SessionAge::Unknown,
        }
    }

    pub(crate) fn is_overflow(&self) -> bool {
        *self == self.overflow()
    }
}

/// One run as it is recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) latency: Duration,
    /// Position among the session's runs, from 0.
    pub(crate) run: u64,
    /// Which thread records.
    pub(crate) thread: u32,
}

/// About 10 kB, nearly all of it the histogram. Counts of 32 bits do: an interval with four
/// thousand million runs in one bucket saturates it.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) key: SeriesKey,
    pub(crate) histogram: Histogram<u32>,
    pub(crate) moments: Moments,
    pub(crate) clipped: u64,
    /// Runs that sampling left out.
    pub(crate) passed_over: u64,
    pub(crate) first_runs_us: [u64; MAX_FIRST_RUNS],
    pub(crate) n_first_runs: u8,
    pub(crate) exceed: ExceedCounts,
    /// p95 of the baseline that `exceed` counts against.
    pub(crate) baseline_p95_us: Option<f64>,
    pub(crate) order: Order,
}

/// Ordered facts; meaningless once two threads recorded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Order {
    thread: Option<u32>,
    pub(crate) is_mixed: bool,
    low_us: Option<f64>,
    is_slow: bool,
    streak: u64,
    pub(crate) switches: u64,
    pub(crate) longest_slow_streak: u64,
}

impl Series {
    pub(crate) fn new(key: SeriesKey, baseline_p95_us: Option<f64>) -> Self {
        Self {
            key,
            histogram: Histogram::new_with_bounds(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
                .expect("the scheme's settings are valid"),
            moments: Moments::default(),
            clipped: 0,
            passed_over: 0,
            first_runs_us: [0; MAX_FIRST_RUNS],
            n_first_runs: 0,
            exceed: ExceedCounts::default(),
            baseline_p95_us,
            order: Order::default(),
        }
    }

    /// Empties it for another interval, keeping its memory and the running low.
    pub(crate) fn reset(&mut self, baseline_p95_us: Option<f64>) {
        self.histogram.reset();
        self.moments = Moments::default();
        self.clipped = 0;
        self.passed_over = 0;
        self.n_first_runs = 0;
        self.exceed = ExceedCounts::default();
        self.baseline_p95_us = baseline_p95_us;
        self.order = Order {
            low_us: self.order.low_us,
            ..Order::default()
        };
    }

    /// Records one run. Neither allocates nor fails: a run over 60 s is recorded as 60 s, and
    /// counted as clipped.
    pub(crate) fn record(&mut self, sample: &Sample) {
        let highest = Duration::from_micros(HIGHEST_US);
        if sample.latency > highest {
            self.clipped += 1;
        }
        let latency = sample.latency.min(highest);
        let us = latency.as_secs_f64() * 1e6;
        let whole_us = u64::try_from(latency.as_micros()).unwrap_or(HIGHEST_US);
        self.histogram.saturating_record(whole_us);
        self.moments.add(us);
        self.keep_first_run(sample.run, whole_us);
        self.count_exceeding(us);
        self.order.add(us, sample.thread);
    }

    fn keep_first_run(&mut self, run: u64, us: u64) {
        let at = usize::from(self.n_first_runs);
        if run < MAX_FIRST_RUNS as u64 && at < MAX_FIRST_RUNS {
            self.first_runs_us[at] = us;
            self.n_first_runs += 1;
        }
    }

    fn count_exceeding(&mut self, us: f64) {
        let Some(p95) = self.baseline_p95_us else {
            return;
        };
        self.exceed.beyond_1_4x += u64::from(us > 1.4 * p95);
        self.exceed.beyond_2x += u64::from(us > 2.0 * p95);
        self.exceed.beyond_3x += u64::from(us > 3.0 * p95);
    }
}

impl Order {
    fn add(&mut self, us: f64, thread: u32) {
        self.is_mixed |= *self.thread.get_or_insert(thread) != thread;
        let low = self.low_us.map_or(us, |low| us.min(low * LOW_CREEP));
        self.low_us = Some(low);
        let is_slow = us > SLOW_FACTOR * low;
        self.switches += u64::from(is_slow != self.is_slow);
        self.is_slow = is_slow;
        self.streak = if is_slow { self.streak + 1 } else { 0 };
        self.longest_slow_streak = self.longest_slow_streak.max(self.streak);
    }
}
