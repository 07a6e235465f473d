//! Slack, by an incoming webhook, in blocks: headline, steps with their commands as code, links as buttons, short facts as
//! fields, statistics as context. The webhook's address is the secret.

use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::config::SlackConfig;
use super::error::NotifyError;
use super::expected::{Expected, ExpectedBody};
use super::http_notifier::{Format, HttpNotifier};
use super::links::Links;
use super::notifier::Notification;
use super::secret::Secret;
use super::steps::StepPart;
use super::text::{message_body, summary, title};

/// Longest texts that Slack takes, in characters: a header, and a section or an element of a context.
const MAX_HEADER_CHARS: usize = 150;
const MAX_SECTION_CHARS: usize = 3000;

/// Number of fields of a section: Slack takes ten, of this length.
const MAX_FIELDS: usize = 10;
const MAX_FIELD_CHARS: usize = 2000;

/// Number of facts that fit into a field, which is half as wide as a message.
const MAX_SHORT_FACT_CHARS: usize = 60;

/// Number of steps that are shown. A message has 50 blocks at most, and a step three.
const MAX_STEPS: usize = 10;

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
    fn expected(&self) -> Expected {
        Expected {
            body: ExpectedBody::Exactly("ok"),
            ..Expected::OK_WITHOUT_HTML
        }
    }

    /// A message without a text. Slack refuses it with 400 if the webhook exists, otherwise with 403, 404 or 410.
    fn probe(&self) -> Option<(Vec<u8>, Expected)> {
        let expected = Expected {
            is_taken: |status| status == StatusCode::BAD_REQUEST,
            body: ExpectedBody::NoHtml,
        };
        Some((b"{}".to_vec(), expected))
    }

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
        let told = message_body(incident);
        let mut blocks =
            vec![json!({"type": "header", "text": plain(&headline, MAX_HEADER_CHARS)})];
        for (n, step) in (1..).zip(told.steps.iter().take(MAX_STEPS)) {
            for (at, part) in step.0.iter().enumerate() {
                let text = match part {
                    StepPart::Text(text) if at == 0 => paragraph(&format!("{n}. {text}")),
                    StepPart::Text(text) => paragraph(text),
                    StepPart::Commands(commands) => code(commands),
                };
                blocks.push(json!({"type": "section", "text": text}));
            }
        }
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
        let (fields, rest): (Vec<_>, Vec<_>) = told
            .details
            .iter()
            .partition(|(_, fact)| fact.chars().count() <= MAX_SHORT_FACT_CHARS);
        let (fields, more) = fields.split_at(fields.len().min(MAX_FIELDS));
        if !fields.is_empty() {
            let field = |(name, fact): &&(&str, String)| {
                plain(&escaped(&format!("{name}\n{fact}")), MAX_FIELD_CHARS)
            };
            let fields: Vec<Value> = fields.iter().map(field).collect();
            blocks.push(json!({"type": "section", "fields": fields}));
        }
        let line = |(name, fact): &(&str, String)| format!("{name}: {fact}");
        let lines: Vec<String> = more.iter().copied().chain(rest).map(line).collect();
        if !lines.is_empty() {
            blocks.push(json!({"type": "section", "text": paragraph(&lines.join("\n"))}));
        }
        let lines: Vec<String> = told.statistics.iter().map(line).collect();
        let statistics = paragraph(&lines.join("\n"));
        blocks.push(json!({"type": "context", "elements": [statistics]}));
        // Notifications on the phone show `text` only.
        json!({"text": headline, "mrkdwn": false, "blocks": blocks})
    }
}

fn paragraph(text: &str) -> Value {
    plain(&escaped(text), MAX_SECTION_CHARS)
}

/// A code block, the only text with marks: commands hold no backtick that could end it.
fn code(commands: &str) -> Value {
    let marks = "```".len() * 2;
    let commands = clipped(&escaped(commands), MAX_SECTION_CHARS - marks);
    json!({"type": "mrkdwn", "text": format!("```{commands}```"), "verbatim": true})
}

/// Text without marks: Slack has no way to escape the marks of `mrkdwn`, and names of devices may hold any.
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
