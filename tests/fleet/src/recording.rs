//! The SDK's core on a simulated device, driven with the device's time.

use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::{
    DropReason, InstallationId, Model, Placement, Sdk, SendClock, SessionUid, StreamId,
};
use epwatch_sdk::{
    Conditions,
    simulation::{Core, CoreConfig, Now, SealedReport, SessionInfo, SessionRecorder},
    types::{PowerSave, Thermal},
};

use crate::chance::Chance;
use crate::identity::{self, Identity};
use crate::outbox::CallResult;
use crate::physics::LiveRun;
use crate::scenario::Scenario;

/// Uptime of a device at its time zero.
const UPTIME_AT_ZERO: Duration = Duration::from_secs(1_000);
/// Time to create a session.
const CREATION: Duration = Duration::from_millis(400);

/// The SDK's side of one device.
#[derive(Debug)]
pub(crate) struct Recording {
    core: Core,
    sdk: Sdk,
    session: Option<Arc<SessionRecorder>>,
    start_unix_ms: i64,
    boot_id: String,
    ids: Chance,
}

impl Recording {
    pub(crate) fn new(scenario: &Scenario, identity: &Identity, start_unix_ms: i64) -> Self {
        let config = CoreConfig::new(scenario.app_id.clone(), identity.device.clone());
        let mut config = config.expect("Fleet::new validated the app id");
        config.app = identity::app(scenario);
        config.runtime = identity::runtime();
        config.boot_id.clone_from(&identity.boot_id);
        let sdk = config.sdk.clone();
        let zero = now(start_unix_ms, Duration::ZERO);
        let mut core = Core::new(config, StreamId(identity.stream), zero);
        core.set_installation(InstallationId::from_secret(&identity.secret));
        Self {
            core,
            sdk,
            session: None,
            start_unix_ms,
            boot_id: identity.boot_id.clone(),
            ids: Chance::split(scenario.seed ^ identity.stream, "session uid", 0),
        }
    }

    /// Opens a session, and ends the one before it.
    pub(crate) fn open_session(&mut self, model: Model, placement: Placement, at: Duration) {
        if let Some(session) = self.session.take() {
            session.close();
        }
        let mut info = SessionInfo::new(model, placement);
        // Equal seeds give equal reports.
        info.uid = SessionUid::new(self.ids.bits() | 1).expect("the lowest bit is set");
        info.creation = Some(CREATION);
        let session = self.core.open_session(info, now(self.start_unix_ms, at));
        self.session = Some(session);
    }

    pub(crate) fn record(&mut self, run: &LiveRun, at: Duration) {
        let session = self
            .session
            .as_ref()
            .expect("a device opens a session first");
        let conditions = Conditions::unknown()
            .with_thermal(match run.thermal_status {
                None => Thermal::Unknown,
                Some(0) => Thermal::None,
                Some(1) => Thermal::Light,
                Some(2) => Thermal::Moderate,
                Some(_) => Thermal::Severe,
            })
            .with_power_save(match run.power_save {
                None => PowerSave::Unknown,
                Some(false) => PowerSave::Off,
                Some(true) => PowerSave::On,
            });
        session.record_under(at, run.latency, "static", &conditions);
    }

    pub(crate) fn seal(&mut self, at: Duration) -> Vec<SealedReport> {
        self.core.seal(now(self.start_unix_ms, at))
    }

    /// Records the outcomes of one call.
    pub(crate) fn settle(&mut self, ended: &CallResult) {
        for key in &ended.acked {
            self.core.acked(key);
        }
        for runs in &ended.refused_runs {
            self.core.dropped(DropReason::Refused, 1, *runs);
        }
        if let Some(kind) = ended.failure {
            self.core.upload_failed(kind);
        }
    }

    /// Records a report that was dropped for newer ones.
    pub(crate) fn lost(&mut self, report: &SealedReport) {
        self.core.dropped(DropReason::SpoolFull, 1, report.runs);
    }

    pub(crate) fn send_clock(&self, at: Duration) -> SendClock {
        let now = now(self.start_unix_ms, at);
        SendClock {
            wall_unix_ms: Some(now.wall_unix_ms),
            uptime_ms: now.uptime_ms,
            boot_id: self.boot_id.clone(),
        }
    }

    pub(crate) fn sdk(&self) -> Sdk {
        self.sdk.clone()
    }
}

/// Returns a moment of the device's time on its three clocks, which agree.
fn now(start_unix_ms: i64, at: Duration) -> Now {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Now {
        mono: at,
        wall_unix_ms: start_unix_ms.saturating_add_unsigned(ms(at)),
        uptime_ms: Some(ms(UPTIME_AT_ZERO + at)),
    }
}
