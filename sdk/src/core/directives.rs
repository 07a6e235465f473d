//! Directives for code that drives a core by itself, as simulated devices do.

use epwatch_proto::{Model, UploadResponse};

use super::Core;
use crate::{directives::SessionPlan, time::Now};

impl Core {
    /// Returns what directives ask for the next session of a model. A caller that follows the plan names the
    /// directive in [`SessionInfo::directive_id`](crate::SessionInfo::directive_id) and calls
    /// [`Self::directive_applied`].
    pub fn plan(&self, model: &Model, now: Now) -> SessionPlan {
        self.directives.plan(model, now)
    }

    /// Counts a directive that a session was made by.
    pub fn directive_applied(&mut self, directive_id: &str) {
        self.directives.mark_applied([directive_id].into_iter());
    }

    /// Takes the directives of an answer, and the server's time.
    pub fn receive_directives(&mut self, response: &UploadResponse, now: Now) {
        self.directives.receive(response.into(), now);
    }

    /// Returns the ids of all held directives, for the next request.
    pub fn held_directive_ids(&self) -> Vec<String> {
        self.directives.held_ids()
    }
}
