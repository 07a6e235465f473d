//! PagerDuty, Events API v2. One alert an incident: `dedup_key` is the incident's id, so news of it
//! update the alert and its end resolves it.

use std::path::PathBuf;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::period::Period;
use crate::verdict::Severity;

use super::document::{Document, dashboard_link};
use super::http::HttpChannel;
use super::secret::Secret;
use super::{Notification, Notifier, NotifyError, Occasion, summary};

/// PagerDuty's own, for customers in its main region.
const ENDPOINT: &str = "https://events.pagerduty.com/v2/enqueue";

/// Longest summary that PagerDuty takes, in characters.
const MAX_SUMMARY_CHARS: usize = 1024;

/// Whom PagerDuty shall call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagerDutyConfig {
    /// A file that holds the integration's routing key and nothing else.
    pub routing_key_file: PathBuf,
    /// Where events go; the default is PagerDuty's main region.
    #[serde(default = "endpoint")]
    pub url: String,
    /// Incidents below this are not sent.
    #[serde(default = "page")]
    pub min_severity: Severity,
    /// How long one attempt may take.
    #[serde(default = "super::timeout")]
    pub timeout: Period,
}

fn endpoint() -> String {
    ENDPOINT.to_owned()
}

fn page() -> Severity {
    Severity::Page
}

/// Sends events to one PagerDuty integration.
#[derive(Debug)]
pub struct PagerDuty {
    channel: HttpChannel,
    routing_key: Secret,
    min_severity: Severity,
    dashboard_url: Option<String>,
}

impl PagerDuty {
    /// Prepares the client; nothing is sent. `name` is what incidents remember it by.
    ///
    /// # Errors
    /// The key cannot be read, the address is none, or TLS could not be set up.
    pub fn new(
        name: &str,
        config: &PagerDutyConfig,
        dashboard_url: Option<String>,
    ) -> Result<Self, NotifyError> {
        Ok(Self {
            channel: HttpChannel::new(name, &config.url, config.timeout.0)?,
            routing_key: Secret::read(name, &config.routing_key_file)?,
            min_severity: config.min_severity,
            dashboard_url,
        })
    }

    fn event(&self, notification: &Notification) -> serde_json::Value {
        let incident = &notification.incident;
        let base = json!({
            "routing_key": self.routing_key.expose(),
            "dedup_key": incident.id,
        });
        let mut event = base;
        if notification.occasion == Occasion::Resolved {
            event["event_action"] = json!("resolve");
            return event;
        }
        let link = dashboard_link(self.dashboard_url.as_deref(), incident);
        event["event_action"] = json!("trigger");
        event["client"] = json!("epwatch");
        if let Some(link) = &link {
            event["client_url"] = json!(link);
            event["links"] = json!([{"href": link, "text": "dashboard of the cohort"}]);
        }
        event["payload"] = json!({
            "summary": clipped(&summary(incident), MAX_SUMMARY_CHARS),
            "source": format!("{}/{}", incident.key.model.app_id, incident.key.model.environment),
            "severity": severity(incident.severity()),
            "timestamp": incident.fired_at.unwrap_or(incident.started_at),
            "component": format!("{} {}", incident.key.model.model_id, incident.key.model_version),
            "group": incident.key.model.app_id,
            "class": incident.headline.as_ref().map(|told| told.class.to_string()),
            "custom_details": Document::of(incident, link),
        });
        event
    }

    async fn send(&self, notification: &Notification) -> Result<(), NotifyError> {
        let event = self.event(notification).to_string().into_bytes();
        let taken = StatusCode::ACCEPTED;
        self.channel.post(HeaderMap::new(), event, taken).await
    }
}

impl Notifier for PagerDuty {
    fn name(&self) -> &str {
        &self.channel.name
    }

    fn min_severity(&self) -> Severity {
        self.min_severity
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        _now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        self.send(notification).boxed()
    }
}

/// PagerDuty's word for ours.
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
