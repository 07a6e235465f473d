//! The controls. If the previous version, or another model on the same devices, slowed down as well, the device is the
//! cause, not the model. The same holds for another model or version on the chipset. That control needs no device in
//! common, because load that is spread over the chipset hits other devices of each model. If the devices hit lie nearly
//! all among those that report no thermal state, heat is the cause. Controls use only the window's own runs, because
//! earlier runs that fill up a device's few runs hide a slow-down that began now. A slow-down below 3 times is heat,
//! governor or load, and does not page. From 3 times on the NPU is lost for all models of the device, which does page.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{BEYOND_TENTHS, CohortKey, Installation, ModelKey, SignalId};
use epwatch_stats::order_stat::median;

use crate::judge::baseline::Baseline;
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::tally::Tally;
use crate::judge::window::{CohortWindow, DeviceVote};

use super::intermittent_runs::{self, DeviceRuns, Intermittent};
use super::limits::{MIN_ELIGIBLE, MIN_HITS};
use super::slow_devices::{self, Shift};
use super::unseen_heat::{UnseenHeat, unseen_heat};

/// A peer model's p10 over its own earlier p10 that counts as slowed.
const PEER_SLOWED: f64 = 1.25;

/// Another cohort of the chipset slowed down if the chance of its devices hit is at most this.
const BY_CHANCE: f64 = 0.01;

/// Whether something other than the cohort's model slowed down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Control {
    /// There was no control to compare with.
    Absent,
    /// The previous version did not slow down: share of its devices beyond the same ratio.
    PreviousSteady(f64),
    /// The previous version slowed down too: share of its devices beyond the same ratio.
    PreviousSlowed(f64),
    /// Other models on the devices hit did not slow down: share of these devices on which one did.
    PeersSteady(f64),
    /// Other models on the devices hit slowed down too: share of these devices on which one did.
    PeersSlowed(f64),
    /// Another model or version on the chipset slowed down too: share of its devices.
    CohortSlowed(f64),
    /// Devices of another model or version on the chipset slowed down too, but are too few to be sure: share of its
    /// devices.
    CohortUnsure(f64),
    /// The devices hit are nearly all among those that report no thermal state.
    UnseenHeat(UnseenHeat),
}

impl Control {
    /// Whether the slow-down is not caused by the model.
    #[must_use]
    pub fn vetoes(self) -> bool {
        matches!(
            self,
            Control::PreviousSlowed(_)
                | Control::PeersSlowed(_)
                | Control::CohortSlowed(_)
                | Control::UnseenHeat(_)
        )
    }

    /// Whether it vetoes a slow-down that comes with a worse placement: heat moves no work to the CPU.
    #[must_use]
    pub fn vetoes_fallback(self) -> bool {
        self.vetoes() && !matches!(self, Control::UnseenHeat(_))
    }

    /// Whether a slow-down on latency alone is not sure enough for a page.
    #[must_use]
    pub fn is_unsure(self) -> bool {
        matches!(self, Control::CohortUnsure(_))
    }

    /// The previous version slowed too if the share of its devices hit is at least half as large.
    pub(super) fn of_previous(previous: Tally, share: f64) -> Self {
        if previous.devices < MIN_ELIGIBLE {
            Control::Absent
        } else if previous.hits >= MIN_HITS && previous.share() >= share / 2.0 {
            Control::PreviousSlowed(previous.share())
        } else {
            Control::PreviousSteady(previous.share())
        }
    }

    /// Decides by the previous version if it slowed too, else by other models on the devices hit if enough devices run
    /// one. Other models slowed too if they did on at least half of these devices.
    fn or_of_peers(self, peers: impl FnOnce() -> Tally) -> Self {
        if self.vetoes() {
            return self;
        }
        let peers = peers();
        if peers.devices < MIN_HITS {
            self
        } else if peers.share() >= 0.5 {
            Control::PeersSlowed(peers.share())
        } else {
            Control::PeersSteady(peers.share())
        }
    }

    /// Decides by the cohort of the chipset that slowed most if nothing else slowed. It slowed if more devices are hit
    /// than by chance, and the share is not surely under half as large, because cohorts may be small. If there are no
    /// other controls, a cohort too small to be surprising leaves the cause open.
    fn or_of_cohorts(
        self,
        cohorts: impl FnOnce() -> Vec<Tally>,
        share: f64,
        chance: impl Fn(Tally) -> f64,
    ) -> Self {
        if self.vetoes() {
            return self;
        }
        let may_be = |tally: &Tally| tally.hits > 0 && !tally.is_surely_below(share / 2.0);
        let is_enough =
            |tally: &Tally| tally.devices >= MIN_ELIGIBLE && chance(*tally) <= BY_CHANCE;
        let (sure, unsure): (Vec<Tally>, Vec<Tally>) =
            cohorts().into_iter().filter(may_be).partition(is_enough);
        let most = |of: Vec<Tally>| of.into_iter().map(Tally::share).max_by(f64::total_cmp);
        match (most(sure), most(unsure)) {
            (Some(share), _) => Control::CohortSlowed(share),
            (None, Some(share)) if self == Control::Absent => Control::CohortUnsure(share),
            _ => self,
        }
    }

    /// Decides by the thermal state if nothing else slowed.
    fn or_of_heat(self, window: &CohortWindow, hit: &HashSet<Installation>) -> Self {
        if self.vetoes() {
            return self;
        }
        unseen_heat(window, hit).map_or(self, Control::UnseenHeat)
    }
}

/// The groups that a cohort is compared with in its own window.
#[derive(Debug, Clone, Copy)]
pub struct Controls<'a> {
    /// The previous version on the same chipset.
    pub previous: Option<&'a CohortWindow>,
    /// Other models of the app on the same devices.
    pub peers: &'a PeerRatios,
    /// The same version on other chipsets.
    pub chipsets: &'a [&'a CohortWindow],
}

/// The slow-down of every model of an app on each device, against the device's own past.
#[derive(Debug, Clone, Default)]
pub struct PeerRatios {
    ratios: HashMap<Installation, Vec<(Arc<CohortKey>, f64)>>,
    runs: HashMap<Installation, Vec<(Arc<CohortKey>, DeviceRuns)>>,
}

impl PeerRatios {
    /// Adds the ratios of a cohort's votes.
    pub fn add(&mut self, cohort: &CohortKey, votes: &[DeviceVote]) {
        // All devices share one key, because there are many devices.
        let cohort = Arc::new(cohort.clone());
        for (device, ratio) in slow_devices::worst_own_ratios(votes) {
            self.ratios
                .entry(device)
                .or_default()
                .push((cohort.clone(), ratio));
        }
        for (device, runs) in intermittent_runs::runs_of_devices(votes) {
            let slot = self.runs.entry(device).or_default();
            slot.push((cohort.clone(), runs));
        }
    }

    /// Returns the smallest ratio of a device's other models. If it is slow, all of them are.
    fn steadiest_peer(&self, device: &Installation, model: &ModelKey) -> Option<f64> {
        let peers = self
            .ratios
            .get(device)?
            .iter()
            .filter(|(of, _)| of.model != *model);
        peers.map(|(_, ratio)| *ratio).min_by(f64::total_cmp)
    }
}

/// Counts the devices hit of every other model and version on the chipset of `own`, without the model's versions in
/// `left_out`.
fn others_on_chipset<T>(
    all: &HashMap<Installation, Vec<(Arc<CohortKey>, T)>>,
    own: &CohortKey,
    left_out: &[String],
    is_hit: impl Fn(&T) -> bool,
) -> Vec<Tally> {
    let mut tallies: BTreeMap<&CohortKey, Tally> = BTreeMap::new();
    for (cohort, value) in all.values().flatten() {
        let is_own = (&cohort.model, &cohort.model_version) == (&own.model, &own.model_version);
        let is_left_out = cohort.model == own.model && left_out.contains(&cohort.model_version);
        if is_own || is_left_out || cohort.chipset != own.chipset {
            continue;
        }
        let tally = tallies.entry(cohort).or_default();
        tally.devices += 1;
        tally.hits += u64::from(is_hit(value));
    }
    tallies.into_values().collect()
}

/// Returns the control of devices whose placement got worse: `control`, or their other models. These also count if
/// `Shift` hit no device.
pub(super) fn of_moved(
    control: Control,
    window: &CohortWindow,
    moved: &HashSet<Installation>,
    peers: &PeerRatios,
) -> Control {
    if control.vetoes_fallback() {
        return control;
    }
    let model = &window.key.model;
    let ratios = moved
        .iter()
        .filter_map(|device| peers.steadiest_peer(device, model));
    let slowed = Tally::of(ratios, |ratio| ratio >= PEER_SLOWED);
    match slowed.devices >= MIN_HITS && slowed.share() >= 0.5 {
        true => Control::PeersSlowed(slowed.share()),
        false => control,
    }
}

/// Returns the median over a cohort's devices of the ratio of their steadiest other model; `None` if too few devices
/// have one.
pub(super) fn peer_ratio(
    window: &CohortWindow,
    devices: &slow_devices::WorstRatios,
    peers: &PeerRatios,
) -> Option<f64> {
    let model = &window.key.model;
    let ratios = devices.keys();
    let ratios = ratios.filter_map(|device| peers.steadiest_peer(device, model));
    let ratios: Vec<f64> = ratios.collect();
    median(&ratios).filter(|_| ratios.len() as u64 >= MIN_ELIGIBLE)
}

/// Compares the devices that `Shift` found with the controls.
pub(super) fn slowed_too(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    peers: &PeerRatios,
    shift: Option<&Shift>,
    baseline: &Baseline,
) -> Control {
    let Some(shift) = shift.filter(|shift| shift.signal.hits > 0) else {
        return Control::Absent;
    };
    let beyond = |ratio: &f64| *ratio >= shift.signal.threshold;
    let previous = previous.map_or(Tally::default(), |previous| {
        Tally::of(
            slow_devices::worst_own_ratios(&previous.votes).values(),
            beyond,
        )
    });
    let by_devices = Control::of_previous(previous, shift.signal.value).or_of_peers(|| {
        let (model, hit) = (&window.key.model, shift.hit_devices.iter());
        let ratios = hit.filter_map(|device| peers.steadiest_peer(device, model));
        Tally::of(ratios, |ratio| ratio >= PEER_SLOWED)
    });
    if !shift.signal.fires {
        return by_devices;
    }
    // At the deciding ratio, load may hit a third of one cohort, and almost none of another that it slows a little
    // less. So both are compared at the mildest ratio.
    let tenths = BEYOND_TENTHS[0];
    let slowed = |ratio: &f64| *ratio >= f64::from(tenths) / 10.0;
    let others = || others_on_chipset(&peers.ratios, &window.key, &baseline.no_controls, slowed);
    let share = shift
        .beyond(tenths)
        .map_or(shift.signal.value, Tally::share);
    let id = SignalId::ShiftBeyond(tenths);
    let chance = |tally| baseline.chance(id, slow_devices::FLEET_RATE, tally);
    let by_cohorts = by_devices.or_of_cohorts(others, share, chance);
    by_cohorts.or_of_heat(window, &shift.hit_devices)
}

/// Compares the devices that an intermittent signal found with the controls.
#[must_use]
pub(crate) fn intermittent_too(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    peers: &PeerRatios,
    found: &Intermittent,
    baseline: &Baseline,
    built_in_rate: f64,
) -> Control {
    let previous = previous.map_or(Tally::default(), |previous| {
        intermittent_runs::tally_of(&found.signal, &previous.votes)
    });
    let is_hit = |runs: &DeviceRuns| intermittent_runs::is_hit(&found.signal, runs);
    let others = || others_on_chipset(&peers.runs, &window.key, &baseline.no_controls, is_hit);
    let id = found.past_id();
    let chance = |tally| baseline.chance(id, built_in_rate, tally);
    Control::of_previous(previous, found.signal.value)
        .or_of_peers(|| peers_hit(window, peers, found))
        .or_of_cohorts(others, found.signal.value, chance)
        .or_of_heat(window, &found.hit_devices)
}

/// Counts the devices that an intermittent signal found and that run another model, and among them the devices whose
/// other model is hit as well.
pub(super) fn peers_hit(window: &CohortWindow, peers: &PeerRatios, found: &Intermittent) -> Tally {
    let model = &window.key.model;
    let mut tally = Tally::default();
    for device in &found.hit_devices {
        let others = peers.runs.get(device).into_iter().flatten();
        let mut others = others.filter(|(of, _)| of.model != *model).peekable();
        if others.peek().is_none() {
            continue;
        }
        tally.devices += 1;
        tally.hits +=
            u64::from(others.any(|(_, runs)| intermittent_runs::is_hit(&found.signal, runs)));
    }
    tally
}
