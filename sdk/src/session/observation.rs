//! The measured side of a session, whoever made it.

use std::sync::Arc;

use epwatch_proto::Placement;

use crate::{recorder::SessionRecorder, time::Clock};

/// Placement and recorder of a session. The recorder is closed with it.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) placement: Placement,
    pub(super) recorder: Arc<SessionRecorder>,
    pub(super) clock: Clock,
    /// Whether the session's self-test runs although it ran before.
    pub(super) repeats_self_test: bool,
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.recorder.close();
    }
}
