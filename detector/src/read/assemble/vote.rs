//! A vote while its rows arrive: its sums, and its device's earlier latency.

use epwatch_stats::{HistogramError, Moments, RangeHistogram};

use crate::judge::window::{
    AgainstSelf, MIN_RUNS_HIGH, MIN_RUNS_LOW, MissingBaseline, SelfBaseline, SelfBaselineKind,
    VoteLatency, histogram_of,
};
use crate::read::interner::{TextId, Texts};

use super::rows::{DeviceBaseline, SeriesRow};
use super::sum::SeriesSum;

/// A vote whose series are still arriving.
pub(super) struct Adding {
    pub(super) runs: SeriesSum,
    /// Whether any of the series has a known thermal state.
    pub(super) reports_heat: bool,
    /// The device's baseline, from the latest series.
    earlier: DeviceBaseline,
}

/// Sums of runs of an earlier window, and their moments if these are possible.
pub(in crate::read) type EarlierRuns = (Result<RangeHistogram, HistogramError>, Option<Moments>);

/// A vote with too few runs, until earlier windows are added.
pub(super) struct Unfinished {
    histogram: RangeHistogram,
    moments: Moments,
    device_baseline: Result<SelfBaseline, MissingBaseline>,
    /// The window's own runs compared with the baseline.
    own_against_self: Option<Box<AgainstSelf>>,
    own_p10_us: Option<f64>,
}

impl Adding {
    pub(super) fn of(row: &SeriesRow, buckets: impl IntoIterator<Item = (u16, u64)>) -> Self {
        Self {
            runs: SeriesSum::of(&row.head, buckets),
            reports_heat: row.reports_heat,
            earlier: row.earlier,
        }
    }

    pub(super) fn add(&mut self, row: &SeriesRow, buckets: impl IntoIterator<Item = (u16, u64)>) {
        self.reports_heat |= row.reports_heat;
        if self.runs.order < row.head.order {
            self.earlier = row.earlier;
        }
        self.runs.add(&row.head, buckets);
    }

    /// Takes quantiles, or waits for earlier windows if there are too few runs.
    pub(super) fn end(
        mut self,
        version: TextId,
        texts: &Texts,
    ) -> Result<Result<VoteLatency, Unfinished>, HistogramError> {
        let histogram = histogram_of(self.runs.histogram.buckets())?;
        let mut moments = self.runs.moments();
        if moments.n() != histogram.n() {
            // Some series reported impossible sums.
            moments = histogram.estimated_moments().unwrap_or_default();
        }
        let device_baseline = device_baseline(self.earlier, version, texts);
        if histogram.n() >= MIN_RUNS_HIGH {
            let held_runs = device_baseline.is_err().then(|| held(&self.runs));
            let latency = VoteLatency {
                held_runs,
                ..VoteLatency::from_sums(&histogram, moments, device_baseline)
            };
            return Ok(Ok(latency));
        }
        let known = device_baseline.as_ref().ok();
        let own = known.and_then(|earlier| AgainstSelf::counted(&histogram, earlier));
        let has_own = histogram.n() >= MIN_RUNS_LOW;
        Ok(Err(Unfinished {
            own_p10_us: has_own.then(|| histogram.quantile(0.1)).flatten(),
            histogram,
            moments,
            device_baseline,
            own_against_self: own.map(Box::new),
        }))
    }
}

impl Unfinished {
    /// Adds an earlier window, unless there are already enough runs.
    pub(super) fn add(&mut self, (histogram, moments): EarlierRuns) -> Result<(), HistogramError> {
        let histogram = histogram?;
        if self.histogram.n() < MIN_RUNS_HIGH {
            let moments = moments.or_else(|| histogram.estimated_moments());
            self.moments = self.moments.merged(&moments.unwrap_or_default());
            self.histogram = self.histogram.merged(&histogram)?;
        }
        Ok(())
    }

    pub(super) fn end(self) -> VoteLatency {
        VoteLatency {
            is_filled_up: true,
            own_against_self: self.own_against_self,
            own_p10_us: self.own_p10_us,
            ..VoteLatency::from_sums(&self.histogram, self.moments, self.device_baseline)
        }
    }
}

/// Returns the runs in 8 bytes per bucket. No device has a count in a window that does not fit.
fn held(runs: &SeriesSum) -> Box<[(u16, u32)]> {
    let buckets = runs.histogram.buckets();
    let held = buckets.map(|(index, count)| (index, u32::try_from(count).unwrap_or(u32::MAX)));
    held.collect()
}

/// The baseline that shows the effect of a new version or, within a version, of a new runtime.
fn device_baseline(
    reported: DeviceBaseline,
    version: TextId,
    texts: &Texts,
) -> Result<SelfBaseline, MissingBaseline> {
    let other_version = reported
        .previous
        .filter(|(previous, _)| *previous != version);
    let of_version = other_version.map(|(previous, numbers)| {
        let kind = SelfBaselineKind::PreviousVersion(texts.get(previous).clone());
        (kind, numbers)
    });
    let of_runtime = || Some((SelfBaselineKind::EarlierRuntime, reported.runtime?));
    let Some((kind, numbers)) = of_version.or_else(of_runtime) else {
        let absence = texts.get(reported.absence);
        return Err(match &**absence {
            "" | "unspecified" => MissingBaseline::Unknown,
            _ => MissingBaseline::Told(absence.clone()),
        });
    };
    SelfBaseline {
        kind,
        n: numbers.n,
        p10_us: numbers.p10_us,
        p50_us: numbers.p50_us,
        p95_us: numbers.p95_us,
        cv: numbers.cv,
    }
    .checked()
}
