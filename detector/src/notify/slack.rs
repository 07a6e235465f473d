//! Slack, by an incoming webhook, in blocks. The address is the secret.

use std::path::PathBuf;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::period::Period;
use crate::verdict::Severity;

use super::document::dashboard_link;
use super::http::HttpChannel;
use super::secret::Secret;
use super::text::{facts, title};
use super::{Notification, Notifier, NotifyError, summary};

/// Longest texts that Slack takes, in characters: a header, and a section.
const MAX_HEADER_CHARS: usize = 150;
const MAX_SECTION_CHARS: usize = 3000;

/// Where Slack shall show incidents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlackConfig {
    /// A file that holds the incoming webhook's address and nothing else.
    pub webhook_url_file: PathBuf,
    /// Incidents below this are not sent.
    #[serde(default = "super::ticket")]
    pub min_severity: Severity,
    /// How long one attempt may take.
    #[serde(default = "super::timeout")]
    pub timeout: Period,
}

/// Posts to one Slack channel.
#[derive(Debug)]
pub struct Slack {
    channel: HttpChannel,
    min_severity: Severity,
    dashboard_url: Option<String>,
}

impl Slack {
    /// Prepares the client; nothing is sent. `name` is what incidents remember it by.
    ///
    /// # Errors
    /// The address cannot be read or is none, or TLS could not be set up.
    pub fn new(
        name: &str,
        config: &SlackConfig,
        dashboard_url: Option<String>,
    ) -> Result<Self, NotifyError> {
        let webhook_url = Secret::read(name, &config.webhook_url_file)?;
        Ok(Self {
            channel: HttpChannel::new(name, webhook_url.expose(), config.timeout.0)?,
            min_severity: config.min_severity,
            dashboard_url,
        })
    }

    fn message(&self, notification: &Notification) -> Value {
        let incident = &notification.incident;
        let title = title(notification);
        let summary = summary(incident);
        let lines: Vec<String> = facts(incident)
            .iter()
            .map(|(name, fact)| format!("*{}*  {}", escaped(name), escaped(fact)))
            .collect();
        let mut blocks = vec![
            json!({
                "type": "header",
                "text": {
                    "type": "plain_text",
                    "text": clipped(&escaped(&format!("{title}: {summary}")), MAX_HEADER_CHARS),
                },
            }),
            json!({
                "type": "section",
                "text": {
                    "type": "mrkdwn",
                    "text": clipped(&lines.join("\n"), MAX_SECTION_CHARS),
                },
            }),
        ];
        if let Some(link) = dashboard_link(self.dashboard_url.as_deref(), incident) {
            blocks.push(json!({
                "type": "actions",
                "elements": [{
                    "type": "button",
                    "text": {"type": "plain_text", "text": "Dashboard"},
                    "url": link,
                }],
            }));
        }
        // `text` is what a notification on the phone shows.
        json!({"text": escaped(&format!("{title}: {summary}")), "blocks": blocks})
    }

    async fn send(&self, notification: &Notification) -> Result<(), NotifyError> {
        let message = self.message(notification).to_string().into_bytes();
        let taken = StatusCode::OK;
        self.channel.post(HeaderMap::new(), message, taken).await
    }
}

impl Notifier for Slack {
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

/// Slack's three: what devices call themselves must not become a link or a mention.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn clipped(text: &str, max_chars: usize) -> String {
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    let kept: String = text.chars().take(max_chars - 1).collect();
    format!("{kept}\u{2026}")
}
