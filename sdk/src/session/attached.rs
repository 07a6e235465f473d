//! A session that a host in another language has made, for example a JVM or a program in C.
//!
//! The host runs its session itself and records each run here. Nothing of the session is kept after its placement was
//! read, so the host may close it at any time.

use std::time::Duration;

use epwatch_proto::{Placement, ReasonCode, SessionUid};

use super::{observation::Observation, request::SessionRequest};
use crate::{
    placement::{self, HostRuntime, HostSession, PlacementInput},
    time::Clock,
};

/// A session of the host's own ONNX Runtime about to be observed. `None` if the host's runtime is not known: runs are
/// measured, and the placement is unavailable.
pub type AttachRequest = SessionRequest<Option<HostRuntime>>;

impl AttachRequest {
    /// Begins to observe a session that took `creation` to make. Its placement is read once, here. Without a session
    /// the placement is unavailable.
    pub fn observe(
        mut self,
        session: Option<HostSession<'_>>,
        creation: Option<Duration>,
    ) -> AttachedSession {
        self.note_version();
        let in_effect = self.in_effect();
        let runtime = self.source;
        let assignment = || match (runtime, session) {
            (None, _) => Err(ReasonCode::RuntimeNotKnown),
            (Some(_), None) => Err(ReasonCode::Unknown),
            (Some(_), Some(session)) => session.assignment(),
        };
        let compatibility = || session.map(|s| s.ep_compatibility()).unwrap_or_default();
        let placement = |input: PlacementInput<'_>, device| {
            placement::of_assignment(assignment(), input, device)
        };
        let observation = self.begin(in_effect, creation, placement, compatibility);
        AttachedSession(observation)
    }

    /// Counts a session that the host could not make, with ORT's status code (0 if not known) and message. Paths and
    /// numbers in the message do not leave the device.
    pub fn failed(mut self, ort_status_code: i32, message: &str) {
        self.note_version();
        let in_effect = self.in_effect();
        self.count_failure(in_effect, ort_status_code, message, None);
    }

    fn note_version(&self) {
        let version = || self.source.map(HostRuntime::version);
        self.shared.note_ort_version(version);
    }
}

/// A session of the host's own, whose runs the host records. Closed when dropped.
#[derive(Debug)]
pub struct AttachedSession(Observation);

impl AttachedSession {
    /// Returns the time by which runs are recorded: the system's monotonic clock, which `System.nanoTime` and
    /// `CLOCK_MONOTONIC` read too.
    #[inline]
    pub fn now() -> Duration {
        Clock::system()
    }

    /// Records a run of a model with a fixed input shape that began at `began`, by the clock of [`Self::now`]. Never
    /// blocks, and reads no clock.
    #[inline]
    pub fn record(&self, began: Duration, latency: Duration) {
        let began = self.0.clock.mono_of_system(began);
        self.0.recorder.record_static(began, latency);
    }

    /// As [`Self::record`], for a model with free dimensions. See
    /// [`SessionRecorder::record`](crate::SessionRecorder::record) for `shape_key`.
    #[inline]
    pub fn record_shape(&self, began: Duration, latency: Duration, shape_key: &str) {
        let began = self.0.clock.mono_of_system(began);
        self.0.recorder.record(began, latency, shape_key);
    }

    /// Counts a run that failed with this status code of ORT. 15 (`ORT_DEVICE_RESET`) is a restart of the DSP.
    pub fn record_error(&self, ort_status_code: i32) {
        self.0.recorder.record_error(ort_status_code);
    }

    /// Returns where the session runs. It does not change after creation.
    pub fn placement(&self) -> &Placement {
        &self.0.placement
    }

    /// Returns the session's id in reports.
    pub fn uid(&self) -> SessionUid {
        self.0.recorder.uid()
    }
}
