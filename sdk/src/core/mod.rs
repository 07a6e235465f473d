//! State of the SDK without I/O: sessions, recorder, baselines, directives and sealing. Time is an argument.
//!
//! The core has no file, thread, clock or async code. [`Watch`](crate::Watch) drives one core with the real clock, a
//! spool and an uploader. A simulated fleet drives thousands in one process with virtual time, and uploads the sealed
//! bytes itself.
//!
//! ```
//! # use std::time::Duration;
//! # use epwatch_sdk::ModelInfo;
//! # use epwatch_sdk::simulation::{Core, CoreConfig, Now, SessionInfo, random_stream, simulated_device};
//! # use epwatch_proto::{InstallationId, Placement, ReasonCode};
//! let at = |s: u64| Now::simulated(Duration::from_secs(s), 1_800_000_000_000 + 1000 * s as i64);
//! let config = CoreConfig::new("com.example.camera", simulated_device("SM8650"))?;
//! let mut core = Core::new(config, random_stream(), at(0));
//! core.set_installation(InstallationId::from_secret(b"device 1"));
//!
//! let placement = Placement::unavailable(vec![], ReasonCode::AssignmentApiUnavailable);
//! let session = core.open_session(
//!     SessionInfo::new(ModelInfo::new("segmenter", "1")?, placement),
//!     at(1),
//! );
//! session.record(Duration::from_secs(2), Duration::from_millis(8), "static");
//!
//! let sealed = core.seal(at(60));
//! assert_eq!(sealed.len(), 1);
//! core.acked(&sealed[0].key);
//! # Ok::<(), epwatch_sdk::ConfigError>(())
//! ```

mod ended_streams;
mod forget;
mod report;
mod self_tests;
mod session;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use epwatch_proto::{
    App, Device, DropReason, EndedStream, InstallationId, ReportKey, Runtime, Sdk, SdkHealth,
    Sequence, StartFailure, StreamId, UploadFailureKind, clipped,
};

use crate::{
    baselines::{BaselineSet, BaselineUpdate},
    config::CoreConfig,
    directives::{DirectiveKeys, Directives},
    lock::lock,
    policy,
    recorder::conditions::CurrentConditions,
    time::Now,
};
use ended_streams::EndedStreams;
use report::{SessionPart, pack};
use self_tests::SelfTestsInProcess;
use session::SessionState;

pub use report::SealedReport;
pub use self_tests::SelfTestSkip;
pub(crate) use self_tests::TestKey;
pub use session::SessionInfo;

/// One device in one process.
#[derive(Debug)]
pub struct Core {
    app: App,
    /// Normalised, as reported.
    pub(crate) device: Device,
    /// Normalised; set by [`Self::set_runtime`].
    pub(crate) runtime: Runtime,
    sdk: Sdk,
    boot_id: String,
    /// The installation that reports belong to. Nothing is sealed without it.
    pub(crate) installation: Option<InstallationId>,
    stream: StreamId,
    pub(crate) next_sequence: u64,
    interval_start: Now,
    sessions: Vec<SessionState>,
    /// Last intervals of closed sessions, until the next seal.
    closed: VecDeque<SessionPart>,
    /// Number of closed sessions at which the core asks for a seal.
    seal_wanted_at: usize,
    start_failures: Vec<StartFailure>,
    /// Start failures for explanations, counted over the life of the process.
    failures_seen: Vec<StartFailure>,
    /// Ended streams that no acknowledged report has named.
    pub(crate) ended: EndedStreams,
    /// Counters since the stream began; numbers of runs are from the last seal.
    pub(crate) health: SdkHealth,
    sealed_health: SdkHealth,
    baselines: BaselineSet,
    settled_runs: u64,
    /// Updates that the file of baselines lacks.
    pub(crate) baseline_updates: Vec<BaselineUpdate>,
    keeps_baseline_updates: bool,
    pub(crate) conditions: Arc<CurrentConditions>,
    pub(crate) directives: Directives,
    pub(crate) self_tests: SelfTestsInProcess,
}

impl Core {
    /// A device whose first interval begins now.
    pub fn new(config: CoreConfig, stream: StreamId, now: Now) -> Self {
        let device = config.device.normalised();
        let keys = DirectiveKeys::new(config.directive_keys);
        Self {
            directives: Directives::new(keys, &config.app, &device),
            self_tests: SelfTestsInProcess::default(),
            app: config.app,
            device,
            runtime: config.runtime,
            sdk: config.sdk,
            boot_id: clipped(&config.boot_id, 64),
            installation: None,
            stream,
            next_sequence: 1,
            interval_start: now,
            sessions: Vec::new(),
            closed: VecDeque::new(),
            seal_wanted_at: policy::CLOSED_SESSIONS_TO_SEAL,
            start_failures: Vec::new(),
            failures_seen: Vec::new(),
            ended: EndedStreams::default(),
            health: SdkHealth::default(),
            sealed_health: SdkHealth::default(),
            baselines: BaselineSet::new(config.settled_runs),
            settled_runs: config.settled_runs,
            baseline_updates: Vec::new(),
            keeps_baseline_updates: false,
            conditions: Arc::new(CurrentConditions::new()),
        }
    }

    /// Locks a core that is still in this stream. `None` if that stream has been forgotten: results from the old stream
    /// must not reach the new one.
    pub(crate) fn lock_in(core: &Mutex<Self>, stream: StreamId) -> Option<MutexGuard<'_, Self>> {
        Some(lock(core)).filter(|core| core.stream == stream)
    }

    /// Sets the installation that reports belong to. Nothing is sealed before.
    pub fn set_installation(&mut self, installation: InstallationId) {
        self.installation = Some(installation);
    }

    /// Returns the stream that reports are numbered in.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Sets the description of the device, if it was not known when the core was made.
    pub(crate) fn set_device(&mut self, device: Device, boot_id: &str) {
        self.device = device.normalised();
        self.boot_id = clipped(boot_id, 64);
        self.directives
            .set_reporter(&self.app, &self.device, &self.boot_id);
        self.refresh_baselines();
    }

    /// Sets the inference runtime. Long texts are clipped.
    pub(crate) fn set_runtime(&mut self, runtime: Runtime) {
        self.runtime = runtime.normalised();
        self.refresh_baselines();
    }

    /// Adds streams of this installation that ended. Every report names them until one is acknowledged.
    pub(crate) fn add_ended_streams(&mut self, streams: impl IntoIterator<Item = EndedStream>) {
        for stream in streams.into_iter().filter(|s| s.stream != self.stream) {
            self.ended.add(stream);
        }
    }

    /// Counts a session that could not be made. Equal failures of an interval are counted together.
    pub fn start_failed(&mut self, failure: StartFailure, now: Now) {
        if !self.conditions.is_recording() || self.directives.is_recording_off(&failure.model, now)
        {
            return;
        }
        let n_seen = self.failures_seen.len();
        let explained = self.failures_seen.iter_mut().find(|f| {
            f.model == failure.model && f.reason == failure.reason && f.text == failure.text
        });
        match explained {
            Some(same) => same.count += failure.count,
            None if n_seen < policy::MAX_EXPLAINED_FAILURES => {
                self.failures_seen.push(failure.clone());
            }
            None => {}
        }
        let is_same = |f: &&mut StartFailure| {
            f.model == failure.model
                && f.requested_eps == failure.requested_eps
                && f.device_type == failure.device_type
                && f.phase == failure.phase
                && f.reason == failure.reason
                && f.ort_status_code == failure.ort_status_code
        };
        if let Some(same) = self.start_failures.iter_mut().find(is_same) {
            same.count += failure.count;
            return;
        }
        if self.start_failures.len() < policy::MAX_START_FAILURES {
            self.start_failures.push(failure);
        } else if let Some(last) = self.start_failures.last_mut() {
            // There are more kinds than a report may hold. Counting them in the last kind keeps the total right.
            last.count += failure.count;
        }
    }

    /// Seals everything recorded since the last seal; empty if there is nothing to report.
    ///
    /// Usually one report, more if one would be too large. Their sequence numbers are final. If a report cannot be
    /// kept, count it with [`Self::dropped`].
    pub fn seal(&mut self, now: Now) -> Vec<SealedReport> {
        let Some(installation) = self.installation else {
            return Vec::new();
        };
        let parts = self.drain();
        self.refresh_sampling(now);
        self.directives.count_into(&mut self.health);
        let has_news = !parts.is_empty()
            || !self.start_failures.is_empty()
            || self.ended.has_unnamed()
            // A device that records nothing because of a directive has only this to report, once per process. The
            // answer can then bring a revoke.
            || self.health.directives_applied != self.sealed_health.directives_applied
            || self.health.internal_errors != self.sealed_health.internal_errors
            || self.health.dropped != self.sealed_health.dropped;
        if !has_news {
            self.interval_start = now;
            return Vec::new();
        }
        let mut start_failures = std::mem::take(&mut self.start_failures);
        let mut sealed = Vec::new();
        for group in pack(parts, &start_failures) {
            let runs: u64 = group.iter().flat_map(|p| &p.series).map(|s| s.n).sum();
            self.health.runs_recorded += runs;
            let sequence = Sequence::new(self.next_sequence).expect("it starts at 1 and grows");
            self.next_sequence += 1;
            let key = ReportKey {
                installation,
                stream: self.stream,
                sequence,
            };
            // The first report has all start failures.
            let failures = std::mem::take(&mut start_failures);
            let bytes = self.report(key, now, failures, group).to_bytes().into();
            sealed.push(SealedReport { key, bytes, runs });
        }
        self.sealed_health = self.health.clone();
        self.interval_start = now;
        self.refresh_baselines();
        sealed
    }

    /// Notes that the collector has a report.
    pub fn acked(&mut self, key: &ReportKey) {
        if key.stream == self.stream {
            self.ended.acked(key.sequence.get());
        }
    }

    /// Counts dropped reports, and the runs in them.
    pub fn dropped(&mut self, reason: DropReason, reports: u64, runs: u64) {
        let dropped = self.health.dropped.entry(reason).or_default();
        dropped.reports = dropped.reports.saturating_add(reports);
        dropped.runs = dropped.runs.saturating_add(runs);
    }

    /// Counts a failed upload.
    pub fn upload_failed(&mut self, kind: UploadFailureKind) {
        *self.health.upload_failures.entry(kind).or_default() += 1;
    }

    /// Returns the SDK's own counters, cumulative since the stream began; numbers of runs are from the last seal.
    pub fn health(&self) -> &SdkHealth {
        &self.health
    }

    pub(crate) fn load_baselines(&mut self, baselines: BaselineSet) {
        self.baselines = baselines;
        for update in &self.baseline_updates {
            self.baselines.apply(update);
        }
        self.keeps_baseline_updates = true;
        self.refresh_baselines();
    }

    /// Keeps updates that could not be written for the next attempt. Beyond the limit the oldest updates are dropped.
    pub(crate) fn return_baseline_updates(&mut self, mut updates: Vec<BaselineUpdate>) {
        updates.append(&mut self.baseline_updates);
        let too_many = updates.len().saturating_sub(policy::MAX_BASELINE_UPDATES);
        updates.drain(..too_many);
        self.baseline_updates = updates;
    }

    /// Returns the report interval that a directive asks for, if one does.
    pub(crate) fn report_interval(&mut self, now: Now) -> Option<Duration> {
        let models: Vec<_> = self.sessions.iter().map(|s| &s.session.model).collect();
        self.directives.report_interval(&models, now)
    }
}
