//! An incident as a JSON document for programs: the webhook's body, and PagerDuty's details.

use serde_json::{Map, Value, json};
use url::Url;

use crate::incident::Incident;
use crate::summary::IncidentSummary;

use super::text::{description, summary};

/// Fields of a summary that the document lacks or has under another name.
const NOT_IN_DOCUMENTS: [&str; 3] = ["incident", "devices_compared", "cv"];

/// Returns the document. Names are stable; fields may be added.
pub(super) fn document(incident: &Incident, dashboard: Option<String>) -> Map<String, Value> {
    let facts = serde_json::to_value(IncidentSummary::from(incident));
    let Ok(Value::Object(mut document)) = facts else {
        unreachable!("a summary is an object with text keys");
    };
    document.retain(|name, _| !NOT_IN_DOCUMENTS.contains(&&**name));
    let lead = incident.lead();
    let headline = incident.headline.as_ref().map(|headline| headline.class);
    let more = [
        ("id", json!(incident.id)),
        ("verdict", json!(headline.or(lead.map(|lead| lead.class)))),
        ("cause", json!(incident.key.cause.as_str())),
        // Chance of the deciding count in a healthy cohort.
        ("p", json!(lead.map(|lead| lead.p))),
        ("next_step", json!(lead.map_or("", |lead| &lead.next_step))),
        ("summary", json!(summary(incident))),
        ("description", json!(description(incident))),
    ];
    let dashboard = dashboard.map(|link| ("dashboard", json!(link)));
    for (name, value) in more.into_iter().chain(dashboard) {
        document.insert(name.to_owned(), value);
    }
    document
}

/// Returns the dashboard at `base` with the incident's app, model and chipsets as variables.
pub(super) fn dashboard_link(base: Option<&str>, incident: &Incident) -> Option<String> {
    let model = &incident.key.model;
    let mut variables = vec![
        ("var-app", model.app_id.clone()),
        ("var-environment", model.environment.clone()),
        ("var-model", model.model_id.clone()),
    ];
    let chipsets = incident.chipsets().into_iter();
    variables.extend(chipsets.map(|chipset| ("var-chipset", chipset)));
    let link = Url::parse_with_params(base?, variables).ok()?;
    Some(link.into())
}
