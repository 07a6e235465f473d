//! The config of each channel, and the checks of its values.

use std::path::PathBuf;
use std::time::Duration;

use epwatch_model::Severity;
use epwatch_server::{Period, Problems};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use url::Url;

use super::audience::Audience;

/// An Alertmanager, as `[[detector.alertmanager]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertmanagerConfig {
    /// Its address, for example `http://localhost:9093`.
    pub url: String,
    /// Incidents below this are not sent.
    #[serde(default = "ticket", deserialize_with = "of_incidents")]
    pub min_severity: Severity,
    /// Limits the channel to these apps.
    #[serde(default)]
    pub apps: Vec<String>,
    /// Limits the channel to these environments.
    #[serde(default)]
    pub environments: Vec<String>,
    /// How long an alert goes on firing at Alertmanager without a detector that sends it again. Replacing a machine
    /// takes less time than this, so that a missing detector does not look like a repair. The config file has no key
    /// for it.
    #[serde(skip, default = "hold_for")]
    pub hold_for: Period,
    /// Interval at which a firing incident is sent again. The config file has no key for it.
    #[serde(skip, default = "repeat_every")]
    pub repeat_every: Period,
}

/// A PagerDuty integration, as `[[detector.pagerduty]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagerDutyConfig {
    /// A file that holds the integration's routing key and nothing else.
    pub routing_key_file: PathBuf,
    /// Where events go; the default is PagerDuty's main region.
    #[serde(default = "pagerduty_events")]
    pub url: String,
    /// Incidents below this are not sent.
    #[serde(default = "page", deserialize_with = "of_incidents")]
    pub min_severity: Severity,
    /// Limits the channel to these apps.
    #[serde(default)]
    pub apps: Vec<String>,
    /// Limits the channel to these environments.
    #[serde(default)]
    pub environments: Vec<String>,
}

/// A Slack channel, as `[[detector.slack]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlackConfig {
    /// A file that holds the incoming webhook's address and nothing else.
    pub webhook_url_file: PathBuf,
    /// Incidents below this are not sent.
    #[serde(default = "ticket", deserialize_with = "of_incidents")]
    pub min_severity: Severity,
    /// Limits the channel to these apps.
    #[serde(default)]
    pub apps: Vec<String>,
    /// Limits the channel to these environments.
    #[serde(default)]
    pub environments: Vec<String>,
}

/// A webhook of the operator, from `[[detector.webhook]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// The address that incidents are posted to.
    pub url: String,
    /// A file that holds the key for signatures and nothing else.
    pub key_file: PathBuf,
    /// A text that the answer must contain in its first kilobyte. Without it, any status of success is enough, even
    /// from a proxy's own page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_answer: Option<String>,
    /// Incidents below this are not sent.
    #[serde(default = "ticket", deserialize_with = "of_incidents")]
    pub min_severity: Severity,
    /// Limits the channel to these apps.
    #[serde(default)]
    pub apps: Vec<String>,
    /// Limits the channel to these environments.
    #[serde(default)]
    pub environments: Vec<String>,
}

fn ticket() -> Severity {
    Severity::Ticket
}

fn page() -> Severity {
    Severity::Page
}

/// Reads a severity that an incident can have.
fn of_incidents<'de, D: Deserializer<'de>>(value: D) -> Result<Severity, D::Error> {
    const NAMES: &[&str] = &[Severity::Ticket.as_str(), Severity::Page.as_str()];
    let name = String::deserialize(value)?;
    let severity = Severity::parse(&name).filter(|severity| *severity >= Severity::Ticket);
    severity.ok_or_else(|| D::Error::unknown_variant(&name, NAMES))
}

fn hold_for() -> Period {
    Period(Duration::from_secs(6 * 3600))
}

fn repeat_every() -> Period {
    Period(Duration::from_secs(60))
}

fn pagerduty_events() -> String {
    "https://events.pagerduty.com/v2/enqueue".to_owned()
}

impl AlertmanagerConfig {
    /// Returns the config of an Alertmanager at `url`, with defaults for everything else.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            min_severity: ticket(),
            apps: Vec::new(),
            environments: Vec::new(),
            hold_for: hold_for(),
            repeat_every: repeat_every(),
        }
    }
}

/// The audience of each channel, from fields that all of them have.
macro_rules! audiences {
    ($($channel:ident)+) => { $(
        impl $channel {
            pub(super) fn audience(&self) -> Audience {
                Audience {
                    min_severity: self.min_severity,
                    apps: self.apps.clone(),
                    environments: self.environments.clone(),
                }
            }
        }
    )+ };
}
audiences!(AlertmanagerConfig PagerDutyConfig SlackConfig WebhookConfig);

/// Returns the address, if it is one that notifications can be posted to.
pub(super) fn parse_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

/// Adds a problem unless the value of `key` is an address.
pub(crate) fn check_url(problems: &mut Problems, key: &str, url: &str) {
    let is_url = parse_url(url).is_some();
    problems.check(key, is_url, || "is not an http or https address".to_owned());
}
