//! A session that is about to be observed: the host's description, its creation, and the beginning of its recording.
//!
//! `ort`'s sessions are made here, from the host's builder. Sessions of hosts in other languages already exist
//! (`attached.rs`). Everything else is the same for both.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use epwatch_proto::{
    Accelerator, DeviceType, EpDevice, GraphKind, Model, ModelManifest, Placement, ReasonCode,
    Runtime, SessionOptions, StartFailure, StartPhase,
    chipset::{Soc, soc_by_soc_model},
};
#[cfg(feature = "qnn")]
use epwatch_proto::{Asked, SelectionPolicy};
#[cfg(feature = "ort")]
use {
    super::observed::ObservedSession,
    ort::session::{Session, builder::SessionBuilder},
    std::{path::Path, time::Instant},
};

use super::observation::{Described, Observation};
use crate::{
    config::ModelInfo,
    core::SessionInfo,
    directives::{EffectiveRequest, SessionPlan},
    placement::{self, Compatibility, CompiledModel, Here, PlacementInput, log::SessionLog},
    shared::Shared,
    types,
};

/// The default source of a request's session.
#[cfg(feature = "ort")]
type DefaultSource = SessionBuilder;
#[cfg(not(feature = "ort"))]
type DefaultSource = Option<placement::HostRuntime>;

/// A session about to be observed, made from an `ort` builder or [by the host](crate::AttachRequest).
///
/// ORT cannot return the EPs that a session was given, so the host names them with [`requesting`](Self::requesting), or
/// names the policy with [`with_selection_policy`](Self::with_selection_policy). Without either the session counts as one for
/// the CPU.
#[must_use = "the session is made by one of the commit functions"]
pub struct SessionRequest<S = DefaultSource> {
    pub(super) shared: Arc<Shared>,
    pub(super) source: S,
    model: ModelInfo,
    requested_eps: Vec<String>,
    /// The EP that the runtime's list of devices has for the policy.
    #[cfg(feature = "qnn")]
    ep_of_policy: Option<String>,
    /// Devices of the session's inputs and outputs.
    pub(super) devices: Vec<EpDevice>,
    options: SessionOptions,
    manifest: Option<ModelManifest>,
    pub(super) reasons: Vec<ReasonCode>,
    #[cfg(feature = "ort")]
    captures_log: bool,
    /// Log of a session like this one, which was made just before it.
    pub(super) log: Option<SessionLog>,
    plan: SessionPlan,
    variant: Option<String>,
    phase: StartPhase,
    pub(super) model_file: Option<PathBuf>,
    /// Runtime of a session that is not from ONNX Runtime.
    pub(super) other_runtime: Option<Runtime>,
}

/// `ort`'s builder has no Debug.
impl<S> fmt::Debug for SessionRequest<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionRequest")
            .field("model", &self.model)
            .field("requested_eps", &self.requested_eps)
            .field("options", &self.options)
            .field("reasons", &self.reasons)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl<S> SessionRequest<S> {
    pub(crate) fn new(shared: Arc<Shared>, model: ModelInfo, source: S) -> Self {
        Self {
            shared,
            source,
            model,
            requested_eps: Vec::new(),
            #[cfg(feature = "qnn")]
            ep_of_policy: None,
            devices: Vec::new(),
            options: SessionOptions::default(),
            manifest: None,
            reasons: Vec::new(),
            #[cfg(feature = "ort")]
            captures_log: false,
            log: None,
            plan: SessionPlan::default(),
            variant: None,
            phase: StartPhase::SessionCreation,
            model_file: None,
            other_runtime: None,
        }
    }

    /// Names the EPs that the session is given, in order, for example `QNNExecutionProvider`. The first eight count.
    /// The CPU EP need not be named. If the app registered a plugin under another name, reports have ONNX Runtime's
    /// name of the plugin. The runtime's list of devices must show which plugin it is. That needs ONNX Runtime 1.23 and
    /// the feature `qnn`.
    pub fn requesting<T: Into<String>>(mut self, eps: impl IntoIterator<Item = T>) -> Self {
        let eps: Vec<String> = eps.into_iter().map(Into::into).collect();
        self.requested_eps = placement::requested(&eps);
        self
    }

    /// Names options of the session that change where or how fast the model runs.
    pub fn with_options(mut self, options: types::SessionOptions) -> Self {
        self.options = options.into();
        self
    }

    /// Names the policy by which ONNX Runtime chooses devices by itself, for example [`PreferNpu`](types::SelectionPolicy::PreferNpu) for a
    /// builder with `ort`'s `AutoDevicePolicy::PreferNPU`. Call this after [`Self::with_options`].
    ///
    /// It goes into reports and `explain()`. If [`Self::requesting`] names EPs, ONNX Runtime uses no policy. Otherwise the
    /// session counts as one for the EP that got nodes, or else for the only EP with a device that the policy prefers. That
    /// needs ONNX Runtime 1.23 and the feature `qnn`. If neither is known, the session's accelerator is unknown. A
    /// policy for the CPU changes nothing. `ort` sets a policy on each builder by itself, so no policy is read from there.
    pub fn with_selection_policy(mut self, policy: types::SelectionPolicy) -> Self {
        self.options.selection_policy = Some(policy.into());
        self
    }

    /// Names the type of device that the EP runs on, for an EP that has several, for example what OpenVINO's option `device_type`
    /// is given. Call this after [`Self::with_options`].
    ///
    /// It goes into reports and `explain()`, and sessions on different devices are judged apart. Without this call the
    /// type is known if ONNX Runtime lists one type for the EP, or if a policy chose it (1.23, feature `qnn`). The devices
    /// in `explain()` are another thing: ONNX Runtime's own answer for the session.
    pub fn with_device_type(mut self, device: types::DeviceType) -> Self {
        self.options.device_type = Some(device.into());
        self
    }

    /// Adds the MACs per node of the model, so that the placement contains their distribution over EPs.
    /// [`read_side_car`](crate::read_side_car) reads them from the model's side-car.
    pub fn with_manifest(mut self, manifest: types::ModelManifest) -> Self {
        self.manifest = Some(manifest.into());
        self
    }

    /// Adds known reasons why the NPU will not be used, for example [`NO_EP_DEVICE`](types::ReasonCode::NO_EP_DEVICE).
    pub fn with_reasons(mut self, reasons: impl IntoIterator<Item = types::ReasonCode>) -> Self {
        self.reasons
            .extend(reasons.into_iter().map(ReasonCode::from));
        self
    }

    /// Names the plan that the session follows. [`Self::requesting`] still names the EPs that the app wants. If the
    /// plan forbids the NPU, the EPs in effect exclude it, and the session names the directive. Such a session updates
    /// no baseline.
    pub fn with_plan(mut self, plan: &SessionPlan) -> Self {
        self.plan = plan.clone();
        self
    }

    /// Names the model variant that was loaded. If it is the variant the plan prefers, the directive counts as applied.
    pub fn with_variant(mut self, variant: impl Into<String>) -> Self {
        self.variant = Some(variant.into());
        self
    }

    /// Marks this session as the replacement of one whose run failed, for example because the DSP restarted. A
    /// failure to create it is reported as its own start phase. If it succeeds, its
    /// [self-test](crate::Watch::self_test) runs again.
    pub fn after_run_error(mut self) -> Self {
        self.phase = StartPhase::RecreationAfterRunError;
        self
    }

    /// Whether the session's self-test runs again although it ran before.
    pub(super) fn repeats_self_test(&self) -> bool {
        self.phase == StartPhase::RecreationAfterRunError
    }

    /// Returns the EPs that the app wants, named by the app or by the policy for them.
    fn wanted(&self) -> Vec<String> {
        let policy = self.options.selection_policy;
        let policy = policy.filter(|policy| policy.prefers() != DeviceType::Cpu);
        let is_cpu = |ep: &String| Accelerator::of_ep(ep) == Accelerator::Cpu;
        match policy.filter(|_| self.requested_eps.iter().all(is_cpu)) {
            None => self.requested_eps.clone(),
            #[cfg(feature = "qnn")]
            Some(_) if self.ep_of_policy.is_some() => self.ep_of_policy.iter().cloned().collect(),
            Some(policy) => vec![policy.in_request()],
        }
    }

    /// Returns the request in effect, after directives.
    pub(super) fn in_effect(&mut self) -> EffectiveRequest {
        let variant = self.variant.as_deref();
        let in_effect = EffectiveRequest::of(&self.plan, &self.wanted(), variant);
        let reason = ReasonCode::NpuOffByDirective;
        if in_effect.is_npu_off() && !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
        in_effect
    }

    /// The information in the model's file, if it is a compiled model for a requested EP.
    pub(super) fn compiled_model(&self) -> Option<CompiledModel> {
        CompiledModel::of_file(self.model_file.as_deref()?, &self.requested_eps)
    }

    /// Whether a compiled model is for this device, judged by its file alone.
    pub(super) fn by_text(&self, compiled: &CompiledModel) -> Option<Compatibility> {
        let core = self.shared.core();
        let given = soc_by_soc_model(&self.options.soc_model);
        compiled.by_text(Here {
            soc: given.or_else(|| core.device.chipset.soc()),
            qnn_sdk: &core.runtime.qnn_sdk_version,
        })
    }

    /// Counts the failure to make the session. `told` says whether a compiled model is for this device, judged by its
    /// file alone.
    pub(super) fn count_failure(
        self,
        in_effect: EffectiveRequest,
        ort_status_code: i32,
        message: &str,
        compiled: Option<&CompiledModel>,
        told: Option<Compatibility>,
    ) {
        let told = told.filter(|told| *told == Compatibility::Unsupported);
        let by_log = self.log.as_ref().and_then(SessionLog::first_reason);
        let by_log = by_log.or_else(|| told?.reason().map(ReasonCode::from));
        let mut model = Model::from(self.model);
        if let Some(compiled) = compiled {
            model.ep_compatibility.clone_from(&compiled.text);
        }
        let failure = StartFailure {
            model,
            requested_eps: in_effect.requested_eps,
            phase: self.phase,
            reason: placement::start_failure_reason(ort_status_code, message, by_log),
            ort_status_code,
            text: placement::scrubbed(message),
            count: 1,
            device_type: self.options.device_type,
        };
        self.shared
            .core()
            .start_failed(failure, self.shared.clock.now());
    }

    /// Begins to observe a session that exists.
    pub(super) fn begin(
        self,
        in_effect: EffectiveRequest,
        creation: Option<Duration>,
        placement: impl FnOnce(PlacementInput<'_>, Option<&'static Soc>) -> Placement,
        ep_compatibility: impl FnOnce() -> String,
    ) -> Observation {
        // The host has its session even if reading the placement fails.
        let device = self.shared.core().device.chipset.soc();
        let wanted = self.wanted();
        let read = catch_unwind(AssertUnwindSafe(|| {
            let input = PlacementInput {
                requested_eps: &in_effect.requested_eps,
                soc_model: &self.options.soc_model,
                manifest: self.manifest.as_ref(),
                known_reasons: &self.reasons,
            };
            placement(input, device)
        }));
        let mut placement = read.unwrap_or_else(|_panic| {
            Placement::unavailable(in_effect.requested_eps.clone(), ReasonCode::Unknown)
        });
        let is_hash_needed = self.model.model.sha256.is_none();
        let mut model = self.model;
        if placement.graph_kind == GraphKind::EpContext {
            model.model.ep_compatibility = ep_compatibility();
        }
        let in_effect = in_effect.corrected_by(&wanted, &mut placement);
        let mut info = SessionInfo::new(model, placement);
        info.requested_eps = self.requested_eps;
        info.options = self.options;
        info.devices = self.devices;
        info.creation = creation;
        info.directive_id = in_effect.directive_id();
        info.runtime = self.other_runtime;
        let described = Described {
            info,
            in_effect,
            hash_from: self.model_file.filter(|_| is_hash_needed),
        };
        Observation::open(&self.shared, described)
    }
}

#[cfg(feature = "ort")]
impl SessionRequest {
    /// Captures ONNX Runtime's verbose log, so that each CPU node has the validator's reason. For ORT older than 1.24
    /// the log is the only source of a placement. The log comes from a separate session, made just before this one and
    /// dropped. So making the session takes twice as long; the cost of runs and the host's logger do not change.
    pub fn with_log_capture(mut self) -> Self {
        self.captures_log = true;
        self
    }

    /// Makes the session from a model file. The SDK's thread computes the file's hash later.
    ///
    /// # Errors
    /// ORT's error, which is also reported as a start failure.
    pub fn commit_from_file(mut self, path: impl AsRef<Path>) -> ort::Result<ObservedSession> {
        let path = path.as_ref();
        self.model_file = Some(path.to_owned());
        self.commit_with(|builder| builder.commit_from_file(path))
    }

    /// Returns whether a compiled model (EPContext) is for this device, before it is loaded. With ONNX Runtime 1.24 or
    /// later and the feature `qnn`, the model's EP decides. Without its answer, the chipset and the QNN version in the
    /// file decide. `None` if the model is not compiled, or if neither gives an answer. Call it after
    /// [`Self::requesting`] and [`Self::with_options`].
    ///
    /// Qualcomm's EP is never asked: its plugins 2.3.0 and 2.7.0 crash the process if a session of theirs was closed before.
    ///
    /// The commit functions use only the file. Pass the reason of an EP's answer to [`Self::with_reasons`], so that
    /// explanation and report have it.
    pub fn compatibility(&self, path: impl AsRef<Path>) -> Option<Compatibility> {
        let compiled = CompiledModel::of_file(path.as_ref(), &self.requested_eps)?;
        #[cfg(feature = "qnn")]
        if !compiled.is_of_qnn() {
            let names = placement::RuntimeNames::read();
            let mut eps = self.requested_eps.iter();
            let its = eps.find(|ep| compiled.is_of(&names.own_name(ep)));
            let answer = its.and_then(|ep| placement::compatibility(ep, &compiled.text));
            if answer.is_some() {
                return answer;
            }
        }
        self.by_text(&compiled)
    }

    /// Makes the session from a model in memory.
    ///
    /// # Errors
    /// Fails as [`Self::commit_from_file`] does.
    pub fn commit_from_memory(self, model: &[u8]) -> ort::Result<ObservedSession> {
        self.commit_with(|builder| builder.commit_from_memory(model))
    }

    /// Makes the session with a function of the host, for cases that the other calls lack: a model that stays in
    /// memory, a second file. With [log capture](Self::with_log_capture) the function is called twice.
    ///
    /// # Errors
    /// Fails as [`Self::commit_from_file`] does.
    pub fn commit_with(
        mut self,
        make: impl Fn(&mut SessionBuilder) -> ort::Result<Session>,
    ) -> ort::Result<ObservedSession> {
        self.shared = self.shared.here();
        let mut builder = placement::record_assignment(self.source.clone());
        self.shared.note_ort_version(placement::ort_version);
        let compiled = self.compiled_model();
        let told = compiled
            .as_ref()
            .and_then(|compiled| self.by_text(compiled));
        #[cfg(feature = "qnn")]
        let names = placement::RuntimeNames::read();
        #[cfg(feature = "qnn")]
        {
            self.requested_eps = names.of_request(&self.requested_eps);
            let policy = self.options.selection_policy;
            self.ep_of_policy = policy.and_then(|policy| names.only_ep_of(policy.prefers()));
            self.options.device_type = self.options.device_type.or_else(|| {
                let wanted = self.wanted();
                let asked = Asked::by_names(&wanted)?;
                // The policy stands for the EP, which was found by the type that the policy prefers.
                if self.requested_eps.is_empty() && asked.accelerator.is_named_by_device() {
                    return policy.map(SelectionPolicy::prefers);
                }
                names
                    .only_type_of(asked.ep)
                    .filter(|_| asked.accelerator.is_named_by_device())
            });
        }
        self.log = self
            .captures_log
            .then(|| placement::capture_log(&builder, &make));
        let in_effect = self.in_effect();
        let began = Instant::now();
        let made = make(&mut builder);
        let creation = Some(began.elapsed());
        let session = match made {
            Ok(session) => session,
            Err(error) => {
                let code = placement::status_code(error.code());
                self.count_failure(in_effect, code, error.message(), compiled.as_ref(), told);
                return Err(error);
            }
        };
        #[cfg(feature = "qnn")]
        if self.reasons.is_empty()
            && in_effect
                .requested_eps
                .iter()
                .any(|ep| Accelerator::of_ep(ep).is_plain_npu())
        {
            self.reasons.extend(crate::host::qnn::missing());
        }
        self.reasons
            .extend(told.and_then(Compatibility::reason).map(ReasonCode::from));
        let repeats_self_test = self.repeats_self_test();
        let assignment = placement::read(&session);
        self.devices = placement::session_devices(&session);
        #[cfg(feature = "qnn")]
        let assignment = assignment.map(|assignment| names.of_assignment(assignment));
        #[cfg(feature = "qnn")]
        {
            self.devices = names.of_devices(self.devices);
        }
        let log = self.log.take();
        let observation = self.begin(
            in_effect,
            creation,
            |input, device| {
                let assignment = placement::recorded(assignment, input.requested_eps);
                placement::of_logged(assignment, log.as_ref(), input, device)
            },
            || match compiled {
                Some(compiled) => compiled.text,
                None => placement::ep_compatibility(&session),
            },
        );
        Ok(ObservedSession::new(
            session,
            observation,
            repeats_self_test,
        ))
    }
}
