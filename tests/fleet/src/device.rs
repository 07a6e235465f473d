//! One simulated device: its runs, model updates and reports, in the order of its own time, on the SDK's core.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::Model;
use epwatch_sdk::simulation::SealedReport;

use crate::fallback::slow_factor;
use crate::identity::Identity;
use crate::physics::{DevicePhysics, SessionPhysics};
use crate::placements::{Placements, cpu_work};
use crate::recording::Recording;
use crate::scenario::{Scenario, ScenarioError};

/// The part of a fleet that is the same for all its devices.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) placements: Placements,
}

/// Runs and reports of a device in a stretch of time.
#[derive(Debug, Default)]
pub(crate) struct Advance {
    pub(crate) n_runs: u64,
    /// Sealed reports, each with its time.
    pub(crate) reports: Vec<(Duration, SealedReport)>,
}

/// One simulated device.
#[derive(Debug)]
pub(crate) struct Device {
    world: Arc<World>,
    index: u64,
    identity: Identity,
    physics: DevicePhysics,
    pub(crate) recording: Recording,
    session: SessionPhysics,
    updates: VecDeque<(Duration, String)>,
    next_run: Duration,
    next_report: Duration,
}

/// The next event of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Report,
    Update,
    Run,
}

impl Device {
    /// Makes device number `index` with a session of the first version. Its time zero is `start_unix_ms` by
    /// its wall clock.
    pub(crate) fn new(
        world: &Arc<World>,
        index: usize,
        start_unix_ms: i64,
    ) -> Result<Self, ScenarioError> {
        let scenario = &world.scenario;
        let chipset = scenario.chipset_of(index);
        let index = index as u64;
        let mut physics = DevicePhysics::new(scenario.seed, index);
        let identity = Identity::draw(scenario, index, chipset, physics.traits().reports_context);
        let mut device = Self {
            index,
            recording: Recording::new(scenario, &identity, start_unix_ms),
            identity,
            session: SessionPhysics::default(),
            updates: scenario.updates_of(index).into(),
            next_run: physics.next_gap(scenario.runs_per_second),
            // Spread over the interval, since devices do not report at the same time.
            next_report: scenario.report_interval.mul_f64(physics.phase()),
            physics,
            world: Arc::clone(world),
        };
        device.open_session(&scenario.first_version, Duration::ZERO)?;
        Ok(device)
    }

    /// Returns the time of the device's next report.
    pub(crate) fn due(&self) -> Duration {
        self.next_report
    }

    /// Simulates all events up to and including `now`.
    pub(crate) fn advance(&mut self, now: Duration) -> Advance {
        let mut done = Advance::default();
        loop {
            let (at, event) = self.next_event();
            if at > now {
                return done;
            }
            match event {
                Event::Run => {
                    self.run(at);
                    done.n_runs += 1;
                }
                Event::Update => self.update(at),
                Event::Report => {
                    self.next_report = at + self.world.scenario.report_interval;
                    done.reports.extend(self.seal(at));
                }
            }
        }
    }

    /// Simulates all events up to `now`, and seals the rest.
    pub(crate) fn finish(&mut self, now: Duration) -> Advance {
        let mut done = self.advance(now);
        done.reports.extend(self.seal(now));
        done
    }

    fn next_event(&self) -> (Duration, Event) {
        let run = (self.next_run, Event::Run);
        let report = (self.next_report, Event::Report);
        let update = self.updates.front().map(|(at, _)| (*at, Event::Update));
        // At the same moment a report comes first, because its interval is over.
        run.min(report).min(update.unwrap_or(run))
    }

    fn run(&mut self, at: Duration) {
        let run = self.physics.run(&mut self.session, at);
        self.recording.record(&run, at);
        let gap = self.physics.next_gap(self.world.scenario.runs_per_second);
        self.next_run = at + run.latency.max(gap);
    }

    fn update(&mut self, at: Duration) {
        if let Some((_, version)) = self.updates.pop_front() {
            self.open_session(&version, at)
                .expect("Fleet::new checked the placement of every version on every chipset");
        }
    }

    fn seal(&mut self, at: Duration) -> impl Iterator<Item = (Duration, SealedReport)> + use<> {
        let sealed = self.recording.seal(at);
        sealed.into_iter().map(move |report| (at, report))
    }

    /// Opens a session of `version` with the device's placement.
    fn open_session(&mut self, version: &str, at: Duration) -> Result<(), ScenarioError> {
        let World {
            scenario,
            placements,
        } = &*self.world;
        let chipset = self.identity.chipset;
        let placement =
            placements.placed(version, scenario.placed(self.index, chipset, version))?;
        let factor = slow_factor(cpu_work(placement), chipset);
        let model = Model {
            id: scenario.model_id.clone(),
            version: version.to_owned(),
            sha256: placements.model_sha256(version),
            source_sha256: None,
            ep_compatibility: String::new(),
        };
        self.recording.open_session(model, placement.clone(), at);
        self.session = self.physics.session(chipset.npu_latency_us(), factor);
        Ok(())
    }
}
