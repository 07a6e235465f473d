//! The operator's own webhook: the incident as signed JSON.
//!
//! Headers: `Epwatch-Timestamp` (seconds since 1970), `Epwatch-Signature: v1=<hex>`, the HMAC-SHA256 of
//! `<timestamp>.<body>` under the shared key, and `Epwatch-Delivery: <incident>:<news>`, the same when a delivery is
//! tried again. A receiver checks the signature over the bytes as they came, refuses timestamps that are minutes old,
//! and takes each delivery once. It answers with a status of success, and with the text of `expected_answer` if the
//! config has one.

use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use ring::hmac;
use serde_json::json;

use super::config::WebhookConfig;
use super::document::document;
use super::error::NotifyError;
use super::expected::{Expected, ExpectedBody};
use super::http_notifier::{Format, HttpNotifier};
use super::links::Links;
use super::notifier::Notification;
use super::secret::Secret;

/// Version of the document; fields may be added within one.
const VERSION: u32 = 1;

#[derive(Debug)]
struct SignedDocuments {
    key: hmac::Key,
    links: Links,
    expected_answer: Option<String>,
}

pub(super) fn notifier(
    name: &str,
    config: &WebhookConfig,
    links: Links,
) -> Result<HttpNotifier, NotifyError> {
    let key = Secret::read(name, &config.key_file)?;
    let format = SignedDocuments {
        key: hmac::Key::new(hmac::HMAC_SHA256, key.expose().as_bytes()),
        links,
        expected_answer: config.expected_answer.clone(),
    };
    HttpNotifier::new(name, &config.url, config.audience(), format)
}

impl Format for SignedDocuments {
    fn expected(&self) -> Expected {
        let body = self.expected_answer.clone();
        Expected {
            body: body.map_or(ExpectedBody::Any, ExpectedBody::With),
            ..Expected::SUCCESS
        }
    }

    fn request(&self, notification: &Notification, now: Timestamp) -> (HeaderMap, Vec<u8>) {
        let incident = &notification.incident;
        let document = json!({
            "version": VERSION,
            "occasion": notification.occasion.as_str(),
            "incident": document(incident, &self.links),
        });
        let body = document.to_string();
        let timestamp = now.as_second().to_string();
        let signature = hmac::sign(&self.key, format!("{timestamp}.{body}").as_bytes());
        let signature = epwatch_proto::hex(signature.as_ref());
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("epwatch-timestamp", timestamp),
            ("epwatch-signature", format!("v1={signature}")),
            (
                "epwatch-delivery",
                format!("{}:{}", incident.id, incident.news),
            ),
        ] {
            let value = HeaderValue::try_from(value).expect("digits and hex are a header's text");
            headers.insert(name, value);
        }
        (headers, body.into_bytes())
    }
}
