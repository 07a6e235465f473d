//! Data that the sealer takes from a session's recorder.

use epwatch_proto::{
    Baselines, ExceedCounts, HistScheme, LatencySeries, SessionUid, SparseHistogram, Stratum,
    latency::MAX_FIRST_RUNS,
};

use super::series::Recorded;
use crate::{
    baselines::ShapeBaselines,
    moments::{Moments, Sums},
};

/// Everything recorded since the last time.
#[derive(Debug, Default)]
pub(crate) struct Drained {
    pub(crate) series: Vec<SeriesSnapshot>,
    /// Failed runs by ORT status code.
    pub(crate) errors: Vec<(i32, u64)>,
    /// Runs dropped because every shard was held.
    pub(crate) contended: u64,
    /// Runs that sampling skipped and that are in no series.
    pub(crate) passed_over: u64,
    /// Number of series and input shapes that became part of an overflow.
    pub(crate) overflowed_keys: u64,
    pub(crate) is_closed: bool,
}

/// One series of an interval, summed over all shards.
#[derive(Debug, Clone)]
pub(crate) struct SeriesSnapshot {
    pub(crate) stratum: Stratum,
    pub(crate) histogram: SparseHistogram,
    pub(super) sums: Sums,
    pub(crate) clipped: u64,
    pub(crate) dropped_runs: u64,
    pub(crate) passed_over: u64,
    pub(crate) sampled_one_in: u32,
    first_runs: Vec<(u64, u64)>,
    /// Switches and longest streak, if one thread recorded.
    order: Option<(u64, u64)>,
    exceed: Option<ExceedCounts>,
    baselines: Baselines,
}

impl SeriesSnapshot {
    pub(super) fn of(recorded: &Recorded, stratum: Stratum, baselines: &ShapeBaselines) -> Self {
        let order = &recorded.order;
        let baselines = baselines.of_shape(&stratum.shape_key);
        let mut snapshot = Self {
            histogram: recorded.histogram(),
            sums: recorded.sums,
            clipped: recorded.clipped,
            dropped_runs: 0,
            passed_over: recorded.passed_over,
            sampled_one_in: 1,
            first_runs: recorded.first_runs().to_vec(),
            order: (!order.is_mixed).then_some((order.switches, order.longest_slow_streak)),
            exceed: None,
            baselines,
            stratum,
        };
        snapshot.exceed = snapshot.exceed_of(recorded);
        snapshot
    }

    /// Adds the same series of another shard.
    pub(super) fn add(&mut self, recorded: &Recorded) {
        self.histogram.merge(&recorded.histogram());
        self.sums.merge(&recorded.sums);
        self.clipped += recorded.clipped;
        self.passed_over += recorded.passed_over;
        self.first_runs.extend(recorded.first_runs());
        // Another shard means another thread, so the order is unknown.
        self.order = None;
        let both = self.exceed.zip(self.exceed_of(recorded));
        // A count over only some of the runs would look like a count over all runs.
        self.exceed = both.map(|(a, b)| ExceedCounts {
            beyond_1_4x: a.beyond_1_4x + b.beyond_1_4x,
            beyond_2x: a.beyond_2x + b.beyond_2x,
            beyond_3x: a.beyond_3x + b.beyond_3x,
        });
    }

    /// The counts; `None` if they were made against a baseline other than the one that is sent.
    fn exceed_of(&self, recorded: &Recorded) -> Option<ExceedCounts> {
        let sent = self.baselines.known().first()?.p95_us;
        let counted = recorded.baseline_p95_us?;
        (counted.to_bits() == sent.to_bits()).then(|| recorded.exceed())
    }

    pub(crate) fn n(&self) -> u64 {
        self.sums.n()
    }

    /// Returns the moments in microseconds.
    pub(crate) fn moments(&self) -> Moments {
        self.sums.in_units_of(1000.0)
    }

    pub(crate) fn into_series(mut self, session_uid: SessionUid) -> LatencySeries {
        let moments = self.moments();
        // If runs were skipped by sampling, switches and streaks would be wrong.
        let order = self.order.filter(|_| self.passed_over == 0);
        self.first_runs.sort_unstable();
        let first_runs = self.first_runs.iter().map(|(_, us)| *us);
        LatencySeries {
            session_uid,
            stratum: self.stratum,
            hist_scheme: HistScheme::HdrUs2sd160s,
            histogram: self.histogram,
            n: moments.n,
            sum_us: moments.sum,
            m2_us2: moments.m2,
            min_us: moments.min,
            max_us: moments.max,
            runs_seen: moments.n + self.passed_over + self.dropped_runs,
            sampled_one_in: self.sampled_one_in,
            dropped_runs: self.dropped_runs,
            first_runs_us: first_runs.take(MAX_FIRST_RUNS).collect(),
            slow_fast_switches: order.map(|(switches, _)| switches),
            longest_slow_streak: order.map(|(_, streak)| streak),
            exceed: self.exceed,
            baselines: self.baselines,
        }
    }
}
