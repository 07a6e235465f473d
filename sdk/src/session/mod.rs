//! `ort` sessions as the host makes them, observed.
//!
//! A run costs the host a pair of clock reads and a record. Outputs and errors are ORT's own,
//! unchanged. Whatever goes wrong with observing, the host gets its session.

mod run;
mod shape_key;
pub(crate) mod simulated;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::Instant,
};

use epwatch_proto::{
    GraphKind, ModelManifest, Placement, ReasonCode, SessionOptions, SessionUid, StartFailure,
    StartPhase, placement::MAX_REASONS,
};
use ort::session::{RunOptions, Session, SessionInputs, SessionOutputs, builder::SessionBuilder};

use crate::{
    config::ModelInfo,
    core::SessionInfo,
    directives::{InEffect, SessionPlan},
    driver::worker::Command,
    placement::{
        self, SummaryInput,
        log::{SessionLog, soc_of},
        summarise,
    },
    recorder::SessionRecorder,
    session::{
        run::observed,
        shape_key::{ShapeKey, has_one_shape},
    },
    shared::Shared,
    time::Clock,
};

/// A session about to be made: what the host asked for, told to the SDK.
///
/// ORT cannot say afterwards which EPs a builder was given, so the host says it:
/// [`requesting`](Self::requesting). A session that does not is taken for one that wants the CPU.
#[derive(Debug)]
#[must_use = "the session is made by one of the commit functions"]
pub struct SessionRequest {
    shared: Arc<Shared>,
    model: ModelInfo,
    builder: Builder,
    requested_eps: Vec<String>,
    options: SessionOptions,
    manifest: Option<ModelManifest>,
    reasons: Vec<ReasonCode>,
    hears_log: bool,
    plan: SessionPlan,
    variant: Option<String>,
    phase: StartPhase,
}

/// `ort`'s builder has no Debug.
struct Builder(SessionBuilder);

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionBuilder")
    }
}

impl SessionRequest {
    pub(crate) fn new(shared: Arc<Shared>, model: ModelInfo, builder: SessionBuilder) -> Self {
        Self {
            shared,
            model,
            builder: Builder(builder),
            requested_eps: Vec::new(),
            options: SessionOptions::default(),
            manifest: None,
            reasons: Vec::new(),
            hears_log: false,
            plan: SessionPlan::default(),
            variant: None,
            phase: StartPhase::SessionCreation,
        }
    }

    /// The EPs that the builder was given, in order, as ORT names them, for example
    /// `QNNExecutionProvider`. The first eight count; the CPU EP goes without saying.
    pub fn requesting<T: Into<String>>(mut self, eps: impl IntoIterator<Item = T>) -> Self {
        let eps: Vec<String> = eps.into_iter().map(Into::into).collect();
        self.requested_eps = placement::requested(&eps);
        self
    }

    /// Options that the builder was given and that change where or how fast the model runs.
    pub fn with_options(mut self, options: SessionOptions) -> Self {
        self.options = options;
        self
    }

    /// MACs per node of the model, so that the placement says how much of the work went where.
    pub fn with_manifest(mut self, manifest: ModelManifest) -> Self {
        self.manifest = Some(manifest);
        self
    }

    /// What is known already of why the NPU will not be used, for example
    /// [`ReasonCode::NoEpDevice`].
    pub fn with_reasons(mut self, reasons: impl IntoIterator<Item = ReasonCode>) -> Self {
        self.reasons.extend(reasons);
        self
    }

    /// Hears ONNX Runtime's verbose log of a session made apart, just before this one, and dropped
    /// again: then each CPU node has the validator's reason, and ORT older than 1.24 has a placement
    /// at all. Making the session takes twice as long; runs cost what they did, and the host's
    /// logger hears what it did.
    pub fn with_log_capture(mut self) -> Self {
        self.hears_log = true;
        self
    }

    /// The plan that the builder was made by: what was asked for stays what the app wanted
    /// ([`Self::requesting`]), what was asked for in effect is without the NPU if the plan says
    /// so, and the session names the directive. Such a session teaches no baseline.
    pub fn with_plan(mut self, plan: &SessionPlan) -> Self {
        self.plan = plan.clone();
        self
    }

    /// The variant of the model that is loaded. Is it the one that the plan prefers, the directive
    /// was followed.
    pub fn with_variant(mut self, variant: impl Into<String>) -> Self {
        self.variant = Some(variant.into());
        self
    }

    /// The session takes the place of one whose run failed, for example because the DSP restarted.
    /// Should it not be made, that is told apart; once made, its
    /// [self-test](crate::Watch::self_test) is repeated.
    pub fn after_run_error(mut self) -> Self {
        self.phase = StartPhase::RecreationAfterRunError;
        self
    }

    /// Makes the session from a model file. Its hash is taken later, on the SDK's thread.
    ///
    /// # Errors
    /// ORT's own; it is reported as a start failure, too.
    pub fn commit_from_file(self, path: impl AsRef<Path>) -> ort::Result<ObservedSession> {
        let path = path.as_ref();
        let hash_from = path.to_owned();
        let wants_hash = self.model.model.sha256.is_none();
        let shared = Arc::clone(&self.shared);
        let session = self.commit(|builder| builder.commit_from_file(path))?;
        if wants_hash {
            shared.ask(Command::HashModel(session.uid(), hash_from));
        }
        Ok(session)
    }

    /// Makes the session from a model in memory.
    ///
    /// # Errors
    /// As [`Self::commit_from_file`].
    pub fn commit_from_memory(self, model: &[u8]) -> ort::Result<ObservedSession> {
        self.commit(|builder| builder.commit_from_memory(model))
    }

    fn commit(
        self,
        make: impl Fn(&mut SessionBuilder) -> ort::Result<Session>,
    ) -> ort::Result<ObservedSession> {
        let mut builder = placement::record_assignment(self.builder.0);
        self.shared.learn_ort_version();
        let heard = self.hears_log.then(|| placement::listen(&builder, &make));
        let in_effect = InEffect::of(&self.plan, &self.requested_eps, self.variant.as_deref());
        let mut reasons = self.reasons;
        if in_effect.is_npu_off() && !reasons.contains(&ReasonCode::NpuOffByDirective) {
            reasons.push(ReasonCode::NpuOffByDirective);
        }
        let began = Instant::now();
        let made = make(&mut builder);
        let creation = began.elapsed();
        let session = match made {
            Ok(session) => session,
            Err(error) => {
                let failure = StartFailure {
                    model: self.model.into(),
                    requested_eps: in_effect.requested_eps,
                    phase: self.phase,
                    reason: start_failure_reason(error.message(), heard.as_ref()),
                    ort_status_code: placement::status_code(error.code()),
                    text: placement::scrubbed(error.message()),
                    count: 1,
                };
                self.shared.core().start_failed(failure);
                return Err(error);
            }
        };
        // Whatever is wrong with looking, the host has its session.
        let looked = catch_unwind(AssertUnwindSafe(|| {
            look(
                &session,
                &in_effect.requested_eps,
                self.manifest.as_ref(),
                &reasons,
                heard.as_ref(),
                &self.options,
            )
        }));
        let mut placement = looked.unwrap_or_else(|_panic| {
            Placement::unavailable(in_effect.requested_eps.clone(), ReasonCode::Unknown)
        });
        let mut model = self.model;
        if placement.graph_kind == GraphKind::EpContext {
            model.model.ep_compatibility = placement::ep_compatibility(&session);
        }
        let in_effect = in_effect.corrected_by(&self.requested_eps, &mut placement);
        let mut info = SessionInfo::new(model, placement.clone());
        info.requested_eps = self.requested_eps;
        info.options = self.options;
        info.creation = Some(creation);
        info.directive_id = in_effect.directive_id();
        Ok(ObservedSession {
            has_one_shape: has_one_shape(session.inputs()),
            session,
            placement,
            recorder: self.shared.open(info, &in_effect),
            repeats_self_test: self.phase == StartPhase::RecreationAfterRunError,
            clock: self.shared.clock,
        })
    }
}

/// Where a session's nodes are, as far as this ORT tells: its assignment API, else a log that was
/// heard, else nothing. Never a guess.
fn look(
    session: &Session,
    requested_eps: &[String],
    manifest: Option<&ModelManifest>,
    known_reasons: &[ReasonCode],
    heard: Option<&SessionLog>,
    options: &SessionOptions,
) -> Placement {
    match (placement::read(session), heard) {
        (Ok(assignment), heard) => {
            let mut placement = summarise(SummaryInput {
                assignment: &assignment,
                requested_eps,
                manifest,
                known_reasons,
            });
            if let Some(heard) = heard {
                let soc = soc_of(&options.soc_model).or_else(|| heard.soc());
                heard.explain(&mut placement, soc);
            }
            placement
        }
        (Err(_), Some(heard)) => heard.placement(requested_eps, manifest, known_reasons),
        (Err(reason), None) => {
            let mut placement = Placement::unavailable(requested_eps.to_vec(), reason);
            placement.reasons.extend(known_reasons);
            placement.reasons.truncate(MAX_REASONS);
            placement
        }
    }
}

/// ORT's error says more than the log, where it says anything.
fn start_failure_reason(message: &str, heard: Option<&SessionLog>) -> ReasonCode {
    let by_log = || heard.and_then(|log| log.reasons.first().copied());
    match placement::start_failure_reason(message) {
        ReasonCode::Unknown => by_log().unwrap_or(ReasonCode::Unknown),
        reason => reason,
    }
}

/// An ONNX Runtime session whose runs are measured.
#[derive(Debug)]
pub struct ObservedSession {
    session: Session,
    placement: Placement,
    recorder: Arc<SessionRecorder>,
    clock: Clock,
    has_one_shape: bool,
    repeats_self_test: bool,
}

impl ObservedSession {
    /// As [`Session::run`], measured.
    ///
    /// # Errors
    /// ORT's own; the run is counted as failed.
    pub fn run<'s, 'i, 'v: 'i, const N: usize>(
        &'s mut self,
        input_values: impl Into<SessionInputs<'i, 'v, N>>,
    ) -> ort::Result<SessionOutputs<'s>> {
        let inputs = input_values.into();
        let shape = ShapeKey::of(self.has_one_shape, &self.session, &inputs);
        let run = || self.session.run(inputs);
        observed(&self.recorder, &self.clock, &shape, run, code_of)
    }

    /// As [`Session::run_with_options`], measured; `ort` keeps the type of options that select
    /// outputs to itself.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_with_options<'r, 's: 'r, 'i, 'v: 'i, const N: usize>(
        &'s mut self,
        input_values: impl Into<SessionInputs<'i, 'v, N>>,
        options: &'r RunOptions,
    ) -> ort::Result<SessionOutputs<'r>> {
        let inputs = input_values.into();
        let shape = ShapeKey::of(self.has_one_shape, &self.session, &inputs);
        let run = || self.session.run_with_options(inputs, options);
        observed(&self.recorder, &self.clock, &shape, run, code_of)
    }

    /// Where the session runs. Fixed when it was made.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Its id in reports.
    pub fn uid(&self) -> SessionUid {
        self.recorder.uid()
    }

    /// Whether its self-test is to run even if it was done before.
    pub(crate) fn repeats_self_test(&self) -> bool {
        self.repeats_self_test
    }

    pub(crate) fn self_test_repeated(&mut self) {
        self.repeats_self_test = false;
    }

    /// The session itself: inputs, outputs, metadata.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The session itself; runs made through it are not measured.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Drop for ObservedSession {
    fn drop(&mut self) {
        self.recorder.close();
    }
}

fn code_of(error: &ort::Error) -> i32 {
    placement::status_code(error.code())
}
