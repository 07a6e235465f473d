//! `ort` sessions as the host makes them, observed.
//!
//! A run costs the host a pair of clock reads and a record. Outputs and errors are ORT's own,
//! unchanged. Whatever goes wrong with observing, the host gets its session.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::Instant,
};

use epwatch_proto::{
    ModelManifest, Placement, ReasonCode, SessionOptions, SessionUid, StartFailure, StartPhase,
    placement::MAX_REASONS,
};
use ort::{
    ErrorCode,
    session::{RunOptions, Session, SessionInputs, SessionOutputs, builder::SessionBuilder},
    sys::OrtErrorCode,
};

use crate::{
    config::ModelInfo,
    core::SessionInfo,
    engine,
    placement::{self, SummaryInput, summarise},
    recorder::SessionRecorder,
    run::observed,
    shape::{ShapeKey, has_one_shape},
    time::Clock,
    watch::Shared,
    worker::Command,
};

/// Makes ORT remember which EP got which node. Older versions take unknown keys and ignore them.
const RECORD_ASSIGNMENT: &str = "session.record_ep_graph_assignment_info";

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
        make: impl FnOnce(&mut SessionBuilder) -> ort::Result<Session>,
    ) -> ort::Result<ObservedSession> {
        let mut builder = self
            .builder
            .0
            .with_config_entry(RECORD_ASSIGNMENT, "1")
            // Not observed is better than not made.
            .unwrap_or_else(ort::Error::recover);
        self.shared.learn_ort_version();
        let began = Instant::now();
        let made = make(&mut builder);
        let creation = began.elapsed();
        let session = match made {
            Ok(session) => session,
            Err(error) => {
                let failure = StartFailure {
                    model: self.model.into(),
                    requested_eps: self.requested_eps,
                    phase: StartPhase::SessionCreation,
                    reason: placement::start_failure_reason(error.message()),
                    ort_status_code: status_code(error.code()),
                    text: placement::scrubbed(error.message()),
                    count: 1,
                };
                engine::lock(&self.shared.core).start_failed(failure);
                return Err(error);
            }
        };
        // Whatever is wrong with looking, the host has its session.
        let looked = catch_unwind(AssertUnwindSafe(|| {
            look(
                &session,
                &self.requested_eps,
                self.manifest.as_ref(),
                &self.reasons,
            )
        }));
        let placement = looked.unwrap_or_else(|_panic| {
            Placement::unavailable(self.requested_eps.clone(), ReasonCode::Unknown)
        });
        let mut info = SessionInfo::new(self.model, placement.clone());
        info.requested_eps = self.requested_eps;
        info.options = self.options;
        info.creation = Some(creation);
        Ok(ObservedSession {
            has_one_shape: has_one_shape(session.inputs()),
            session,
            placement,
            recorder: self.shared.open(info),
            clock: self.shared.clock,
        })
    }
}

/// Where a session's nodes are, as far as this ORT tells.
fn look(
    session: &Session,
    requested_eps: &[String],
    manifest: Option<&ModelManifest>,
    known_reasons: &[ReasonCode],
) -> Placement {
    match placement::read(session) {
        Ok(assignment) => summarise(SummaryInput {
            assignment: &assignment,
            requested_eps,
            manifest,
            known_reasons,
        }),
        Err(reason) => {
            let mut placement = Placement::unavailable(requested_eps.to_vec(), reason);
            placement.reasons.extend(known_reasons);
            placement.reasons.truncate(MAX_REASONS);
            placement
        }
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
    status_code(error.code())
}

/// The number that ORT's C API has for an error.
pub(crate) fn status_code(code: ErrorCode) -> i32 {
    OrtErrorCode::from(code) as i32
}
