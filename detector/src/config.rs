//! The detector's part of the config file: every key with its default, and all that can be wrong
//! with them at once. Reading the file and the environment is the command's work.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cv_rules::{self, CvRule};
use crate::notify::{AlertmanagerConfig, PagerDutyConfig, SlackConfig, WebhookConfig, parse_url};
use crate::period::Period;

/// What the detector looks at, how often, and whom it tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DetectorConfig {
    /// Length of a window, by receive time: whole buckets.
    pub window: Period,
    /// How often a window is judged.
    pub step: Period,
    /// Length of a bucket, as the collector has it.
    pub bucket: Period,
    /// How long a report may take from its receipt into the store.
    pub ingest_delay: Period,
    /// How far back earlier runs, placements and healthy windows are looked for.
    pub lookback: Period,
    /// Votes of one model that are held in memory, about 300 bytes each; beyond it the model is not
    /// judged, and the log says so.
    pub max_votes: usize,
    /// Where `/metrics`, `/healthz` and `/readyz` of `epwatch detector` are. `serve` shows the
    /// detector's metrics on the collector's page.
    pub http_listen: SocketAddr,
    /// A dashboard that shows a cohort, for links in notifications; the app, model and chipsets are
    /// added as variables.
    pub dashboard_url: Option<String>,
    /// What `epwatch detector calibrate` wrote: how often healthy devices of this fleet are hit.
    /// Without it the built-in rates hold.
    pub rates_file: Option<PathBuf>,
    /// Alertmanagers to tell.
    pub alertmanager: Vec<AlertmanagerConfig>,
    /// PagerDuty integrations to tell.
    pub pagerduty: Vec<PagerDutyConfig>,
    /// Slack channels to tell.
    pub slack: Vec<SlackConfig>,
    /// Webhooks of one's own to tell.
    pub webhook: Vec<WebhookConfig>,
    /// Rules on the CV of all runs, as `[[detector.cv_rules]]`; none by default.
    pub cv_rules: Vec<CvRule>,
    /// Whether notifications are written to standard output as text.
    pub stdout: bool,
}

impl Default for DetectorConfig {
    fn default() -> Self {
        Self {
            // A device that runs a few times a day still has a vote.
            window: Period(Duration::from_secs(24 * 3600)),
            step: Period(Duration::from_secs(3600)),
            bucket: Period(Duration::from_secs(3600)),
            ingest_delay: Period(Duration::from_secs(120)),
            lookback: Period(Duration::from_secs(14 * 24 * 3600)),
            max_votes: 2_000_000,
            http_listen: SocketAddr::from(([127, 0, 0, 1], 4719)),
            dashboard_url: None,
            rates_file: None,
            alertmanager: Vec::new(),
            pagerduty: Vec::new(),
            slack: Vec::new(),
            webhook: Vec::new(),
            cv_rules: Vec::new(),
            stdout: true,
        }
    }
}

/// One thing wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The key below `detector`.
    pub key: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl std::fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

impl DetectorConfig {
    /// Returns the configuration for a demonstration of some minutes: buckets of a second, windows
    /// of three.
    #[must_use]
    pub fn for_demo() -> Self {
        Self {
            window: Period(Duration::from_secs(3)),
            step: Period(Duration::from_secs(1)),
            bucket: Period(Duration::from_secs(1)),
            ingest_delay: Period(Duration::from_secs(2)),
            lookback: Period(Duration::from_secs(600)),
            ..Self::default()
        }
    }

    /// Returns everything that is wrong, at once.
    #[must_use]
    pub fn validate(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: String| {
            problems.push(ConfigProblem {
                key: key.to_owned(),
                problem,
            });
        };
        let whole_seconds = |period: Period| period.0.subsec_nanos() == 0 && !period.0.is_zero();
        for (key, period) in [
            ("window", self.window),
            ("step", self.step),
            ("bucket", self.bucket),
            ("lookback", self.lookback),
        ] {
            if !whole_seconds(period) {
                wrong(
                    key,
                    format!("{period} is not a whole number of seconds above 0"),
                );
            }
        }
        let bucket = self.bucket.0.as_secs().max(1);
        if !self.window.0.as_secs().is_multiple_of(bucket) {
            wrong(
                "window",
                format!(
                    "{} is not a multiple of bucket {}",
                    self.window, self.bucket
                ),
            );
        }
        if self.step > self.window {
            let problem = format!(
                "{} is longer than window {}: reports in between would never be judged",
                self.step, self.window
            );
            wrong("step", problem);
        }
        if self.step < self.bucket {
            let problem = format!(
                "{} is shorter than bucket {}: windows would repeat",
                self.step, self.bucket
            );
            wrong("step", problem);
        }
        if self.lookback < self.window {
            wrong(
                "lookback",
                format!("{} is shorter than window {}", self.lookback, self.window),
            );
        }
        if self.max_votes == 0 {
            wrong("max_votes", "must be at least 1".to_owned());
        }
        for (key, url) in self.addresses() {
            if parse_url(&url).is_none() {
                wrong(&key, "is no http or https address".to_owned());
            }
        }
        for (key, period) in self.channel_periods() {
            if period.0.is_zero() {
                wrong(&key, "must be above 0".to_owned());
            }
        }
        problems.extend(cv_rules::validate(&self.cv_rules));
        problems
    }

    /// Every address that stands in the configuration, by key.
    fn addresses(&self) -> Vec<(String, String)> {
        let mut addresses = Vec::new();
        let mut add = |key: String, url: &str| addresses.push((key, url.to_owned()));
        if let Some(url) = &self.dashboard_url {
            add("dashboard_url".to_owned(), url);
        }
        for (at, channel) in self.alertmanager.iter().enumerate() {
            add(format!("alertmanager[{at}].url"), &channel.url);
        }
        for (at, channel) in self.pagerduty.iter().enumerate() {
            add(format!("pagerduty[{at}].url"), &channel.url);
        }
        for (at, channel) in self.webhook.iter().enumerate() {
            add(format!("webhook[{at}].url"), &channel.url);
        }
        addresses
    }

    /// How often and how long channels are tried, by key.
    fn channel_periods(&self) -> Vec<(String, Period)> {
        let mut periods = Vec::new();
        for (at, channel) in self.alertmanager.iter().enumerate() {
            let repeat = format!("alertmanager[{at}].repeat_every");
            periods.push((repeat, channel.repeat_every));
            periods.push((format!("alertmanager[{at}].timeout"), channel.timeout));
        }
        for (at, channel) in self.pagerduty.iter().enumerate() {
            periods.push((format!("pagerduty[{at}].timeout"), channel.timeout));
        }
        for (at, channel) in self.slack.iter().enumerate() {
            periods.push((format!("slack[{at}].timeout"), channel.timeout));
        }
        for (at, channel) in self.webhook.iter().enumerate() {
            periods.push((format!("webhook[{at}].timeout"), channel.timeout));
        }
        periods
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_the_demo_are_valid() {
        assert_eq!(DetectorConfig::default().validate(), []);
        assert_eq!(DetectorConfig::for_demo().validate(), []);
    }

    #[test]
    fn everything_wrong_is_named_at_once() {
        let config = DetectorConfig {
            window: Period(Duration::from_millis(2_500)),
            step: Period(Duration::from_secs(5)),
            bucket: Period(Duration::from_secs(2)),
            lookback: Period(Duration::from_secs(1)),
            max_votes: 0,
            alertmanager: vec![AlertmanagerConfig {
                timeout: Period(Duration::ZERO),
                ..AlertmanagerConfig::new("localhost:9093")
            }],
            ..DetectorConfig::default()
        };
        let mut keys: Vec<String> = config
            .validate()
            .into_iter()
            .map(|problem| problem.key)
            .collect();
        keys.dedup();
        let expected = [
            "window",
            "step",
            "lookback",
            "max_votes",
            "alertmanager[0].url",
            "alertmanager[0].timeout",
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn unknown_keys_are_refused() {
        let read = |json| serde_json::from_str::<DetectorConfig>(json);
        assert!(read(r#"{"window": "12h", "alertmanager": [{"url": "http://a"}]}"#).is_ok());
        let error = read(r#"{"windows": "12h"}"#).unwrap_err().to_string();
        assert!(error.contains("windows"), "{error}");
        assert!(read(r#"{"alertmanager": [{"url": "http://a", "ulr": ""}]}"#).is_err());
    }
}
