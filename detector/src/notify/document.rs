//! An incident as a JSON document for programs: the webhook's body, and PagerDuty's details.

use epwatch_model::Incident;
use epwatch_model::summary::IncidentSummary;
use serde_json::{Map, Value, json};

use super::links::Links;
use super::text::{description, summary};

/// Fields of a summary that the document lacks or has under another name.
const NOT_IN_DOCUMENTS: [&str; 3] = ["incident", "devices_compared", "cv"];

/// Returns the document. Names are stable; fields may be added.
pub(super) fn document(incident: &Incident, links: &Links) -> Map<String, Value> {
    let facts = serde_json::to_value(IncidentSummary::from(incident));
    let Ok(Value::Object(mut document)) = facts else {
        unreachable!("a summary is an object with text keys");
    };
    document.retain(|name, _| !NOT_IN_DOCUMENTS.contains(&&**name));
    let lead = incident.lead();
    let more = [
        ("id", json!(incident.id)),
        ("verdict", json!(incident.class())),
        ("cause", json!(incident.key.cause.as_str())),
        // Chance of the deciding count in a healthy cohort.
        ("p", json!(lead.map(|lead| lead.p))),
        ("next_step", json!(incident.next_step().replace('\n', " "))),
        ("summary", json!(summary(incident))),
        ("description", json!(description(incident))),
        ("runbook_url", json!(links.runbook_of(incident))),
    ];
    let dashboard = links
        .opened(incident)
        .map(|link| ("dashboard", json!(link)));
    for (name, value) in more.into_iter().chain(dashboard) {
        document.insert(name.to_owned(), value);
    }
    document
}
