//! The core without consent: recording stops, and recorded data is forgotten.

use epwatch_proto::{DropReason, SdkHealth, SparseHistogram, StreamId};

use super::{Core, ended_streams::EndedStreams, self_tests::SelfTestsInProcess};
use crate::{baselines::BaselineSet, random_session_uid, time::Now};

impl Core {
    /// Sets whether runs are recorded; `true` at first. Sessions opened while it is `false` are recorded once it is
    /// `true` again.
    pub(crate) fn set_recording(&self, is_recording: bool) {
        self.conditions.set_recording(is_recording);
    }

    /// Forgets the installation and everything recorded for it, and continues as a new device: a new stream from
    /// sequence 1, new session ids, no baselines. Nothing is sealed until [`Self::set_installation`] is called again.
    ///
    /// `lost_runs` are runs in sealed reports that will not be sent. The new stream counts them and all unsealed runs
    /// as dropped for lack of consent. Only runs are counted: the numbers of such reports belong to an installation
    /// that the ledger leaves out on both sides.
    pub(crate) fn forget(&mut self, stream: StreamId, lost_runs: u64, now: Now) {
        self.installation = None;
        self.stream = stream;
        self.next_sequence = 1;
        self.interval_start = now;
        self.ended = EndedStreams::default();
        self.baseline_updates.clear();
        self.baselines = BaselineSet::new(self.settled_runs);
        self.health = SdkHealth {
            consent_changes: self.health.consent_changes,
            ..SdkHealth::default()
        };
        self.sealed_health = SdkHealth::default();
        self.directives.forget();
        self.self_tests = SelfTestsInProcess::default();
        let closed = std::mem::take(&mut self.closed);
        let closed = closed.iter().flat_map(|part| &part.series).map(|s| s.n);
        let mut lost_runs = closed.fold(lost_runs, u64::saturating_add);
        self.sessions.retain_mut(|state| {
            let drained = state.recorder.drain();
            let recorded = drained.series.iter().map(|s| s.n());
            lost_runs = recorded.fold(lost_runs, u64::saturating_add);
            // The new installation's reports must not show any part of the old one.
            state.session.uid = random_session_uid();
            state.recorder.rename(state.session.uid);
            state.session.created_at_unix_ms = now.wall_unix_ms;
            state.session.creation_us = None;
            state.is_reported = false;
            state.self_tests.clear();
            state.sealed = SparseHistogram::default();
            !drained.is_closed
        });
        self.start_failures.clear();
        self.failures_seen.clear();
        if lost_runs > 0 {
            self.dropped(DropReason::Consent, 0, lost_runs);
        }
        self.refresh_baselines();
    }

    /// Drops closed sessions while consent is missing, because no seal does it then.
    pub(super) fn drop_unrecorded_closed(&mut self) {
        if !self.conditions.is_recording() {
            self.sessions.retain(|o| !o.recorder.is_closed());
        }
    }
}
