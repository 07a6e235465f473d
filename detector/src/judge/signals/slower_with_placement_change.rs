//! `SlowerAndMoved`: devices whose placement got worse and that are slower.
//!
//! This is the strongest evidence, with two independent channels for each device. Slower means that p10 is at least
//! 1.25 x, or p90 at least 1.5 x. The reference is the devices with the old placement, in the same window and input
//! shape. A device that is as fast as in its own past is not slower. If fewer than 5 devices with the old placement are
//! left, the reference is each device's own past. Next it is the previous version before the window, or this version if
//! there is no previous one. The last choice is the certified latency.
//!
//! Both channels must be surprising. One is the number of worse placements, against a healthy cohort (`Placement`). The
//! other is the number of slower devices among devices with a worse placement and enough runs, compared with the
//! devices that kept their placement.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{Installation, Origin, Signal, SignalId, SpeedReference};
use epwatch_proto::stratum::STATIC_SHAPE;
use epwatch_stats::order_stat::median;

use crate::judge::baseline::BaselineLatency;
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::tally::{BaseRate, Tally, surprise};
use crate::judge::window::{CohortWindow, DeviceVote, SelfBaseline, SelfBaselineKind};

use super::limits::{Limits, MIN_HITS, counted_signal};
use super::placement_change::PlacementChange;
use super::same_shape::{self, BeforeAndNow};

/// Ratio of p10 to the reference's from which a device is slower.
pub(crate) const SLOWER_P10: f64 = 1.25;

/// The same ratio for p90 (or p95).
pub(crate) const SLOWER_P90: f64 = 1.5;

/// Ratio of p10 to the certified median from which a device is slower. It is `Median`'s ratio, because a lab measures
/// single phones.
const CERTIFIED_SLOWER: f64 = 1.6;

/// Share of the devices with a worse placement that must be slower.
pub(crate) const MIN_SLOWER_SHARE: f64 = 0.6;

/// Prior for the share of devices that are that much slower without a worse placement. It is a guess with the weight of
/// a small cohort, which the devices that kept their placement soon outweigh.
const SLOWER_RATE: BaseRate = BaseRate {
    rate: 0.05,
    strength: 40.0,
};

/// Prior for the share of worse placements among devices that are not slower.
const WORSE_RATE: BaseRate = BaseRate {
    rate: super::placement_change::FLEET_RATE,
    strength: 5.0,
};

/// Number of devices with the old placement that a reference needs.
const MIN_REFERENCE_DEVICES: usize = 5;

/// The result of `SlowerAndMoved`.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowerAndMoved {
    /// Value: share of slower devices, in [0, 1], among the devices with a worse placement that could be compared.
    /// These are the signal's devices.
    pub signal: Signal,
    /// The reference of most of these devices.
    pub reference: SpeedReference,
    /// Median over the devices hit of p50 over the p50 of the reference.
    pub p50_ratio: f64,
    /// Median p50 of the devices hit, in microseconds, for their commonest input shape.
    pub hit_p50_us: f64,
    /// Median p50 of their references, in microseconds, for the same shape.
    pub reference_p50_us: f64,
}

/// The references of the devices, in addition to the devices that kept their placement.
pub(crate) struct SpeedBefore<'a> {
    /// Whether a device's placement is worse than the reference.
    pub(crate) is_worse: &'a dyn Fn(&DeviceVote) -> bool,
    /// Latency before the window, by input shape.
    pub(crate) latency: &'a BTreeMap<Arc<str>, BaselineLatency>,
    /// Latency of a certificate, which was measured with one shape.
    pub(crate) certified: Option<&'a BaselineLatency>,
}

/// Medians over devices of one group and input shape, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Speed {
    p10_us: f64,
    p50_us: f64,
    p90_us: Option<f64>,
}

struct Comparison<'a> {
    reference: SpeedReference,
    slower: bool,
    p50: BeforeAndNow<'a>,
}

/// Compares the speed of the devices with a worse placement; `None` if no reference is comparable.
#[must_use]
pub(crate) fn slower<'w>(
    window: &'w CohortWindow,
    previous: Option<&CohortWindow>,
    change: &PlacementChange,
    before: SpeedBefore<'_>,
    limits: &Limits,
) -> Option<SlowerAndMoved> {
    let kept = |vote: &&DeviceVote| change.kept_devices.contains(&vote.installation);
    let same_version = speeds(window.votes.iter().filter(kept));
    let old_placement = |vote: &&DeviceVote| !(before.is_worse)(vote);
    let previous_votes = previous
        .map(|window| window.votes.as_slice())
        .unwrap_or_default();
    let previous_version = speeds(previous_votes.iter().filter(old_placement));

    // A version's own earlier windows are a reference only if its placement was different then.
    let own_past_counts = change.origin == Origin::SameVersion;
    let compared = |vote: &'w DeviceVote| {
        let shape = &*vote.shape_key;
        let groups = [
            (SpeedReference::SameVersion, same_version.get(shape)),
            (SpeedReference::PreviousVersion, previous_version.get(shape)),
        ];
        let certified = before.certified.filter(|_| shape == STATIC_SHAPE);
        let certified =
            certified.map(|latency| (latency, CERTIFIED_SLOWER, SpeedReference::Certified));
        // A fault that the certificate shows may be in the devices' past too.
        if change.signal.id == SignalId::Certificate
            && let Some(found) = compare_groups(vote, groups).or_else(|| merged(vote, certified?))
        {
            return Some(found);
        }
        let earlier = before.latency.get(&vote.shape_key);
        let earlier = earlier.map(|latency| (latency, SLOWER_P10, SpeedReference::BaselineWindow));
        let past = own_past(vote, own_past_counts);
        // A group of few devices may have faster silicon. A device that is as fast as in its own past is not slower.
        let is_as_before = past.as_ref().is_some_and(|past| !past.slower);
        let group = compare_groups(vote, groups).map(|found| Comparison {
            slower: found.slower && !is_as_before,
            ..found
        });
        group
            .or(past)
            .or_else(|| merged(vote, earlier.or(certified)?))
    };
    let worse = window
        .votes
        .iter()
        .filter(|vote| change.hit_devices.contains(&vote.installation) && (before.is_worse)(vote));
    let worse = by_device(worse, compared);
    let found = tally(&worse);
    let p_slower = {
        let kept = tally(&by_device(window.votes.iter().filter(kept), compared));
        surprise(found, SLOWER_RATE, kept)
    };
    let all: Vec<&Comparison<'_>> = worse.values().flatten().collect();
    let latencies: Vec<BeforeAndNow<'_>> = all.iter().map(|c| c.p50).collect();
    let ratios = latencies.iter().map(|p50| p50.now_us / p50.before_us);
    let ratios: Vec<f64> = ratios.collect();
    let (hit_p50_us, reference_p50_us) = same_shape::medians(&latencies)?;

    let id = SignalId::SlowerAndMoved;
    let enough = found.hits >= MIN_HITS && found.share() >= MIN_SLOWER_SHARE;
    let fires = change.signal.fires && enough && p_slower <= limits.p_placement;
    let p = change.signal.p.max(p_slower);
    Some(SlowerAndMoved {
        signal: counted_signal(id, found, p, MIN_SLOWER_SHARE, fires),
        reference: commonest(&all)?,
        p50_ratio: median(&ratios)?,
        hit_p50_us,
        reference_p50_us,
    })
}

/// Whether the devices that got slower are the devices whose placement got worse. Then the placement is the cause,
/// however many devices always had such a placement.
#[must_use]
pub(crate) fn explains(
    change: &PlacementChange,
    slow: &HashSet<Installation>,
    limits: &Limits,
) -> bool {
    let worse_and_slow = change.hit_devices.intersection(slow).count() as u64;
    let kept_and_slow = change.kept_devices.intersection(slow).count() as u64;
    let found = Tally {
        hits: worse_and_slow,
        devices: worse_and_slow + kept_and_slow,
    };
    let others = Tally {
        hits: change.hit_devices.len() as u64 - worse_and_slow,
        devices: change.n_compared().saturating_sub(found.devices),
    };
    found.hits >= MIN_HITS
        && found.hits as f64 >= MIN_SLOWER_SHARE * found.devices as f64
        && surprise(found, WORSE_RATE, others) <= limits.p_placement
}

fn by_device<'a>(
    votes: impl Iterator<Item = &'a DeviceVote>,
    compared: impl Fn(&'a DeviceVote) -> Option<Comparison<'a>>,
) -> HashMap<Installation, Vec<Comparison<'a>>> {
    let mut by_device: HashMap<Installation, Vec<Comparison<'_>>> = HashMap::default();
    for (vote, comparison) in votes.filter_map(|vote| Some((vote, compared(vote)?))) {
        let slot = by_device.entry(vote.installation).or_default();
        slot.push(comparison);
    }
    by_device
}

/// Counts the slower devices among the devices that were compared.
fn tally(by_device: &HashMap<Installation, Vec<Comparison<'_>>>) -> Tally {
    Tally::of(by_device.values(), |votes| {
        votes.iter().any(|vote| vote.slower)
    })
}

/// Returns the medians of the groups that are large enough, by input shape.
fn speeds<'a>(votes: impl Iterator<Item = &'a DeviceVote>) -> BTreeMap<&'a str, Speed> {
    #[derive(Default)]
    struct Group {
        devices: HashSet<Installation>,
        p10: Vec<f64>,
        p50: Vec<f64>,
        p90: Vec<f64>,
    }
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    for vote in votes {
        let Some(latency) = &vote.latency else {
            continue;
        };
        let Some(low) = latency.low else { continue };
        let group = groups.entry(&vote.shape_key).or_default();
        group.devices.insert(vote.installation);
        group.p10.push(low.p10_us);
        group.p50.push(low.p50_us);
        group.p90.extend(latency.high.map(|high| high.p90_us));
    }
    groups
        .into_iter()
        .filter(|(_, group)| group.devices.len() >= MIN_REFERENCE_DEVICES)
        .filter_map(|(shape, group)| {
            let enough_p90 = group.p90.len() >= MIN_REFERENCE_DEVICES;
            let speed = Speed {
                p10_us: median(&group.p10)?,
                p50_us: median(&group.p50)?,
                p90_us: enough_p90.then(|| median(&group.p90)).flatten(),
            };
            Some((shape, speed))
        })
        .collect()
}

fn comparison(
    vote: &DeviceVote,
    reference: SpeedReference,
    slower: bool,
    before_us: f64,
) -> Option<Comparison<'_>> {
    let now_us = vote.latency.as_ref()?.low?.p50_us;
    let p50 = BeforeAndNow {
        shape_key: &vote.shape_key,
        now_us,
        before_us,
    };
    Some(Comparison {
        reference,
        slower,
        p50,
    })
}

/// Compares with the first group of devices that is large enough.
fn compare_groups<'a>(
    vote: &'a DeviceVote,
    groups: [(SpeedReference, Option<&Speed>); 2],
) -> Option<Comparison<'a>> {
    let latency = vote.latency.as_ref()?;
    let low = latency.low?;
    let mut groups = groups.into_iter();
    let (reference, group) = groups.find_map(|(of, group)| Some((of, group?)))?;
    let p90 = latency.high.zip(group.p90_us);
    let slower = low.p10_us >= SLOWER_P10 * group.p10_us
        || p90.is_some_and(|(high, p90_us)| high.p90_us >= SLOWER_P90 * p90_us);
    comparison(vote, reference, slower, group.p50_us)
}

fn own_past(vote: &DeviceVote, own_past_speaks: bool) -> Option<Comparison<'_>> {
    let latency = vote.latency.as_ref()?;
    let speaks = |earlier: &&SelfBaseline| {
        own_past_speaks || earlier.kind != SelfBaselineKind::EarlierWindows
    };
    let earlier = latency.device_baseline.as_ref().ok().filter(speaks)?;
    let slower = latency.p10_ratio()? >= SLOWER_P10
        || latency.p95_ratio().is_some_and(|ratio| ratio >= SLOWER_P90);
    comparison(vote, SpeedReference::OwnPast, slower, earlier.p50_us)
}

/// Compares with merged runs of other devices or times. Merged runs include the spread between devices, so the device's
/// p10 must exceed their median.
fn merged<'a>(
    vote: &'a DeviceVote,
    (before, slower_p10, reference): (&BaselineLatency, f64, SpeedReference),
) -> Option<Comparison<'a>> {
    let latency = vote.latency.as_ref()?;
    let slower_p90 = SLOWER_P90.max(slower_p10);
    let slower = latency.low?.p10_us >= slower_p10 * before.p50_us
        || latency
            .high
            .is_some_and(|high| high.p90_us >= slower_p90 * before.p95_us);
    comparison(vote, reference, slower, before.p50_us)
}

fn commonest(comparisons: &[&Comparison<'_>]) -> Option<SpeedReference> {
    let mut counts: BTreeMap<SpeedReference, usize> = BTreeMap::new();
    for comparison in comparisons {
        *counts.entry(comparison.reference).or_default() += 1;
    }
    let commonest = counts.into_iter().max_by_key(|(_, n)| *n);
    commonest.map(|(reference, _)| reference)
}
