//! Slack, by an incoming webhook, in blocks. The webhook's address is the secret.

use http::HeaderMap;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::config::SlackConfig;
use super::error::NotifyError;
use super::http_notifier::{Format, HttpNotifier};
use super::links::Links;
use super::notifier::Notification;
use super::secret::Secret;
use super::text::{facts, summary, title};

/// Longest texts that Slack takes, in characters: a header, and a section.
const MAX_HEADER_CHARS: usize = 150;
const MAX_SECTION_CHARS: usize = 3000;

#[derive(Debug)]
struct Messages {
    links: Links,
}

pub(super) fn notifier(
    name: &str,
    config: &SlackConfig,
    links: Links,
) -> Result<HttpNotifier, NotifyError> {
    let url = Secret::read(name, &config.webhook_url_file)?;
    HttpNotifier::new(name, url.expose(), config.audience(), Messages { links })
}

impl Format for Messages {
    fn request(&self, notification: &Notification, _now: Timestamp) -> (HeaderMap, Vec<u8>) {
        let message = self.message(notification).to_string();
        (HeaderMap::new(), message.into_bytes())
    }
}

impl Messages {
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
        let runbook = Some(self.links.runbook_of(incident)).filter(|url| url.starts_with("http"));
        let links = [("Open", self.links.opened(incident)), ("Runbook", runbook)];
        let button = |(text, url): (&str, Option<String>)| {
            let url = url?;
            Some(json!({
                "type": "button",
                "text": {"type": "plain_text", "text": text},
                "url": url,
            }))
        };
        let buttons: Vec<Value> = links.into_iter().filter_map(button).collect();
        if !buttons.is_empty() {
            blocks.push(json!({"type": "actions", "elements": buttons}));
        }
        // Notifications on the phone show `text` only.
        json!({"text": escaped(&format!("{title}: {summary}")), "blocks": blocks})
    }
}

/// Escapes Slack's three control characters, so that names from devices become no link or mention.
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
