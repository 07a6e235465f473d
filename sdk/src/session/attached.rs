//! A session that a host in another language has made, for example a JVM or a program in C.
//!
//! The host runs its session itself and records each run here. The SDK keeps no reference to the session after reading
//! its placement, so the host may close it at any time.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use epwatch_proto::{
    Accelerator, EpDevice, PlacementSource, ReasonCode, Runtime, chipset::Soc, clipped,
    placement::CPU_EP,
};

use super::{observation::Observation, request::SessionRequest};
use crate::{
    directives::EffectiveRequest,
    host::runtime,
    placement::{
        self, AssignedDevice, Assignment, Compatibility, CompiledModel, HostRuntime, HostSession,
        MAX_EP_COMPATIBILITY_BYTES, Placement, PlacementInput, log::SessionLog,
    },
    time::Clock,
    types::SessionUid,
};

/// A session of the host's own ONNX Runtime about to be observed. `None` if the host's runtime is not known: runs are
/// measured, and the placement is unavailable.
pub type AttachRequest = SessionRequest<Option<HostRuntime>>;

/// A session's placement as the host has read it. The host's binding of ONNX Runtime returns the list but no pointers,
/// for example Python's `InferenceSession.get_provider_graph_assignment_info`. For another runtime, the host makes the
/// list from that runtime's own information.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostAssignment {
    /// ONNX Runtime's version, for example `1.31.1`, or another runtime's name and version, for example `LiteRT 2.3.0`.
    /// Empty if it is not known.
    pub runtime: String,
    /// Nodes and EPs in the runtime's order; `None` if it returned no list.
    pub assignment: Option<Assignment>,
    /// Devices of the session's inputs, for example from Python's `InferenceSession.get_input_epdevices`. May be empty.
    pub devices: Vec<AssignedDevice>,
    /// For a precompiled model, its metadata `ep_compatibility_info.QNNExecutionProvider`.
    pub ep_compatibility: String,
}

/// A session's placement, described by a host whose runtime is not ONNX Runtime.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostPlacement {
    /// Accelerators that the app asked for, in order, without the CPU, for example `GPU` or `XNNPACK`.
    pub requested: Vec<String>,
    /// Each partition with its accelerator and its ops, and the ops on the CPU one by one, as EP `CPU`. `None` if the
    /// runtime does not say where ops run: runs are measured all the same.
    pub assignment: Option<Assignment>,
    /// The time that the session took to make, if it is known.
    pub creation: Option<Duration>,
}

impl HostAssignment {
    /// Whether the session's runtime is ONNX Runtime: then the version has no name before it.
    fn is_of_ort(&self) -> bool {
        self.runtime
            .starts_with(|first: char| first.is_ascii_digit())
    }

    /// The runtime; `None` if it is ONNX Runtime or not known.
    fn other_runtime(&self) -> Option<Runtime> {
        let is_other = !self.runtime.is_empty() && !self.is_of_ort();
        is_other.then(|| Runtime {
            ort_version: self.runtime.clone(),
            ..Runtime::default()
        })
    }

    /// The reason why there is no list.
    fn missing(&self) -> ReasonCode {
        match self.is_of_ort() {
            false => ReasonCode::RuntimeNotKnown,
            true if runtime::has_assignment_api(&self.runtime) => ReasonCode::AssignmentNotRecorded,
            true => ReasonCode::AssignmentApiUnavailable,
        }
    }
}

/// Gives the CPU its name in reports, whatever the other runtime calls it.
fn with_own_cpu(mut assignment: Assignment) -> Assignment {
    for subgraph in &mut assignment.subgraphs {
        if Accelerator::of_ep(&subgraph.ep) == Accelerator::Cpu {
            CPU_EP.clone_into(&mut subgraph.ep);
        }
    }
    assignment
}

impl AttachRequest {
    /// Adds ONNX Runtime's VERBOSE log from the creation of a session like this one ([`HostRuntime::log_to`]). It gives
    /// each CPU node the validator's reason, and is the only source of a placement for ORT older than 1.24.
    pub fn with_log(mut self, log: SessionLog) -> Self {
        self.log = Some(log);
        self
    }

    /// Names the model's file. The SDK's thread computes its hash later, unless the model has one. With consent the
    /// observing call reads from it whether a compiled model is for this device, and skips compiled graphs.
    pub fn with_model_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.model_file = Some(path.into());
        self
    }

    /// Returns whether the compiled model (EPContext) of [`Self::with_model_file`] is for this device, before it is loaded. The
    /// chipset and the version of QNN that its file names are compared with the device. `None` if it is not a compiled model of
    /// an EP in [`Self::requesting`], or if nothing speaks against it. EPs are not asked: that takes an environment of ONNX
    /// Runtime.
    pub fn compatibility(&self) -> Option<Compatibility> {
        self.by_text(&self.compiled_model()?)
    }

    /// Begins to observe a session whose placement the host has read. `creation` is the time that the session took to
    /// make.
    pub fn observe_assignment(
        mut self,
        read: HostAssignment,
        creation: Option<Duration>,
    ) -> AttachedSession {
        let version = read.is_of_ort().then(|| read.runtime.clone());
        self.shared = self.shared.here();
        self.shared.note_ort_version(|| version);
        self.other_runtime = read.other_runtime();
        let is_other = self.other_runtime.is_some();
        let (log, missing) = (self.log.take(), read.missing());
        let devices = read.devices.into_iter().map(EpDevice::from);
        self.devices = placement::reported_devices(devices);
        let in_effect = self.in_effect();
        let assignment = read.assignment.ok_or(missing);
        let placement = |input: PlacementInput<'_>, device| {
            if !is_other {
                let assignment = placement::recorded(assignment, input.requested_eps);
                return placement::of_logged(assignment, log.as_ref(), input, device);
            }
            let assignment = assignment.map(with_own_cpu);
            let mut placement = placement::of_logged(assignment, None, input, device);
            if placement.source == PlacementSource::AssignmentApi {
                placement.source = PlacementSource::Host;
            }
            placement
        };
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
        let (runtime, log) = (self.source, self.log.take());
        let assignment = || match (runtime, session) {
            (None, _) => Err(ReasonCode::RuntimeNotKnown),
            (Some(_), None) => Err(ReasonCode::Unknown),
            (Some(_), Some(session)) => session.assignment(),
        };
        let compatibility = || session.map(|s| s.ep_compatibility()).unwrap_or_default();
        self.devices = session.map(|s| s.devices()).unwrap_or_default();
        let placement = |input: PlacementInput<'_>, device| {
            let assignment = placement::recorded(assignment(), input.requested_eps);
            placement::of_logged(assignment, log.as_ref(), input, device)
        };
        self.attached(in_effect, creation, placement, compatibility)
    }

    fn attached(
        mut self,
        in_effect: EffectiveRequest,
        creation: Option<Duration>,
        placement: impl FnOnce(PlacementInput<'_>, Option<&'static Soc>) -> epwatch_proto::Placement,
        compatibility: impl FnOnce() -> String,
    ) -> AttachedSession {
        let told = self
            .file_to_report()
            .and_then(|compiled| self.by_text(&compiled));
        self.reasons
            .extend(told.and_then(Compatibility::reason).map(ReasonCode::from));
        let repeats_self_test = AtomicBool::new(self.repeats_self_test());
        AttachedSession {
            observation: self.begin(in_effect, creation, placement, compatibility),
            repeats_self_test,
        }
    }

    /// Counts a session that the host could not make, with ORT's status code (0 if not known) and message. Paths and
    /// numbers in the message do not leave the device.
    pub fn failed(mut self, ort_status_code: i32, message: &str) {
        self.shared = self.shared.here();
        self.note_version();
        let in_effect = self.in_effect();
        let compiled = self.file_to_report();
        let told = compiled
            .as_ref()
            .and_then(|compiled| self.by_text(compiled));
        let compiled = compiled.as_ref();
        self.count_failure(in_effect, ort_status_code, message, compiled, told);
    }

    /// The facts in the model's file, for reports. Reads the file's beginning on the caller's thread, and nothing
    /// without consent.
    fn file_to_report(&self) -> Option<CompiledModel> {
        let may_read = self.shared.consent.is_given();
        may_read.then(|| self.compiled_model()).flatten()
    }

    fn note_version(&self) {
        let version = || self.source.map(HostRuntime::version);
        self.shared.note_ort_version(version);
    }
}

/// A session that belongs to the host, which records its runs. Dropping this closes the SDK's record of it.
#[derive(Debug)]
pub struct AttachedSession {
    observation: Observation,
    /// Whether the session's self-test runs again although it ran before.
    repeats_self_test: AtomicBool,
}

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
        let (recorder, clock) = self.observation.here();
        recorder.record_static(clock.mono_of_system(began), latency);
    }

    /// Does the same as [`Self::record`], for a model with free dimensions. `shape_key` is the run's input shapes, for
    /// example `x:4x3x32x32`. It should have at most 128 bytes; a longer key is cut.
    #[inline]
    pub fn record_shape(&self, began: Duration, latency: Duration, shape_key: &str) {
        let (recorder, clock) = self.observation.here();
        recorder.record(clock.mono_of_system(began), latency, shape_key);
    }

    /// Counts a run that failed with this status code of ORT. 15 (`ORT_DEVICE_RESET`) is a restart of the DSP.
    pub fn record_error(&self, ort_status_code: i32) {
        self.observation.here().0.record_error(ort_status_code);
    }

    /// Returns where the session runs. It does not change after creation.
    pub fn placement(&self) -> Placement<'_> {
        Placement::of(self.observation.placement())
    }

    /// Returns the session's id in reports.
    pub fn uid(&self) -> SessionUid {
        SessionUid(self.observation.uid())
    }

    pub(crate) fn repeats_self_test(&self) -> bool {
        self.repeats_self_test.load(Relaxed)
    }

    pub(crate) fn self_test_repeated(&self) {
        self.repeats_self_test.store(false, Relaxed);
    }

    /// Ends the recording in this process, as dropping the session does. It is for bindings that cannot drop the
    /// session in the child of a fork.
    pub fn close(&self) {
        self.observation.close();
    }
}
