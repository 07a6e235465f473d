//! PagerDuty, Events API v2. One alert for each incident: `dedup_key` is the incident's id, so news update the
//! alert, an ack acknowledges it, and its end resolves it.

use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde_json::json;

use crate::verdict::Severity;

use super::config::PagerDutyConfig;
use super::document::document;
use super::error::NotifyError;
use super::http_notifier::{Format, HttpNotifier};
use super::links::Links;
use super::notifier::{Notification, Occasion};
use super::secret::Secret;
use super::text::summary;

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
    fn is_taken(&self) -> fn(StatusCode) -> bool {
        |status| status == StatusCode::ACCEPTED
    }

    fn request(&self, notification: &Notification, _now: Timestamp) -> (HeaderMap, Vec<u8>) {
        let event = self.event(notification).to_string();
        (HeaderMap::new(), event.into_bytes())
    }
}

impl Events {
    fn event(&self, notification: &Notification) -> serde_json::Value {
        let incident = &notification.incident;
        let base = json!({
            "routing_key": self.routing_key.expose(),
            "dedup_key": incident.id,
        });
        let mut event = base;
        let without_payload = match notification.occasion {
            Occasion::Resolved => Some("resolve"),
            Occasion::Acknowledged => Some("acknowledge"),
            _ => None,
        };
        if let Some(action) = without_payload {
            event["event_action"] = json!(action);
            return event;
        }
        let link = self.links.opened(incident);
        event["event_action"] = json!("trigger");
        event["client"] = json!("epwatch");
        let runbook = self.links.runbook_of(incident);
        let mut links = Vec::new();
        if let Some(link) = &link {
            event["client_url"] = json!(link);
            links.push(json!({"href": link, "text": "incident in epwatch"}));
        }
        if runbook.starts_with("http") {
            links.push(json!({"href": runbook, "text": "runbook"}));
        }
        if !links.is_empty() {
            event["links"] = json!(links);
        }
        event["payload"] = json!({
            "summary": clipped(&summary(incident), MAX_SUMMARY_CHARS),
            "source": format!("{}/{}", incident.key.model.app_id, incident.key.model.environment),
            "severity": severity(incident.severity()),
            "timestamp": incident.fired_at.unwrap_or(incident.started_at),
            "component": format!("{} {}", incident.key.model.model_id, incident.key.model_version),
            "group": incident.key.model.app_id,
            "class": incident.headline.as_ref().map(|told| told.class.to_string()),
            "custom_details": document(incident, &self.links),
        });
        event
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
