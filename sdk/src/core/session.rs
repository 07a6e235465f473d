//! Sessions in the core: a caller opens them, a seal drains them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use epwatch_proto::{
    Accelerator, DeviceType, DropReason, EpDevice, Model, ModelHash, Placement, ReasonCode,
    Runtime, SelfTest, Session, SessionOptions, SessionUid, SparseHistogram,
};

use super::{Core, report::SessionPart};
use crate::{
    baselines::{BaselineKey, BaselineSoftware, BaselineUpdate, ShapeBaselines, is_clean},
    explain::{ExplainedLoss, ExplainedSession, Explanation},
    placement::DEVICE_RESET,
    policy, random_session_uid,
    recorder::{Drained, SeriesSnapshot, SessionRecorder},
    time::Now,
};

/// Description of a session when it is opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Random id, made by [`SessionInfo::new`].
    pub uid: SessionUid,
    /// The model that it runs.
    pub model: Model,
    /// EPs that the app asked for, in order, without the CPU EP.
    pub requested_eps: Vec<String>,
    /// Options that change where or how fast the model runs.
    pub options: SessionOptions,
    /// The nodes of each EP.
    pub placement: Placement,
    /// Time that its creation took.
    pub creation: Option<Duration>,
    /// The directive that changed the request, or empty. Such sessions update no baseline.
    pub directive_id: String,
    /// Devices of its inputs and outputs, as ONNX Runtime describes them.
    pub devices: Vec<EpDevice>,
    /// The runtime of this session alone; `None` if it is the process's ONNX Runtime.
    pub runtime: Option<Runtime>,
}

impl SessionInfo {
    /// A session with a new id. Its requested EPs are the placement's requested EPs.
    pub fn new(model: impl Into<Model>, placement: Placement) -> Self {
        Self {
            uid: random_session_uid(),
            model: model.into(),
            requested_eps: placement.requested_eps.clone(),
            options: SessionOptions::default(),
            placement,
            creation: None,
            directive_id: String::new(),
            devices: Vec::new(),
            runtime: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct SessionState {
    /// The id when the session was opened; the session gets another id when the installation is forgotten.
    opened_as: SessionUid,
    pub(super) recorder: Arc<SessionRecorder>,
    pub(super) session: Session,
    /// Same as [`SessionInfo::runtime`], normalised.
    runtime: Option<Runtime>,
    pub(super) is_reported: bool,
    pub(super) self_tests: Vec<SelfTest>,
    /// Latencies of all sealed runs.
    pub(super) sealed: SparseHistogram,
    /// Failed runs of all sealed intervals.
    failed_runs: u64,
    /// Whether a run failed because the DSP restarted.
    dsp_restarted: bool,
}

impl SessionState {
    fn may_keep_self_test(&self) -> bool {
        self.recorder.is_recording() && self.self_tests.len() < policy::MAX_SELF_TESTS_PER_SESSION
    }

    fn explained(&self) -> ExplainedSession {
        let mut explained = ExplainedSession::of(&self.session, &self.sealed, self.failed_runs);
        explained.runtime = self.runtime.as_ref().map(|of| of.ort_version.clone());
        let restarted = self.dsp_restarted.then_some(ReasonCode::DspRestarted);
        explained.reasons.extend(restarted.map(Into::into));
        explained
    }
}

impl Core {
    /// Begins a session. The returned recorder takes its runs.
    pub fn open_session(&mut self, info: SessionInfo, now: Now) -> Arc<SessionRecorder> {
        let recorder = Arc::new(SessionRecorder::new(
            info.uid,
            now.mono,
            Arc::clone(&self.conditions),
        ));
        let creation = info.creation.map(|d| d.as_micros());
        let session = Session {
            uid: info.uid,
            model: info.model,
            requested_eps: info.requested_eps,
            directive_id: info.directive_id,
            options: info.options.normalised(),
            placement: info.placement,
            creation_us: creation.map(|us| u64::try_from(us).unwrap_or(u64::MAX)),
            created_at_unix_ms: now.wall_unix_ms,
            devices: info.devices,
        };
        let runtime = info.runtime.map(Runtime::normalised);
        recorder.set_baselines(self.baselines_of(&session, runtime.as_ref()));
        recorder.sample(self.directives.one_in(&session.model, now));
        recorder.turn_off(self.directives.is_recording_off(&session.model, now));
        self.drop_unrecorded_closed();
        self.sessions.push(SessionState {
            opened_as: info.uid,
            recorder: Arc::clone(&recorder),
            session,
            runtime,
            is_reported: false,
            self_tests: Vec::new(),
            sealed: SparseHistogram::default(),
            failed_runs: 0,
            dsp_restarted: false,
        });
        self.drain_closed_sessions();
        recorder
    }

    /// Whether enough sessions were closed for an early seal. Returns `true` once, and again only after the same number
    /// of further sessions, because the sealing thread may be busy.
    pub(crate) fn wants_seal(&mut self) -> bool {
        let wants = self.closed.len() >= self.seal_wanted_at;
        if wants {
            self.seal_wanted_at = self.closed.len() + policy::CLOSED_SESSIONS_TO_SEAL;
        }
        wants
    }

    /// Whether the reason for [`Self::wants_seal`] still exists.
    pub(crate) fn has_many_closed(&self) -> bool {
        self.closed.len() >= policy::CLOSED_SESSIONS_TO_SEAL
    }

    /// Drains some closed sessions, so that their recorders' memory is freed long before a seal. A host may make and
    /// drop thousands of sessions in an interval. Each call drains only a few, because it runs on a caller's thread.
    fn drain_closed_sessions(&mut self) {
        let mut at = 0;
        let mut left = policy::CLOSED_SESSIONS_PER_CALL;
        while left > 0 && at < self.sessions.len() {
            if !self.sessions[at].recorder.is_closed() {
                at += 1;
                continue;
            }
            left -= 1;
            let mut state = self.sessions.remove(at);
            let (part, _) = self.take_part(&mut state);
            self.closed.extend(part);
        }
        while self.closed.len() > policy::MAX_CLOSED_SESSIONS {
            // Nothing was sealed for a long time. The oldest session is dropped first, as in a full spool.
            let lost = self.closed.pop_front();
            let lost = lost.into_iter().flat_map(|part| part.series);
            let runs = lost.map(|series| series.n).sum();
            self.dropped(DropReason::SpoolFull, 0, runs);
        }
    }

    /// Adds the hash of a session's model file if the session has none.
    pub(crate) fn set_model_hash(&mut self, uid: SessionUid, hash: ModelHash) {
        if let Some(state) = self.sessions.iter_mut().find(|s| s.opened_as == uid) {
            state.session.model.sha256.get_or_insert(hash);
        }
    }

    /// Keeps the result of a self-test for the next report. Returns `false` if its session is not observed or not
    /// recorded, or already has the most results of an interval.
    pub(crate) fn self_tested(&mut self, test: SelfTest) -> bool {
        let mut sessions = self.sessions.iter_mut();
        match sessions.find(|s| s.session.uid == test.session_uid) {
            Some(state) if state.may_keep_self_test() => {
                state.self_tests.push(test);
                true
            }
            _ => false,
        }
    }

    /// Sessions observed now.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter().map(|state| &state.session)
    }

    /// Returns the explanation of one session; `None` if it is not observed.
    pub(crate) fn explained_session(&self, uid: SessionUid) -> Option<ExplainedSession> {
        let mut sessions = self.sessions.iter();
        let found = sessions.find(|s| s.session.uid == uid);
        found.map(SessionState::explained)
    }

    /// Returns the core's part of an explanation; the rest is empty.
    pub(crate) fn explanation(&self, now: Now) -> Explanation {
        let sessions = self.sessions.iter();
        Explanation {
            ort_version: self.runtime.ort_version.clone(),
            chipset: self.device.chipset.as_str().to_owned(),
            installation: self.installation.map(|id| id.to_hex()),
            sessions: sessions.map(SessionState::explained).collect(),
            start_failures: self.failures_seen.iter().map(Into::into).collect(),
            dropped: self.explained_losses(),
            directives: self.directives.explained(now),
            ..Explanation::default()
        }
    }

    fn explained_losses(&self) -> BTreeMap<&'static str, ExplainedLoss> {
        let dropped = self.health.dropped.iter();
        dropped
            .map(|(reason, lost)| {
                let (reports, runs) = (lost.reports, lost.runs);
                (reason.as_str(), ExplainedLoss { reports, runs })
            })
            .collect()
    }

    /// Takes the interval of every session, and forgets closed sessions.
    pub(super) fn drain(&mut self) -> Vec<SessionPart> {
        let mut parts: Vec<_> = std::mem::take(&mut self.closed).into();
        self.seal_wanted_at = policy::CLOSED_SESSIONS_TO_SEAL;
        let mut sessions = std::mem::take(&mut self.sessions);
        sessions.retain_mut(|state| {
            let (part, is_closed) = self.take_part(state);
            parts.extend(part);
            !is_closed
        });
        self.sessions = sessions;
        parts
    }

    /// Takes a session's interval, if there is anything to report, and whether the session is closed.
    fn take_part(&mut self, state: &mut SessionState) -> (Option<SessionPart>, bool) {
        let drained = state.recorder.drain();
        let is_closed = drained.is_closed;
        state.failed_runs += drained.errors.iter().map(|(_, n)| n).sum::<u64>();
        let mut errors = drained.errors.iter();
        state.dsp_restarted |= errors.any(|(code, _)| *code == DEVICE_RESET);
        self.update_baselines(state, &drained);
        for series in &drained.series {
            state.sealed.merge(&series.histogram);
        }
        let mut part = self.part(&state.session, drained);
        part.runtime.clone_from(&state.runtime);
        part.self_tests = std::mem::take(&mut state.self_tests);
        let has_news = !part.is_empty() || (!state.is_reported && state.recorder.is_recording());
        state.is_reported |= has_news;
        (has_news.then_some(part), is_closed)
    }

    fn part(&mut self, session: &Session, mut drained: Drained) -> SessionPart {
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
        // A run that found no free shard has no known series; the busiest one is the best guess.
        if let Some(busiest) = drained.series.iter_mut().max_by_key(|s| s.n()) {
            busiest.dropped_runs = drained.contended;
        }
        SessionPart {
            session: session.clone(),
            runtime: None,
            errors: drained.errors,
            self_tests: Vec::new(),
            series: drained
                .series
                .into_iter()
                .map(|s| s.into_series(session.uid))
                .collect(),
        }
    }

    fn update_baselines(&mut self, state: &SessionState, drained: &Drained) {
        let session = &state.session;
        if !session.directive_id.is_empty() {
            return;
        }
        let mut updates: Vec<BaselineUpdate> = Vec::new();
        for series in drained.series.iter().filter(|s| is_clean(&s.stratum)) {
            let shape = series.stratum.shape_key.as_str();
            let known = updates.iter().position(|update| update.key.shape == shape);
            let at = known.unwrap_or(updates.len());
            if known.is_none() {
                updates.push(BaselineUpdate {
                    key: BaselineKey {
                        model: session.model.id.clone(),
                        requested_eps: self.baseline_eps(session),
                        shape: shape.to_owned(),
                    },
                    on: self.measured_on(session, state.runtime.as_ref()),
                    histogram: Default::default(),
                    moments: Default::default(),
                });
            }
            let update = &mut updates[at];
            update.histogram.merge(&series.histogram);
            update.moments.merge(&series.moments());
        }
        for update in updates {
            self.baselines.apply(&update);
            // As long as the installation is unknown, its baselines are not loaded either.
            if self.keeps_baseline_updates || self.installation.is_none() {
                self.baseline_updates.push(update);
            }
        }
        self.return_baseline_updates(Vec::new());
    }

    fn measured_on(&self, session: &Session, runtime: Option<&Runtime>) -> BaselineSoftware {
        let runtime = runtime.unwrap_or(&self.runtime);
        BaselineSoftware {
            version: session.model.version.clone(),
            firmware: self.device.vendor_fingerprint_hash.clone(),
            ort: runtime.ort_version.clone(),
            ep: runtime.ep_version.clone(),
        }
    }

    /// Returns the EPs for the key of a session's baseline. QNN has one EP for all its back ends, and OpenVINO has one for all
    /// devices, but their latencies do not compare.
    fn baseline_eps(&self, session: &Session) -> Vec<String> {
        let name = |ep: &String| {
            let of_ep = Accelerator::of_ep(ep);
            let ran = of_ep.with_backend(self.runtime.backend);
            if let Some(other) = ran.row().filter(|_| ran != of_ep) {
                return other.names[0].to_owned();
            }
            let device = session.options.device_type.and_then(DeviceType::label);
            match device.filter(|_| of_ep.is_named_by_device()) {
                Some(device) => format!("{ep} {device}"),
                None => ep.clone(),
            }
        };
        session.placement.requested_eps.iter().map(name).collect()
    }

    fn baselines_of(&self, session: &Session, runtime: Option<&Runtime>) -> Arc<ShapeBaselines> {
        let on = self.measured_on(session, runtime);
        let requested = self.baseline_eps(session);
        self.baselines
            .for_session(&session.model.id, &requested, &on)
    }

    /// Applies sampling directives to the interval that begins now.
    pub(super) fn refresh_sampling(&mut self, now: Now) {
        for state in &self.sessions {
            let one_in = self.directives.one_in(&state.session.model, now);
            state.recorder.sample(one_in);
        }
    }

    /// Turns recording off and on by directives, at once.
    pub(crate) fn refresh_recording(&mut self, now: Now) {
        for state in &self.sessions {
            let is_off = self.directives.is_recording_off(&state.session.model, now);
            state.recorder.turn_off(is_off);
        }
    }

    pub(super) fn refresh_baselines(&self) {
        for state in &self.sessions {
            let baselines = self.baselines_of(&state.session, state.runtime.as_ref());
            state.recorder.set_baselines(baselines);
        }
    }
}
