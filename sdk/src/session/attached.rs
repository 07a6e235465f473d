//! A session that a host in another language has made, for example a JVM or a program in C.
//!
//! The host runs its session itself and records each run here. Nothing of the session is kept after its placement was
//! read, so the host may close it at any time.

use std::{path::PathBuf, time::Duration};

use epwatch_proto::{Placement, ReasonCode, SessionUid, chipset::Soc, clipped};

use super::{observation::Observation, request::SessionRequest};
use crate::{
    directives::EffectiveRequest,
    host::runtime,
    placement::{
        self, Assignment, HostRuntime, HostSession, MAX_EP_COMPATIBILITY_BYTES, PlacementInput,
    },
    time::Clock,
};

/// A session of the host's own ONNX Runtime about to be observed. `None` if the host's runtime is not known: runs are
/// measured, and the placement is unavailable.
pub type AttachRequest = SessionRequest<Option<HostRuntime>>;

/// A session's placement as the host has read it. The host's binding of ONNX Runtime has the list but no pointers, for
/// example Python's `InferenceSession.get_provider_graph_assignment_info`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostAssignment {
    /// ONNX Runtime's version, for example `1.31.1`; empty if it is not known.
    pub ort_version: String,
    /// Nodes and EPs in ONNX Runtime's order; `None` if it returned no list.
    pub assignment: Option<Assignment>,
    /// For a precompiled model, its metadata `ep_compatibility_info.QNNExecutionProvider`.
    pub ep_compatibility: String,
}

impl HostAssignment {
    /// The reason why there is no list.
    fn missing(&self) -> ReasonCode {
        match self.ort_version.is_empty() {
            true => ReasonCode::RuntimeNotKnown,
            false if runtime::has_assignment_api(&self.ort_version) => {
                ReasonCode::AssignmentNotRecorded
            }
            false => ReasonCode::AssignmentApiUnavailable,
        }
    }
}

impl AttachRequest {
    /// Names the model's file. The SDK's thread computes its hash later, unless the model has one.
    pub fn with_model_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.model_file = Some(path.into());
        self
    }

    /// Begins to observe a session whose placement the host has read. `creation` is the time that the session took to
    /// make.
    pub fn observe_assignment(
        mut self,
        read: HostAssignment,
        creation: Option<Duration>,
    ) -> AttachedSession {
        let version = (!read.ort_version.is_empty()).then(|| read.ort_version.clone());
        self.shared = self.shared.here();
        self.shared.note_ort_version(|| version);
        let in_effect = self.in_effect();
        let missing = read.missing();
        let assignment = read.assignment.ok_or(missing);
        let placement =
            |input: PlacementInput<'_>, device| placement::of_assignment(assignment, input, device);
        let compatibility = || clipped(&read.ep_compatibility, MAX_EP_COMPATIBILITY_BYTES);
        self.attached(in_effect, creation, placement, compatibility)
    }

    /// Begins to observe a session that took `creation` to make. Its placement is read once, here. Without a session
    /// the placement is unavailable.
    pub fn observe(
        mut self,
        session: Option<HostSession<'_>>,
        creation: Option<Duration>,
    ) -> AttachedSession {
        self.shared = self.shared.here();
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
        self.attached(in_effect, creation, placement, compatibility)
    }

    fn attached(
        self,
        in_effect: EffectiveRequest,
        creation: Option<Duration>,
        placement: impl FnOnce(PlacementInput<'_>, Option<&'static Soc>) -> Placement,
        compatibility: impl FnOnce() -> String,
    ) -> AttachedSession {
        AttachedSession(self.begin(in_effect, creation, placement, compatibility))
    }

    /// Counts a session that the host could not make, with ORT's status code (0 if not known) and message. Paths and
    /// numbers in the message do not leave the device.
    pub fn failed(mut self, ort_status_code: i32, message: &str) {
        self.shared = self.shared.here();
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
        let (recorder, clock) = self.0.here();
        recorder.record_static(clock.mono_of_system(began), latency);
    }

    /// As [`Self::record`], for a model with free dimensions. See
    /// [`SessionRecorder::record`](crate::simulation::SessionRecorder::record) for `shape_key`.
    #[inline]
    pub fn record_shape(&self, began: Duration, latency: Duration, shape_key: &str) {
        let (recorder, clock) = self.0.here();
        recorder.record(clock.mono_of_system(began), latency, shape_key);
    }

    /// Counts a run that failed with this status code of ORT. 15 (`ORT_DEVICE_RESET`) is a restart of the DSP.
    pub fn record_error(&self, ort_status_code: i32) {
        self.0.here().0.record_error(ort_status_code);
    }

    /// Returns where the session runs. It does not change after creation.
    pub fn placement(&self) -> &Placement {
        self.0.placement()
    }

    /// Returns the session's id in reports.
    pub fn uid(&self) -> SessionUid {
        self.0.uid()
    }

    /// Ends the record in this process, as dropping the session does. For bindings that cannot drop it in the child of a
    /// fork.
    pub fn close(&self) {
        self.0.close();
    }
}
