//! Links in notifications: the dashboard of the cohort, and the runbook of the verdict.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::config::DetectorConfig;
use crate::incident::{Incident, IncidentKey};

use super::test_page;

/// The runbook in the repository, for a config without an address of one.
const RUNBOOK: &str = "docs/oncall.md";

/// Variables of the dashboards hold names with these encoded, as `encodeURLComponent` of ClickHouse does.
const ENCODED_IN_VARIABLES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

const HOUR_MS: i64 = 3_600_000;

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

    /// Returns the dashboard with the incident's cohorts as variables, from the day before its start to an hour after its
    /// end, or to now.
    pub(super) fn dashboard(&self, incident: &Incident) -> Option<String> {
        let IncidentKey {
            model,
            model_version,
            ..
        } = &incident.key;
        let chipsets = incident.chipsets();
        let mut variables = vec![
            ("var-app", model.app_id.as_str()),
            ("var-environment", &model.environment),
            ("var-model", &model.model_id),
            ("var-version", model_version),
        ];
        variables.extend(
            chipsets
                .iter()
                .map(|chipset| ("var-chipset", chipset.as_str())),
        );
        let encoded = |name| utf8_percent_encode(name, ENCODED_IN_VARIABLES).to_string();
        let variables = variables
            .into_iter()
            .map(|(key, name)| (key, encoded(name)));
        let from = incident.started_at.as_millisecond() - 24 * HOUR_MS;
        let to = incident.resolved_at.map_or_else(
            || "now".to_owned(),
            |end| (end.as_millisecond() + HOUR_MS).to_string(),
        );
        let range = [("from", from.to_string()), ("to", to)];
        let parameters = variables.chain(range);
        let link = Url::parse_with_params(self.dashboard.as_deref()?, parameters).ok()?;
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
