//! The heart: sessions, recorder, baselines and sealing, with every time passed in.
//!
//! No I/O, no thread, no clock, no async. [`Watch`](crate::Watch) drives one with the real clock,
//! a spool and an uploader; a simulated fleet drives thousands in one process, each a device, with
//! virtual time, and uploads the sealed bytes itself.
//!
//! ```
//! # use std::time::Duration;
//! # use epwatch_sdk::{Core, CoreConfig, Now, SessionInfo, ModelInfo, DeviceFacts, random_stream};
//! # use epwatch_proto::{InstallationId, Placement, ReasonCode};
//! let at = |s: u64| Now::simulated(Duration::from_secs(s), 1_800_000_000_000 + 1000 * s as i64);
//! let config = CoreConfig::new("com.example.camera", DeviceFacts::simulated("SM8650"))?;
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

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use epwatch_proto::{
    App, Device, DropReason, EndedStream, InstallationId, Model, Placement, ReportKey, Runtime,
    Sdk, SdkHealth, SelfTest, Session, SessionOptions, SessionUid, StartFailure, StreamId,
    UploadFailureKind, clipped, report::MAX_ENDED_STREAMS,
};

use crate::{
    baselines::{BaselineBook, LearntOn, Lesson, is_clean},
    config::CoreConfig,
    directives::{DirectiveKeys, Directives},
    lock::lock,
    policy, random_session_uid,
    recorder::{
        Drained, SeriesSnapshot, SessionRecorder,
        conditions::{Conditions, ConditionsSetter, CurrentConditions},
        interner::Names,
    },
    time::Now,
};

use report::{Frame, Part, pack};
use self_tests::TestsOfProcess;

pub use report::SealedReport;
pub use self_tests::SelfTestSkip;
pub(crate) use self_tests::TestKey;

/// What is known of a session when it begins.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    /// Random, not zero; made by [`SessionInfo::new`].
    pub uid: SessionUid,
    /// What it runs.
    pub model: Model,
    /// EPs the app asked for, in order, the CPU EP left out.
    pub requested_eps: Vec<String>,
    /// Options that matter.
    pub options: SessionOptions,
    /// Where it runs.
    pub placement: Placement,
    /// How long the creation took.
    pub creation: Option<Duration>,
    /// The directive that changed the request; empty: none. Such sessions teach no baseline.
    pub directive_id: String,
}

impl SessionInfo {
    /// A session of a fresh id that asked for what its placement says.
    pub fn new(model: impl Into<Model>, placement: Placement) -> Self {
        Self {
            uid: random_session_uid(),
            model: model.into(),
            requested_eps: placement.requested_eps.clone(),
            options: SessionOptions::default(),
            placement,
            creation: None,
            directive_id: String::new(),
        }
    }
}

#[derive(Debug)]
struct Observed {
    /// Its id changes when the installation is forgotten.
    opened_as: SessionUid,
    recorder: Arc<SessionRecorder>,
    session: Session,
    is_reported: bool,
    self_tests: Vec<SelfTest>,
}

/// An earlier stream, and the first report of ours that named it.
#[derive(Debug)]
struct Ended {
    stream: EndedStream,
    named_since: Option<u64>,
}

/// One device in one process. See the module's doc.
#[derive(Debug)]
pub struct Core {
    app: App,
    device: Device,
    runtime: Runtime,
    sdk: Sdk,
    boot_id: String,
    installation: Option<InstallationId>,
    stream: StreamId,
    next_sequence: u64,
    interval_start: Now,
    sessions: Vec<Observed>,
    /// What sessions that are gone said last, until the next seal.
    gone: VecDeque<Part>,
    /// How many of them make it wish for a seal.
    next_wish: usize,
    start_failures: Vec<StartFailure>,
    ended: Vec<Ended>,
    health: SdkHealth,
    sealed_health: SdkHealth,
    book: BaselineBook,
    settled_runs: u64,
    lessons: Vec<Lesson>,
    keeps_lessons: bool,
    modes: Arc<Names>,
    conditions: Arc<CurrentConditions>,
    pub(crate) directives: Directives,
    pub(crate) self_tests: TestsOfProcess,
}

impl Core {
    /// A device whose first interval begins now.
    pub fn new(config: CoreConfig, stream: StreamId, now: Now) -> Self {
        let device = config.device.into();
        let keys = DirectiveKeys::new(config.directive_keys);
        Self {
            directives: Directives::new(keys, &config.app, &device),
            self_tests: TestsOfProcess::default(),
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
            gone: VecDeque::new(),
            next_wish: policy::GONE_SESSIONS_TO_SEAL,
            start_failures: Vec::new(),
            ended: Vec::new(),
            health: SdkHealth::default(),
            sealed_health: SdkHealth::default(),
            book: BaselineBook::new(config.settled_runs),
            settled_runs: config.settled_runs,
            lessons: Vec::new(),
            keeps_lessons: false,
            modes: Arc::new(Names::new(policy::MAX_PERFORMANCE_MODES, 32)),
            conditions: Arc::new(CurrentConditions::new()),
        }
    }

    /// Locks a core that is in this stream. `None`: it was forgotten since, and what was found or lost for it is
    /// nobody's.
    pub(crate) fn lock_in(core: &Mutex<Self>, stream: StreamId) -> Option<MutexGuard<'_, Self>> {
        Some(lock(core)).filter(|core| core.stream == stream)
    }

    /// Whose reports these are; until it is known nothing is sealed.
    pub fn set_installation(&mut self, installation: InstallationId) {
        self.installation = Some(installation);
    }

    /// Whose reports these are, once that is known.
    pub fn installation(&self) -> Option<InstallationId> {
        self.installation
    }

    /// The stream that reports are numbered in.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Facts of the device, where they came later than the core.
    pub fn set_device(&mut self, device: crate::DeviceFacts, boot_id: &str) {
        self.device = device.into();
        self.boot_id = clipped(boot_id, 64);
        self.directives
            .set_reporter(&self.app, &self.device, &self.boot_id);
        self.refresh_baselines();
    }

    /// The inference runtime, as far as it is known; texts are clipped.
    pub fn set_runtime(&mut self, runtime: Runtime) {
        self.runtime = crate::host::device::clipped_runtime(runtime);
        self.refresh_baselines();
    }

    /// The inference runtime as it is reported.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// What holds from now on, for runs recorded without conditions of their own.
    pub fn set_conditions(&self, conditions: &Conditions) {
        self.conditions().set(conditions);
    }

    pub(crate) fn conditions(&self) -> ConditionsSetter {
        ConditionsSetter::new(Arc::clone(&self.modes), Arc::clone(&self.conditions))
    }

    /// Streams of this installation that ended: named in every report until one is acked.
    pub fn add_ended_streams(&mut self, streams: impl IntoIterator<Item = EndedStream>) {
        for stream in streams {
            let is_known = |e: &Ended| e.stream.stream == stream.stream;
            if stream.stream != self.stream && !self.ended.iter().any(is_known) {
                let named_since = None;
                self.ended.push(Ended {
                    stream,
                    named_since,
                });
            }
        }
    }

    /// Begins a session. Its recorder is shared with whoever runs it.
    pub fn open_session(&mut self, info: SessionInfo, now: Now) -> Arc<SessionRecorder> {
        let recorder = Arc::new(SessionRecorder::new(
            info.uid,
            now.mono,
            Arc::clone(&self.modes),
            Arc::clone(&self.conditions),
        ));
        let creation = info.creation.map(|d| d.as_micros());
        let session = Session {
            uid: info.uid,
            model: info.model,
            requested_eps: info.requested_eps,
            directive_id: info.directive_id,
            options: crate::host::device::clipped_options(info.options),
            placement: info.placement,
            creation_us: creation.map(|us| u64::try_from(us).unwrap_or(u64::MAX)),
            created_at_unix_ms: now.wall_unix_ms,
        };
        let observed = Observed {
            opened_as: info.uid,
            recorder: Arc::clone(&recorder),
            session,
            is_reported: false,
            self_tests: Vec::new(),
        };
        recorder.set_baselines(self.baselines_of(&observed.session));
        recorder.sample(self.directives.one_in(&observed.session.model, now));
        self.let_go_unrecorded();
        self.sessions.push(observed);
        self.fold_gone_sessions();
        recorder
    }

    /// Whether so many sessions came and went that their reports should not wait for the time.
    /// Says so once, and again only when as many more have gone: whoever seals may be busy.
    pub(crate) fn wants_seal(&mut self) -> bool {
        let wants = self.gone.len() >= self.next_wish;
        if wants {
            self.next_wish = self.gone.len() + policy::GONE_SESSIONS_TO_SEAL;
        }
        wants
    }

    /// Whether there still is what [`Self::wants_seal`] wished for.
    pub(crate) fn has_many_gone(&self) -> bool {
        self.gone.len() >= policy::GONE_SESSIONS_TO_SEAL
    }

    /// Takes what sessions that are gone recorded, so that their recorders' memory goes back long
    /// before a seal: a host may make and drop thousands of them in an interval. A few a call,
    /// since this is a caller's thread.
    fn fold_gone_sessions(&mut self) {
        let mut at = 0;
        let mut left = policy::GONE_SESSIONS_A_CALL;
        while left > 0 && at < self.sessions.len() {
            if !self.sessions[at].recorder.is_closed() {
                at += 1;
                continue;
            }
            left -= 1;
            let mut observed = self.sessions.remove(at);
            let (part, _) = self.take_part(&mut observed);
            self.gone.extend(part);
        }
        while self.gone.len() > policy::MAX_GONE_SESSIONS {
            // Nothing was sealed for long: the oldest goes first, as in a full spool.
            let lost = self
                .gone
                .pop_front()
                .into_iter()
                .flat_map(|part| part.series);
            let runs = lost.map(|series| series.n).sum();
            self.dropped(DropReason::SpoolFull, 0, runs);
        }
    }

    /// Adds the hash of a session's model file, where it was not known at the start.
    pub fn set_model_hash(&mut self, uid: SessionUid, hash: epwatch_proto::ModelHash) {
        let observed = self.sessions.iter_mut().find(|o| o.opened_as == uid);
        if let Some(observed) = observed {
            observed.session.model.sha256.get_or_insert(hash);
        }
    }

    /// Keeps the result of a self-test for the next report. `false` if its session is not
    /// observed, or has as many results already as an interval may hold.
    pub fn self_tested(&mut self, test: SelfTest) -> bool {
        let mut sessions = self.sessions.iter_mut();
        let observed = sessions.find(|o| o.session.uid == test.session_uid);
        match observed {
            Some(observed) if observed.self_tests.len() < policy::MAX_SELF_TESTS_PER_SESSION => {
                observed.self_tests.push(test);
                true
            }
            _ => false,
        }
    }

    /// Whether whose reports these are is known.
    pub(crate) fn has_installation(&self) -> bool {
        self.installation.is_some()
    }

    /// The device as it is reported.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Sessions that are observed now.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter().map(|o| &o.session)
    }

    /// Counts a session that could not be made; equal ones of an interval are counted together.
    pub fn start_failed(&mut self, failure: StartFailure) {
        if !self.conditions.is_recording() {
            return;
        }
        let is_same = |f: &&mut StartFailure| {
            f.model == failure.model
                && f.requested_eps == failure.requested_eps
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
            // More kinds than a report may hold: the number of failures still comes out right.
            last.count += failure.count;
        }
    }

    /// Seals what was recorded since the last time; nothing if there is nothing to say.
    ///
    /// Usually one report; more only where one would be too large. Their sequence numbers are
    /// taken for good: what cannot be kept is told by [`Self::dropped`].
    pub fn seal(&mut self, now: Now) -> Vec<SealedReport> {
        let Some(installation) = self.installation else {
            return Vec::new();
        };
        let parts = self.drain();
        self.refresh_sampling(now);
        self.directives.count_into(&mut self.health);
        let has_new_ended = self.ended.iter().any(|e| e.named_since.is_none());
        let has_news = !parts.is_empty()
            || !self.start_failures.is_empty()
            || has_new_ended
            || self.health.dropped != self.sealed_health.dropped;
        if !has_news {
            self.interval_start = now;
            return Vec::new();
        }
        let start_failures = std::mem::take(&mut self.start_failures);
        let mut sealed = Vec::new();
        for (index, group) in pack(parts, &start_failures).into_iter().enumerate() {
            let runs: u64 = group.iter().flat_map(|p| &p.series).map(|s| s.n).sum();
            self.health.runs_recorded += runs;
            let key = self.take_key(installation);
            let failures = if index == 0 { &start_failures[..] } else { &[] };
            let frame = Frame {
                key,
                from: self.interval_start,
                until: now,
                boot_id: &self.boot_id,
                ended: self.ended.iter().map(|e| e.stream).collect(),
                app: &self.app,
                device: &self.device,
                runtime: &self.runtime,
                sdk: &self.sdk,
                start_failures: failures,
                health: &self.health,
            };
            sealed.push(SealedReport {
                key,
                bytes: frame.encode(group).into(),
                runs,
            });
        }
        self.sealed_health = self.health.clone();
        self.interval_start = now;
        self.refresh_baselines();
        sealed
    }

    /// A report is stored, or was before.
    pub fn acked(&mut self, key: &ReportKey) {
        if key.stream == self.stream {
            let sequence = key.sequence.get();
            self.ended
                .retain(|e| e.named_since.is_none_or(|since| sequence < since));
        }
    }

    /// Ended streams that still have to be named.
    pub(crate) fn streams_to_name(&self) -> impl Iterator<Item = StreamId> {
        self.ended.iter().map(|e| e.stream.stream)
    }

    /// Counts reports given up, and the runs inside them.
    pub fn dropped(&mut self, reason: DropReason, reports: u64, runs: u64) {
        let dropped = self.health.dropped.entry(reason).or_default();
        dropped.reports = dropped.reports.saturating_add(reports);
        dropped.runs = dropped.runs.saturating_add(runs);
    }

    /// Counts a failed upload.
    pub fn upload_failed(&mut self, kind: UploadFailureKind) {
        *self.health.upload_failures.entry(kind).or_default() += 1;
    }

    /// How full the spool is.
    pub fn set_spool(&mut self, bytes: u64, oldest: Option<Duration>) {
        let ms = oldest.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        self.health.spool_bytes = bytes;
        self.health.spool_oldest_ms = ms;
    }

    /// The SDK's own counters, cumulative since the stream began; runs as of the last seal.
    pub fn health(&self) -> &SdkHealth {
        &self.health
    }

    /// The highest sequence that was sealed, 0 if none was.
    pub fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    pub(crate) fn set_book(&mut self, book: BaselineBook) {
        self.book = book;
        for lesson in &self.lessons {
            self.book.absorb(lesson);
        }
        self.keeps_lessons = true;
        self.refresh_baselines();
    }

    pub(crate) fn take_lessons(&mut self) -> Vec<Lesson> {
        std::mem::take(&mut self.lessons)
    }

    /// Lessons that could not be written down: for the next time, as many as are worth it.
    pub(crate) fn return_lessons(&mut self, mut lessons: Vec<Lesson>) {
        lessons.append(&mut self.lessons);
        let too_many = lessons.len().saturating_sub(policy::MAX_LESSONS);
        lessons.drain(..too_many);
        self.lessons = lessons;
    }

    fn take_key(&mut self, installation: InstallationId) -> ReportKey {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        for ended in self.ended.iter_mut().take(MAX_ENDED_STREAMS) {
            ended.named_since.get_or_insert(sequence);
        }
        ReportKey {
            installation,
            stream: self.stream,
            sequence: epwatch_proto::Sequence::new(sequence).expect("it starts at 1 and grows"),
        }
    }

    /// How often reports are to be sealed by directive; `None`: as configured.
    pub(crate) fn report_interval(&mut self, now: Now) -> Option<Duration> {
        let models: Vec<_> = self.sessions.iter().map(|o| &o.session.model).collect();
        self.directives.report_interval(&models, now)
    }

    /// Takes every session's series, learns from them, and forgets sessions that are closed.
    fn drain(&mut self) -> Vec<Part> {
        let mut parts: Vec<_> = std::mem::take(&mut self.gone).into();
        self.next_wish = policy::GONE_SESSIONS_TO_SEAL;
        let mut sessions = std::mem::take(&mut self.sessions);
        sessions.retain_mut(|observed| {
            let (part, is_closed) = self.take_part(observed);
            parts.extend(part);
            !is_closed
        });
        self.sessions = sessions;
        parts
    }

    /// What one session has to say, if anything, and whether that is its last.
    fn take_part(&mut self, observed: &mut Observed) -> (Option<Part>, bool) {
        let drained = observed.recorder.drain();
        let is_closed = drained.is_closed;
        self.learn(&observed.session, &drained);
        let mut part = self.part(&observed.session, drained);
        part.self_tests = std::mem::take(&mut observed.self_tests);
        let has_news = !part.is_empty() || !observed.is_reported;
        observed.is_reported = true;
        (has_news.then_some(part), is_closed)
    }

    fn part(&mut self, session: &Session, mut drained: Drained) -> Part {
        let recorded: u64 = drained.series.iter().map(SeriesSnapshot::n).sum();
        let clipped: u64 = drained.series.iter().map(|s| s.clipped).sum();
        let in_series = drained.series.iter().map(|s| s.passed_over);
        let passed_over = in_series.sum::<u64>() + drained.passed_over;
        self.health.runs_observed += recorded + passed_over + drained.contended;
        self.health.overflowed_keys += drained.overflowed_keys;
        let lost = [
            (DropReason::Contended, drained.contended),
            (DropReason::Clipped, clipped),
        ];
        for (reason, runs) in lost.into_iter().filter(|(_, runs)| *runs > 0) {
            self.dropped(reason, 0, runs);
        }
        // Who could not get in does not know where: the busiest series is the best guess.
        if let Some(busiest) = drained.series.iter_mut().max_by_key(|s| s.n()) {
            busiest.dropped_runs = drained.contended;
        }
        Part {
            session: session.clone(),
            errors: drained.errors,
            self_tests: Vec::new(),
            series: drained
                .series
                .into_iter()
                .map(|s| s.into_series(session.uid))
                .collect(),
        }
    }

    fn learn(&mut self, session: &Session, drained: &Drained) {
        if !session.directive_id.is_empty() {
            return;
        }
        let mut by_shape: BTreeMap<&str, Lesson> = BTreeMap::new();
        for series in drained.series.iter().filter(|s| is_clean(&s.stratum)) {
            let shape = series.stratum.shape_key.as_str();
            let lesson = by_shape.entry(shape).or_insert_with(|| Lesson {
                key: crate::baselines::BaselineKey {
                    model: session.model.id.clone(),
                    requested_eps: session.placement.requested_eps.clone(),
                    shape: shape.to_owned(),
                },
                on: self.learnt_on(session),
                histogram: Default::default(),
                moments: Default::default(),
            });
            lesson.histogram.merge(&series.histogram);
            lesson.moments.merge(&series.moments());
        }
        for lesson in by_shape.into_values() {
            self.book.absorb(&lesson);
            // Before the installation is known the book is not there either.
            if self.keeps_lessons || self.installation.is_none() {
                self.lessons.push(lesson);
            }
        }
        self.return_lessons(Vec::new());
    }

    fn learnt_on(&self, session: &Session) -> LearntOn {
        LearntOn {
            version: session.model.version.clone(),
            firmware: self.device.vendor_fingerprint_hash.clone(),
            ort: self.runtime.ort_version.clone(),
            ep: self.runtime.ep_version.clone(),
        }
    }

    fn baselines_of(&self, session: &Session) -> Arc<crate::baselines::ShapeBaselines> {
        let on = self.learnt_on(session);
        let requested = &session.placement.requested_eps;
        self.book.of_session(&session.model.id, requested, &on)
    }

    /// What holds for the interval that begins.
    fn refresh_sampling(&mut self, now: Now) {
        for observed in &self.sessions {
            let one_in = self.directives.one_in(&observed.session.model, now);
            observed.recorder.sample(one_in);
        }
    }

    fn refresh_baselines(&self) {
        for observed in &self.sessions {
            let baselines = self.baselines_of(&observed.session);
            observed.recorder.set_baselines(baselines);
        }
    }
}

mod directives;
mod forget;
mod report;
mod self_tests;

#[cfg(test)]
mod tests;
