//! `Placement`: devices whose work moved to the CPU, compared with the reference placement.
//!
//! A hit is more than 2 points of the MACs, or more than 3 of the nodes if MACs are unknown. Compared with the median
//! of other chipsets, only a total loss is a hit, because chipsets differ by design. A total loss is under 5 % on the
//! NPU while others have 80 %.

use std::cmp::Reverse;
use std::sync::Arc;

use epwatch_model::{
    Installation, Origin, Placement, PlacementReference, Signal, SignalId, TOTAL_FALLBACK_BELOW,
    WorkUnit,
};
use epwatch_proto::ReasonCode;

use crate::judge::baseline::{Baseline, Certificate};
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::placement::{noise, rise_over};
use crate::judge::tally::Tally;
use crate::judge::window::{CohortWindow, DeviceVote};

use super::limits::{Limits, MIN_HITS, counted_signal, is_enough};

/// Codes that mean the NPU's back end could not be set up. Causes are listed after their effects. If equally many
/// devices have several codes, the last one counts.
pub(crate) const BACKEND_CODES: [ReasonCode; 7] = [
    ReasonCode::BackendSetupFailed,
    ReasonCode::DeviceCreationFailed,
    ReasonCode::BackendLibraryMissing,
    ReasonCode::SocModelUnknown,
    ReasonCode::EpTooOldForOrt,
    ReasonCode::QnnVersionsDiffer,
    ReasonCode::SkelLibraryMissing,
];

/// Share of devices in healthy fleets that always fell back: the upper end of 0 to 3 % (the project's
/// detection measurements, "Scenarios").
pub(crate) const FLEET_RATE: f64 = 0.03;

/// Share of the work that other chipsets must have on the NPU for a total loss to be one.
const OTHERS_AT_LEAST: f64 = 0.8;

/// The result of `Placement`.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementChange {
    /// Value: median rise of the CPU's share on the devices hit, in [0, 1]. Threshold in the same unit.
    pub signal: Signal,
    /// The origin of the reference.
    pub origin: Origin,
    /// The unit of the shares.
    pub unit: WorkUnit,
    /// Share of the work on the NPU in the reference, in [0, 1].
    pub reference_npu_share: Option<f64>,
    /// Median share of the work on the NPU on the devices hit.
    pub hit_npu_share: Option<f64>,
    /// Their placements, commonest first.
    pub hit_placements: Vec<HitPlacement>,
    pub hit_devices: HashSet<Installation>,
    /// Devices compared and not hit.
    pub kept_devices: HashSet<Installation>,
    /// Devices hit whose sessions go back and forth between a worse placement and another one.
    pub alternating: u64,
    /// Devices hit that have sessions of both kinds.
    pub with_both: u64,
    /// Runtimes of the devices hit, if none of them is the reference's; empty otherwise.
    pub new_runtimes: Vec<String>,
}

/// A placement that got worse, and how many devices have it.
#[derive(Debug, Clone, PartialEq)]
pub struct HitPlacement {
    pub placement: Arc<Placement>,
    pub devices: u64,
}

impl PlacementChange {
    /// Returns how many devices were compared: the signal's devices without devices that a directive took off the NPU.
    #[must_use]
    pub fn n_compared(&self) -> u64 {
        (self.hit_devices.len() + self.kept_devices.len()) as u64
    }

    /// Returns the share of the devices compared that were hit, in [0, 1].
    #[must_use]
    pub fn share_hit(&self) -> f64 {
        self.signal.hits as f64 / self.n_compared() as f64
    }

    /// Whether sessions fall back rather than devices. Then many devices go back and forth, which a single change does
    /// not cause.
    #[must_use]
    pub(crate) fn alternates(&self) -> bool {
        self.alternating >= MIN_HITS
            && 4 * self.alternating >= self.signal.hits
            && 2 * self.alternating >= self.with_both
    }

    /// Whether the placement got worse on every device where it can be compared, and these are most of the cohort's
    /// devices.
    #[must_use]
    pub(crate) fn is_on_every_device(&self, devices: u64) -> bool {
        let hit = self.hit_devices.len() as u64;
        hit >= MIN_HITS && self.kept_devices.is_empty() && 2 * hit > devices
    }

    /// Returns the back-end code given on at least half of the devices hit, and on how many.
    #[must_use]
    pub(crate) fn backend_code(&self) -> Option<(ReasonCode, u64)> {
        let with_code = |code: ReasonCode| -> u64 {
            let is_code = |reason: &String| reason == code.as_str();
            let placements = self.hit_placements.iter();
            let with_it = placements.filter(|hit| hit.placement.reasons.iter().any(is_code));
            with_it.map(|hit| hit.devices).sum()
        };
        let (code, devices) = BACKEND_CODES
            .map(|code| (code, with_code(code)))
            .into_iter()
            .max_by_key(|(_, devices)| *devices)?;
        (devices > 0 && devices * 2 >= self.signal.hits).then_some((code, devices))
    }
}

pub(super) struct Compared {
    pub(super) origin: Origin,
    pub(super) unit: WorkUnit,
    pub(super) rise: f64,
    pub(super) worse: bool,
    pub(super) reference_share: Option<f64>,
    pub(super) reference_runtime: Option<String>,
}

/// Compares every device's placements with the reference; `None` if none is comparable.
#[must_use]
pub(crate) fn changed(
    window: &CohortWindow,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<PlacementChange> {
    let compared = |vote: &DeviceVote| compare(vote, baseline);
    changed_by(window, SignalId::Placement, baseline, limits, compared)
}

/// The inputs of a comparison: placement and firmware, by address.
type Ran = (*const Placement, *const u8);

fn ran(vote: &DeviceVote) -> Ran {
    (Arc::as_ptr(&vote.placement), vote.firmware.as_ptr())
}

/// Makes the signal `id` with another comparison of a placement on a firmware.
pub(super) fn changed_by(
    window: &CohortWindow,
    id: SignalId,
    baseline: &Baseline,
    limits: &Limits,
    compare: impl Fn(&DeviceVote) -> Option<Compared>,
) -> Option<PlacementChange> {
    let mut verdicts: HashMap<Ran, Option<Compared>> = HashMap::default();
    let (mut hit_devices, mut compared_devices) = (HashSet::default(), HashSet::default());
    compared_devices.reserve(window.votes.len());
    let mut hits: Vec<(&DeviceVote, Ran)> = Vec::new();
    let mut origins: Option<Origin> = None;
    for vote in &window.votes {
        let place = ran(vote);
        let compared = verdicts.entry(place).or_insert_with(|| compare(vote));
        let Some(compared) = compared else { continue };
        compared_devices.insert(vote.installation);
        origins = Some(origins.map_or(compared.origin, |o| o.min(compared.origin)));
        if compared.worse {
            hit_devices.insert(vote.installation);
            hits.push((vote, place));
        }
    }
    // One origin stands for all devices, because they differ in method only, not in version.
    let origin = origins?;
    let of = |place: &Ran| verdicts.get(place).and_then(Option::as_ref);

    let mut by_placement: HashMap<*const Placement, (Arc<Placement>, HashSet<Installation>)> =
        HashMap::default();
    let (mut rises, mut shares, mut runtimes) = (Vec::new(), Vec::new(), Vec::new());
    for (vote, place) in &hits {
        let placement = &vote.placement;
        let slot = by_placement
            .entry(place.0)
            .or_insert((placement.clone(), HashSet::default()));
        slot.1.insert(vote.installation);
        let compared = of(place)?;
        rises.push(compared.rise);
        shares.extend(placement.npu_share().map(|(share, _)| share));
        let reference = compared.reference_runtime.as_ref();
        if reference.is_some_and(|runtime| *runtime != placement.runtime) {
            runtimes.push(placement.runtime.clone());
        }
    }
    // The runtime can only be the cause if every device hit has another one.
    if runtimes.len() < hits.len() {
        runtimes.clear();
    }
    runtimes.sort();
    runtimes.dedup();
    let mut hit_placements: Vec<HitPlacement> = by_placement
        .into_values()
        .map(|(placement, devices)| HitPlacement {
            placement,
            devices: devices.len() as u64,
        })
        .collect();
    hit_placements.sort_by_key(|hit| (Reverse(hit.devices), hit.placement.fingerprint));

    let sample = hits.first().map(|(_, place)| *place).or_else(|| {
        let mut all = window.votes.iter().map(ran);
        all.find(|place| of(place).is_some())
    })?;
    let sample = of(&sample)?;
    let tally = Tally {
        hits: hit_devices.len() as u64,
        // Devices that a directive took off the NPU had their work there, so they count as not hit.
        devices: compared_devices.len() as u64 + window.n_only_directed(),
    };
    let both = alternating(window, &hit_devices, |vote| {
        of(&ran(vote)).map(|compared| compared.worse)
    });
    let p = baseline.chance(id, FLEET_RATE, tally);
    let fires = is_enough(tally, 0.0) && p <= limits.p_placement;
    let threshold = noise(sample.unit);
    Some(PlacementChange {
        signal: Signal {
            value: epwatch_stats::order_stat::median(&rises).unwrap_or(0.0),
            ..counted_signal(id, tally, p, threshold, fires)
        },
        origin,
        unit: sample.unit,
        reference_npu_share: sample.reference_share,
        hit_npu_share: epwatch_stats::order_stat::median(&shares),
        hit_placements,
        kept_devices: compared_devices.difference(&hit_devices).copied().collect(),
        hit_devices,
        alternating: both.hits,
        with_both: both.devices,
        new_runtimes: runtimes,
    })
}

/// Counts the devices hit that have sessions of both kinds, and among them those whose sessions go back and forth. One
/// change leaves all sessions of one kind before all sessions of the other.
fn alternating(
    window: &CohortWindow,
    hit: &HashSet<Installation>,
    is_worse: impl Fn(&DeviceVote) -> Option<bool>,
) -> Tally {
    let mut sessions: HashMap<Installation, [Option<(i64, i64)>; 2]> = HashMap::default();
    let of_hit = |vote: &&DeviceVote| hit.contains(&vote.installation);
    for vote in window.votes.iter().filter(of_hit) {
        let (Some(worse), Some((first, last))) = (is_worse(vote), vote.created_s) else {
            continue;
        };
        let slot = &mut sessions.entry(vote.installation).or_default()[usize::from(worse)];
        let known = slot.unwrap_or((first, last));
        *slot = Some((known.0.min(first), known.1.max(last)));
    }
    let of_both = sessions
        .values()
        .filter_map(|[kept, worse]| kept.zip(*worse));
    Tally::of(of_both, |(kept, worse)| {
        kept.0 < worse.1 && worse.0 < kept.1
    })
}

/// Whether a placement is worse than the reference; `None` if none is comparable.
pub(crate) fn compare_worse(vote: &DeviceVote, baseline: &Baseline) -> Option<bool> {
    compare(vote, baseline).map(|compared| compared.worse)
}

/// Compares with the first reference that is comparable. Other chipsets can only show a total loss, so the version's
/// own earlier placement here is compared too. If the earlier placement was not better, the other chipsets decide.
fn compare(vote: &DeviceVote, baseline: &Baseline) -> Option<Compared> {
    let mut by_others: Option<Compared> = None;
    // Of several certificates, the certificate of the nearest firmware counts.
    let nearest = Certificate::nearest(&baseline.certificates, vote).map(|one| &one.placement);
    let is_further = |reference: &&PlacementReference| match (reference, nearest) {
        (
            PlacementReference::Placement {
                origin: Origin::Certified,
                placement,
            },
            Some(nearest),
        ) => placement != nearest,
        _ => false,
    };
    for reference in baseline.placements.iter().filter(|one| !is_further(one)) {
        match compare_one(&vote.placement, reference) {
            None => {}
            Some(found) if found.origin == Origin::OtherChipsets => {
                by_others = by_others.or(Some(found));
            }
            Some(found) if found.worse => return Some(found),
            Some(found) => return by_others.filter(|others| others.worse).or(Some(found)),
        }
    }
    by_others
}

fn compare_one(placement: &Placement, reference: &PlacementReference) -> Option<Compared> {
    match reference {
        PlacementReference::Placement {
            origin,
            placement: before,
        } => {
            let rise = rise_over(placement, before)?;
            Some(Compared {
                origin: *origin,
                unit: rise.unit,
                rise: rise.by,
                worse: rise.is_worse(),
                reference_share: before.npu_share().map(|(share, _)| share),
                reference_runtime: Some(before.runtime.clone()),
            })
        }
        PlacementReference::MedianShare {
            method,
            npu_share,
            unit,
            ..
        } => {
            let (share, own_unit) = placement.npu_share()?;
            (placement.method == *method && own_unit == *unit).then(|| Compared {
                origin: Origin::OtherChipsets,
                unit: *unit,
                rise: npu_share - share,
                worse: share < TOTAL_FALLBACK_BELOW && *npu_share >= OTHERS_AT_LEAST,
                reference_share: Some(*npu_share),
                reference_runtime: None,
            })
        }
    }
}
