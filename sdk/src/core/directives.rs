//! Directives for who drives a core by itself, as simulated devices do.

use epwatch_proto::{Model, UploadResponse};

use super::Core;
use crate::{directives::SessionPlan, time::Now};

impl Core {
    /// How directives want the next session of a model to be made. Who follows it names it in
    /// [`SessionInfo::directive_id`](crate::SessionInfo::directive_id), and tells
    /// [`Self::directive_followed`].
    pub fn plan(&self, model: &Model, now: Now) -> SessionPlan {
        self.directives.plan(model, now)
    }

    /// A session was made as this directive says.
    pub fn directive_followed(&mut self, directive_id: &str) {
        self.directives.followed([directive_id].into_iter());
    }

    /// Takes in the directives of an answer, and the server's time that they are judged by.
    pub fn receive_directives(&mut self, response: &UploadResponse, now: Now) {
        self.directives.receive(response.into(), now);
    }

    /// Ids of the directives that the device holds, for the next request.
    pub fn held_directive_ids(&self) -> Vec<String> {
        self.directives.held_ids()
    }
}
