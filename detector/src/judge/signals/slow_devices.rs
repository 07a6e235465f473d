//! `Shift`: the number of devices that are slower than their own past, and how surprising it is.
//!
//! Ratios compare p10: the mix of inputs, contention and throttling barely move it, but a CPU fallback must. If most
//! devices have no past of their own, the baseline is devices of the same make on the version before (`ShiftOfModel`),
//! with stricter limits.

use epwatch_model::{BEYOND_TENTHS, Installation, Signal, SignalId};
use epwatch_stats::order_stat::median;

use crate::judge::baseline::Baseline;
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::tally::Tally;
use crate::judge::window::{CohortWindow, DeviceVote, SelfBaselineKind, VoteLatency};

use super::limits::{Limits, MIN_HITS, counted_signal, is_enough};
use super::same_shape::{self, BeforeAndNow};

/// Up to 1 % of healthy devices carry a lasting slow-down of their own (the project's detection
/// measurements, "Scenarios"). Its size was not measured, so the upper end holds for every ratio.
pub(crate) const FLEET_RATE: f64 = 0.01;

/// Correction for testing several ratios. Devices beyond one ratio are beyond the smaller ones too, so the correction
/// is less than the number of ratios. It is 1.2 to 3.3 times the single chance if counts follow their priors. It grows
/// with how fast the rates fall from ratio to ratio.
const ASKED_SEVERAL: f64 = 3.0;

/// Share of the devices that must be hit.
pub(crate) const MIN_SHARE: f64 = 0.01;

/// `ShiftOfModel` needs more hits and a smaller chance, because silicon of one make differs.
const MIN_HITS_BORROWED: u64 = 4;
const BORROWED_STRICTER: f64 = 0.1;

/// If the whole cohort moved by this much, a tail of devices beyond 1.6 x is expected. So only ratios from 2 x on are
/// tested.
const COHORT_MOVED: std::ops::Range<f64> = 1.08..1.6;

/// If at least this share of the devices is below that range, some devices moved, and not the whole cohort.
const STAYED: f64 = 0.25;

/// Devices fall into two groups if almost none have a ratio in this range, at most this share of the moved devices. The
/// range lies between devices that stayed and devices that moved.
const BETWEEN_GROUPS: std::ops::Range<f64> = 1.15..1.3;
const MOST_BETWEEN: f64 = 0.25;

/// Ratio, in tenths, below which a shift of some devices does not page: firmware may cost as much.
const MILD_TENTHS: u16 = 16;

/// The result of `Shift` or `ShiftOfModel`.
#[derive(Debug, Clone, PartialEq)]
pub struct Shift {
    /// Value: share of the devices beyond the most surprising ratio. Threshold: that ratio. The chance is
    /// corrected for testing several.
    pub signal: Signal,
    /// Counts at every ratio tested: the history of later versions.
    pub tallies: Vec<(u16, Tally)>,
    pub hit_devices: HashSet<Installation>,
    /// Median over the devices hit of p50 over their own earlier p50.
    pub p50_ratio: Option<f64>,
    /// Median p50 of the devices hit now and before, in microseconds.
    pub p50_us: Option<(f64, f64)>,
    /// Median ratio of p10 over all devices.
    pub cohort_ratio: f64,
}

impl Shift {
    /// Returns the counts at a ratio, in tenths.
    pub(crate) fn beyond(&self, tenths: u16) -> Option<Tally> {
        let mut tallies = self.tallies.iter();
        let found = tallies.find(|(of, _)| *of == tenths);
        found.map(|(_, tally)| *tally)
    }

    /// Whether only the smallest ratio is surprising, at which only two groups of devices are tested.
    pub(crate) fn is_mild(&self) -> bool {
        self.signal.threshold < f64::from(MILD_TENTHS) / 10.0
    }

    /// Returns the id of the deciding ratio's tally in the history.
    pub(super) fn past_id(&self) -> SignalId {
        let tenths = BEYOND_TENTHS
            .into_iter()
            .find(|tenths| f64::from(*tenths) / 10.0 >= self.signal.threshold);
        SignalId::ShiftBeyond(tenths.unwrap_or(BEYOND_TENTHS[0]))
    }

    /// Returns the counts at every ratio tested, as rows that are stored next to the signals.
    #[must_use]
    pub fn history_rows(&self) -> Vec<Signal> {
        let row = |(tenths, tally): &(u16, Tally)| {
            let (id, ratio) = (SignalId::ShiftBeyond(*tenths), f64::from(*tenths) / 10.0);
            counted_signal(id, *tally, 1.0, ratio, false)
        };
        self.tallies.iter().map(row).collect()
    }
}

/// Counts devices beyond each ratio; `None` if no device has a baseline.
pub(super) fn beyond(
    window: &CohortWindow,
    ratios: &WorstRatios,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<Shift> {
    let all: Vec<f64> = ratios.values().copied().collect();
    let cohort_ratio = median(&all)?;
    // Until a fleet has its own rates, a device is not slower if one in twenty of its earlier runs was as slow. Its
    // sessions may run on big and on little cores.
    let has_own_rates = baseline.rates.has(SignalId::ShiftBeyond(MILD_TENTHS));
    let as_before = match has_own_rates {
        true => HashSet::default(),
        false => as_slow_before(&window.votes),
    };
    let is_beyond = |device: &Installation, ratio: f64, tenths: u16| {
        ratio >= f64::from(tenths) / 10.0 && !as_before.contains(device)
    };
    let tally =
        |tenths: u16| Tally::of(ratios, |(device, ratio)| is_beyond(device, *ratio, tenths));
    let tallies: Vec<(u16, Tally)> = BEYOND_TENTHS.map(|tenths| (tenths, tally(tenths))).into();
    let share_below = |limit: f64| Tally::of(&all, |ratio| *ratio < limit).share();
    let has_moved_whole =
        COHORT_MOVED.contains(&cohort_ratio) && share_below(COHORT_MOVED.start) < STAYED;
    let from = if has_moved_whole {
        20
    } else if has_own_rates && in_two_groups(&all) {
        BEYOND_TENTHS[0]
    } else {
        MILD_TENTHS
    };
    let (id, min_hits, p_limit) = if is_borrowed(&window.votes) {
        let p_limit = limits.p_latency * BORROWED_STRICTER;
        (SignalId::ShiftOfModel, MIN_HITS_BORROWED, p_limit)
    } else {
        (SignalId::Shift, MIN_HITS, limits.p_shift)
    };
    let chance = |tenths: u16, tally| {
        let id = SignalId::ShiftBeyond(tenths);
        (baseline.chance(id, FLEET_RATE, tally) * ASKED_SEVERAL).min(1.0)
    };
    let fires = |(_, tally, p): &(u16, Tally, f64)| {
        is_enough(*tally, MIN_SHARE) && tally.hits >= min_hits && *p <= p_limit
    };
    let tested = tallies.iter().filter(|(tenths, _)| *tenths >= from);
    let tested = tested.map(|(tenths, tally)| (*tenths, *tally, chance(*tenths, *tally)));
    let (mild, severe): (Vec<_>, Vec<_>) = tested.partition(|(tenths, ..)| *tenths < MILD_TENTHS);
    let found = most_surprising(severe);
    // A mild ratio counts the same devices and a few more. So it is more surprising, but only a ticket, and is tested
    // last.
    let found = match found.filter(&fires) {
        Some(found) => found,
        None => most_surprising(found.into_iter().chain(mild))?,
    };
    let fires = fires(&found);
    let (tenths, tally, p) = found;
    let ratio = f64::from(tenths) / 10.0;
    let hit_devices: HashSet<Installation> = ratios
        .iter()
        .filter(|(device, of)| is_beyond(device, **of, tenths))
        .map(|(device, _)| *device)
        .collect();
    let (p50_ratio, p50_us) = medians_of(&window.votes, &hit_devices, ratio);
    Some(Shift {
        signal: counted_signal(id, tally, p, ratio, fires),
        tallies,
        hit_devices,
        p50_ratio,
        p50_us,
        cohort_ratio,
    })
}

/// Returns the ratio with the smallest chance. Among equally surprising ones the largest is the strongest evidence.
fn most_surprising(
    tested: impl IntoIterator<Item = (u16, Tally, f64)>,
) -> Option<(u16, Tally, f64)> {
    let tested = tested.into_iter();
    tested.min_by(|a, b| a.2.total_cmp(&b.2).then(b.0.cmp(&a.0)))
}

/// Whether the ratios come from two groups of devices, with almost none in between.
fn in_two_groups(ratios: &[f64]) -> bool {
    let between = Tally::of(ratios, |ratio| BETWEEN_GROUPS.contains(ratio));
    let moved = Tally::of(ratios, |ratio| *ratio >= BETWEEN_GROUPS.end);
    between.hits as f64 <= MOST_BETWEEN * moved.hits as f64
}

/// Returns the devices whose p10 is within their own earlier p95, with every input shape.
fn as_slow_before(votes: &[DeviceVote]) -> HashSet<Installation> {
    let mut as_before = HashSet::default();
    let mut slower: HashSet<Installation> = HashSet::default();
    for vote in votes {
        let Some(latency) = &vote.latency else {
            continue;
        };
        let both = latency.low.zip(latency.device_baseline.as_ref().ok());
        let Some((low, earlier)) = both else { continue };
        match low.p10_us <= earlier.p95_us {
            true => as_before.insert(vote.installation),
            false => slower.insert(vote.installation),
        };
    }
    as_before.retain(|device| !slower.contains(device));
    as_before
}

/// Whether most devices are compared with others of their make instead of their own past (`ShiftOfModel`).
fn is_borrowed(votes: &[DeviceVote]) -> bool {
    let latencies = votes.iter().filter_map(|vote| vote.latency.as_ref());
    let kinds = latencies.filter_map(|latency| latency.device_baseline.as_ref().ok());
    let (mut own, mut borrowed) = (0_u64, 0_u64);
    for past in kinds {
        match past.kind {
            SelfBaselineKind::SameModel => borrowed += 1,
            _ => own += 1,
        }
    }
    borrowed > own
}

/// Each device's largest ratio of p10 to its baseline.
pub(super) type WorstRatios = HashMap<Installation, f64>;

pub(super) fn worst_ratios<'a>(votes: impl IntoIterator<Item = &'a DeviceVote>) -> WorstRatios {
    worst_of(votes, VoteLatency::p10_ratio)
}

/// Each device's largest ratio of the window's own runs. If earlier runs fill up its few runs, a device does not show a
/// slow-down that began now.
pub(super) fn worst_own_ratios<'a>(votes: impl IntoIterator<Item = &'a DeviceVote>) -> WorstRatios {
    worst_of(votes, VoteLatency::own_p10_ratio)
}

fn worst_of<'a>(
    votes: impl IntoIterator<Item = &'a DeviceVote>,
    ratio_of: impl Fn(&VoteLatency) -> Option<f64>,
) -> WorstRatios {
    let votes = votes.into_iter();
    let mut worst = WorstRatios::default();
    worst.reserve(votes.size_hint().0);
    for vote in votes {
        let Some(ratio) = vote.latency.as_ref().and_then(&ratio_of) else {
            continue;
        };
        let slot = worst.entry(vote.installation).or_insert(ratio);
        *slot = slot.max(ratio);
    }
    worst
}

type Medians = (Option<f64>, Option<(f64, f64)>);

/// Returns the medians over the devices hit, of the input shapes and placements with which they are beyond the ratio.
fn medians_of(votes: &[DeviceVote], devices: &HashSet<Installation>, beyond: f64) -> Medians {
    let (mut ratios, mut latencies) = (Vec::new(), Vec::new());
    let is_slow = |vote: &&DeviceVote| {
        let ratio = vote.latency.as_ref().and_then(VoteLatency::p10_ratio);
        devices.contains(&vote.installation) && ratio.is_some_and(|ratio| ratio >= beyond)
    };
    for vote in votes.iter().filter(is_slow) {
        let Some(latency) = &vote.latency else {
            continue;
        };
        ratios.extend(latency.p50_ratio());
        if let (Some(low), Ok(earlier)) = (latency.low, &latency.device_baseline) {
            latencies.push(BeforeAndNow {
                shape_key: &vote.shape_key,
                now_us: low.p50_us,
                before_us: earlier.p50_us,
            });
        }
    }
    (median(&ratios), same_shape::medians(&latencies))
}
