//! Prometheus Alertmanager, API v2.
//!
//! One alert for each incident, identified by its labels. It is sent again while it fires, with an end `hold_for`
//! ahead: a detector that is away for hours must not look like a repair. So the detector ends its alerts itself,
//! including alerts of an earlier run. When labels change (another severity, more chipsets), the old alert is ended
//! together with the new one. The watchdog is an alert that fires as long as a detector runs. A muted incident's alert
//! continues under a silence.

use std::collections::BTreeMap;
use std::time::Duration;

use epwatch_model::{Headline, Incident, State};
use epwatch_proto::visible;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::HeaderMap;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio::time::timeout;
use url::form_urlencoded;

use super::audience::Audience;
use super::config::AlertmanagerConfig;
use super::error::NotifyError;
use super::expected::Expected;
use super::held_alerts::{HeldAlert, HeldAlerts, Labels};
use super::http::HttpChannel;
use super::links::Links;
use super::notifier::{Notification, Notifier};
use super::silences::Silences;
use super::test_page;
use super::text::{by, description, summary};

/// The alert that always fires.
const WATCHDOG: &str = "EpwatchWatchdog";

/// How long the watchdog and a test page last without being sent again: five repeats of the watchdog.
const SHORT: SignedDuration = SignedDuration::from_mins(5);

/// Time limit for the silence of one incident, because the other incidents' alerts wait for it.
const MAX_SILENCE_TIME: Duration = Duration::from_secs(10);

/// Matches alerts with a label `incident`, which epwatch's alerts have.
const OF_INCIDENTS: &str = r#"incident=~".+""#;

/// Sends incidents to one Alertmanager as alerts.
#[derive(Debug)]
pub(crate) struct Alertmanager {
    alerts: HttpChannel,
    held: HttpChannel,
    silences: Silences,
    audience: Audience,
    repeat_every: Duration,
    hold_for: SignedDuration,
    links: Links,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    labels: Labels,
    annotations: BTreeMap<&'static str, String>,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL", skip_serializing_if = "Option::is_none")]
    generator_url: Option<String>,
}

impl Alertmanager {
    /// Prepares requests; nothing is sent.
    pub(super) fn new(
        name: &str,
        config: &AlertmanagerConfig,
        links: Links,
    ) -> Result<Self, NotifyError> {
        let endpoint = format!("{}/api/v2/alerts", config.url.trim_end_matches('/'));
        let filter: String = form_urlencoded::byte_serialize(OF_INCIDENTS.as_bytes()).collect();
        Ok(Self {
            alerts: HttpChannel::new(name, &endpoint)?,
            silences: Silences::new(name, &config.url)?,
            held: HttpChannel::new(name, &format!("{endpoint}?filter={filter}"))?,
            audience: config.audience(),
            repeat_every: config.repeat_every.0,
            hold_for: SignedDuration::try_from(config.hold_for.0).unwrap_or(SignedDuration::MAX),
            links,
        })
    }

    async fn send(&self, alerts: &[Alert]) -> Result<(), NotifyError> {
        let json = serde_json::to_vec(alerts).expect("texts and times serialise");
        let expected = Expected::OK_WITHOUT_HTML;
        self.alerts.post(HeaderMap::new(), json, &expected).await
    }

    fn alerts(&self, incident: &Incident, now: Timestamp) -> Vec<Alert> {
        let Some(headline) = &incident.headline else {
            return Vec::new();
        };
        let starts_at = incident.fired_at.unwrap_or(incident.started_at);
        let ends_at = match (incident.state, incident.resolved_at) {
            (State::Resolved, Some(resolved_at)) => resolved_at,
            _ if incident.is_test() => later(now, SHORT),
            _ => later(now, self.hold_for),
        };
        let alert = |labels: Labels, ends_at: Timestamp| Alert {
            labels,
            annotations: self.annotations(incident, headline),
            starts_at: rfc3339(starts_at),
            ends_at: rfc3339(ends_at),
            generator_url: self.links.opened(incident),
        };
        let present = labels(incident, headline);
        let old = incident
            .superseded
            .as_ref()
            .map(|old| labels(incident, old));
        // A stronger verdict alone changes no label, and ending the old alert would end this one.
        let old = old.filter(|old| *old != present);
        let ended = old.map(|old| alert(old, now.min(ends_at)));
        ended.into_iter().chain([alert(present, ends_at)]).collect()
    }

    fn annotations(
        &self,
        incident: &Incident,
        headline: &Headline,
    ) -> BTreeMap<&'static str, String> {
        let orders = &incident.orders;
        let ack = orders.ack.as_ref().map(|ack| ("acknowledged", by(ack)));
        let mute = orders.mute.as_ref().map(|mute| ("muted", by(mute)));
        let always = [
            ("summary", summary(incident)),
            ("description", description(incident)),
            ("verdict", headline.class.to_string()),
            ("runbook_url", self.links.runbook_of(incident)),
        ];
        let opened = self.links.opened(incident);
        let opened = opened.map(|link| ("dashboard_url", link));
        let at_times = ack.into_iter().chain(mute).chain(opened);
        always.into_iter().chain(at_times).collect()
    }
}

impl HeldAlerts for Alertmanager {
    fn held_alerts(&self) -> BoxFuture<'_, Result<Vec<HeldAlert>, NotifyError>> {
        async move {
            let json = self.held.get().await?;
            serde_json::from_slice(&json).map_err(|source| NotifyError::Unreachable {
                channel: self.held.name().to_owned(),
                source: source.into(),
            })
        }
        .boxed()
    }

    fn is_of(&self, alert: &HeldAlert, incident: &Incident) -> bool {
        let headline = incident.headline.as_ref();
        let present = headline.map(|headline| labels(incident, headline));
        self.audience.takes(incident) && present.as_ref() == Some(&alert.labels)
    }

    fn end(&self, held: Vec<HeldAlert>, now: Timestamp) -> BoxFuture<'_, Result<(), NotifyError>> {
        let summary = "ended: the detector that started has no such incident";
        let ended = held.into_iter().map(|alert| Alert {
            labels: alert.labels,
            annotations: BTreeMap::from([("summary", summary.to_owned())]),
            starts_at: alert.starts_at,
            ends_at: rfc3339(now),
            generator_url: None,
        });
        let ended: Vec<Alert> = ended.collect();
        async move { self.send(&ended).await }.boxed()
    }

    fn send_watchdog(&self, now: Timestamp) -> BoxFuture<'_, Result<(), NotifyError>> {
        let summary = "A detector of epwatch runs. This alert always fires; page if it stops.";
        let labels = [("alertname", WATCHDOG), ("severity", "none")];
        let watchdog = Alert {
            labels: labels
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            annotations: BTreeMap::from([
                ("summary", summary.to_owned()),
                ("runbook_url", self.links.runbook(WATCHDOG)),
            ]),
            starts_at: rfc3339(now),
            ends_at: rfc3339(later(now, SHORT)),
            generator_url: None,
        };
        async move { self.send(&[watchdog]).await }.boxed()
    }
}

impl Notifier for Alertmanager {
    fn name(&self) -> &str {
        self.alerts.name()
    }

    fn audience(&self) -> Audience {
        self.audience.clone()
    }

    fn repeat_every(&self) -> Option<Duration> {
        Some(self.repeat_every)
    }

    fn held_alerts(&self) -> Option<&dyn HeldAlerts> {
        Some(self)
    }

    /// Posts an empty list of alerts.
    fn probe(&self, _now: Timestamp) -> BoxFuture<'_, Option<Result<(), NotifyError>>> {
        async move { Some(self.send(&[]).await) }.boxed()
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        async move {
            let incident = &notification.incident;
            self.send(&self.alerts(incident, now)).await?;
            if !incident.orders.was_muted {
                return Ok(());
            }
            let kept = timeout(MAX_SILENCE_TIME, self.silences.keep(incident, now)).await;
            let channel = || self.name().to_owned();
            let kept = kept.unwrap_or_else(|late| {
                Err(NotifyError::Unreachable {
                    channel: channel(),
                    source: late.into(),
                })
            });
            kept.map_err(|source| NotifyError::Silence {
                channel: channel(),
                source: source.into(),
            })
        }
        .boxed()
    }
}

/// Returns the labels of an incident's alert. Only severity and chipsets change while the incident lives. A different
/// set of labels is another alert, with its own notification.
fn labels(incident: &Incident, headline: &Headline) -> Labels {
    let model = &incident.key.model;
    let chipsets: Vec<&str> = headline.chipsets.iter().map(String::as_str).collect();
    let name = match incident.is_test() {
        true => test_page::ALERT,
        false => incident.key.cause.alert_name(),
    };
    let labels = [
        ("alertname", name),
        ("severity", headline.severity.as_str()),
        ("app", &model.app_id),
        ("environment", &model.environment),
        ("model", &model.model_id),
        ("model_version", &incident.key.model_version),
        ("chipset", &chipsets.join(",")),
        ("cause", incident.key.cause.as_str()),
        ("incident", &incident.id),
    ];
    // Silences, routes and receivers show labels, so a name must not contain characters that reverse the text around
    // it.
    labels
        .map(|(name, value)| (name.to_owned(), visible(value)))
        .into()
}

fn later(now: Timestamp, by: SignedDuration) -> Timestamp {
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}

pub(super) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}
