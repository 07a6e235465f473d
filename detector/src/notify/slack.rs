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
use super::text::{description, summary, title};

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
        let headline = escaped(&format!("{title}: {}", summary(incident)));
        let facts = escaped(&description(incident));
        let mut blocks = vec![
            json!({"type": "header", "text": plain(&headline, MAX_HEADER_CHARS)}),
            json!({"type": "section", "text": plain(&facts, MAX_SECTION_CHARS)}),
        ];
        let runbook = Some(self.links.runbook_of(incident)).filter(|url| url.starts_with("http"));
        let links = [("Open", self.links.opened(incident)), ("Runbook", runbook)];
        let button = |(text, url): (&str, Option<String>)| {
            let url = url?;
            Some(json!({
                "type": "button",
                "text": plain(text, MAX_HEADER_CHARS),
                "url": url,
            }))
        };
        let buttons: Vec<Value> = links.into_iter().filter_map(button).collect();
        if !buttons.is_empty() {
            blocks.push(json!({"type": "actions", "elements": buttons}));
        }
        // Notifications on the phone show `text` only.
        json!({"text": headline, "mrkdwn": false, "blocks": blocks})
    }
}

/// Text without marks: Slack has no way to escape those of `mrkdwn`, and names of devices may hold any.
fn plain(text: &str, max_chars: usize) -> Value {
    json!({"type": "plain_text", "text": clipped(text, max_chars), "emoji": false})
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
