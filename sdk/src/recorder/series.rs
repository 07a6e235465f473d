//! One series while it is recorded: histogram, sums and order.

use std::time::Duration;

use epwatch_proto::{
    ExceedCounts, SparseHistogram,
    histogram::{HIGHEST_US, N_BUCKETS, bucket_of_us},
    latency::MAX_FIRST_RUNS,
};

use super::key::SeriesKey;
use crate::{
    moments::Sums,
    policy::{LOW_CREEP, SLOW_FACTOR},
};

/// One run with its position among the others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) latency: Duration,
    /// Position among the session's runs, from 0. Beyond the cold runs a number may repeat.
    pub(crate) run: u64,
    /// Number of the recording thread.
    pub(crate) thread: u32,
}

/// A series of a shard: the current interval, and the state that outlives it.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) key: SeriesKey,
    pub(crate) pace: Pace,
    pub(crate) recorded: Box<Recorded>,
}

/// One interval. About 10 kB, nearly all of it the histogram, which has the buckets of the wire format. Fields that
/// every run touches come first and lie together. (The crate `hdrhistogram` also keeps count and extremes, which the
/// sums already have exactly. Keeping them took a third of the time of a record.)
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Recorded {
    /// Sums of latencies in nanoseconds.
    pub(crate) sums: Sums,
    pub(crate) order: RunOrder,
    /// Limits beyond which runs are counted in `exceed`; `u64::MAX` without a baseline.
    limits_ns: [u64; 3],
    exceed: [u64; 3],
    pub(crate) clipped: u64,
    /// Runs that sampling skipped.
    pub(crate) passed_over: u64,
    /// Position and microseconds.
    first_runs: [(u64, u64); MAX_FIRST_RUNS],
    n_first_runs: usize,
    /// The p95 that the limits come from.
    pub(crate) baseline_p95_us: Option<f64>,
    /// Runs by bucket. 32 bits suffice: four thousand million runs in one bucket take years.
    counts: [u32; N_BUCKETS as usize],
}

/// Order of the runs in an interval. Meaningless if two threads recorded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RunOrder {
    thread: Option<u32>,
    pub(crate) is_mixed: bool,
    streak: u64,
    pub(crate) switches: u64,
    pub(crate) longest_slow_streak: u64,
}

/// Whether the series is slow at the moment. It outlives the interval, so that a seal within a slow phase does not
/// count as a switch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    low_ns: f64,
    is_slow: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            low_ns: f64::INFINITY,
            is_slow: false,
        }
    }
}

impl Series {
    /// Records one run without allocating or failing. A run over 60 s is recorded as 60 s and counted as clipped.
    #[inline]
    pub(crate) fn record(&mut self, sample: &Sample) {
        const HIGHEST: Duration = Duration::from_micros(HIGHEST_US);
        let recorded = &mut *self.recorded;
        let latency = if sample.latency > HIGHEST {
            recorded.clipped += 1;
            HIGHEST
        } else {
            sample.latency
        };
        let ns = latency.as_secs() * 1_000_000_000 + u64::from(latency.subsec_nanos());
        let us = ns / 1000;
        let count = &mut recorded.counts[usize::from(bucket_of_us(us))];
        *count = count.saturating_add(1);
        recorded.sums.add(ns);
        if sample.run < MAX_FIRST_RUNS as u64 {
            recorded.keep_first_run(sample.run, us);
        }
        if ns > recorded.limits_ns[0] {
            recorded.count_exceeding(ns);
        }
        let was_slow = self.pace.is_slow;
        let is_slow = self.pace.step(ns);
        recorded.order.add(was_slow, is_slow, sample.thread);
    }
}

impl Recorded {
    pub(crate) fn new(baseline_p95_us: Option<f64>) -> Self {
        Self {
            sums: Sums::default(),
            clipped: 0,
            passed_over: 0,
            first_runs: Default::default(),
            n_first_runs: 0,
            exceed: [0; 3],
            limits_ns: limits_ns(baseline_p95_us),
            baseline_p95_us,
            order: RunOrder::default(),
            counts: [0; N_BUCKETS as usize],
        }
    }

    /// Empties the interval's data and keeps its memory.
    pub(crate) fn reset(&mut self) {
        self.counts.fill(0);
        self.sums = Sums::default();
        self.clipped = 0;
        self.passed_over = 0;
        self.n_first_runs = 0;
        self.exceed = [0; 3];
        self.order = RunOrder::default();
    }

    /// Sets the p95 to compare with. Nothing may be recorded yet.
    pub(crate) fn compare_with(&mut self, baseline_p95_us: Option<f64>) {
        self.limits_ns = limits_ns(baseline_p95_us);
        self.baseline_p95_us = baseline_p95_us;
    }

    pub(crate) fn histogram(&self) -> SparseHistogram {
        let occupied = (0..).zip(&self.counts).filter(|(_, count)| **count > 0);
        let (indices, counts) = occupied.map(|(at, n)| (at, u64::from(*n))).unzip();
        SparseHistogram::from_parts(indices, counts).expect("rising indices of counts above zero")
    }

    pub(crate) fn first_runs(&self) -> &[(u64, u64)] {
        &self.first_runs[..self.n_first_runs]
    }

    pub(crate) fn exceed(&self) -> ExceedCounts {
        let [beyond_1_4x, beyond_2x, beyond_3x] = self.exceed;
        ExceedCounts {
            beyond_1_4x,
            beyond_2x,
            beyond_3x,
        }
    }

    #[cold]
    fn keep_first_run(&mut self, run: u64, us: u64) {
        if self.n_first_runs < MAX_FIRST_RUNS {
            self.first_runs[self.n_first_runs] = (run, us);
            self.n_first_runs += 1;
        }
    }

    fn count_exceeding(&mut self, ns: u64) {
        for (count, limit) in self.exceed.iter_mut().zip(self.limits_ns) {
            *count += u64::from(ns > limit);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounding down keeps `>` right for whole nanoseconds, and a huge p95 is not a limit"
)]
fn limits_ns(baseline_p95_us: Option<f64>) -> [u64; 3] {
    match baseline_p95_us {
        Some(p95) => [1.4, 2.0, 3.0].map(|times| (times * p95 * 1000.0) as u64),
        None => [u64::MAX; 3],
    }
}

impl Pace {
    /// Returns whether this run is slow.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "at most 60 s in nanoseconds")]
    fn step(&mut self, ns: u64) -> bool {
        let ns = ns as f64;
        self.low_ns = ns.min(self.low_ns * LOW_CREEP);
        self.is_slow = ns > SLOW_FACTOR * self.low_ns;
        self.is_slow
    }
}

impl RunOrder {
    #[inline]
    fn add(&mut self, was_slow: bool, is_slow: bool, thread: u32) {
        self.is_mixed |= *self.thread.get_or_insert(thread) != thread;
        self.switches += u64::from(is_slow != was_slow);
        self.streak = if is_slow { self.streak + 1 } else { 0 };
        self.longest_slow_streak = self.longest_slow_streak.max(self.streak);
    }
}
