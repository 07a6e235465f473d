//! PagerDuty, Events API v2. One alert for each incident: `dedup_key` is the incident's id, so news update the
//! alert, an ack acknowledges it, and its end resolves it.

use epwatch_model::{Incident, Severity};
use epwatch_proto::visible;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::config::PagerDutyConfig;
use super::document::document;
use super::error::NotifyError;
use super::expected::{Expected, ExpectedBody};
use super::http_notifier::{Format, HttpNotifier};
use super::links::Links;
use super::notifier::{Notification, Occasion};
use super::secret::Secret;
use super::steps::StepPart;
use super::text::{message_body, summary};

/// Longest summary that PagerDuty takes, in characters.
const MAX_SUMMARY_CHARS: usize = 1024;

#[derive(Debug)]
struct Events {
    routing_key: Secret,
    links: Links,
}

pub(super) fn notifier(
    name: &str,
    config: &PagerDutyConfig,
    links: Links,
) -> Result<HttpNotifier, NotifyError> {
    let format = Events {
        routing_key: Secret::read(name, &config.routing_key_file)?,
        links,
    };
    HttpNotifier::new(name, &config.url, config.audience(), format)
}

impl Format for Events {
    fn expected(&self) -> Expected {
        Expected {
            is_taken: |status| status == StatusCode::ACCEPTED,
            body: ExpectedBody::NoHtml,
        }
    }

    /// The end of an incident that never began, which PagerDuty accepts and drops. PagerDuty checks the form of the
    /// routing key.
    fn probe(&self) -> Option<(Vec<u8>, Expected)> {
        let event = json!({
            "routing_key": self.routing_key.expose(),
            "dedup_key": "epwatch-config-check",
            "event_action": "resolve",
        });
        Some((event.to_string().into_bytes(), self.expected()))
    }

    fn request(&self, notification: &Notification, _now: Timestamp) -> (HeaderMap, Vec<u8>) {
        let event = self.event(notification);
        let json = serde_json::to_vec(&event).expect("texts and numbers serialise");
        (HeaderMap::new(), json)
    }
}

impl Events {
    fn event(&self, notification: &Notification) -> Event {
        let incident = &notification.incident;
        let mut event = object(json!({
            "routing_key": self.routing_key.expose(),
            "dedup_key": incident.id,
        }));
        let without_payload = match notification.occasion {
            Occasion::Resolved => Some("resolve"),
            Occasion::Acknowledged => Some("acknowledge"),
            _ => None,
        };
        if let Some(action) = without_payload {
            event.insert("event_action".to_owned(), json!(action));
            return Event {
                event,
                payload: None,
            };
        }
        let link = self.links.opened(incident);
        event.extend(object(
            json!({"event_action": "trigger", "client": "epwatch"}),
        ));
        let runbook = self.links.runbook_of(incident);
        let mut links = Vec::new();
        if let Some(link) = &link {
            event.insert("client_url".to_owned(), json!(link));
            links.push(json!({"href": link, "text": "incident in epwatch"}));
        }
        if runbook.starts_with("http") {
            links.push(json!({"href": runbook, "text": "runbook"}));
        }
        if !links.is_empty() {
            event.insert("links".to_owned(), json!(links));
        }
        let model = &incident.key.model;
        let class = incident.headline.as_ref().filter(|_| !incident.is_test());
        let class = class.map(|told| told.class);
        let facts = object(json!({
            "summary": clipped(&summary(incident), MAX_SUMMARY_CHARS),
            "source": visible(&format!("{}/{}", model.app_id, model.environment)),
            "severity": severity(incident.severity()),
            "timestamp": incident.fired_at.unwrap_or(incident.started_at),
            "component": visible(&format!("{} {}", model.model_id, incident.key.model_version)),
            "group": visible(&model.app_id),
            "class": class.map(|class| class.to_string()),
        }));
        let payload = Payload {
            facts,
            custom_details: self.details(incident),
        };
        Event {
            event,
            payload: Some(payload),
        }
    }

    /// Returns the lines for people, in order, and the document for PagerDuty's rules.
    fn details(&self, incident: &Incident) -> Details {
        let told = message_body(incident);
        let steps = (1..).zip(&told.steps).map(|(n, step)| {
            let lines = step.0.iter().map(|part| match part {
                StepPart::Text(text) | StepPart::Commands(text) => text.as_str(),
            });
            (format!("next {n}"), lines.collect::<Vec<_>>().join("\n"))
        });
        let facts = told.details.iter().chain(&told.statistics);
        let facts = facts.map(|(name, fact)| ((*name).to_owned(), fact.clone()));
        let mut details: Vec<(String, Value)> = Vec::new();
        for (name, text) in steps.chain(facts) {
            match details.iter_mut().find(|(known, _)| *known == name) {
                // An object can hold each name only once, so a second reason becomes another line of the first.
                Some((_, Value::String(lines))) => {
                    lines.push('\n');
                    lines.push_str(&text);
                }
                _ => details.push((name, text.into())),
            }
        }
        let document = Value::Object(document(incident, &self.links));
        details.push(("document".to_owned(), document));
        Details(details)
    }
}

/// An event. It is a struct because a `Value` would sort the details by name.
#[derive(Serialize)]
struct Event {
    #[serde(flatten)]
    event: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Payload>,
}

#[derive(Serialize)]
struct Payload {
    #[serde(flatten)]
    facts: Map<String, Value>,
    custom_details: Details,
}

/// An object whose keys keep their order.
struct Details(Vec<(String, Value)>);

impl Serialize for Details {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Returns PagerDuty's name of a severity.
fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Page => "critical",
        Severity::Ticket => "warning",
        Severity::Info | Severity::None => "info",
    }
}

fn clipped(text: &str, max_chars: usize) -> String {
    text.chars().take(max_chars).collect()
}
