//! One device in one window: its work, its placements and its reports.

use std::borrow::Cow;

use epwatch_proto::{
    BaselineAbsence, Baselines, LatencySeries, Report, ReportKey, Runtime, SdkHealth, SendClock,
    Sequence, Session, StreamId, samples,
};

use super::family::{Family, FamilyReport, NEW, OLD, PEER, Phone, SUBJECT, WINDOW_MS};
use super::noise::{self, CALM_SESSIONS, LARGER, Runs, Work};
use super::reports::{self, Where};
use super::{Benign, Circumstance, Fault, FaultKind, PlacementView, Truth, uploads};
use epwatch_fleet::chance::{Chance, whole};
use epwatch_fleet::physics::{SlowRuns, Traits, Weather};

/// Runs of one session, input shape and stratum.
struct Part {
    session: u64,
    model: &'static str,
    version: &'static str,
    place: Where,
    runs: Runs,
    shape: String,
    baselines: Baselines,
}

/// An input shape of the subject, as the device reports it.
struct Shape {
    /// The shape's key; empty if the device reports none.
    key: String,
    /// Latency relative to the first shape.
    size: f64,
    /// Share of the runs.
    share: f64,
    /// Share of larger inputs among these runs, in this window and before any change.
    larger: (f64, f64),
}

/// The effect of a fault on a device.
#[derive(Debug, Clone, Copy, Default)]
struct Hit {
    session_share: f64,
    run_share: f64,
    /// Whether the placements of all sessions show the fault; `hit_fallen` is for the hit sessions only.
    all_fallen: bool,
    hit_fallen: bool,
}

impl Hit {
    fn of(fault: Option<Fault>, phone: &Phone) -> Self {
        let whole = Hit {
            session_share: 1.0,
            run_share: 1.0,
            all_fallen: true,
            hit_fallen: false,
        };
        match fault.map(|fault| fault.kind) {
            Some(FaultKind::Total | FaultKind::Drift) => whole,
            Some(FaultKind::SomeDevices(share)) if phone.luck < share => whole,
            Some(FaultKind::IntermittentRuns(share)) => Hit {
                session_share: 1.0,
                run_share: share,
                ..Hit::default()
            },
            Some(FaultKind::IntermittentSessions(share)) => Hit {
                session_share: share,
                run_share: 1.0,
                hit_fallen: true,
                ..Hit::default()
            },
            None | Some(FaultKind::SomeDevices(_)) => Hit::default(),
        }
    }
}

impl Family {
    pub(super) fn phone_window(
        &self,
        phone: &Phone,
        window: u32,
        chance: &mut Chance,
    ) -> Vec<FamilyReport> {
        let spec = &self.spec;
        let version = self.version(phone, window);
        let is_new = version == NEW;
        let fault = spec.fault().filter(|_| phone.chipset == 0 && is_new);
        let benign = |which| window >= spec.windows.0 && spec.truth == Truth::Benign(which);
        let base = spec.base_us * self.slowness[phone.chipset];
        let mut traits = phone.traits.clone();
        if window < phone.lasting_from {
            traits.lasting = 1.0;
        }
        let heavier = if is_new && benign(Benign::HeavierModel) {
            Chance::split(spec.seed, "weight", 0).between((1.1, 1.5))
        } else {
            1.0
        };
        let whale = benign(Benign::WhaleDevice) && phone.number == 0;
        let (more_runs, whale_slow) = if whale { (100.0, 2.0) } else { (1.0, 1.0) };
        let always = if phone.always_fell_back { 2.0 } else { 1.0 };
        let hit = Hit::of(fault, phone);
        let work = Work {
            base_us: base
                * traits.lasting
                * heavier
                * whale_slow
                * always
                * self.clock_step(phone, window),
            runs: match spec.is_under(Circumstance::OneSession) {
                true => 12,
                false => whole(traits.runs * spec.runs * more_runs).clamp(1, 5_000),
            },
            sessions: self.sessions(phone, window),
            slow_runs: SlowRuns {
                factor: fault.map_or(1.0, |fault| fault.factor),
                run_share: hit.run_share,
                spell_share: hit.session_share,
            },
            is_hot: false,
            larger: 0.0,
        };
        let weather = self.weather(phone, window);
        let heat = self.unseen_heat(phone, window);
        let load = self.shared_load(phone, window) * heat;
        let work = Work {
            base_us: work.base_us * load,
            is_hot: heat > 1.0,
            ..work
        };
        let healthy = self.healthy(version);
        let fallen = self.fallen(version, fault.map_or(0.3, |fault| fault.moved));
        let lies = spec.view == PlacementView::Lying;
        let before = self.version_before(phone, window);
        let shapes = self.shapes(phone, benign(Benign::SizeShift), chance);

        let mut parts = Vec::new();
        let shapes = shapes.into_iter().filter(|_| phone.has_subject);
        for (at, shape) in shapes.enumerate() {
            let (now, usual) = shape.larger;
            let work = Work {
                base_us: work.base_us * shape.size,
                runs: whole(f64::from(work.runs) * shape.share).max(1),
                larger: now,
                ..work
            };
            let step = self.clock_step(phone, window.saturating_sub(1));
            let learnt = (base * shape.size * step, usual);
            let key = shape.key;
            let baselines = self.baselines(phone, &traits, before, learnt, &key);
            for runs in noise::runs(&traits, &weather, &work, chance) {
                let is_fallen =
                    phone.always_fell_back || hit.all_fallen || (hit.hit_fallen && runs.is_hit);
                parts.push(Part {
                    session: 2 + at as u64 * 20 + u64::from(is_fallen),
                    model: SUBJECT,
                    version,
                    place: if is_fallen && !lies { fallen } else { healthy },
                    runs,
                    shape: key.clone(),
                    baselines: baselines.clone(),
                });
            }
        }
        if phone.has_peer {
            traits.lasting *= load;
            self.peer(phone, &traits, &weather, &work, chance, &mut parts);
        }
        self.reports(phone, window, &parts, chance)
    }

    /// Adds the second model of a device. The device's weather and slow-downs apply to it too.
    fn peer(
        &self,
        phone: &Phone,
        traits: &Traits,
        weather: &Weather,
        subject: &Work,
        chance: &mut Chance,
        parts: &mut Vec<Part>,
    ) {
        let base_us = 0.4 * self.spec.base_us * self.slowness[phone.chipset];
        let work = Work {
            base_us: base_us * traits.lasting,
            slow_runs: SlowRuns {
                factor: 1.0,
                spell_share: 0.0,
                ..subject.slow_runs
            },
            ..*subject
        };
        let place = Where {
            print: self.spec.seed * 100 + 99,
            ..self.healthy(OLD)
        };
        let is_first = self.spec.is_under(Circumstance::FirstDay);
        let before = (phone.joins == 0 && !is_first).then_some("0.9.0");
        let baselines = self.baselines(phone, traits, before, (base_us, 0.0), "peer");
        for runs in noise::runs(traits, weather, &work, chance) {
            parts.push(Part {
                session: 900,
                model: PEER,
                version: OLD,
                place,
                runs,
                shape: "static".to_owned(),
                baselines: baselines.clone(),
            });
        }
    }

    /// Returns a device's slow-down in a window by load that is spread over the first chipset.
    fn shared_load(&self, phone: &Phone, window: u32) -> f64 {
        let is_loaded = window >= self.spec.windows.0 && phone.chipset == 0;
        if self.spec.truth != Truth::Benign(Benign::SharedLoad) || !is_loaded {
            return 1.0;
        }
        let mut of_fleet = Chance::split(self.spec.seed, "load", 0);
        let (share, slow) = (of_fleet.between((0.2, 0.7)), of_fleet.between((1.5, 2.4)));
        let index = phone.number * 1_000 + u64::from(window);
        let mut chance = Chance::split(self.spec.seed, "load of", index);
        match chance.happens(share) {
            true => slow,
            false => 1.0,
        }
    }

    /// Returns a device's slow-down in a window by heat.
    fn unseen_heat(&self, phone: &Phone, window: u32) -> f64 {
        let is_warm = window >= self.spec.windows.0;
        if self.spec.truth != Truth::Benign(Benign::UnseenHeat) || !is_warm {
            return 1.0;
        }
        let index = phone.number * 1_000 + u64::from(window);
        let mut chance = Chance::split(self.spec.seed, "heat of", index);
        match chance.happens(0.5) {
            true => chance.between((1.5, 2.4)),
            false => 1.0,
        }
    }

    /// Share and slow-down of sessions on little cores.
    fn little_cores(&self) -> Option<(f64, f64)> {
        let is_benign = self.spec.truth == Truth::Benign(Benign::TwoSpeeds);
        (is_benign || self.spec.is_under(Circumstance::BigAndLittleCores)).then(|| {
            let mut chance = Chance::split(self.spec.seed, "cores", 0);
            (chance.between((0.15, 0.5)), chance.between((1.6, 2.4)))
        })
    }

    /// Returns the slow-down by the clock step that a device keeps for some days.
    fn clock_step(&self, phone: &Phone, window: u32) -> f64 {
        if !self.spec.is_under(Circumstance::StickyClocks) {
            return 1.0;
        }
        let mut of_phone = Chance::split(self.spec.seed, "clock", phone.number);
        let days = 2 + u64::from(whole(of_phone.unit() * 4.0));
        let offset = u64::from(whole(of_phone.unit() * 5.0));
        let index = phone.number * 1_000 + (u64::from(window) + offset) / days;
        match Chance::split(self.spec.seed, "step", index).unit() {
            unit if unit < 0.5 => 1.0,
            unit if unit < 0.75 => 1.15,
            unit if unit < 0.9 => 1.35,
            _ => 1.6,
        }
    }

    /// Height of the load in the evening.
    fn evening(&self) -> Option<f64> {
        let is_under = self.spec.is_under(Circumstance::EveningLoad);
        is_under.then(|| Chance::split(self.spec.seed, "evening", 0).between((0.3, 0.8)))
    }

    fn is_short_of_memory(&self, phone: &Phone) -> bool {
        self.spec.is_under(Circumstance::ShortOfMemory)
            && Chance::split(self.spec.seed, "memory", phone.number).happens(1.0 / 3.0)
    }

    /// Returns the weather that a device has on all days.
    fn calm(&self, phone: &Phone) -> Weather {
        let usual = Weather::default();
        Weather {
            little_cores: self.little_cores(),
            evening: self.evening(),
            spikes: match self.is_short_of_memory(phone) {
                true => 0.1,
                false => usual.spikes,
            },
            ..usual
        }
    }

    fn weather(&self, phone: &Phone, window: u32) -> Weather {
        let wild = self.spec.wildness;
        let calm = Weather {
            heat: 0.03 * wild,
            power_save: 0.03 * wild,
            contention: 0.03 * wild,
            ..self.calm(phone)
        };
        let is_shared = self.spec.is_under(Circumstance::SharedNpu);
        if is_shared && window >= self.spec.windows.0 {
            let share = Chance::split(self.spec.seed, "shared", 0).between((0.3, 0.9));
            return Weather {
                contention: 1.0,
                contended_runs: share,
                ..calm
            };
        }
        let Truth::Benign(benign) = self.spec.truth else {
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
                governor: Some(chance.between((1.05, 1.4))),
                ..calm
            },
            Benign::Contention => Weather {
                contention: chance.between((0.4, 0.9)),
                contended_runs: chance.between((0.3, 0.7)),
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

    /// Minimum and maximum number of sessions of a window.
    fn sessions(&self, phone: &Phone, window: u32) -> (u32, u32) {
        let is_after = window >= self.spec.windows.0;
        let surges = self.spec.truth == Truth::Benign(Benign::ColdSurge);
        let (fewest, most) = CALM_SESSIONS;
        match self.spec.circumstance {
            _ if surges && is_after => (4, 10),
            Some(Circumstance::OneSession) => (1, 1),
            Some(Circumstance::ColdStarts) if is_after => (2 * fewest, 2 * most),
            Some(Circumstance::ShortOfMemory) if self.is_short_of_memory(phone) => (3, 8),
            _ => CALM_SESSIONS,
        }
    }

    fn healthy(&self, version: &str) -> Where {
        let recounted = version == NEW && self.spec.truth == Truth::Benign(Benign::ChangedCounting);
        let split = version == NEW && self.spec.truth == Truth::Benign(Benign::HarmlessSplit);
        let mut at = Where {
            nodes: if Self::number_of(version) > 1 { 46 } else { 43 },
            cpu_nodes: 0,
            benign: 2,
            npu_macs: 1.0,
            print: self.spec.seed * 100 + Self::number_of(version),
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

    fn shapes(&self, phone: &Phone, shifted: bool, chance: &mut Chance) -> Vec<Shape> {
        let shape = |key: &str, size, share, larger| Shape {
            key: match self.spec.shape_known {
                true => key.to_owned(),
                false => String::new(),
            },
            size,
            share,
            larger,
        };
        let two = Chance::split(self.spec.seed, "shapes", 0).happens(0.3)
            || self.spec.truth == Truth::Benign(Benign::SizeShift);
        if !two {
            return vec![shape("static", 1.0, 1.0, (0.0, 0.0))];
        }
        let usual = 0.1 + 0.3 * phone.luck;
        let large = if shifted { usual + 0.4 } else { usual };
        let large = (large + 0.05 * chance.normal()).clamp(0.02, 0.95);
        if !self.spec.shape_known {
            return vec![shape("", 1.0, 1.0, (large, usual))];
        }
        vec![
            shape("x:1x3x224x224", 1.0, 1.0 - large, (0.0, 0.0)),
            shape("x:1x3x320x320", LARGER, large, (0.0, 0.0)),
        ]
    }

    /// Returns the baselines that a device learnt from runs of this latency, with a share of larger inputs.
    fn baselines(
        &self,
        phone: &Phone,
        traits: &Traits,
        version: Option<&str>,
        (base_us, larger): (f64, f64),
        shape: &str,
    ) -> Baselines {
        let Some(version) = version.filter(|_| phone.has_baseline) else {
            return Baselines::Absent(BaselineAbsence::TooFewRuns);
        };
        let label = format!("baseline {version} {shape}");
        let key = (phone.number, label);
        let learnt = || self.learnt.lock().expect("no one panics while it is held");
        if let Some(known) = learnt().get(&key) {
            return known.clone();
        }
        let mut chance = Chance::split(self.spec.seed, &key.1, phone.number);
        let work = Work {
            base_us: base_us * if phone.always_fell_back { 2.0 } else { 1.0 },
            runs: 90,
            // The SDK learns from many sessions, which matters if their speeds differ.
            sessions: match self
                .little_cores()
                .or(self.evening().map(|height| (1.0, height)))
            {
                Some(_) => (8, 16),
                None => CALM_SESSIONS,
            },
            slow_runs: SlowRuns::NONE,
            is_hot: false,
            larger,
        };
        let weather = self.calm(phone);
        let drawn = noise::runs(traits, &weather, &work, &mut chance);
        let clean = drawn.iter().filter(|runs| runs.stratum("").is_clean());
        let values: Vec<f64> = clean.flat_map(|runs| runs.values.iter().copied()).collect();
        let baselines = reports::baseline(version, values, "f1");
        learnt().insert(key, baselines.clone());
        baselines
    }

    /// Adds a session on the NPU after each session that a fault of some sessions hit.
    fn made_again(&self, parts: &[&Part], window_start: i64, sessions: &mut Vec<Session>) {
        let of_sessions = self
            .spec
            .fault()
            .is_some_and(|fault| matches!(fault.kind, FaultKind::IntermittentSessions(_)));
        let is_hit =
            |hit: bool| move |part: &&&Part| part.model == SUBJECT && part.runs.is_hit == hit;
        let (sound, fallen) = (
            parts.iter().find(is_hit(false)),
            parts.iter().find(is_hit(true)),
        );
        let Some(sound) = sound.filter(|_| of_sessions && fallen.is_some()) else {
            return;
        };
        let (uid, model) = (
            sessions.len() as u64 + 9_000_000,
            (sound.model, sound.version),
        );
        let placement = reports::placement(sound.place, self.spec.view);
        sessions.push(reports::session(
            uid,
            model,
            placement,
            window_start + 12 * HOUR_MS,
        ));
    }

    fn reports(
        &self,
        phone: &Phone,
        window: u32,
        parts: &[Part],
        chance: &mut Chance,
    ) -> Vec<FamilyReport> {
        let (spec, mut out) = (&self.spec, Vec::new());
        let window_start = self.start_ms + i64::from(window) * WINDOW_MS;
        let n = spec.reports.max(1);
        let offset = chance.between((0.0, 0.9));
        let recounted = spec.truth == Truth::Benign(Benign::ChangedCounting);
        let is_new = parts.iter().any(|part| part.version == NEW);
        let parts = one_a_stratum(parts);
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
            let mut sessions: Vec<Session> = Vec::new();
            let mut series: Vec<LatencySeries> = Vec::new();
            for part in &parts {
                // The same runs are distributed over the reports, because splitting must change nothing.
                let values = dealt(&part.runs.values, at, n);
                let uid = part.session + u64::from(window) * 10_000;
                let is_known = |session: &Session| session.uid.get() == uid.max(1);
                if !sessions.iter().any(is_known) {
                    let placement = reports::placement(part.place, spec.view);
                    let model = (part.model, part.version);
                    let created = window_start + if part.runs.is_hit { 6 * HOUR_MS } else { 0 };
                    sessions.push(reports::session(uid, model, placement, created));
                }
                if values.is_empty() {
                    continue;
                }
                let (shape, baselines) = (&part.shape, &part.baselines);
                series.push(reports::series(uid, &part.runs, &values, shape, baselines));
            }
            self.made_again(&parts, window_start, &mut sessions);
            let report = Report {
                key: ReportKey {
                    installation: phone.installation,
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
                device: phone.device.clone(),
                runtime: Runtime {
                    ort_version: ort.into(),
                    ..samples::runtime()
                },
                sdk: samples::sdk(),
                sessions,
                series,
                self_tests: Vec::new(),
                start_failures: Vec::new(),
                run_errors: Vec::new(),
                health: SdkHealth::default(),
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
        uploads::disturbed(spec, phone.number, out)
    }
}

const HOUR_MS: i64 = WINDOW_MS / 24;

/// Every `n`th of the runs, from `at` on.
fn dealt(runs: &[f64], at: u32, n: u32) -> Cow<'_, [f64]> {
    if n == 1 {
        return Cow::Borrowed(runs);
    }
    let dealt = runs.iter().skip(at as usize).step_by(n as usize);
    Cow::Owned(dealt.copied().collect())
}

/// Keeps one part of a session for each stratum, because a report has each stratum once. It is the complete first part,
/// before its runs are divided among reports.
fn one_a_stratum(parts: &[Part]) -> Vec<&Part> {
    let mut kept: Vec<&Part> = Vec::with_capacity(parts.len());
    for part in parts {
        let stratum = part.runs.stratum(&part.shape);
        let is_told = kept.iter().any(|old| {
            !old.runs.values.is_empty()
                && old.session == part.session
                && old.runs.stratum(&old.shape) == stratum
        });
        if !is_told {
            kept.push(part);
        }
    }
    kept
}
