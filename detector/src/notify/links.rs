//! Links in notifications: the incident's page or the dashboard of its cohort, and the runbook of the verdict.

use epwatch_model::{Incident, IncidentKey};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::run::config::DetectorConfig;

use super::test_page;

/// The runbook in the repository, for a config that names no other.
const RUNBOOK: &str = "docs/oncall.md";

/// Characters that are encoded in names in the dashboards' variables, as ClickHouse's `encodeURLComponent` does.
const ENCODED_IN_VARIABLES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Stands for the incident's id in `dashboard_url`, which then is the address of the built-in page.
const INCIDENT: &str = "{incident}";

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

    /// Returns the incident's page, or the dashboard of its cohorts.
    pub(super) fn opened(&self, incident: &Incident) -> Option<String> {
        let address = self.dashboard.as_deref()?;
        page_of(address, &incident.id).or_else(|| dashboard(address, incident))
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

/// Returns the page of an incident; `None` if the address has no place for its id.
#[must_use]
pub fn page_of(address: &str, incident: &str) -> Option<String> {
    let id = utf8_percent_encode(incident, ENCODED_IN_VARIABLES).to_string();
    address
        .contains(INCIDENT)
        .then(|| address.replace(INCIDENT, &id))
}

/// Returns the dashboard with the incident's cohorts as variables, from the day before its start to an hour after its
/// end, or to now.
fn dashboard(address: &str, incident: &Incident) -> Option<String> {
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
    let link = Url::parse_with_params(address, parameters).ok()?;
    Some(link.into())
}
