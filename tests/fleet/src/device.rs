//! One simulated device: its runs, model updates and reports, in the order of its own time, on the SDK's core.

use std::collections::VecDeque;
use std::time::Duration;

use epwatch_proto::{Model, Sdk, SendClock};
use epwatch_sdk::SealedReport;

use crate::fallback::slow_factor;
use crate::identity::Identity;
use crate::outbox::CallResult;
use crate::physics::{DevicePhysics, SessionPhysics};
use crate::placements::{Placements, cpu_work};
use crate::recording::Recording;
use crate::scenario::{Scenario, ScenarioError};

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
    index: u64,
    identity: Identity,
    physics: DevicePhysics,
    recording: Recording,
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
    /// Makes device number `index` with a session of the first version. Its time zero is `start_unix_ms` by its wall
    /// clock.
    pub(crate) fn new(
        scenario: &Scenario,
        placements: &Placements,
        index: usize,
        start_unix_ms: i64,
    ) -> Result<Self, ScenarioError> {
        let chipset = scenario.chipset_of(index);
        let index = index as u64;
        let mut physics = DevicePhysics::new(scenario.seed, index);
        let identity = Identity::draw(scenario, index, chipset, physics.traits().reports_context);
        let mut recording = Recording::new(scenario, &identity, start_unix_ms);
        let version = &scenario.first_version;
        let session = open_session(
            scenario,
            placements,
            (index, &identity),
            (&mut physics, &mut recording),
            (version, Duration::ZERO),
        )?;
        let next_run = physics.next_gap(scenario.runs_per_second);
        // Spread over the interval, since devices do not report at the same time.
        let next_report = scenario.report_interval.mul_f64(physics.phase());
        Ok(Self {
            index,
            updates: scenario.updates_of(index).into(),
            identity,
            physics,
            recording,
            session,
            next_run,
            next_report,
        })
    }

    /// Returns the time of its next report.
    pub(crate) fn due(&self) -> Duration {
        self.next_report
    }

    /// Simulates all events up to and including `now`.
    pub(crate) fn advance(
        &mut self,
        scenario: &Scenario,
        placements: &Placements,
        now: Duration,
    ) -> Advance {
        let mut done = Advance::default();
        loop {
            let (at, event) = self.next_event();
            if at > now {
                return done;
            }
            match event {
                Event::Run => {
                    self.run(scenario, at);
                    done.n_runs += 1;
                }
                Event::Update => self.update(scenario, placements, at),
                Event::Report => {
                    self.next_report = at + scenario.report_interval;
                    done.reports.extend(self.seal(at));
                }
            }
        }
    }

    /// Simulates all events up to `now`, and seals the rest.
    pub(crate) fn finish(
        &mut self,
        scenario: &Scenario,
        placements: &Placements,
        now: Duration,
    ) -> Advance {
        let mut done = self.advance(scenario, placements, now);
        done.reports.extend(self.seal(now));
        done
    }

    /// Records the outcomes of one call.
    pub(crate) fn settle(&mut self, ended: &CallResult) {
        self.recording.settle(ended);
    }

    /// Records a report that was dropped for newer ones.
    pub(crate) fn lost(&mut self, report: &SealedReport) {
        self.recording.lost(report);
    }

    /// Returns the clocks to send with a call.
    pub(crate) fn send_clock(&self, now: Duration) -> SendClock {
        self.recording.send_clock(now)
    }

    pub(crate) fn sdk(&self) -> Sdk {
        self.recording.sdk()
    }

    fn next_event(&self) -> (Duration, Event) {
        let run = (self.next_run, Event::Run);
        let report = (self.next_report, Event::Report);
        let update = self.updates.front().map(|(at, _)| (*at, Event::Update));
        // At the same moment a report comes first, since its time is over.
        run.min(report).min(update.unwrap_or(run))
    }

    fn run(&mut self, scenario: &Scenario, at: Duration) {
        let run = self.physics.run(&mut self.session, at);
        self.recording.record(&run, at);
        let gap = self.physics.next_gap(scenario.runs_per_second);
        self.next_run = at + run.latency.max(gap);
    }

    fn update(&mut self, scenario: &Scenario, placements: &Placements, at: Duration) {
        let Some((_, version)) = self.updates.pop_front() else {
            return;
        };
        self.session = open_session(
            scenario,
            placements,
            (self.index, &self.identity),
            (&mut self.physics, &mut self.recording),
            (&version, at),
        )
        .expect("Fleet::new opened a session of every version on every chipset");
    }

    fn seal(&mut self, at: Duration) -> impl Iterator<Item = (Duration, SealedReport)> + use<> {
        let sealed = self.recording.seal(at);
        sealed.into_iter().map(move |report| (at, report))
    }
}

/// Opens a session of `version` with the device's placement, and returns its latency model.
fn open_session(
    scenario: &Scenario,
    placements: &Placements,
    (index, identity): (u64, &Identity),
    (physics, recording): (&mut DevicePhysics, &mut Recording),
    (version, at): (&str, Duration),
) -> Result<SessionPhysics, ScenarioError> {
    let placed = scenario.placed(index, identity.chipset, version);
    let placement = placements.placed(version, placed)?;
    let factor = slow_factor(cpu_work(placement), identity.chipset);
    let model = Model {
        id: scenario.model_id.clone(),
        version: version.to_owned(),
        sha256: placements.model_sha256(version),
        source_sha256: None,
        ep_compatibility: String::new(),
    };
    recording.open_session(model, placement.clone(), at);
    Ok(physics.session(identity.chipset.npu_latency_us(), factor))
}
