//! What the sealer takes from a session's recorder.

use epwatch_proto::{
    Baselines, ExceedCounts, HistScheme, LatencySeries, SessionUid, SparseHistogram, Stratum,
};

use super::series::Series;
use crate::{baseline::ShapeBaselines, moments::Moments};

/// Everything recorded since the last time.
#[derive(Debug, Default)]
pub(crate) struct Drained {
    pub(crate) series: Vec<SeriesSnapshot>,
    /// Failed runs by ORT status code.
    pub(crate) errors: Vec<(i32, u64)>,
    /// Runs whose sample was dropped because every shard was held.
    pub(crate) contended: u64,
    /// Runs that sampling left out and that are in no series.
    pub(crate) passed_over: u64,
    /// Runs that went into the overflow stratum.
    pub(crate) overflowed_keys: u64,
    pub(crate) is_closed: bool,
}

/// One series of an interval, shards added up.
#[derive(Debug, Clone)]
pub(crate) struct SeriesSnapshot {
    pub(crate) stratum: Stratum,
    pub(crate) histogram: SparseHistogram,
    pub(crate) moments: Moments,
    pub(crate) clipped: u64,
    pub(crate) dropped_runs: u64,
    pub(crate) passed_over: u64,
    pub(crate) sampled_one_in: u32,
    first_runs_us: Vec<u64>,
    /// Switches and longest streak, while one thread recorded.
    order: Option<(u64, u64)>,
    exceed: Option<ExceedCounts>,
    baselines: Baselines,
}

impl SeriesSnapshot {
    pub(super) fn of(series: &Series, stratum: Stratum, baselines: &ShapeBaselines) -> Self {
        let order = &series.order;
        let baselines = baselines.of_shape(&stratum.shape_key);
        let is_counted = series.baseline_p95_us.is_some() && !baselines.known().is_empty();
        Self {
            histogram: SparseHistogram::from_hdr(&series.histogram),
            moments: series.moments,
            clipped: series.clipped,
            dropped_runs: 0,
            passed_over: series.passed_over,
            sampled_one_in: 1,
            first_runs_us: first_runs(series).to_vec(),
            order: (!order.is_mixed).then_some((order.switches, order.longest_slow_streak)),
            exceed: is_counted.then_some(series.exceed),
            baselines,
            stratum,
        }
    }

    /// Adds the same series of another shard.
    pub(super) fn add(&mut self, series: &Series) {
        self.histogram
            .merge(&SparseHistogram::from_hdr(&series.histogram));
        self.moments.merge(&series.moments);
        self.clipped += series.clipped;
        self.passed_over += series.passed_over;
        self.first_runs_us.extend(first_runs(series));
        // Another shard is another thread.
        self.order = None;
        match (&mut self.exceed, series.baseline_p95_us) {
            (Some(counts), Some(_)) => {
                counts.beyond_1_4x += series.exceed.beyond_1_4x;
                counts.beyond_2x += series.exceed.beyond_2x;
                counts.beyond_3x += series.exceed.beyond_3x;
            }
            // A count over some of the runs would look like one over all.
            _ => self.exceed = None,
        }
    }

    pub(crate) fn into_series(self, session_uid: SessionUid) -> LatencySeries {
        // Of some of the runs, switches and streaks would be other ones.
        let order = self.order.filter(|_| self.passed_over == 0);
        LatencySeries {
            session_uid,
            stratum: self.stratum,
            hist_scheme: HistScheme::HdrUs2sd160s,
            histogram: self.histogram,
            n: self.moments.n,
            sum_us: self.moments.sum,
            m2_us2: self.moments.m2.max(0.0),
            min_us: self.moments.min,
            max_us: self.moments.max,
            runs_seen: self.moments.n + self.passed_over + self.dropped_runs,
            sampled_one_in: self.sampled_one_in,
            dropped_runs: self.dropped_runs,
            first_runs_us: self.first_runs_us,
            slow_fast_switches: order.map(|(switches, _)| switches),
            longest_slow_streak: order.map(|(_, streak)| streak),
            exceed: self.exceed,
            baselines: self.baselines,
        }
    }
}

fn first_runs(series: &Series) -> &[u64] {
    &series.first_runs_us[..usize::from(series.n_first_runs)]
}
