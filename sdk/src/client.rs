//! The handle that a host holds: starts the SDK, wraps sessions, tells conditions.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{self, TrySendError},
    },
    time::{Duration, Instant},
};

use epwatch_proto::{
    Placement, ReasonCode, SdkHealth, SessionOptions, StartFailure, StartPhase, StreamId,
};
use ort::session::builder::SessionBuilder;

use crate::{
    config::{ModelInfo, SdkConfig},
    core::SessionInfo,
    directives::{InEffect, SessionPlan},
    driver::{Asked, worker::Command},
    explain::{ExplainedSession, Explanation},
    host::preflight::{self, Check, PreflightFacts, SystemHost},
    placement,
    recorder::conditions::Conditions,
    session::{SessionRequest, simulated::SimulatedSession},
    shared::Shared,
    upload::{FlushError, UploadBatch, UploadError, budget::NetworkKind},
};

/// The SDK could not start its thread; the app goes on without it.
#[derive(Debug, thiserror::Error)]
#[error("failed to start the SDK's thread")]
pub struct StartError(#[source] io::Error);

/// The SDK of one process. Cheap to clone; when the last clone goes, what was recorded is sealed
/// in the background. Call [`Watch::stop`] where the process ends right after.
///
/// ```no_run
/// # use std::time::Duration;
/// # use epwatch_sdk::{ModelInfo, SdkConfig, Watch};
/// # use ort::{inputs, session::Session, value::TensorRef};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = SdkConfig::builder(
///     "com.example.camera",
///     "http://127.0.0.1:4717",
///     "demo-key",
///     "/data/user/0/com.example.camera/files/epwatch",
/// )
/// .build()?;
/// let watch = Watch::start(config)?;
///
/// let env = ort::init_from("libonnxruntime.so")?.build()?;
/// let mut session = watch
///     .session(ModelInfo::new("segmenter", "3")?, Session::builder(&env)?)
///     .requesting(["QNNExecutionProvider"])
///     .commit_from_file("segmenter.onnx")?;
/// # let input = ([1_usize, 3, 32, 32], vec![0.0_f32; 3 * 32 * 32]);
/// let outputs = session.run(inputs![TensorRef::from_array_view((input.0, &*input.1))?])?;
/// # drop(outputs);
/// watch.stop(Duration::from_secs(5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Watch {
    pub(crate) shared: Arc<Shared>,
}

impl Watch {
    /// Starts the SDK. Returns in microseconds: files and the network are touched by its own
    /// thread only.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(config: SdkConfig) -> Result<Self, StartError> {
        let shared = Shared::start(config).map_err(StartError)?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// What holds from now on for every run of this process: one atomic store. Call it from the
    /// platform's thermal and power listeners. The thermal status does not count where
    /// [the SDK reads it](crate::SdkConfigBuilder::with_thermal_zones).
    pub fn set_conditions(&self, conditions: &Conditions) {
        self.shared.conditions.set(conditions);
    }

    /// How the operator's directives want the next session of a model to be made: on the NPU or
    /// not, and from which variant. Ask before the builder is made, and hand the plan to
    /// [`SessionRequest::with_plan`]. Without directives it is to do as always.
    ///
    /// Never waits for the disk: right after the start, before the SDK's thread has read what it
    /// holds, the plan [is not known](SessionPlan::is_known). Apps that make a session first thing
    /// use [`Self::plan_within`].
    ///
    /// ```no_run
    /// # #[cfg(feature = "qnn")]
    /// # fn example(
    /// #     watch: epwatch_sdk::Watch,
    /// #     qnn: epwatch_sdk::qnn::Plugin,
    /// #     htp: epwatch_sdk::qnn::HtpOptions,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use epwatch_sdk::ModelInfo;
    ///
    /// let model = ModelInfo::new("segmenter", "3")?;
    /// let plan = watch.plan_within(&model, Duration::from_millis(200));
    /// let asked = qnn.session_builder_for(&plan, &htp)?;
    /// let variant = plan.preferred_variant().filter(|v| *v == "small").unwrap_or("full");
    /// let session = watch
    ///     .session(model, asked.builder)
    ///     .requesting(asked.requested_eps)
    ///     .with_options(asked.options)
    ///     .with_reasons(asked.reasons)
    ///     .with_plan(&plan)
    ///     .with_variant(variant)
    ///     .commit_from_file(format!("segmenter.{variant}.onnx"))?;
    /// # Ok(()) }
    /// ```
    pub fn plan(&self, model: &ModelInfo) -> SessionPlan {
        let now = self.shared.clock.now();
        let core = self.shared.core();
        core.directives.plan(&model.model, now)
    }

    /// As [`Self::plan`], once the SDK has read what it holds: waits for that, at most `timeout`.
    /// It takes milliseconds at the start of a process, and nothing later.
    pub fn plan_within(&self, model: &ModelInfo, timeout: Duration) -> SessionPlan {
        let plan = self.plan(model);
        if plan.is_known() || !self.shared.wait_until_opened(timeout) {
            return plan;
        }
        self.plan(model)
    }

    /// Says whether the user agrees. Returns in microseconds.
    ///
    /// Without consent nothing is recorded, written or sent, and no thread of the SDK works.
    /// Giving it starts everything; sessions that exist are recorded from then on. Withdrawing it
    /// ends recording at once; then the SDK's thread wipes what it kept (spool, baselines, the
    /// installation's secret) and asks the collector to delete what the installation ever sent. That
    /// request outlives crashes and times without a network: until the collector has acknowledged
    /// it, it is the one thing that is kept, and sent. Consent given again begins a new
    /// installation and a new stream, and counts the runs that were given up as dropped.
    ///
    /// It holds for this process and is not remembered: hosts keep their users' choice, and start
    /// with [`with_consent(false)`](crate::SdkConfigBuilder::with_consent) where it is no, or not
    /// known yet. A process that is killed right after a withdrawal may not have come to the wipe,
    /// which waits for an upload under way. So say `false` here at each start where the choice is
    /// no: that is a withdrawal also where consent was withheld, wipes what an earlier process
    /// kept, and does nothing where nothing is. The start alone wipes nothing. Other
    /// processes of the app that share the folder notice a withdrawal at their next seal or upload,
    /// and keep nothing until they are told otherwise.
    pub fn set_consent(&self, is_given: bool) {
        self.shared.set_consent(is_given);
    }

    /// Begins a new installation, as if the app had been installed anew: wipes what was kept and
    /// asks for deletion of what was sent, as a withdrawal of consent does, and goes on at once.
    /// Where another process of the app has withdrawn consent, that holds.
    pub fn reset_installation(&self) {
        self.shared.reset_installation();
    }

    /// Says which network uploads would take. Call it from the platform's connectivity listener;
    /// without it, every network counts as one that costs nothing.
    pub fn set_network(&self, network: NetworkKind) {
        self.shared.consent().set_network(network);
        self.shared.ask(Command::Wake);
    }

    /// Wraps a session that is to be made from the host's own builder, with its options, EPs and
    /// environment.
    pub fn session(&self, model: ModelInfo, builder: SessionBuilder) -> SessionRequest {
        SessionRequest::new(Arc::clone(&self.shared), model, builder)
    }

    /// A session without ONNX Runtime, for simulated devices: recorded, reported and uploaded like
    /// a real one.
    pub fn simulated_session(
        &self,
        model: ModelInfo,
        placement: Placement,
        options: SessionOptions,
    ) -> SimulatedSession {
        let mut info = SessionInfo::new(model, placement);
        info.options = options;
        let recorder = self.shared.open(info, &InEffect::default());
        SimulatedSession::new(recorder, self.shared.clock)
    }

    /// Counts a session that could not be made for a reason outside ORT's session creation, for
    /// example a plugin that could not be registered. Failures of
    /// [`SessionRequest`]'s own are counted without this.
    pub fn start_failed(
        &self,
        model: ModelInfo,
        requested_eps: &[&str],
        phase: StartPhase,
        reason: ReasonCode,
        error: &str,
    ) {
        let requested: Vec<_> = requested_eps.iter().map(|ep| (*ep).to_owned()).collect();
        let failure = StartFailure {
            model: model.into(),
            requested_eps: placement::requested(&requested),
            phase,
            reason,
            ort_status_code: 0,
            text: placement::scrubbed(error),
            count: 1,
        };
        self.shared.core().start_failed(failure);
    }

    /// Seals what was recorded and sends everything that waits, whatever the schedule says. For
    /// tests, demos, and apps about to go to the background. Blocks at most `timeout`.
    ///
    /// # Errors
    /// What kept a report from reaching the collector. Nothing is lost by that: the spool keeps
    /// it, and the schedule goes on.
    pub fn flush(&self, timeout: Duration) -> Result<(), FlushError> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.shared
            .try_ask(Command::Flush(answer))
            .map_err(|error| match error {
                TrySendError::Full(_) => FlushError::Timeout,
                TrySendError::Disconnected(_) => FlushError::Stopped,
            })?;
        match answered.recv_timeout(timeout) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(FlushError::Timeout),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(FlushError::Stopped),
        }
    }

    /// Seals what was recorded, keeps it for the next process to send, and ends the SDK's thread.
    /// Blocks at most `timeout`; an upload under way may take its deadline. `true` if it ended.
    pub fn stop(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let (answer, answered) = mpsc::sync_channel(1);
        match self.shared.try_ask(Command::Stop(answer)) {
            Ok(()) => {
                let left = until.saturating_duration_since(Instant::now());
                let outcome = answered.recv_timeout(left);
                !matches!(outcome, Err(mpsc::RecvTimeoutError::Timeout))
            }
            Err(TrySendError::Disconnected(_)) => true,
            Err(TrySendError::Full(_)) => false,
        }
    }

    /// The stream that this process reports in.
    pub fn stream(&self) -> StreamId {
        self.shared.core().stream()
    }

    /// The SDK's own counters as of the last seal.
    pub fn health(&self) -> SdkHealth {
        self.shared.core().health().clone()
    }

    /// For hosts that send by themselves (feature `grpc` off, or
    /// [`with_uploads_by_host`](crate::SdkConfigBuilder::with_uploads_by_host)): seals if it is
    /// time and gives the next request. `None` if nothing waits, or if a failure, the collector or
    /// the byte budget asked to wait: ask again later, for example each quarter of an hour.
    /// Touches the disk: call it from a background thread, one request at a time, and always hand
    /// the result to [`Self::upload_result`].
    ///
    /// Requests are of two [kinds](UploadBatch::kind), each with a path of its own; deletions are
    /// handed out also while consent is withheld.
    ///
    /// ```no_run
    /// # use epwatch_sdk::{UploadError, Watch};
    /// # use epwatch_proto::UploadFailureKind;
    /// # struct Http;
    /// # impl Http { fn post(&self, _: &str, _: &[u8]) -> Result<Vec<u8>, String> { Ok(vec![]) } }
    /// # fn upload(watch: &Watch, http: &Http) {
    /// while let Some(request) = watch.next_upload() {
    ///     // One gRPC message each way, over whatever the host has for HTTP/2.
    ///     let answer = http.post(request.kind().path(), &request.encoded());
    ///     let answer = match &answer {
    ///         Ok(message) => Ok(&message[..]),
    ///         Err(text) => Err(UploadError::new(UploadFailureKind::Unreachable, text)),
    ///     };
    ///     if watch.upload_result(&request, answer).is_err() {
    ///         break;
    ///     }
    /// }
    /// # }
    /// ```
    pub fn next_upload(&self) -> Option<UploadBatch> {
        let mut engine = self.shared.engine();
        engine.follow_consent();
        if engine.is_seal_due() {
            engine.seal();
        }
        // What is refused is counted, and told by `explain`.
        engine.next_upload(Asked::ByHost).ok().flatten()
    }

    /// What came of a request of [`Self::next_upload`]: the encoded answer of its kind
    /// (`epwatch.v1.UploadResponse`, `epwatch.v1.DeleteInstallationResponse`), or why there is none.
    ///
    /// # Errors
    /// The error that was given, or that the answer cannot be read; what was sent stays, and is
    /// handed out again.
    pub fn upload_result(
        &self,
        batch: &UploadBatch,
        response: Result<&[u8], UploadError>,
    ) -> Result<(), UploadError> {
        let answer = response.and_then(|bytes| batch.read_answer(bytes));
        self.shared.engine().upload_result(batch, answer, None)
    }

    /// Looks for what keeps the NPU from starting here, and remembers it for
    /// [`Self::explanation`]. Touches the disk: call it from a background thread. Hand the reasons
    /// to [`SessionRequest::with_reasons`] where the session then is on the CPU.
    ///
    /// What the facts leave out of Hexagon and runtime version is what the SDK was told of the device.
    pub fn preflight(&self, facts: &PreflightFacts) -> Vec<Check> {
        let facts = self.completed(facts);
        let found = preflight::run(&SystemHost::default(), &facts);
        self.shared.checks().clone_from(&found);
        found
    }

    fn completed(&self, facts: &PreflightFacts) -> PreflightFacts {
        let mut facts = facts.clone();
        let core = self.shared.core();
        let device = core.device();
        let of_chipset = || Some(device.chipset.soc()?.hexagon_arch);
        let told = device.hexagon_arch.or_else(of_chipset);
        facts.hexagon_arch = facts.hexagon_arch.or(told);
        if facts.runtime_qairt.is_empty() {
            facts
                .runtime_qairt
                .clone_from(&core.runtime().qnn_sdk_version);
        }
        facts
    }

    /// Where each session runs and why, and when something is sent next, for people: the text of
    /// [`Self::explanation`].
    pub fn explain(&self) -> String {
        self.explanation().to_string()
    }

    /// Where each session runs and why, what directs it, and when something is sent next. Waits
    /// while the SDK's thread is at its files: not for the inference path.
    ///
    /// ```no_run
    /// # fn example(watch: epwatch_sdk::Watch) {
    /// let explanation = watch.explanation();
    /// for session in &explanation.sessions {
    ///     for reason in &session.reasons {
    ///         println!("{}: {} {}", session.model, reason.meaning, reason.fix);
    ///     }
    /// }
    /// println!("{}", explanation.to_json());
    /// # }
    /// ```
    pub fn explanation(&self) -> Explanation {
        let mut directives = String::new();
        let (ort_version, chipset, sessions) = {
            let core = self.shared.core();
            let now = self.shared.clock.now();
            // Writing to a String cannot fail.
            let _ = core.directives.explain(&mut directives, now);
            let ort_version = core.runtime().ort_version.clone();
            let sessions = core.sessions().map(ExplainedSession::of).collect();
            let chipset = core.device().chipset.as_str().to_owned();
            (ort_version, chipset, sessions)
        };
        let engine = self.shared.engine();
        let (wait, spool_bytes) = engine.outlook();
        let (network, (unmetered, metered)) = engine.spent();
        Explanation {
            ort_version,
            chipset,
            sessions,
            failed_checks: self.shared.checks().iter().map(Into::into).collect(),
            directives: directives.lines().map(str::to_owned).collect(),
            spool_reports: engine.n_pending(),
            spool_bytes,
            next_upload_seconds: wait.as_secs_f64(),
            network: format!("{network:?}").to_lowercase(),
            sent_unmetered_bytes: unmetered,
            sent_metered_bytes: metered,
            consent: engine.consent_note().to_owned(),
            deletions_waiting: engine.n_deletions(),
            last_problem: engine.last_error().map(str::to_owned),
            internal_errors: self.shared.n_panics(),
        }
    }
}
