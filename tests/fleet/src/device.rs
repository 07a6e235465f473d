//! One simulated device: events in the order of its own time (a run, a model update, a report),
//! each handed to the SDK's core with the moment it happens.

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

/// What a device did in a stretch of time.
#[derive(Debug, Default)]
pub(crate) struct Advance {
    pub(crate) n_runs: u64,
    /// Reports sealed, and when.
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

/// The next thing that happens on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Report,
    Update,
    Run,
}

impl Device {
    /// Device number `index` at time zero, which is `start_unix_ms` by its wall clock, with a
    /// session of the first version.
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
        // Spread over the interval: devices of a fleet do not report in step.
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

    /// When it seals its next report.
    pub(crate) fn due(&self) -> Duration {
        self.next_report
    }

    /// Lets everything up to and including `now` happen.
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

    /// Lets everything up to `now` happen and seals what is left.
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

    /// Takes note of the reports of one call.
    pub(crate) fn settle(&mut self, ended: &CallResult) {
        self.recording.settle(ended);
    }

    /// A report had to go for newer ones.
    pub(crate) fn lost(&mut self, report: &SealedReport) {
        self.recording.lost(report);
    }

    /// The clocks that it sends with a call.
    pub(crate) fn send_clock(&self, now: Duration) -> SendClock {
        self.recording.send_clock(now)
    }

    /// The SDK that it sends with.
    pub(crate) fn sdk(&self) -> Sdk {
        self.recording.sdk()
    }

    fn next_event(&self) -> (Duration, Event) {
        let run = (self.next_run, Event::Run);
        let report = (self.next_report, Event::Report);
        let update = self.updates.front().map(|(at, _)| (*at, Event::Update));
        // At the same moment a report comes first: what it covers is over.
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

/// A session of `version`: the placement that the device gets, and the latency that follows.
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
