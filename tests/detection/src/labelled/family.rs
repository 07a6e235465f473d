//! One app over its windows: its devices, their versions, and the label of each cohort.

use std::collections::HashMap;
use std::sync::Mutex;

use super::measured;
use super::noise::USUAL_SESSIONS;
use super::reports;
use super::spec::FamilySpec;
use super::{Benign, Circumstance, Fault, FaultKind, Truth};
use epwatch_fleet::chance::{Chance, whole};
use epwatch_fleet::physics::{SILICON_CV, Traits};
use epwatch_proto::{Baselines, Device, InstallationId, Report, SendClock};

pub(crate) const WINDOW_MS: i64 = 86_400_000;

/// The model's first version, a version that may roll out before the change, and the version that may be at fault.
pub(super) const OLD: &str = "1.0.0";
const BETWEEN: &str = "1.1.0";
pub(super) const NEW: &str = "2.0.0";
/// Further versions: one every two days, or the second of two that roll out at once.
const NEXT: [&str; 3] = ["2.1.0", "2.2.0", "2.3.0"];
/// The version before the first window.
const BEFORE_ALL: &str = "0.9.0";
pub(super) const SUBJECT: &str = "segmenter";
pub(super) const PEER: &str = "detector";

/// Share of the devices on the intermediate version, in the three windows before the roll-out.
const ROLLOUT_BETWEEN: [f64; 3] = [0.3, 0.6, 0.9];

/// A fault is worth a page if it hits this many devices, and this share of devices and of runs. Its slow factor is 2 or
/// more.
const WORTHY_DEVICES: f64 = 10.0;
const WORTHY_SHARE: f64 = 0.05;
const WORTHY_FACTOR: f64 = 2.0;

/// The truth about a cohort.
#[derive(Debug, Clone, PartialEq)]
pub struct CohortLabel {
    pub app: String,
    pub model: String,
    pub version: String,
    pub chipset: String,
    /// Whether this cohort is at fault.
    pub is_fault: bool,
    /// Whether its fault is worth a page: slow factor 2 or more, 10 devices and 5 % of them hit, 5 % of their runs.
    pub is_page_worthy: bool,
    /// End of the first window in which the fault hits enough devices for a page. If no window does, the end of the
    /// first window with the fault, in milliseconds since 1970.
    pub fault_from_ms: Option<i64>,
}

/// A report, and the data that the collector would store with it.
#[derive(Debug, Clone)]
pub struct FamilyReport {
    pub received_ms: i64,
    pub report: Report,
    /// The device's clocks at sending.
    pub sent: SendClock,
}

#[derive(Debug)]
pub(super) struct Phone {
    pub(super) number: u64,
    pub(super) chipset: usize,
    pub(super) installation: InstallationId,
    /// The device's description in every report.
    pub(super) device: Device,
    pub(super) traits: Traits,
    pub(super) always_fell_back: bool,
    /// The device's position in the order of roll-outs, in [0, 1).
    rollout: f64,
    rollout_between: f64,
    /// The device's position in the order in which a fault on some devices hits them, in [0, 1).
    pub(super) luck: f64,
    /// Decides which of two new versions the device gets, if there are two.
    luck_of_two: f64,
    pub(super) has_baseline: bool,
    pub(super) has_peer: bool,
    /// Whether the device runs the first model; if not, it runs the second.
    pub(super) has_subject: bool,
    pub(super) lasting_from: u32,
    pub(super) joins: u32,
}

/// One app over its windows.
#[derive(Debug)]
pub struct Family {
    pub(super) spec: FamilySpec,
    pub(super) start_ms: i64,
    phones: Vec<Phone>,
    pub(super) slowness: Vec<f64>,
    /// Baselines by device, version and shape, drawn once.
    pub(super) learnt: Mutex<HashMap<(u64, String), Baselines>>,
}

impl Family {
    /// Draws the devices of a family whose first window begins at `start_ms`.
    #[must_use]
    pub fn new(spec: FamilySpec, start_ms: i64) -> Self {
        let mut chance = Chance::split(spec.seed, "phones", 0);
        let wild = spec.wildness;
        let silicon = chance.between(SILICON_CV) * wild;
        let lasting = chance.between((0.0, 0.01)) * wild;
        let always = chance.between((0.0, 0.03));
        let n_models = 1 + whole(chance.unit() * 4.0) as usize;
        let models: Vec<f64> = (0..n_models)
            .map(|_| chance.between((0.97, 1.04)))
            .collect();
        let slowness = (0..spec.chipsets)
            .map(|at| measured::chipset_slowness(at, &mut chance))
            .collect();
        let windows = spec.windows.0 + spec.windows.1;
        let mix_shift = spec.truth == Truth::Benign(Benign::DeviceMixShift);
        let mut phones = Vec::new();
        for chipset in 0..spec.chipsets {
            for at in 0..spec.devices {
                let has_both = spec.truth != Truth::Benign(Benign::SharedLoad);
                let late = mix_shift && chance.happens(0.3);
                let model = whole(chance.unit() * models.len() as f64) as usize;
                let slow_model = if late { 1.6 } else { 1.0 };
                let joins = if late {
                    spec.windows.0
                } else if chance.happens(1.0 - spec.presence) {
                    whole(chance.unit() * f64::from(windows))
                } else {
                    0
                };
                let number = phones.len() as u64;
                let make = if late { models.len() } else { model };
                let firmware = if number.is_multiple_of(3) { "f1" } else { "f2" };
                let mut traits = Traits::draw(silicon, lasting, wild, &mut chance);
                traits.silicon = traits.silicon * models[model] * slow_model;
                if spec.is_under(Circumstance::NoisyRuns) {
                    traits.run_sigma = 0.5;
                }
                phones.push(Phone {
                    number,
                    chipset,
                    installation: InstallationId::from_secret(
                        format!("{} {number}", spec.seed).as_bytes(),
                    ),
                    device: reports::device(
                        measured::chipset(chipset),
                        &format!("model-{make}"),
                        firmware,
                    ),
                    traits,
                    always_fell_back: chance.happens(always),
                    rollout: chance.unit(),
                    rollout_between: chance.unit(),
                    luck: chance.unit(),
                    luck_of_two: Chance::split(spec.seed, "half", number).unit(),
                    has_baseline: !chance.happens(spec.without_baseline) && !late,
                    has_peer: chance.happens(spec.peers) && (has_both || at % 2 == 1),
                    has_subject: has_both || at % 2 == 0,
                    lasting_from: whole(chance.unit() * f64::from(windows)),
                    joins,
                });
            }
        }
        Self {
            spec,
            start_ms,
            phones,
            slowness,
            learnt: Mutex::default(),
        }
    }

    #[must_use]
    pub fn spec(&self) -> &FamilySpec {
        &self.spec
    }

    #[must_use]
    pub fn app_id(&self) -> String {
        format!("app-{:06}", self.spec.seed)
    }

    /// Number of windows.
    #[must_use]
    pub fn n_windows(&self) -> u32 {
        self.spec.windows.0 + self.spec.windows.1
    }

    /// End of the first window with the fault or confounder, in milliseconds since 1970.
    #[must_use]
    pub fn change_from_ms(&self) -> i64 {
        self.window_end_ms(self.spec.windows.0)
    }

    fn window_end_ms(&self, window: u32) -> i64 {
        self.start_ms + i64::from(window + 1) * WINDOW_MS
    }

    /// Returns the label of each cohort.
    #[must_use]
    pub fn labels(&self) -> Vec<CohortLabel> {
        let mut labels = Vec::new();
        let subjects = [OLD, BETWEEN, NEW].into_iter().chain(NEXT);
        let subjects = subjects.map(|version| (SUBJECT, version));
        for at in 0..self.spec.chipsets {
            for (model, version) in subjects.clone().chain([(PEER, OLD)]) {
                let is_subject = at == 0 && (model, version) == (SUBJECT, NEW);
                let fault = self.spec.fault().filter(|_| is_subject);
                let worthy_from = fault.and_then(|fault| self.worthy_from(fault));
                labels.push(CohortLabel {
                    app: self.app_id(),
                    model: model.into(),
                    version: version.into(),
                    chipset: measured::chipset(at).into(),
                    is_fault: fault.is_some(),
                    is_page_worthy: worthy_from.is_some(),
                    fault_from_ms: fault
                        .map(|_| self.window_end_ms(worthy_from.unwrap_or(self.spec.windows.0))),
                });
            }
        }
        labels
    }

    /// Returns the first window in which a fault is worth a page.
    fn worthy_from(&self, fault: Fault) -> Option<u32> {
        let (share, runs, reach) = match fault.kind {
            FaultKind::Total | FaultKind::Drift => (1.0, 1.0, 1.0),
            FaultKind::SomeDevices(share) => (share, 1.0, 1.0),
            FaultKind::IntermittentRuns(runs) => (1.0, runs, 1.0),
            // A device is hit in a window if any of its sessions is.
            FaultKind::IntermittentSessions(share) => {
                (1.0, share, 1.0 - (1.0 - share).powf(USUAL_SESSIONS))
            }
        };
        if fault.factor < WORTHY_FACTOR || share < WORTHY_SHARE || runs < WORTHY_SHARE {
            return None;
        }
        (self.spec.windows.0..self.n_windows()).find(|window| {
            let is_hit = |phone: &&Phone| {
                phone.chipset == 0
                    && phone.joins <= *window
                    && self.version(phone, *window) == NEW
                    && phone.luck < share
            };
            let hit = self.phones.iter().filter(is_hit).count();
            hit as f64 * reach * self.spec.presence >= WORTHY_DEVICES
        })
    }

    /// The reports of one window, in the order of their receipt.
    #[must_use]
    pub fn window(&self, window: u32) -> Vec<FamilyReport> {
        let mut reports = Vec::new();
        self.each_report(window, |report| reports.push(report));
        reports.sort_by_key(|report| report.received_ms);
        reports
    }

    /// Passes the reports of one window to `take`, device by device.
    pub fn each_report(&self, window: u32, mut take: impl FnMut(FamilyReport)) {
        for phone in &self.phones {
            let index = phone.number * 1_000 + u64::from(window);
            let mut chance = Chance::split(self.spec.seed, "window", index);
            if window < phone.joins || !chance.happens(self.spec.presence) {
                continue;
            }
            self.phone_window(phone, window, &mut chance)
                .into_iter()
                .for_each(&mut take);
        }
    }

    /// Returns the version that a device runs in a window.
    pub(super) fn version(&self, phone: &Phone, window: u32) -> &'static str {
        let since = |first: u32| window.checked_sub(first).map(|since| since as usize);
        let (spec, first) = (&self.spec, self.spec.windows.0);
        let on = |rollout: &[f64], since: usize| rollout.get(since).or(rollout.last()).copied();
        let new = since(first).and_then(|since| on(&spec.rollout, since));
        if phone.rollout < new.unwrap_or(0.0) {
            let at = match (spec.circumstance, since(first)) {
                (Some(Circumstance::AbHalves), _) => usize::from(phone.luck_of_two < 0.5),
                (Some(Circumstance::FrequentVersions), Some(since)) => since / 2,
                _ => 0,
            };
            return at
                .checked_sub(1)
                .map_or(NEW, |next| NEXT[next.min(NEXT.len() - 1)]);
        }
        let between = since(first.saturating_sub(3)).filter(|_| spec.rolls_out_twice);
        let between = between.and_then(|since| on(&ROLLOUT_BETWEEN, since));
        if phone.rollout_between < between.unwrap_or(0.0) {
            return BETWEEN;
        }
        OLD
    }

    /// Returns the version that a device ran before its version in `window`; `None` if it never ran another.
    pub(super) fn version_before(&self, phone: &Phone, window: u32) -> Option<&'static str> {
        let now = self.version(phone, window);
        let earlier = (phone.joins..window).rev();
        let other = earlier
            .map(|window| self.version(phone, window))
            .find(|version| *version != now);
        let was_before = phone.joins == 0 && !self.spec.is_under(Circumstance::FirstDay);
        other.or(was_before.then_some(BEFORE_ALL))
    }

    /// Returns a version's number, from 1, by which the placements of versions differ.
    pub(super) fn number_of(version: &str) -> u64 {
        let next = NEXT.iter().position(|next| *next == version);
        match (version, next) {
            (NEW, _) => 2,
            (_, Some(next)) => 3 + next as u64,
            _ => 1,
        }
    }
}
