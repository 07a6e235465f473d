//! Prometheus Alertmanager, API v2.
//!
//! One alert for each incident, identified by its labels. It is sent again while it fires, with an end a few
//! repeats ahead, so that Alertmanager resolves it by time-out if the detector dies. When labels change
//! (another severity, more chipsets), the old alert is ended together with the new one.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderMap;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::incident::{Headline, Incident, State};

use super::config::AlertmanagerConfig;
use super::document::dashboard_link;
use super::error::NotifyError;
use super::http_notifier::{Format, HttpNotifier};
use super::notifier::Notification;
use super::text::{description, summary};

/// Repeats that may fail before Alertmanager resolves the alert.
const REPEATS_UNTIL_END: i32 = 4;

#[derive(Debug)]
struct Alerts {
    repeat_every: Duration,
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

pub(super) fn notifier(
    name: &str,
    config: &AlertmanagerConfig,
    dashboard_url: Option<String>,
) -> Result<HttpNotifier, NotifyError> {
    let endpoint = format!("{}/api/v2/alerts", config.url.trim_end_matches('/'));
    let repeat_every = config.repeat_every.0;
    let format = Alerts {
        repeat_every,
        dashboard_url,
    };
    let notifier = HttpNotifier::new(name, &endpoint, config.min_severity, format)?;
    Ok(notifier.repeated_every(repeat_every))
}

impl Format for Alerts {
    fn request(&self, notification: &Notification, now: Timestamp) -> (HeaderMap, Vec<u8>) {
        let alerts = self.alerts(&notification.incident, now);
        let json = serde_json::to_vec(&alerts).expect("texts and times serialise");
        (HeaderMap::new(), json)
    }
}

impl Alerts {
    fn alerts(&self, incident: &Incident, now: Timestamp) -> Vec<Alert> {
        let Some(headline) = &incident.headline else {
            return Vec::new();
        };
        let starts_at = incident.fired_at.unwrap_or(incident.started_at);
        let ends_at = match (incident.state, incident.resolved_at) {
            (State::Resolved, Some(resolved_at)) => resolved_at,
            _ => {
                let repeat = SignedDuration::try_from(self.repeat_every);
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
