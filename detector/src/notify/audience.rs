//! The incidents that a channel delivers.

use epwatch_model::{Incident, Severity};

/// Filter of a channel. Without a list of apps or environments, it delivers the incidents of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audience {
    /// Incidents below this are not delivered.
    pub min_severity: Severity,
    /// App ids.
    pub apps: Vec<String>,
    /// For example `production`.
    pub environments: Vec<String>,
}

impl Default for Audience {
    fn default() -> Self {
        Self {
            min_severity: Severity::Ticket,
            apps: Vec::new(),
            environments: Vec::new(),
        }
    }
}

impl Audience {
    /// Whether the channel delivers this incident. A part of another one is not delivered.
    #[must_use]
    pub fn takes(&self, incident: &Incident) -> bool {
        let model = &incident.key.model;
        let is_in = |list: &[String], name: &String| list.is_empty() || list.contains(name);
        incident.part_of.is_none()
            && incident.severity() >= self.min_severity
            && is_in(&self.apps, &model.app_id)
            && is_in(&self.environments, &model.environment)
    }
}
