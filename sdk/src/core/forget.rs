//! The core without consent: recording stops, and what was recorded is forgotten.

use epwatch_proto::{DropReason, SdkHealth, StreamId};

use super::Core;
use super::self_tests::TestsOfProcess;
use crate::{baselines::BaselineBook, random_session_uid, time::Now};

impl Core {
    /// Whether runs are recorded; `true` at first. Sessions may be opened meanwhile, and are
    /// recorded from when it is set again.
    pub fn set_recording(&self, is_recording: bool) {
        self.conditions.set_recording(is_recording);
    }

    /// Forgets the installation and everything recorded for it, and goes on as another device
    /// would: a new stream from sequence 1, sessions under new ids, no baselines. Nothing is
    /// sealed until [`Self::set_installation`] is called again.
    ///
    /// `lost_runs` are those in sealed reports that will not be sent. They, and what was not
    /// sealed yet, count as dropped for want of consent in the new stream. As runs only: the
    /// numbers of such reports belong to an installation that the ledger leaves out on both sides.
    pub fn forget(&mut self, stream: StreamId, lost_runs: u64, now: Now) {
        self.installation = None;
        self.stream = stream;
        self.next_sequence = 1;
        self.interval_start = now;
        self.ended.clear();
        self.lessons.clear();
        self.book = BaselineBook::new(self.settled_runs);
        self.health = SdkHealth {
            consent_changes: self.health.consent_changes,
            ..SdkHealth::default()
        };
        self.sealed_health = SdkHealth::default();
        self.directives.forget();
        self.self_tests = TestsOfProcess::default();
        let gone = std::mem::take(&mut self.gone);
        let gone = gone.iter().flat_map(|part| &part.series).map(|s| s.n);
        let mut lost_runs = gone.fold(lost_runs, u64::saturating_add);
        self.sessions.retain_mut(|observed| {
            let drained = observed.recorder.drain();
            let recorded = drained.series.iter().map(|s| s.n());
            lost_runs = recorded.fold(lost_runs, u64::saturating_add);
            // Nothing that the old installation said may be found again in the new one's reports.
            observed.session.uid = random_session_uid();
            observed.recorder.rename(observed.session.uid);
            observed.session.created_at_unix_ms = now.wall_unix_ms;
            observed.session.creation_us = None;
            observed.is_reported = false;
            observed.self_tests.clear();
            !drained.is_closed
        });
        self.start_failures.clear();
        if lost_runs > 0 {
            self.dropped(DropReason::Consent, 0, lost_runs);
        }
        self.refresh_baselines();
    }

    /// Times that consent was given or withdrawn in this process.
    pub fn set_consent_changes(&mut self, n: u64) {
        self.health.consent_changes = n;
    }

    /// Without consent nothing is ever sealed, which is when sessions that are gone are let go of.
    pub(super) fn let_go_unrecorded(&mut self) {
        if !self.conditions.is_recording() {
            self.sessions.retain(|o| !o.recorder.is_closed());
        }
    }
}
