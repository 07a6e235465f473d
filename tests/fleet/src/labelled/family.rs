//! One app over its windows: who is there, on which version, and what happens to them.

use epwatch_proto::{
    BaselineAbsence, Baselines, InstallationId, Report, ReportKey, SendClock, Sequence, StreamId,
};
use serde::Serialize;

use super::noise::{self, Runs, Traits, Weather, Work, whole};
use super::reports::{self, Where};
use super::{Benign, Fault, FaultKind, PlacementView, Story};
use crate::chance::Chance;

/// A day.
pub(crate) const WINDOW_MS: i64 = 86_400_000;

/// First of the model's versions, and the one that rolls out.
const OLD: &str = "1.0.0";
const NEW: &str = "2.0.0";
const SUBJECT: &str = "segmenter";
const PEER: &str = "detector";

/// What a family is made of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FamilySpec {
    /// Everything follows from it.
    pub seed: u64,
    /// What is the matter.
    pub story: Story,
    /// What placements say.
    pub view: PlacementView,
    /// Chipsets; the story happens on the first, weather on all.
    pub chipsets: usize,
    /// Devices of each chipset.
    pub devices: usize,
    /// Windows before the roll-out, and from it on.
    pub windows: (u32, u32),
    /// Share of the devices on the new version in each window of the roll-out; the last holds on.
    pub rollout: Vec<f64>,
    /// Runs of the median device in a window.
    pub runs: f64,
    /// Reports that each device's window is split into.
    pub reports: u32,
    /// Whether input shapes are sent.
    pub shape_known: bool,
    /// Share of the devices that also run a second model.
    pub peers: f64,
    /// Median of the model on the NPU, in microseconds.
    pub base_us: f64,
    /// Share of the devices without a self baseline.
    pub without_baseline: f64,
}

/// What is known of a cohort.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CohortLabel {
    /// App id.
    pub app: String,
    /// Model id.
    pub model: String,
    /// Model version.
    pub version: String,
    /// Chipset.
    pub chipset: String,
    /// The family's story.
    pub story: Story,
    /// Whether this cohort is at fault.
    pub is_fault: bool,
    /// Whether that is worth a page: slow factor 2 or more, 10 devices and 5 % of them hit, 5 % of
    /// their runs.
    pub is_page_worthy: bool,
    /// End of the first window with the fault, in milliseconds since 1970.
    pub fault_from_ms: Option<i64>,
}

/// A report and what the collector would note about it.
#[derive(Debug, Clone)]
pub struct FamilyReport {
    /// Receive time.
    pub received_ms: i64,
    /// The report.
    pub report: Report,
    /// The device's clocks at sending.
    pub sent: SendClock,
}

#[derive(Debug)]
struct Phone {
    number: u64,
    chipset: usize,
    traits: Traits,
    /// Where in the roll-out it is.
    rollout: f64,
    /// Its place among those that a fault on some devices hits.
    luck: f64,
    has_baseline: bool,
    has_peer: bool,
    lasting_from: u32,
    joins: u32,
}

/// One app over its windows.
#[derive(Debug)]
pub struct Family {
    spec: FamilySpec,
    start_ms: i64,
    phones: Vec<Phone>,
    speeds: Vec<f64>,
}

const CHIPSETS: [&str; 6] = ["SM8650", "SM8550", "SM8750", "SM8450", "SM8635", "SM7550"];

impl FamilySpec {
    /// Draws a family for a story, as varied as fleets are.
    #[must_use]
    pub fn drawn(seed: u64, story: Story) -> Self {
        let mut chance = Chance::split(seed, "family", 0);
        let few = matches!(story, Story::Benign(Benign::FewDevices));
        let devices = if few {
            3 + whole(chance.unit() * 10.0)
        } else {
            whole((20f64.ln() + chance.unit() * (400f64 / 20.0).ln()).exp())
        };
        let rollout = match story {
            Story::Fault(Fault {
                kind: FaultKind::Drift,
                ..
            }) => vec![0.05, 0.15, 0.3, 0.5, 0.8, 1.0],
            _ => [vec![0.3, 0.7, 1.0], vec![1.0], vec![0.5, 0.9, 0.9]]
                [whole(chance.unit() * 3.0) as usize]
                .clone(),
        };
        let views = [
            PlacementView::Full,
            PlacementView::Full,
            PlacementView::NodesOnly,
            PlacementView::Missing,
        ];
        Self {
            seed,
            story,
            view: views[whole(chance.unit() * 4.0) as usize],
            chipsets: 1 + whole(chance.unit() * 3.0) as usize,
            devices: devices as usize,
            windows: (10, if rollout.len() > 3 { 6 } else { 4 }),
            rollout,
            runs: [15.0, 50.0, 50.0, 120.0][whole(chance.unit() * 4.0) as usize],
            reports: 1,
            shape_known: chance.happens(0.8),
            peers: [0.0, 0.5][whole(chance.unit() * 2.0) as usize],
            base_us: (1_500f64.ln() + chance.unit() * (60_000f64 / 1_500.0).ln()).exp(),
            without_baseline: chance.between((0.05, 0.25)),
        }
    }

    /// The fault, if the story is one.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        match self.story {
            Story::Fault(fault) => Some(fault),
            Story::Benign(_) => None,
        }
    }
}

impl Family {
    /// Draws the devices of a family whose first window begins at `start_ms`.
    #[must_use]
    pub fn new(spec: FamilySpec, start_ms: i64) -> Self {
        let mut chance = Chance::split(spec.seed, "phones", 0);
        let silicon = chance.between((0.03, 0.06));
        let lasting = chance.between((0.0, 0.01));
        let always = chance.between((0.0, 0.03));
        let n_models = 1 + whole(chance.unit() * 4.0) as usize;
        let models: Vec<f64> = (0..n_models)
            .map(|_| chance.between((0.97, 1.04)))
            .collect();
        let speeds = (0..spec.chipsets)
            .map(|_| chance.between((0.7, 1.6)))
            .collect();
        let windows = spec.windows.0 + spec.windows.1;
        let mix_shift = spec.story == Story::Benign(Benign::DeviceMixShift);
        let mut phones = Vec::new();
        for chipset in 0..spec.chipsets {
            for _ in 0..spec.devices {
                let late = mix_shift && chance.happens(0.3);
                let model = whole(chance.unit() * models.len() as f64) as usize;
                let slow_model = if late { 1.6 } else { 1.0 };
                let joins = if late {
                    spec.windows.0
                } else if chance.happens(0.15) {
                    whole(chance.unit() * f64::from(windows))
                } else {
                    0
                };
                phones.push(Phone {
                    number: phones.len() as u64,
                    chipset,
                    traits: Traits {
                        silicon: chance.factor(silicon) * models[model] * slow_model,
                        lasting: if chance.happens(lasting) {
                            chance.between((1.4, 2.5))
                        } else {
                            1.0
                        },
                        run_sigma: chance.between((0.03, 0.07)),
                        runs: (0.8 * chance.normal()).exp().clamp(0.1, 12.0),
                        reports_context: !chance.happens(0.18),
                        status_stays_zero: chance.happens(0.35),
                        governor: chance.between((1.0, 1.12)),
                        model: if late { models.len() } else { model },
                        always_fell_back: chance.happens(always),
                    },
                    rollout: chance.unit(),
                    luck: chance.unit(),
                    has_baseline: !chance.happens(spec.without_baseline) && !late,
                    has_peer: chance.happens(spec.peers),
                    lasting_from: whole(chance.unit() * f64::from(windows)),
                    joins,
                });
            }
        }
        Self {
            spec,
            start_ms,
            phones,
            speeds,
        }
    }

    /// What the family is made of.
    #[must_use]
    pub fn spec(&self) -> &FamilySpec {
        &self.spec
    }

    /// The app.
    #[must_use]
    pub fn app_id(&self) -> String {
        format!("app-{:06}", self.spec.seed)
    }

    /// Windows in all.
    #[must_use]
    pub fn n_windows(&self) -> u32 {
        self.spec.windows.0 + self.spec.windows.1
    }

    /// What is the matter with each cohort.
    #[must_use]
    pub fn labels(&self) -> Vec<CohortLabel> {
        let mut labels = Vec::new();
        for (at, chipset) in CHIPSETS.iter().take(self.spec.chipsets).enumerate() {
            for (model, version) in [(SUBJECT, OLD), (SUBJECT, NEW), (PEER, OLD)] {
                let fault = self
                    .spec
                    .fault()
                    .filter(|_| at == 0 && model == SUBJECT && version == NEW);
                labels.push(CohortLabel {
                    app: self.app_id(),
                    model: model.into(),
                    version: version.into(),
                    chipset: (*chipset).into(),
                    story: self.spec.story,
                    is_fault: fault.is_some(),
                    is_page_worthy: fault.is_some_and(|fault| self.is_page_worthy(fault)),
                    fault_from_ms: fault
                        .map(|_| self.start_ms + i64::from(self.spec.windows.0 + 1) * WINDOW_MS),
                });
            }
        }
        labels
    }

    fn is_page_worthy(&self, fault: Fault) -> bool {
        let (devices, runs) = match fault.kind {
            FaultKind::Total | FaultKind::Drift => (1.0, 1.0),
            FaultKind::SomeDevices(share) => (share, 1.0),
            FaultKind::IntermittentRuns(share) | FaultKind::IntermittentSessions(share) => {
                (1.0, share)
            }
        };
        let last = self.spec.rollout.last().copied().unwrap_or(1.0);
        #[expect(clippy::cast_precision_loss, reason = "few devices")]
        let hit = devices * last * self.spec.devices as f64 * 0.8;
        fault.factor >= 2.0 && hit >= 10.0 && devices >= 0.05 && runs >= 0.05
    }

    /// The reports of one window, in the order of their receipt.
    #[must_use]
    pub fn window(&self, window: u32) -> Vec<FamilyReport> {
        let mut reports = Vec::new();
        for phone in &self.phones {
            let index = phone.number * 1_000 + u64::from(window);
            let mut chance = Chance::split(self.spec.seed, "window", index);
            if window < phone.joins || !chance.happens(0.85) {
                continue;
            }
            self.phone_window(phone, window, &mut chance, &mut reports);
        }
        reports.sort_by_key(|report| report.received_ms);
        reports
    }

    fn version(&self, phone: &Phone, window: u32) -> &'static str {
        let Some(since) = window.checked_sub(self.spec.windows.0) else {
            return OLD;
        };
        let rollout = &self.spec.rollout;
        let share = rollout.get(since as usize).or(rollout.last());
        if phone.rollout < share.copied().unwrap_or(1.0) {
            NEW
        } else {
            OLD
        }
    }

    fn weather(&self, window: u32) -> Weather {
        let calm = Weather::default();
        let Story::Benign(benign) = self.spec.story else {
            return calm;
        };
        if window < self.spec.windows.0 {
            return calm;
        }
        let mut chance = Chance::split(self.spec.seed, "weather", 0);
        match benign {
            Benign::ThermalWave => Weather { heat: 0.6, ..calm },
            Benign::PowerSave => Weather {
                power_save: 0.5,
                ..calm
            },
            Benign::Governor => Weather {
                governor: chance.between((1.05, 1.4)),
                ..calm
            },
            Benign::Contention => Weather {
                contention: chance.between((0.4, 0.9)),
                contended_runs: chance.between((0.3, 0.7)),
                ..calm
            },
            Benign::ColdSurge => Weather {
                sessions: (4, 10),
                ..calm
            },
            Benign::TimeOfDay => Weather {
                heat: 0.2,
                contention: 0.2,
                ..calm
            },
            _ => calm,
        }
    }

    fn healthy(&self, version: &str) -> Where {
        let recounted = version == NEW && self.spec.story == Story::Benign(Benign::ChangedCounting);
        let split = version == NEW && self.spec.story == Story::Benign(Benign::HarmlessSplit);
        let mut at = Where {
            nodes: if version == NEW { 46 } else { 43 },
            cpu_nodes: 0,
            benign: 2,
            npu_macs: 1.0,
            print: self.spec.seed * 100 + if version == NEW { 2 } else { 1 },
        };
        if recounted {
            at.nodes = 70;
            at.cpu_nodes = 12;
        }
        if split {
            at.cpu_nodes = 1;
            at.npu_macs = 0.988;
        }
        at
    }

    fn fallen(&self, version: &str, moved: f64) -> Where {
        let healthy = self.healthy(version);
        let work = healthy.nodes - healthy.benign;
        let cpu_nodes = whole((moved * f64::from(work)).ceil()).clamp(2, work);
        Where {
            cpu_nodes,
            npu_macs: 1.0 - moved,
            print: healthy.print + 50 + u64::from(cpu_nodes) % 40,
            ..healthy
        }
    }

    #[expect(clippy::too_many_lines, reason = "one window, told from top to bottom")]
    fn phone_window(
        &self,
        phone: &Phone,
        window: u32,
        chance: &mut Chance,
        reports: &mut Vec<FamilyReport>,
    ) {
        let spec = &self.spec;
        let version = self.version(phone, window);
        let fault = spec
            .fault()
            .filter(|_| phone.chipset == 0 && version == NEW);
        let is_after = window >= spec.windows.0;
        let benign = |which| is_after && spec.story == Story::Benign(which);
        let base = spec.base_us * self.speeds[phone.chipset];
        let mut traits = phone.traits.clone();
        if window < phone.lasting_from {
            traits.lasting = 1.0;
        }
        let mut slow = traits.lasting;
        if version == NEW && spec.story == Story::Benign(Benign::HeavierModel) {
            slow *= Chance::split(spec.seed, "weight", 0).between((1.1, 1.5));
        }
        let whale = benign(Benign::WhaleDevice) && phone.number == 0;
        let runs = traits.runs * spec.runs * if whale { 100.0 } else { 1.0 };
        if whale {
            slow *= 2.0;
        }
        let mut work = Work {
            base_us: base * slow * if traits.always_fell_back { 2.0 } else { 1.0 },
            runs: whole(runs).clamp(1, 5_000),
            factor: 1.0,
            run_share: 1.0,
            session_share: 0.0,
        };
        let mut fallen_sessions = false;
        let mut all_fallen = traits.always_fell_back;
        if let Some(fault) = fault {
            work.factor = fault.factor;
            match fault.kind {
                FaultKind::Total | FaultKind::Drift => {
                    (work.session_share, all_fallen) = (1.0, true);
                }
                FaultKind::SomeDevices(share) => {
                    if phone.luck < share {
                        (work.session_share, all_fallen) = (1.0, true);
                    }
                }
                FaultKind::IntermittentRuns(share) => {
                    (work.session_share, work.run_share) = (1.0, share);
                }
                FaultKind::IntermittentSessions(share) => {
                    (work.session_share, fallen_sessions) = (share, true);
                }
            }
        }
        let moved = fault.map_or(0.3, |fault| fault.moved);
        let weather = self.weather(window);
        let healthy = self.healthy(version);
        let fallen = self.fallen(version, moved);
        let lies = spec.view == PlacementView::Lying;
        let shapes = self.shapes(phone, benign(Benign::SizeShift), chance);

        let mut parts: Vec<(u64, &str, &str, Where, Runs, String, Baselines)> = Vec::new();
        let mut uid = 1;
        for (shape, share, size) in shapes {
            let work = Work {
                base_us: work.base_us * size,
                runs: whole(f64::from(work.runs) * share).max(1),
                ..work
            };
            let before = if version == NEW { OLD } else { "0.9.0" };
            let baselines = self.baselines(phone, &traits, before, base * size, &shape);
            let key = if spec.shape_known {
                shape
            } else {
                String::new()
            };
            for runs in noise::runs(&traits, &weather, &work, chance) {
                let is_fallen = all_fallen || (fallen_sessions && runs.is_hit);
                let at = if is_fallen && !lies { fallen } else { healthy };
                let session = uid * 2 + u64::from(is_fallen);
                let part = (
                    session,
                    SUBJECT,
                    version,
                    at,
                    runs,
                    key.clone(),
                    baselines.clone(),
                );
                parts.push(part);
            }
            uid += 10;
        }
        if phone.has_peer {
            let work = Work {
                base_us: base
                    * 0.4
                    * if slow > 1.0 && !whale {
                        traits.lasting
                    } else {
                        1.0
                    },
                factor: 1.0,
                session_share: 0.0,
                ..work
            };
            let at = Where {
                print: spec.seed * 100 + 99,
                ..self.healthy(OLD)
            };
            let baselines = self.baselines(phone, &traits, "0.9.0", base * 0.4, "peer");
            for runs in noise::runs(&traits, &weather, &work, chance) {
                let key = "static".to_owned();
                parts.push((900, PEER, OLD, at, runs, key, baselines.clone()));
            }
        }
        self.reports(phone, window, &parts, chance, reports);
    }

    /// Shape, share of the runs, latency next to the first.
    fn shapes(&self, phone: &Phone, shifted: bool, chance: &mut Chance) -> Vec<(String, f64, f64)> {
        let two = Chance::split(self.spec.seed, "shapes", 0).happens(0.3)
            || self.spec.story == Story::Benign(Benign::SizeShift);
        if !two {
            return vec![("static".into(), 1.0, 1.0)];
        }
        let usual = 0.1 + 0.3 * phone.luck;
        let large = if shifted { usual + 0.4 } else { usual };
        let large = (large + 0.05 * chance.normal()).clamp(0.02, 0.95);
        vec![
            ("x:1x3x224x224".into(), 1.0 - large, 1.0),
            ("x:1x3x320x320".into(), large, 1.9),
        ]
    }

    fn baselines(
        &self,
        phone: &Phone,
        traits: &Traits,
        version: &str,
        base_us: f64,
        shape: &str,
    ) -> Baselines {
        if !phone.has_baseline {
            return Baselines::Absent(BaselineAbsence::TooFewRuns);
        }
        let label = format!("baseline {version} {shape}");
        let mut chance = Chance::split(self.spec.seed, &label, phone.number);
        let work = Work {
            base_us: base_us * if traits.always_fell_back { 2.0 } else { 1.0 },
            runs: 90,
            factor: 1.0,
            run_share: 1.0,
            session_share: 0.0,
        };
        let drawn = noise::runs(traits, &Weather::default(), &work, &mut chance);
        let clean = drawn.iter().filter(|runs| runs.stratum("").is_clean());
        let values: Vec<f64> = clean.flat_map(|runs| runs.values.iter().copied()).collect();
        reports::baseline(version, values, "f1")
    }

    fn reports(
        &self,
        phone: &Phone,
        window: u32,
        parts: &[(u64, &str, &str, Where, Runs, String, Baselines)],
        chance: &mut Chance,
        out: &mut Vec<FamilyReport>,
    ) {
        let spec = &self.spec;
        let window_start = self.start_ms + i64::from(window) * WINDOW_MS;
        let n = spec.reports.max(1);
        let offset = chance.between((0.0, 0.9));
        let secret = format!("{} {}", spec.seed, phone.number);
        let recounted = spec.story == Story::Benign(Benign::ChangedCounting);
        let is_new = parts.iter().any(|part| part.2 == NEW);
        let ort = if recounted && is_new {
            "1.32.0"
        } else {
            "1.31.1"
        };
        for at in 0..n {
            let share = (f64::from(at) + offset) / f64::from(n);
            #[expect(clippy::cast_possible_truncation, reason = "within a day")]
            #[expect(clippy::cast_precision_loss, reason = "within a day")]
            let received_ms = window_start + (share * WINDOW_MS as f64) as i64;
            let mut sessions: Vec<epwatch_proto::Session> = Vec::new();
            let mut series: Vec<epwatch_proto::LatencySeries> = Vec::new();
            for (uid, model, version, place, runs, shape, baselines) in parts {
                // The same runs, dealt out: splitting must change nothing.
                let values: Vec<f64> = runs
                    .values
                    .iter()
                    .skip(at as usize)
                    .step_by(n as usize)
                    .copied()
                    .collect();
                let uid = uid + u64::from(window) * 10_000;
                if !sessions
                    .iter()
                    .any(|session| session.uid.get() == uid.max(1))
                {
                    let placement = reports::placement(*place, spec.view);
                    sessions.push(reports::session(
                        uid,
                        model,
                        version,
                        placement,
                        window_start,
                    ));
                }
                if values.is_empty() {
                    continue;
                }
                let new = reports::series(uid, runs, &values, shape, baselines);
                let same = series
                    .iter_mut()
                    .find(|old| (old.session_uid, &old.stratum) == (new.session_uid, &new.stratum));
                match same {
                    // Sessions of a shape share their strata.
                    Some(_) => {}
                    None => series.push(new),
                }
            }
            let report = Report {
                key: ReportKey {
                    installation: InstallationId::from_secret(secret.as_bytes()),
                    stream: StreamId(phone.number + 1),
                    sequence: Sequence::new(u64::from(window * 24 + at) + 1).expect("from 1"),
                },
                ended_streams: Vec::new(),
                interval_start_unix_ms: received_ms - WINDOW_MS / i64::from(n),
                interval_end_unix_ms: received_ms - 60_000,
                interval_length_ms: WINDOW_MS.unsigned_abs() / u64::from(n),
                boot_id: String::new(),
                uptime_at_end_ms: None,
                app: reports::app(&self.app_id()),
                device: reports::device(
                    CHIPSETS[phone.chipset],
                    &format!("model-{}", phone.traits.model),
                    if phone.number.is_multiple_of(3) {
                        "f1"
                    } else {
                        "f2"
                    },
                ),
                runtime: reports::runtime(ort),
                sdk: reports::sdk(),
                sessions,
                series,
                self_tests: Vec::new(),
                start_failures: Vec::new(),
                run_errors: Vec::new(),
                health: reports::health(),
            };
            out.push(FamilyReport {
                received_ms,
                report,
                sent: SendClock {
                    wall_unix_ms: Some(received_ms),
                    uptime_ms: None,
                    boot_id: String::new(),
                },
            });
        }
    }
}
