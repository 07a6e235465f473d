//! The recording of a session, whoever made the session.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
};

use epwatch_proto::{Placement, SessionUid};

use crate::{
    core::SessionInfo, directives::EffectiveRequest, driver::worker::Command, fork::InChildren,
    random_session_uid, recorder::SessionRecorder, shared::Shared, time::Clock,
};

/// Description of a session, with which the child of a fork can report it in its own stream.
#[derive(Debug, Clone)]
pub(super) struct Described {
    pub(super) info: SessionInfo,
    pub(super) in_effect: EffectiveRequest,
    /// The model file whose hash must still be computed for reports.
    pub(super) hash_from: Option<PathBuf>,
}

/// Description and recorder of a session. Dropping it closes the recorder.
#[derive(Debug)]
pub(super) struct Observation {
    described: Described,
    recorder: Arc<SessionRecorder>,
    clock: Clock,
    shared: Weak<Shared>,
    in_children: InChildren<Observation>,
}

impl Observation {
    /// Begins the recording of a session, in the SDK of this process.
    pub(super) fn open(shared: &Arc<Shared>, described: Described) -> Self {
        let recorder = shared.open(described.info.clone(), &described.in_effect);
        if let Some(path) = described.hash_from.clone() {
            shared.send_command(Command::HashModel(recorder.uid(), path));
        }
        Self {
            described,
            recorder,
            clock: shared.clock,
            shared: Arc::downgrade(shared),
            in_children: InChildren::new(),
        }
    }

    /// Returns the recorder of the session in this process, and the clock for its runs. The first call in the child of
    /// a fork begins a session there.
    #[inline]
    pub(super) fn here(&self) -> (&SessionRecorder, &Clock) {
        let observation = match self.in_children.is_here() {
            true => self,
            false => self.in_child(),
        };
        (&observation.recorder, &observation.clock)
    }

    #[cold]
    fn in_child(&self) -> &Self {
        // Without an SDK, for example after the last `Watch` was dropped, runs are not recorded in a child either.
        let Some(shared) = self.shared.upgrade() else {
            return self;
        };
        let own = self.in_children.get(|| {
            let mut described = self.described.clone();
            described.info.uid = random_session_uid();
            Self::open(&shared.here(), described)
        });
        own.unwrap_or(self)
    }

    /// Ends the recording in this process.
    pub(super) fn close(&self) {
        match self.in_children.is_here() {
            true => self.recorder.close(),
            false => {
                if let Some(own) = self.in_children.made() {
                    own.recorder.close();
                }
            }
        }
    }

    pub(super) fn placement(&self) -> &Placement {
        &self.described.info.placement
    }

    pub(super) fn uid(&self) -> SessionUid {
        self.here().0.uid()
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.recorder.close();
    }
}
