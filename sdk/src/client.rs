//! The public handle: starts the SDK, makes sessions, takes consent, network and conditions.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use epwatch_proto::{SdkHealth, StartFailure, StreamId};
#[cfg(feature = "ort")]
use ort::session::builder::SessionBuilder;

#[cfg(feature = "qnn")]
use crate::host::qnn::HtpBuilder;
#[cfg(feature = "ort")]
use crate::session::SessionRequest;
use crate::{
    config::{ModelInfo, SdkConfig},
    directives::SessionPlan,
    driver::{UploadTrigger, worker::Command},
    explain::{ExplainedSession, Explanation},
    host::{
        preflight::{self, Check, PreflightFacts},
        runtime_telemetry::RuntimeTelemetry,
    },
    placement::{self, HostRuntime},
    queue::{ReceiveEnd, SendRefusal, queue},
    recorder::conditions::Conditions,
    session::{AttachRequest, AttachedSession, HostAssignment, HostPlacement},
    shared::Shared,
    types,
    upload::{FlushError, UploadBatch, UploadError, budget::NetworkKind},
};

/// The SDK's thread could not be started. The app can go on without the SDK.
#[derive(Debug, thiserror::Error)]
#[error("failed to start the SDK's thread")]
pub struct StartError(#[source] io::Error);

/// The SDK of one process. Clones share it.
///
/// When the last clone is dropped, recorded runs are sealed in the background. Call [`Watch::stop`] if the process
/// ends right after.
///
/// ```no_run
/// # use std::{path::Path, time::Duration};
/// # #[cfg(feature = "qnn")]
/// # use epwatch_sdk::qnn::{HtpOptions, Plugin};
/// # use epwatch_sdk::{ModelInfo, SdkConfig, Watch};
/// # use ort::{inputs, value::TensorRef};
/// # #[cfg(feature = "qnn")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = SdkConfig::builder(
///     "com.example.camera",
///     "http://127.0.0.1:4717",
///     "demo-key",
///     "/data/user/0/com.example.camera/files/epwatch",
/// )
/// .with_consent(true)
/// .build()?;
/// let watch = Watch::start(config)?;
///
/// let env = ort::init_from("libonnxruntime.so")?.build()?;
/// let plugin = Plugin::register(&env, Path::new("libonnxruntime_providers_qnn.so"))?;
/// let htp = plugin.session_builder(&HtpOptions::new("libQnnHtp.so"))?;
/// let mut session = watch
///     .htp_session(ModelInfo::new("segmenter", "3")?, htp)
///     .commit_from_file("segmenter.onnx")?;
/// # let input = ([1_usize, 3, 32, 32], vec![0.0_f32; 3 * 32 * 32]);
/// let outputs = session.run(inputs![TensorRef::from_array_view((input.0, &*input.1))?])?;
/// # drop(outputs);
/// watch.stop(Duration::from_secs(5))?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "qnn"))]
/// # fn main() {}
/// ```
#[derive(Debug, Clone)]
pub struct Watch {
    pub(crate) shared: Arc<Shared>,
}

impl Watch {
    /// Starts the SDK and returns in microseconds. Its own thread does all work with files and the network.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn start(config: SdkConfig) -> Result<Self, StartError> {
        let shared = Shared::start(config).map_err(StartError)?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Sets the conditions of all runs from now on, with one atomic store. Call it from the platform's thermal and
    /// power listeners. The thermal status is ignored if [the SDK reads
    /// it](crate::SdkConfigBuilder::with_thermal_zones).
    pub fn set_conditions(&self, conditions: &Conditions) {
        let shared = self.here();
        shared.conditions.set(conditions, shared.is_thermal_read);
    }

    /// Returns what the operator's directives ask for the next session of a model: NPU or not, and which variant.
    ///
    /// Call it before the builder is made, and pass the plan to [`SessionRequest::with_plan`]. Without directives the
    /// plan changes nothing. The call never waits for the disk. Until the SDK's thread has read the stored directives
    /// the plan [is not known](SessionPlan::is_known); an app that makes a session first uses [`Self::plan_within`].
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
    /// let htp = qnn.session_builder_for(&plan, &htp)?;
    /// let variant = plan.preferred_variant().filter(|v| *v == "small").unwrap_or("full");
    /// let session = watch
    ///     .htp_session(model, htp)
    ///     .with_plan(&plan)
    ///     .with_variant(variant)
    ///     .commit_from_file(format!("segmenter.{variant}.onnx"))?;
    /// # Ok(()) }
    /// ```
    pub fn plan(&self, model: &ModelInfo) -> SessionPlan {
        let shared = self.here();
        let now = shared.clock.now();
        let core = shared.core();
        core.directives.plan(&model.model, now)
    }

    /// Does the same as [`Self::plan`], but waits at most `timeout` until the stored directives are read. The wait
    /// takes milliseconds at the start of a process, and no time later.
    pub fn plan_within(&self, model: &ModelInfo, timeout: Duration) -> SessionPlan {
        let plan = self.plan(model);
        if plan.is_known() || !self.here().wait_until_opened(timeout) {
            return plan;
        }
        self.plan(model)
    }

    /// Sets whether the user consents. Returns in microseconds.
    ///
    /// Without consent the SDK records, writes and sends nothing. Giving consent starts recording, for
    /// existing sessions too.
    ///
    /// Withdrawing consent ends recording at once. The SDK's thread then wipes the folder (spool, baselines, the
    /// installation's secret) and asks the collector to delete everything that the installation sent. This
    /// request survives crashes and times without a network. It is the only thing that is kept and sent until the
    /// collector acknowledges it. Consent given again begins a new installation and a new stream; the lost runs
    /// are counted as dropped.
    ///
    /// The choice is not stored. Hosts keep it, and start with
    /// [`with_consent(false)`](crate::SdkConfigBuilder::with_consent) if the user refused or has not answered yet. If
    /// the user refused, also call `set_consent(false)` at each start. The process may have been killed after a
    /// withdrawal and before the wipe. The call then wipes what an earlier process left, and does nothing if nothing is
    /// left.
    ///
    /// Other processes of the app that share the folder notice a withdrawal at their next seal or upload. They keep
    /// nothing until their host calls `set_consent(true)`.
    pub fn set_consent(&self, is_given: bool) {
        self.here().set_consent(is_given);
    }

    /// Begins a new installation, as if the app had been reinstalled: wipes the folder, asks the collector to delete
    /// what was sent, and goes on. If another process of the app has withdrawn consent, the withdrawal stays in force.
    pub fn reset_installation(&self) {
        self.here().reset_installation();
    }

    /// Sets the network that uploads would take. Call it from the platform's connectivity listener. Without it, every
    /// network counts as unmetered.
    pub fn set_network(&self, network: NetworkKind) {
        let shared = self.here();
        shared.consent.set_network(network);
        shared.send_command(Command::Wake);
    }

    /// Prepares a session on the HTP, or one for the CPU that is reported with the reason.
    #[cfg(feature = "qnn")]
    pub fn htp_session(&self, model: ModelInfo, htp: HtpBuilder) -> SessionRequest {
        self.session(model, htp.builder)
            .requesting(htp.requested_eps)
            .with_options(htp.options)
            .with_reasons(htp.reasons)
    }

    /// Prepares a session made from the host's own builder, with the builder's options, EPs and environment.
    #[cfg(feature = "ort")]
    pub fn session(&self, model: ModelInfo, builder: SessionBuilder) -> SessionRequest {
        SessionRequest::new(self.here(), model, builder)
    }

    /// Prepares to observe a session that the host makes without `ort`, with its own ONNX Runtime.
    ///
    /// The runtime is `None` if it cannot be found; runs are measured all the same. The placement needs ORT 1.24, and
    /// options that were [prepared](HostRuntime::record_assignment) before the session was made.
    ///
    /// ```no_run
    /// # use std::{ffi::c_void, time::Instant};
    /// # use epwatch_sdk::{AttachedSession, HostRuntime, ModelInfo, Watch};
    /// # unsafe fn example(watch: &Watch, options: *mut c_void, make: fn() -> *const c_void, run: fn()) {
    /// let runtime = HostRuntime::loaded();
    /// if let Some(runtime) = runtime {
    ///     // SAFETY: the options are the runtime's.
    ///     let _ = unsafe { runtime.record_assignment(options) };
    /// }
    /// let began = Instant::now();
    /// let session = make();
    /// let creation = began.elapsed();
    /// // SAFETY: the session is the runtime's, and alive until its placement is read.
    /// let session = runtime.and_then(|runtime| unsafe { runtime.session(session) });
    /// let observed = watch
    ///     .attach(ModelInfo::new("segmenter", "3").unwrap(), runtime)
    ///     .requesting(["QNNExecutionProvider"])
    ///     .observe(session, Some(creation));
    ///
    /// let began = AttachedSession::now();
    /// run();
    /// observed.record(began, AttachedSession::now() - began);
    /// # }
    /// ```
    pub fn attach(&self, model: ModelInfo, runtime: Option<HostRuntime>) -> AttachRequest {
        AttachRequest::new(self.here(), model, runtime)
    }

    /// Observes a session of another runtime, with the placement that the host gives. `runtime` is that runtime's name
    /// and version, for example `LiteRT 2.3.0`. docs/runtimes.md says how to get an honest placement from it.
    ///
    /// For a plan, a manifest or known reasons call [`Self::attach`] without a runtime, and then
    /// [`observe_assignment`](AttachRequest::observe_assignment).
    ///
    /// ```
    /// use epwatch_sdk::{AttachedSession, HostPlacement, ModelInfo, Watch};
    /// use epwatch_sdk::placement::{AssignedNode, Assignment, Subgraph};
    ///
    /// # fn run() {}
    /// # fn example(watch: &Watch) {
    /// let op = |name: &str, op_type: &str| AssignedNode {
    ///     name: name.to_owned(),
    ///     op_type: op_type.to_owned(),
    ///     domain: String::new(),
    /// };
    /// let on_gpu = Subgraph { ep: "GPU".to_owned(), nodes: vec![op("0", "CONV_2D"), op("1", "ADD")] };
    /// let on_cpu = Subgraph { ep: "CPU".to_owned(), nodes: vec![op("2", "CUMSUM")] };
    /// let placement = HostPlacement {
    ///     requested: vec!["GPU".to_owned()],
    ///     assignment: Some(Assignment { subgraphs: vec![on_gpu, on_cpu] }),
    ///     creation: None,
    /// };
    /// let session = watch.session_of(ModelInfo::new("segmenter", "3").unwrap(), placement, "LiteRT 2.3.0");
    /// let began = AttachedSession::now();
    /// run();
    /// session.record(began, AttachedSession::now() - began);
    /// # }
    /// ```
    pub fn session_of(
        &self,
        model: ModelInfo,
        placement: HostPlacement,
        runtime: &str,
    ) -> AttachedSession {
        let is_named = runtime.starts_with(|first: char| first.is_ascii_alphabetic());
        let read = HostAssignment {
            // A number alone is a version of ONNX Runtime.
            runtime: match is_named {
                true => runtime.to_owned(),
                false => format!("other {runtime}"),
            },
            assignment: placement.assignment,
            devices: Vec::new(),
            ep_compatibility: String::new(),
        };
        self.attach(model, None)
            .requesting(placement.requested)
            .observe_assignment(read, placement.creation)
    }

    /// Counts a session that failed before ORT was asked to create it, for example because a plugin could not be
    /// registered. Failures inside [`SessionRequest`] are counted without this call.
    pub fn start_failed(
        &self,
        model: ModelInfo,
        requested_eps: &[&str],
        phase: types::StartPhase,
        reason: types::ReasonCode,
        error: &str,
    ) {
        let requested: Vec<_> = requested_eps.iter().map(|ep| (*ep).to_owned()).collect();
        let failure = StartFailure {
            model: model.into(),
            requested_eps: placement::requested(&requested),
            phase: phase.into(),
            reason: reason.into(),
            ort_status_code: 0,
            text: placement::scrubbed(error),
            count: 1,
            device_type: None,
        };
        let shared = self.here();
        shared.core().start_failed(failure, shared.clock.now());
    }

    /// Seals recorded runs at once, so that [`Self::next_upload`] returns them. Hosts that send by themselves call it,
    /// for example, when the app goes to the background. Touches the disk.
    ///
    /// # Errors
    /// Fails if recorded runs could not be stored in the folder, now or since the last call.
    pub fn seal(&self) -> Result<(), FlushError> {
        let shared = self.here();
        // This process is forked, and the stream belongs to its parent.
        if shared.is_forked() {
            return Err(FlushError::Forked);
        }
        let mut driver = shared.driver();
        driver.seal();
        let kept = driver.take_kept();
        drop(driver);
        // The thread reports the result to the health listener.
        shared.send_command(Command::Wake);
        kept
    }

    /// Seals recorded runs and sends every waiting report, whatever the schedule says. For tests, demos, and apps
    /// about to go to the background. Blocks at most `timeout`.
    ///
    /// # Errors
    /// Returns why a report did not reach the collector; the report stays in the spool and is sent by schedule. Or
    /// [`FlushError::Refused`]: the collector will never accept some reports since the last flush. Or
    /// [`FlushError::Spool`]: recorded runs could not be stored in the folder.
    pub fn flush(&self, timeout: Duration) -> Result<(), FlushError> {
        let shared = self.here();
        if shared.is_forked() {
            return Err(FlushError::Forked);
        }
        let (answer, answered) = queue(1);
        shared
            .try_send_command(Command::Flush(answer))
            .map_err(|error| match error {
                SendRefusal::Full => FlushError::Timeout,
                SendRefusal::Closed => FlushError::Stopped,
            })?;
        match answered.recv_timeout(timeout) {
            Ok(result) => result,
            Err(ReceiveEnd::Timeout) => Err(FlushError::Timeout),
            Err(ReceiveEnd::Closed) => Err(FlushError::Stopped),
        }
    }

    /// Seals recorded runs, keeps them for the next process to send, and ends the SDK's thread. An upload in progress is
    /// broken off, and repeated by the next process. The runs are sealed on the caller's thread first, so that a thread
    /// that hangs loses none. Blocks at most `timeout`, and for the disk.
    ///
    /// # Errors
    /// [`FlushError::Timeout`] if the thread has not ended. [`FlushError::Spool`] if recorded runs could not be stored in
    /// the folder: they are lost.
    pub fn stop(&self, timeout: Duration) -> Result<(), FlushError> {
        // A forked child that has not started its own SDK has nothing to end.
        let Some(shared) = self.shared.here_if_started() else {
            return Ok(());
        };
        if shared.is_forked() {
            return Err(FlushError::Forked);
        }
        let until = Instant::now() + timeout;
        shared.break_off();
        // A panic must not reach the host.
        let _ = catch_unwind(AssertUnwindSafe(|| shared.driver().seal()));
        let (answer, answered) = queue(1);
        match shared.try_send_command(Command::Stop(answer)) {
            Ok(()) => {
                let left = until.saturating_duration_since(Instant::now());
                match answered.recv_timeout(left) {
                    Ok(kept) => kept,
                    // Another call has ended the thread.
                    Err(ReceiveEnd::Closed) => Ok(()),
                    Err(ReceiveEnd::Timeout) => Err(FlushError::Timeout),
                }
            }
            Err(SendRefusal::Closed) => Ok(()),
            Err(SendRefusal::Full) => Err(FlushError::Timeout),
        }
    }

    /// Returns the SDK of this process. The child of a fork starts its own here, at its first call or run.
    pub(crate) fn here(&self) -> Arc<Shared> {
        self.shared.here()
    }

    /// Returns the stream that this process reports in.
    #[doc(hidden)]
    pub fn stream(&self) -> StreamId {
        self.here().core().stream()
    }

    /// Returns the SDK's own counters as of the last seal.
    #[doc(hidden)]
    pub fn health(&self) -> SdkHealth {
        self.here().core().health().clone()
    }

    /// Returns the next request, for hosts that send by themselves (feature `grpc` off, or
    /// [`with_uploads_by_host`](crate::SdkConfigBuilder::with_uploads_by_host)). Seals first if a seal is due.
    ///
    /// Returns `None` if nothing waits, or if a failure, the collector or the byte budget requires a pause. Call again
    /// later, for example every quarter of an hour. The call touches the disk: use a background thread, one request at
    /// a time, and always pass the result to [`Self::upload_result`].
    ///
    /// There are two [kinds](UploadBatch::kind) of requests, each with its own path. Deletions are returned
    /// without consent too.
    ///
    /// ```no_run
    /// # use epwatch_sdk::{UploadError, Watch, types::UploadFailureKind};
    /// # struct Http;
    /// # impl Http { fn post(&self, _: &str, _: &[u8]) -> Result<Vec<u8>, String> { Ok(vec![]) } }
    /// # fn upload(watch: &Watch, http: &Http) {
    /// while let Some(request) = watch.next_upload() {
    ///     // One gRPC message each way, over the host's own HTTP/2 client.
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
        let shared = self.here();
        if shared.is_forked() {
            return None;
        }
        let mut driver = shared.driver();
        driver.apply_consent();
        if driver.is_seal_due() {
            driver.seal();
        }
        // A refusal is counted, and `explain` prints it.
        driver.next_upload(UploadTrigger::Host).ok().flatten()
    }

    /// Takes the result of a request from [`Self::next_upload`]: the encoded answer of its kind
    /// (`epwatch.v1.UploadResponse`, `epwatch.v1.DeleteInstallationResponse`), or the reason why there is no answer.
    ///
    /// # Errors
    /// Returns the given error. Also fails if the answer cannot be read, or does not belong to this request, for
    /// example a captive portal's answer. The request's content stays, and is returned again.
    pub fn upload_result(
        &self,
        batch: &UploadBatch,
        response: Result<&[u8], UploadError>,
    ) -> Result<(), UploadError> {
        let answer = response.and_then(|bytes| batch.read_answer(bytes));
        let shared = self.here();
        let settled = shared.driver().upload_result(batch, answer, None);
        shared.send_command(Command::Wake);
        settled
    }

    /// Finds what keeps the NPU from starting on this device, and keeps the result for [`Self::explain`]. Touches
    /// the disk: call it from a background thread. If the session then runs on the CPU, pass the reasons to
    /// [`SessionRequest::with_reasons`].
    ///
    /// A Hexagon architecture or runtime version that `facts` lacks is taken from the SDK's own device and runtime.
    pub fn preflight(&self, facts: &PreflightFacts) -> Vec<Check> {
        let facts = self.completed(facts);
        let found = preflight::run(&facts);
        self.here().checks().clone_from(&found);
        found
    }

    fn completed(&self, facts: &PreflightFacts) -> PreflightFacts {
        let mut facts = facts.clone();
        let shared = self.here();
        let core = shared.core();
        let device = &core.device;
        let of_chipset = || Some(device.chipset.soc()?.hexagon_arch);
        let of_device = device.hexagon_arch.or_else(of_chipset);
        facts.hexagon_arch = facts.hexagon_arch.or(of_device);
        facts.api_level = facts.api_level.or(device.api_level);
        if facts.runtime_qairt.is_empty() {
            facts
                .runtime_qairt
                .clone_from(&core.runtime.qnn_sdk_version);
        }
        facts
    }

    /// Returns where each session runs and why, which directives apply, and what was sent last. It prints as text, and
    /// [`Explanation::to_json`] is for programs. Waits while the SDK's thread works on its files, so it does not belong
    /// on the inference path.
    ///
    /// ```no_run
    /// # fn example(watch: epwatch_sdk::Watch) {
    /// let explanation = watch.explain();
    /// println!("{explanation}");
    /// for session in &explanation.sessions {
    ///     for reason in &session.reasons {
    ///         println!("{}: {} {}", session.model, reason.meaning, reason.fix);
    ///     }
    /// }
    /// # }
    /// ```
    pub fn explain(&self) -> Explanation {
        let shared = self.here();
        if shared.is_forked() {
            // In this child, either lock may be held for ever by a thread of the parent.
            return Explanation {
                last_problem: Some(FlushError::Forked.to_string()),
                ..Explanation::default()
            };
        }
        let mut explanation = shared.core().explanation(shared.clock.now());
        shared.driver().explain(&mut explanation);
        explanation.failed_checks = shared.checks().iter().map(Into::into).collect();
        explanation.internal_errors = shared.faults.n_panics();
        explanation.runtime_telemetry = RuntimeTelemetry::of(&explanation.ort_version);
        if let Some(problem) = shared.faults.problem(Instant::now()) {
            explanation.last_problem = Some(problem);
        }
        explanation
    }

    /// Does the same as [`Self::explain`] for one session, by its id. Never waits for the disk. `None` after the
    /// session is closed.
    pub fn explain_session(&self, uid: types::SessionUid) -> Option<ExplainedSession> {
        self.here().core().explained_session(uid.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that asks why nothing arrives is told, also if the cause is the SDK.
    #[test]
    fn a_rest_after_panics_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let config = SdkConfig::builder("app", "http://127.0.0.1:1", "key", dir.path());
        let watch = Watch::start(config.with_consent(true).build().unwrap()).unwrap();
        assert_eq!(watch.explain().internal_errors, 0);
        for _ in 0..3 {
            watch.here().faults.note(Instant::now());
        }
        let explanation = watch.explain();
        assert_eq!(explanation.internal_errors, 3);
        let problem = explanation.last_problem.as_deref().unwrap_or_default();
        let expected = "the SDK's thread rests for 24 h after internal errors: ";
        assert!(problem.starts_with(expected), "{problem}");
        let text = explanation.to_string();
        assert!(text.contains("\ninternal errors: 3\n"), "{text}");
        watch.stop(Duration::from_secs(60)).unwrap();
    }
}
