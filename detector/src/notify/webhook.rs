//! A webhook of one's own: the incident as JSON, signed.
//!
//! Headers: `Epwatch-Timestamp` (seconds since 1970), `Epwatch-Signature: v1=<hex>`, the HMAC-SHA256
//! of `<timestamp>.<body>` under the shared key, and `Epwatch-Delivery: <incident>:<news>`, the same
//! when a delivery is tried again. A receiver checks the signature over the bytes as they came, refuses
//! timestamps that are minutes old, and takes each delivery once.

use std::path::PathBuf;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, StatusCode};
use jiff::Timestamp;
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::period::Period;
use crate::verdict::Severity;

use super::document::{Document, dashboard_link};
use super::http::HttpChannel;
use super::secret::Secret;
use super::{Notification, Notifier, NotifyError};

/// Version of the document; fields may be added within one.
const VERSION: u32 = 1;

/// Where incidents are posted, and how they are signed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// Where to.
    pub url: String,
    /// A file that holds the shared key and nothing else.
    pub key_file: PathBuf,
    /// Incidents below this are not sent.
    #[serde(default = "super::ticket")]
    pub min_severity: Severity,
    /// How long one attempt may take.
    #[serde(default = "super::timeout")]
    pub timeout: Period,
}

/// Posts to one webhook.
#[derive(Debug)]
pub struct Webhook {
    channel: HttpChannel,
    key: hmac::Key,
    min_severity: Severity,
    dashboard_url: Option<String>,
}

impl Webhook {
    /// Prepares the client; nothing is sent. `name` is what incidents remember it by.
    ///
    /// # Errors
    /// The key cannot be read, the address is none, or TLS could not be set up.
    pub fn new(
        name: &str,
        config: &WebhookConfig,
        dashboard_url: Option<String>,
    ) -> Result<Self, NotifyError> {
        let key = Secret::read(name, &config.key_file)?;
        Ok(Self {
            channel: HttpChannel::new(name, &config.url, config.timeout.0)?,
            key: hmac::Key::new(hmac::HMAC_SHA256, key.expose().as_bytes()),
            min_severity: config.min_severity,
            dashboard_url,
        })
    }

    async fn send(&self, notification: &Notification, now: Timestamp) -> Result<(), NotifyError> {
        let incident = &notification.incident;
        let link = dashboard_link(self.dashboard_url.as_deref(), incident);
        let document = json!({
            "version": VERSION,
            "occasion": notification.occasion.as_str(),
            "incident": Document::of(incident, link),
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
        let taken = StatusCode::OK;
        self.channel.post(headers, body.into_bytes(), taken).await
    }
}

impl Notifier for Webhook {
    fn name(&self) -> &str {
        &self.channel.name
    }

    fn min_severity(&self) -> Severity {
        self.min_severity
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        self.send(notification, now).boxed()
    }
}
