//! Links in notifications: the dashboard of the cohort, and the runbook of the verdict.

use url::Url;

use crate::config::DetectorConfig;
use crate::incident::Incident;

use super::test_page;

/// The runbook in the repository, for a config without an address of one.
const RUNBOOK: &str = "docs/oncall.md";

/// Addresses that links are made from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    dashboard: Option<String>,
    runbook: Option<String>,
}

impl Links {
    pub(super) fn of(config: &DetectorConfig) -> Self {
        Self {
            dashboard: config.dashboard_url.clone(),
            runbook: config.runbook_url.clone(),
        }
    }

    /// Returns the dashboard with the incident's app, model and chipsets as variables.
    pub(super) fn dashboard(&self, incident: &Incident) -> Option<String> {
        let model = &incident.key.model;
        let mut variables = vec![
            ("var-app", model.app_id.clone()),
            ("var-environment", model.environment.clone()),
            ("var-model", model.model_id.clone()),
        ];
        let chipsets = incident.chipsets().into_iter();
        variables.extend(chipsets.map(|chipset| ("var-chipset", chipset)));
        let link = Url::parse_with_params(self.dashboard.as_deref()?, variables).ok()?;
        Some(link.into())
    }

    /// Returns the runbook's section of a verdict or an alert.
    pub(super) fn runbook(&self, section: &str) -> String {
        let base = self.runbook.as_deref().unwrap_or(RUNBOOK);
        format!("{base}#{}", section.to_ascii_lowercase())
    }

    /// Returns the runbook's section of an incident's verdict, or of a test page.
    pub(super) fn runbook_of(&self, incident: &Incident) -> String {
        if incident.is_test() {
            return self.runbook(test_page::ALERT);
        }
        self.runbook(incident.class().map_or("", |class| class.as_str()))
    }
}
