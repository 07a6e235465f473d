//! One cohort in one window: a vote for each device, and histograms that explain the verdict.
//!
//! A vote is one device with one firmware, input shape and placement. Its clean runs are added up and statistics come
//! from the sum, so a device that reports often does not count more.
//!
//! [`epwatch_proto::Stratum::is_clean`] alone decides which runs are clean: warm, not hot, no power save. Thermal
//! "unknown" is clean even on a device that can report heat. About a fifth of devices never report heat, and the state
//! of the others is unknown before their first reading. If such a run is hot after all, it moves upper quantiles, not
//! the p10 that is compared. Without such runs, short sessions would lose their vote.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use epwatch_model::{CohortKey, Installation, Placement};
use epwatch_proto::histogram::{bucket_high_us, bucket_low_us};
use epwatch_stats::{Bucket, HistogramError, Moments, RangeHistogram, SLOW_RUN};
use jiff::Timestamp;

use crate::judge::device_events::DeviceEvents;
use crate::judge::hash::HashSet;

/// Minimum number of clean runs from which p10 and p50 of a device are meaningful.
pub const MIN_RUNS_LOW: u64 = 8;

/// Minimum number of clean runs from which p90 and p95 are meaningful. If a window has fewer, earlier windows are
/// added.
pub const MIN_RUNS_HIGH: u64 = 20;

/// Runs of a device in a window, for one firmware, input shape and placement.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceVote {
    /// Never logged or shown.
    pub installation: Installation,
    /// Hash of the vendor build's fingerprint.
    pub firmware: Arc<str>,
    /// Its make, for example `SM-S921B`; empty if it is not known.
    pub device_model: Arc<str>,
    /// The input shape; empty if only the placement is known.
    pub shape_key: Arc<str>,
    /// Where the model ran.
    pub placement: Arc<Placement>,
    /// Creation of its first and its last session with this placement by the device's clock, in seconds since 1970;
    /// `None` if no session was read.
    pub created_s: Option<(i64, i64)>,
    /// How fast it ran; `None` without clean runs in the window.
    pub latency: Option<VoteLatency>,
    /// Whether the installation was first received in an earlier window. Such a past cannot be made up today.
    pub is_proven: bool,
    /// Whether the thermal state of any of its clean runs in the window is known.
    pub reports_heat: bool,
}

/// Latency of a device's clean runs.
#[derive(Debug, Clone, PartialEq)]
pub struct VoteLatency {
    /// Exact moments, in microseconds.
    pub moments: Moments,
    /// Whether the window has too few runs of the device, so that runs of earlier windows were needed.
    pub is_filled_up: bool,
    /// Quantiles; `None` below 8 runs.
    pub low: Option<LowQuantiles>,
    /// Quantile 0.1 of the window's own runs, in microseconds; `None` below 8 of them.
    pub own_p10_us: Option<f64>,
    /// Quantiles; `None` below 20 runs.
    pub high: Option<HighQuantiles>,
    /// Share of runs beyond 1.7 x the device's own p10, in [0, 1]; `None` below 8 runs.
    pub slow_share: Option<f64>,
    /// The device's usual latency, or the reason why it is unknown.
    pub device_baseline: Result<SelfBaseline, MissingBaseline>,
    /// The runs compared with `device_baseline`; `None` if that is unknown. The counts add up over placements.
    pub against_self: Option<AgainstSelf>,
    /// The window's own runs compared with `device_baseline`; `None` if all runs are the window's own, or the baseline
    /// is unknown.
    pub own_against_self: Option<Box<AgainstSelf>>,
    /// The window's runs by bucket while the device has no baseline, so that they can be compared with one from the
    /// store.
    pub held_runs: Option<Box<[(u16, u32)]>>,
}

/// A device's runs, counted against its own earlier latency. The counts have fractions where a limit cuts a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AgainstSelf {
    /// Runs in all.
    pub n: f64,
    /// Runs beyond 1.2 times its earlier p95.
    pub beyond_1_2x: f64,
    /// Runs beyond 1.4 times its earlier p95.
    pub beyond_1_4x: f64,
    /// Runs beyond 2 times its earlier p95.
    pub beyond_2x: f64,
    /// Runs beyond 1.6 times its earlier median.
    pub beyond_median: f64,
    /// Runs within 1.25 times its earlier p10, which are as fast as before.
    pub as_fast: f64,
}

impl AgainstSelf {
    pub(crate) fn counted(histogram: &RangeHistogram, earlier: &SelfBaseline) -> Option<Self> {
        let n = histogram.n() as f64;
        let beyond = |limit: f64| Some(n * histogram.share_above(limit)?);
        Some(Self {
            n,
            beyond_1_2x: beyond(1.2 * earlier.p95_us)?,
            beyond_1_4x: beyond(1.4 * earlier.p95_us)?,
            beyond_2x: beyond(2.0 * earlier.p95_us)?,
            beyond_median: beyond(1.6 * earlier.p50_us)?,
            as_fast: n - beyond(1.25 * earlier.p10_us)?,
        })
    }

    /// Returns the sum of both counts.
    #[must_use]
    pub fn added(self, other: Self) -> Self {
        Self {
            n: self.n + other.n,
            beyond_1_2x: self.beyond_1_2x + other.beyond_1_2x,
            beyond_1_4x: self.beyond_1_4x + other.beyond_1_4x,
            beyond_2x: self.beyond_2x + other.beyond_2x,
            beyond_median: self.beyond_median + other.beyond_median,
            as_fast: self.as_fast + other.as_fast,
        }
    }
}

/// Quantiles that 8 runs give, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowQuantiles {
    /// Quantile 0.1: the latency of an undisturbed device.
    pub p10_us: f64,
    /// Quantile 0.5.
    pub p50_us: f64,
}

/// Quantiles that need 20 runs, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HighQuantiles {
    /// Quantile 0.9.
    pub p90_us: f64,
    /// Quantile 0.95.
    pub p95_us: f64,
}

/// A device's own earlier latency with the same model and input shape, from the SDK or from the store.
#[derive(Debug, Clone, PartialEq)]
pub struct SelfBaseline {
    /// Which earlier self.
    pub kind: SelfBaselineKind,
    /// Clean runs it was learnt from.
    pub n: u64,
    /// Quantile 0.1 in microseconds.
    pub p10_us: f64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// Quantile 0.95 in microseconds.
    pub p95_us: f64,
    /// Coefficient of variation.
    pub cv: f64,
}

/// Which earlier self.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelfBaselineKind {
    /// The model version before this one, by name.
    PreviousVersion(Arc<str>),
    /// The same version, before the device's firmware or runtime changed.
    EarlierRuntime,
    /// The same version in earlier windows, from the store. It shows what changed, not whether the earlier state was
    /// right.
    EarlierWindows,
    /// The same version in earlier windows, in which the device was faster than on the version before. As fast as then
    /// is healthy by both baselines.
    FasterWindows,
    /// Not the device's own past, but the median of devices of the same make on the version before.
    SameModel,
}

/// The reason why a device has no self baseline. It never counts as "unchanged".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingBaseline {
    /// The device reports the reason, as a code of the contract.
    Told(Arc<str>),
    /// The baseline was learnt from fewer than 8 runs.
    TooFewRuns,
    /// Nothing usable arrived.
    Unknown,
    /// The baseline was learnt on this version, which has an open incident.
    AtFault(Arc<str>),
}

impl VoteLatency {
    /// Makes the latency from the sums of a device's clean runs. `histogram` and `moments` are of the same runs.
    #[must_use]
    pub fn from_sums(
        histogram: &RangeHistogram,
        moments: Moments,
        device_baseline: Result<SelfBaseline, MissingBaseline>,
    ) -> Self {
        let quantile = |q| histogram.quantile(q);
        let low = || {
            Some(LowQuantiles {
                p10_us: quantile(0.1)?,
                p50_us: quantile(0.5)?,
            })
        };
        let high = || {
            Some(HighQuantiles {
                p90_us: quantile(0.9)?,
                p95_us: quantile(0.95)?,
            })
        };
        let low = (histogram.n() >= MIN_RUNS_LOW).then(low).flatten();
        let earlier = device_baseline.as_ref().ok();
        Self {
            moments,
            is_filled_up: false,
            low,
            own_p10_us: low.map(|low| low.p10_us),
            high: (histogram.n() >= MIN_RUNS_HIGH).then(high).flatten(),
            slow_share: low.and_then(|low| histogram.share_above(SLOW_RUN * low.p10_us)),
            against_self: earlier.and_then(|earlier| AgainstSelf::counted(histogram, earlier)),
            own_against_self: None,
            held_runs: None,
            device_baseline,
        }
    }

    /// Sets a baseline from the store, and compares the window's runs with it if they are still in memory.
    pub(crate) fn learn(&mut self, earlier: SelfBaseline) {
        let held = self.held_runs.take().unwrap_or_default();
        if earlier.kind == SelfBaselineKind::EarlierWindows && !held.is_empty() {
            let runs = held
                .iter()
                .map(|(index, count)| (*index, u64::from(*count)));
            let runs = histogram_of(runs).ok();
            self.against_self = runs.and_then(|runs| AgainstSelf::counted(&runs, &earlier));
        }
        self.device_baseline = Ok(earlier);
    }

    /// Returns p10 over the device's own earlier p10; `None` if either is unknown.
    #[must_use]
    pub fn p10_ratio(&self) -> Option<f64> {
        Some(self.low?.p10_us / self.device_baseline.as_ref().ok()?.p10_us)
    }

    /// Returns p10 of the window's own runs over the device's own earlier p10.
    #[must_use]
    pub fn own_p10_ratio(&self) -> Option<f64> {
        Some(self.own_p10_us? / self.device_baseline.as_ref().ok()?.p10_us)
    }

    /// Returns p50 over the device's own earlier p50; `None` if either is unknown.
    #[must_use]
    pub fn p50_ratio(&self) -> Option<f64> {
        Some(self.low?.p50_us / self.device_baseline.as_ref().ok()?.p50_us)
    }

    /// Returns p95 over the device's own earlier p95; `None` if either is unknown.
    #[must_use]
    pub fn p95_ratio(&self) -> Option<f64> {
        Some(self.high?.p95_us / self.device_baseline.as_ref().ok()?.p95_us)
    }
}

impl SelfBaseline {
    /// Checks that the baseline is usable: 8 runs or more, quantiles positive and in order.
    ///
    /// # Errors
    /// The reason why the baseline is not usable.
    pub fn checked(self) -> Result<Self, MissingBaseline> {
        let ordered = 0.0 < self.p10_us && self.p10_us <= self.p50_us && self.p50_us <= self.p95_us;
        if self.n < MIN_RUNS_LOW {
            Err(MissingBaseline::TooFewRuns)
        } else if !ordered || !self.p95_us.is_finite() {
            Err(MissingBaseline::Unknown)
        } else {
            Ok(self)
        }
    }
}

/// Votes and events of one cohort in one window.
#[derive(Debug, Clone, PartialEq)]
pub struct CohortWindow {
    /// Model, version, chipset and firmware.
    pub key: CohortKey,
    /// End of the window, exclusive, by receive time.
    pub end: Timestamp,
    /// Length of the window.
    pub length: Duration,
    /// The devices' votes, in the order of their installations.
    pub votes: Vec<DeviceVote>,
    /// Clean runs of all voting devices, added, by firmware and input shape.
    pub histograms: BTreeMap<(Arc<str>, Arc<str>), RangeHistogram>,
    /// Devices with sessions in the window and without a vote.
    pub voteless: Voteless,
    /// Self-tests and failed starts.
    pub device_events: DeviceEvents,
}

/// Devices without a vote, by reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Voteless {
    /// Devices for which a directive changed the requested EPs, at least in one session of the window.
    pub directed: u64,
    /// The `directed` devices that have no vote from another session, by firmware.
    pub only_directed: BTreeMap<Arc<str>, Vec<Installation>>,
    /// Unproven devices: they were new when the limit of their app or network was reached, and were not admitted since.
    pub unproven: u64,
}

impl CohortWindow {
    pub(crate) fn empty(key: CohortKey, end: Timestamp, length: Duration) -> Self {
        Self {
            key,
            end,
            length,
            votes: Vec::new(),
            histograms: BTreeMap::new(),
            voteless: Voteless::default(),
            device_events: DeviceEvents::default(),
        }
    }

    /// Returns how many devices vote.
    #[must_use]
    pub fn n_devices(&self) -> u64 {
        count_devices(self.votes.iter())
    }

    /// Returns how many devices have no vote because of a directive.
    #[must_use]
    pub fn n_only_directed(&self) -> u64 {
        let by_firmware = self.voteless.only_directed.values();
        by_firmware.map(|devices| devices.len() as u64).sum()
    }

    /// Returns the installations that vote or are under a directive; one may come more than once.
    pub(crate) fn present(&self) -> impl Iterator<Item = Installation> {
        let votes = self.votes.iter().map(|vote| vote.installation);
        votes.chain(self.voteless.only_directed.values().flatten().copied())
    }

    /// Returns the part of the window that comes from installations known before it.
    #[must_use]
    pub fn proven(&self) -> CohortWindow {
        CohortWindow {
            votes: self.votes.iter().filter(|v| v.is_proven).cloned().collect(),
            device_events: self.device_events.proven(),
            ..self.clone()
        }
    }

    /// Returns the installations with votes or events in the window; one may come more than once.
    pub(crate) fn installations(&self) -> impl Iterator<Item = Installation> {
        let votes = self.votes.iter().map(|vote| vote.installation);
        votes.chain(self.device_events.installations())
    }

    /// Returns the window without some installations.
    #[must_use]
    pub(crate) fn without(&self, left_out: &HashSet<Installation>) -> CohortWindow {
        let stays = |vote: &&DeviceVote| !left_out.contains(&vote.installation);
        CohortWindow {
            votes: self.votes.iter().filter(stays).cloned().collect(),
            device_events: self.device_events.without(left_out),
            ..self.clone()
        }
    }

    /// Whether the window has data of installations that were not known before it.
    #[must_use]
    pub fn has_newcomers(&self) -> bool {
        self.votes.iter().any(|vote| !vote.is_proven) || self.device_events.has_newcomers()
    }

    /// Returns the share of the votes with latency that have a baseline, in [0, 1].
    #[must_use]
    pub fn share_with_past(&self) -> f64 {
        let latencies = || self.votes.iter().filter_map(|vote| vote.latency.as_ref());
        let known = latencies().filter(|l| l.device_baseline.is_ok()).count();
        known as f64 / latencies().count().max(1) as f64
    }

    /// Drops `held_runs` of devices without a baseline, because these are a large part of a window in memory.
    pub(crate) fn let_runs_go(&mut self) {
        let latencies = self
            .votes
            .iter_mut()
            .filter_map(|vote| vote.latency.as_mut());
        latencies.for_each(|latency| latency.held_runs = None);
    }

    /// Whether devices have a baseline from a version with an open incident.
    pub(crate) fn has_faulty_pasts(&self) -> bool {
        let latencies = self.votes.iter().filter_map(|vote| vote.latency.as_ref());
        let mut absences = latencies.filter_map(|latency| latency.device_baseline.as_ref().err());
        absences.any(|absence| matches!(absence, MissingBaseline::AtFault(_)))
    }

    /// Returns how many devices have a baseline from another version, of their own or of their make.
    #[must_use]
    pub fn n_with_past_elsewhere(&self) -> u64 {
        self.n_with_past(|kind| {
            matches!(
                kind,
                SelfBaselineKind::PreviousVersion(_) | SelfBaselineKind::SameModel
            )
        })
    }

    /// Returns how many devices are compared with their own earlier windows of this version.
    #[must_use]
    pub fn n_with_earlier_windows(&self) -> u64 {
        self.n_with_past(|kind| *kind == SelfBaselineKind::EarlierWindows)
    }

    /// Returns how many devices are compared with earlier windows in which this version was faster than the one before.
    #[must_use]
    pub(crate) fn n_with_faster_windows(&self) -> u64 {
        self.n_with_past(|kind| *kind == SelfBaselineKind::FasterWindows)
    }

    fn n_with_past(&self, of_kind: impl Fn(&SelfBaselineKind) -> bool) -> u64 {
        let is_of_kind = |vote: &&DeviceVote| {
            let latency = vote
                .latency
                .as_ref()
                .filter(|latency| latency.low.is_some());
            let past = latency.and_then(|latency| latency.device_baseline.as_ref().ok());
            past.is_some_and(|past| of_kind(&past.kind))
        };
        count_devices(self.votes.iter().filter(is_of_kind))
    }

    /// Returns how many clean runs the voting devices made.
    #[must_use]
    pub fn n_runs(&self) -> u64 {
        self.histograms.values().map(RangeHistogram::n).sum()
    }

    /// Returns the firmwares seen, in order.
    #[must_use]
    pub fn firmwares(&self) -> Vec<Arc<str>> {
        let mut firmwares: Vec<_> = self.votes.iter().map(|v| v.firmware.clone()).collect();
        firmwares.sort();
        firmwares.dedup();
        firmwares
    }

    /// Returns the part of a chipset's window that comes from devices with one firmware.
    #[must_use]
    pub fn of_firmware(&self, firmware: &str) -> CohortWindow {
        let mut key = self.key.clone();
        key.firmware = Some(firmware.to_owned());
        let votes = self.votes.iter().filter(|v| &*v.firmware == firmware);
        let histograms = self.histograms.iter();
        let histograms = histograms.filter(|((of, _), _)| &**of == firmware);
        // Other devices without a vote are known for the chipset only.
        let directed = self.voteless.only_directed.get_key_value(firmware);
        CohortWindow {
            votes: votes.cloned().collect(),
            histograms: histograms.map(|(k, v)| (k.clone(), v.clone())).collect(),
            voteless: Voteless {
                only_directed: directed
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .into_iter()
                    .collect(),
                ..Voteless::default()
            },
            device_events: self.device_events.of_firmware(firmware),
            ..CohortWindow::empty(key, self.end, self.length)
        }
    }

    /// Returns the input shape that most devices ran, with its merged histogram and its votes. Only one shape describes
    /// a cohort, because shapes differ in latency by design.
    ///
    /// # Errors
    /// The histograms cannot be added up.
    pub fn main_shape(&self) -> Result<Option<MainShape<'_>>, HistogramError> {
        let mut by_shape: BTreeMap<&str, Vec<&DeviceVote>> = BTreeMap::new();
        for vote in self.votes.iter().filter(|vote| vote.latency.is_some()) {
            by_shape.entry(&vote.shape_key).or_default().push(vote);
        }
        let most = |votes: &Vec<&DeviceVote>| count_devices(votes.iter().copied());
        let Some((shape_key, votes)) = by_shape.into_iter().max_by_key(|(_, votes)| most(votes))
        else {
            return Ok(None);
        };
        Ok(Some(MainShape {
            shape_key,
            votes,
            histogram: self.histogram_of_shape(shape_key)?,
        }))
    }

    /// Returns the runs of an input shape, merged over firmwares.
    ///
    /// # Errors
    /// The histograms cannot be added up.
    pub(crate) fn histogram_of_shape(
        &self,
        shape_key: &str,
    ) -> Result<RangeHistogram, HistogramError> {
        let of_shape = self
            .histograms
            .iter()
            .filter(|((_, shape), _)| &**shape == shape_key);
        let buckets = of_shape.flat_map(|(_, histogram)| histogram.buckets().iter().copied());
        RangeHistogram::from_buckets(buckets)
    }
}

/// The input shape that most devices of a cohort ran.
#[derive(Debug)]
pub struct MainShape<'a> {
    /// Key of the shape as in the reports.
    pub shape_key: &'a str,
    /// Its votes that have a latency.
    pub votes: Vec<&'a DeviceVote>,
    /// Their runs, merged.
    pub histogram: RangeHistogram,
}

/// Returns how many different devices voted.
pub fn count_devices<'a>(votes: impl Iterator<Item = &'a DeviceVote>) -> u64 {
    different(votes.map(|vote| vote.installation))
}

/// Returns the number of different devices. Votes are in the order of devices, so sorting is fast.
pub(crate) fn different(devices: impl Iterator<Item = Installation>) -> u64 {
    let mut devices: Vec<Installation> = devices.collect();
    devices.sort_unstable();
    devices.dedup();
    devices.len() as u64
}

/// Builds a histogram from bucket indices of scheme `hdr_us_2sd_1_60s` and their counts.
///
/// # Errors
/// The counts exceed 64 bits.
pub fn histogram_of(
    counts: impl IntoIterator<Item = (u16, u64)>,
) -> Result<RangeHistogram, HistogramError> {
    RangeHistogram::from_buckets(counts.into_iter().map(|(index, count)| Bucket {
        low_us: bucket_low_us(index) as f64,
        high_us: bucket_high_us(index) as f64,
        count,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(counts: &[(u16, u64)]) -> VoteLatency {
        let histogram = histogram_of(counts.iter().copied()).unwrap();
        let moments = histogram.estimated_moments().unwrap();
        VoteLatency::from_sums(&histogram, moments, Err(MissingBaseline::Unknown))
    }

    #[test]
    fn quantiles_appear_only_with_enough_runs() {
        let few = latency(&[(500, 7)]);
        assert_eq!((few.low, few.high, few.slow_share), (None, None, None));
        let some = latency(&[(500, 19)]);
        assert!(some.low.is_some() && some.high.is_none());
        assert!(latency(&[(500, 20)]).high.is_some());
    }

    /// A device that is slow in 30 % of its runs keeps its p10; that distinguishes it from a device that is slow
    /// always.
    #[test]
    fn slow_runs_are_counted_against_the_devices_own_p10() {
        let mixed = latency(&[(500, 70), (756, 30)]);
        let low = mixed.low.unwrap();
        assert!(low.p50_us < 1.05 * low.p10_us, "{low:?}");
        assert!((mixed.slow_share.unwrap() - 0.3).abs() < 1e-9);
        assert_eq!(latency(&[(756, 100)]).slow_share, Some(0.0));
    }

    #[test]
    fn an_earlier_self_that_says_nothing_is_no_baseline() {
        let good = SelfBaseline {
            kind: SelfBaselineKind::EarlierRuntime,
            n: 50,
            p10_us: 1.0,
            p50_us: 2.0,
            p95_us: 3.0,
            cv: 0.1,
        };
        let check = |change: fn(&mut SelfBaseline), absence| {
            let mut bad = good.clone();
            change(&mut bad);
            assert_eq!(bad.checked(), Err(absence));
        };
        check(|bad| bad.n = 7, MissingBaseline::TooFewRuns);
        check(|bad| bad.p10_us = 0.0, MissingBaseline::Unknown);
        check(|bad| bad.p95_us = f64::NAN, MissingBaseline::Unknown);
        check(|bad| bad.p50_us = 9.0, MissingBaseline::Unknown);
        assert!(good.checked().is_ok());
    }
}
