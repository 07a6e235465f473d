//! Prometheus Alertmanager, API v2.
//!
//! An alert is its labels; one alert an incident. It is sent again while it fires, with an end a few
//! repeats ahead: if the detector dies, Alertmanager resolves it by time-out instead of keeping a
//! lie. When labels change (another severity, more chipsets) the old alert is ended beside the new.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::incident::{Headline, Incident, State};
use crate::period::Period;
use crate::verdict::Severity;

use super::document::dashboard_link;
use super::http::HttpChannel;
use super::{Notification, Notifier, NotifyError, description, summary};

/// Repeats that may fail before Alertmanager takes the alert for over.
const REPEATS_UNTIL_END: i32 = 4;

/// Where Alertmanager is and what it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertmanagerConfig {
    /// Its address, for example `http://localhost:9093`.
    pub url: String,
    /// Incidents below this are not sent.
    #[serde(default = "super::ticket")]
    pub min_severity: Severity,
    /// How often a firing incident is sent again.
    #[serde(default = "repeat")]
    pub repeat_every: Period,
    /// How long one attempt may take.
    #[serde(default = "super::timeout")]
    pub timeout: Period,
}

fn repeat() -> Period {
    Period(Duration::from_secs(60))
}

impl AlertmanagerConfig {
    /// Alertmanager at `url`, everything else as by default.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            min_severity: super::ticket(),
            repeat_every: repeat(),
            timeout: super::timeout(),
        }
    }
}

/// Sends alerts to one Alertmanager.
#[derive(Debug)]
pub struct Alertmanager {
    channel: HttpChannel,
    config: AlertmanagerConfig,
    dashboard_url: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    labels: BTreeMap<&'static str, String>,
    annotations: BTreeMap<&'static str, String>,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL", skip_serializing_if = "Option::is_none")]
    generator_url: Option<String>,
}

impl Alertmanager {
    /// Prepares the client; nothing is sent. `name` is what incidents remember it by.
    ///
    /// # Errors
    /// The address is none, or TLS could not be set up.
    pub fn new(
        name: &str,
        config: AlertmanagerConfig,
        dashboard_url: Option<String>,
    ) -> Result<Self, NotifyError> {
        let endpoint = format!("{}/api/v2/alerts", config.url.trim_end_matches('/'));
        Ok(Self {
            channel: HttpChannel::new(name, &endpoint, config.timeout.0)?,
            config,
            dashboard_url,
        })
    }

    fn alerts(&self, incident: &Incident, now: Timestamp) -> Vec<Alert> {
        let Some(headline) = &incident.headline else {
            return Vec::new();
        };
        let starts_at = incident.fired_at.unwrap_or(incident.started_at);
        let ends_at = match (incident.state, incident.resolved_at) {
            (State::Resolved, Some(resolved_at)) => resolved_at,
            _ => {
                let repeat = SignedDuration::try_from(self.config.repeat_every.0);
                let ahead = repeat
                    .unwrap_or(SignedDuration::MAX)
                    .saturating_mul(REPEATS_UNTIL_END);
                now.checked_add(ahead).unwrap_or(Timestamp::MAX)
            }
        };
        let alert = |headline: &Headline, ends_at: Timestamp| Alert {
            labels: labels(incident, headline),
            annotations: BTreeMap::from([
                ("summary", summary(incident)),
                ("description", description(incident)),
            ]),
            starts_at: rfc3339(starts_at),
            ends_at: rfc3339(ends_at),
            generator_url: dashboard_link(self.dashboard_url.as_deref(), incident),
        };
        let old = incident.superseded.as_ref().filter(|old| *old != headline);
        let ended = old.map(|old| alert(old, now.min(ends_at)));
        ended
            .into_iter()
            .chain([alert(headline, ends_at)])
            .collect()
    }

    async fn send(&self, notification: &Notification, now: Timestamp) -> Result<(), NotifyError> {
        let alerts = self.alerts(&notification.incident, now);
        let json = serde_json::to_vec(&alerts).expect("texts and times serialise");
        let taken = StatusCode::OK;
        self.channel.post(HeaderMap::new(), json, taken).await
    }
}

impl Notifier for Alertmanager {
    fn name(&self) -> &str {
        &self.channel.name
    }

    fn min_severity(&self) -> Severity {
        self.config.min_severity
    }

    fn repeat_every(&self) -> Option<Duration> {
        Some(self.config.repeat_every.0)
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        self.send(notification, now).boxed()
    }
}

fn labels(incident: &Incident, headline: &Headline) -> BTreeMap<&'static str, String> {
    let model = &incident.key.model;
    let chipsets: Vec<&str> = headline.chipsets.iter().map(String::as_str).collect();
    BTreeMap::from([
        ("alertname", "epwatch".to_owned()),
        ("severity", headline.severity.to_string()),
        ("app", model.app_id.clone()),
        ("environment", model.environment.clone()),
        ("model", model.model_id.clone()),
        ("model_version", incident.key.model_version.clone()),
        ("chipset", chipsets.join(",")),
        ("verdict", headline.class.to_string()),
        ("cause", incident.key.cause.as_str().to_owned()),
        ("incident", incident.id.clone()),
    ])
}

fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}
