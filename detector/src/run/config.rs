//! The detector's part of the config file: every key with its default, and a check that returns all problems
//! at once. The command reads the file and the environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use epwatch_model::ModelKey;
use epwatch_server::{Period, Problems};
use serde::{Deserialize, Serialize};

use crate::judge::cv_rules::{self, CvRule};
use crate::judge::deadline::{self, Deadline};
use crate::notify::{AlertmanagerConfig, PagerDutyConfig, SlackConfig, WebhookConfig, check_url};

/// Windows, channels and rules of the detector. Skipped fields have no key in the file, because operators need not tune
/// them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DetectorConfig {
    /// Length of a window, by receive time: whole buckets.
    pub window: Period,
    /// How often a window is judged.
    pub step: Period,
    /// Length of the past that supplies earlier runs, placements and healthy windows.
    pub lookback: Period,
    /// Address of the admin endpoint of `epwatch detector`. Under `epwatch serve` the collector's endpoint
    /// has the detector's metrics too.
    pub http_listen: SocketAddr,
    /// Number of cohorts whose verdicts are metrics, the most severe and the largest first; none by default. Each
    /// cohort is five series.
    pub cohort_metrics: usize,
    /// Address that notifications link. With `{incident}` in place of the incident's id it is the built-in page's
    /// address. Without it, the address is a dashboard's, and app, model and chipsets are added as variables.
    pub dashboard_url: Option<String>,
    /// Address at which people on call reach `docs/oncall.md`, for links in notifications. The verdict is added as the
    /// fragment.
    pub runbook_url: Option<String>,
    /// Address that is posted to after each evaluation.
    pub heartbeat: HeartbeatConfig,
    /// File that `epwatch detector calibrate` wrote: the share of healthy devices of this fleet that each
    /// signal hits. Without it the built-in rates apply.
    pub rates_file: Option<PathBuf>,
    /// Alertmanagers to notify.
    pub alertmanager: Vec<AlertmanagerConfig>,
    /// PagerDuty integrations to notify.
    pub pagerduty: Vec<PagerDutyConfig>,
    /// Slack channels to notify.
    pub slack: Vec<SlackConfig>,
    /// Webhooks of the operator's to notify.
    pub webhook: Vec<WebhookConfig>,
    /// Rules on the CV of all runs, as `[[detector.cv_rules]]`; none by default.
    pub cv_rules: Vec<CvRule>,
    /// Models that belong on the NPU, as `[[detector.expects_npu]]`; none by default.
    pub expects_npu: Vec<ExpectsNpu>,
    /// Deadlines of models, as `[[detector.deadlines]]`; none by default.
    pub deadlines: Vec<Deadline>,
    /// Whether notifications are written to standard output as text.
    pub stdout: bool,
    /// Length of a bucket: the collector's `rollup.bucket`, which the command sets here too.
    #[serde(skip)]
    pub bucket: Period,
    /// How long a report may take from its receipt into the store; by default it follows the step.
    #[serde(skip)]
    pub ingest_delay: Option<Period>,
    /// The collector's `batch.period`, which the command sets here too.
    #[serde(skip)]
    pub batch_period: Period,
    /// Time without a beat after which another detector takes over. A beat is sent every quarter of it.
    #[serde(skip)]
    pub lease: Period,
    /// Votes of one model held in memory, about 300 bytes each. A model with more is not judged, and the
    /// log says so.
    #[serde(skip)]
    pub max_votes: usize,
}

/// A service that pages when the posts stop, as `[detector.heartbeat]`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeartbeatConfig {
    /// The address, for example of a check at healthchecks.io; without it nothing is posted.
    pub url: Option<String>,
}

/// A model that belongs on the NPU wherever the app requests it. If it is not there, a page needs no reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectsNpu {
    /// The app id.
    pub app: String,
    /// The model id.
    pub model: String,
}

impl Default for DetectorConfig {
    fn default() -> Self {
        Self {
            // A day, so that a device that runs a few times a day has a vote.
            window: Period(Duration::from_secs(24 * 3600)),
            step: Period(Duration::from_secs(3600)),
            bucket: Period(Duration::from_secs(3600)),
            ingest_delay: None,
            batch_period: Period(Duration::from_secs(1)),
            lease: Period(Duration::from_secs(20)),
            lookback: Period(Duration::from_secs(14 * 24 * 3600)),
            max_votes: 2_000_000,
            http_listen: SocketAddr::from(([127, 0, 0, 1], 4719)),
            cohort_metrics: 0,
            dashboard_url: None,
            runbook_url: None,
            heartbeat: HeartbeatConfig::default(),
            rates_file: None,
            alertmanager: Vec::new(),
            pagerduty: Vec::new(),
            slack: Vec::new(),
            webhook: Vec::new(),
            cv_rules: Vec::new(),
            expects_npu: Vec::new(),
            deadlines: Vec::new(),
            stdout: true,
        }
    }
}

impl DetectorConfig {
    /// Returns the configuration of the demo, which lasts minutes: buckets of a second, windows of three seconds.
    #[must_use]
    pub fn for_demo() -> Self {
        Self {
            window: Period(Duration::from_secs(3)),
            // As long as the window, because a step of a second would keep two cores busy with evaluations.
            step: Period(Duration::from_secs(3)),
            bucket: Period(Duration::from_secs(1)),
            ingest_delay: Some(Period(Duration::from_secs(2))),
            lease: Period(Duration::from_secs(4)),
            lookback: Period(Duration::from_secs(600)),
            ..Self::default()
        }
    }

    /// Returns the time from a window's end until it is judged, in which its last reports reach the store. It is two
    /// minutes for steps of an hour, a thirtieth of a shorter step, and at least two of the collector's batches.
    #[must_use]
    pub fn wait(&self) -> Duration {
        let by_step = (self.step.0 / 30).clamp(Duration::from_secs(2), Duration::from_secs(120));
        let derived = by_step.max(2 * self.batch_period.0);
        self.ingest_delay.map_or(derived, |period| period.0)
    }

    /// Checks every key.
    ///
    /// # Errors
    /// Every problem, with its key.
    pub fn validate(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        let Self {
            window,
            step,
            bucket,
            lookback,
            ..
        } = self;
        for (key, period) in [
            ("window", window),
            ("step", step),
            ("bucket", bucket),
            ("lookback", lookback),
        ] {
            let is_whole = period.0.subsec_nanos() == 0 && !period.0.is_zero();
            problems.check(key, is_whole, || {
                format!("{period} is not a whole number of seconds above 0")
            });
        }
        let bucket_s = bucket.0.as_secs().max(1);
        let is_multiple = window.0.as_secs().is_multiple_of(bucket_s);
        problems.check("window", is_multiple, || {
            format!("{window} is not a multiple of bucket {bucket}")
        });
        problems.check("step", step <= window, || {
            format!(
                "{step} is longer than window {window}: reports in between would never be judged"
            )
        });
        problems.check("step", step >= bucket, || {
            format!("{step} is shorter than bucket {bucket}: windows would repeat")
        });
        problems.check("lookback", lookback >= window, || {
            format!("{lookback} is shorter than window {window}")
        });
        for (key, url) in [
            ("dashboard_url", &self.dashboard_url),
            ("runbook_url", &self.runbook_url),
            ("heartbeat.url", &self.heartbeat.url),
        ] {
            url.iter()
                .for_each(|url| check_url(&mut problems, key, url));
        }
        for (at, channel) in self.alertmanager.iter().enumerate() {
            let key = format!("alertmanager[{at}].url");
            check_url(&mut problems, &key, &channel.url);
        }
        for (at, channel) in self.pagerduty.iter().enumerate() {
            check_url(&mut problems, &format!("pagerduty[{at}].url"), &channel.url);
        }
        for (at, channel) in self.webhook.iter().enumerate() {
            check_url(&mut problems, &format!("webhook[{at}].url"), &channel.url);
        }
        cv_rules::check(&self.cv_rules, &mut problems);
        for (at, expected) in self.expects_npu.iter().enumerate() {
            for (key, name) in [("app", &expected.app), ("model", &expected.model)] {
                let key = format!("expects_npu[{at}].{key}");
                problems.check(&key, !name.is_empty(), || "must not be empty".to_owned());
            }
        }
        deadline::check(&self.deadlines, &mut problems);
        problems.into_result()
    }

    /// Returns the deadline of a model, in milliseconds.
    pub(crate) fn deadline_ms(&self, model: &ModelKey) -> Option<f64> {
        let mut deadlines = self.deadlines.iter();
        let its_own = deadlines.find(|one| one.app == model.app_id && one.model == model.model_id);
        its_own.map(|one| one.deadline_ms)
    }

    /// Whether a model belongs on the NPU.
    pub(crate) fn expects_npu(&self, model: &ModelKey) -> bool {
        let mut expected = self.expects_npu.iter();
        expected.any(|expected| expected.app == model.app_id && expected.model == model.model_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_the_demo_are_valid() {
        assert_eq!(DetectorConfig::default().validate(), Ok(()));
        assert_eq!(DetectorConfig::for_demo().validate(), Ok(()));
    }

    #[test]
    fn everything_wrong_is_named_at_once() {
        let config = DetectorConfig {
            window: Period(Duration::from_millis(2_500)),
            step: Period(Duration::from_secs(5)),
            bucket: Period(Duration::from_secs(2)),
            lookback: Period(Duration::from_secs(1)),
            expects_npu: vec![ExpectsNpu {
                app: "camera".into(),
                model: String::new(),
            }],
            alertmanager: vec![AlertmanagerConfig::new("localhost:9093")],
            ..DetectorConfig::default()
        };
        let mut keys: Vec<String> = config
            .validate()
            .unwrap_err()
            .0
            .into_iter()
            .map(|problem| problem.key)
            .collect();
        keys.dedup();
        let expected = [
            "window",
            "step",
            "lookback",
            "alertmanager[0].url",
            "expects_npu[0].model",
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
        // The collector's key sets the length of buckets for both, so the detector has none.
        assert!(read(r#"{"bucket": "1h"}"#).is_err());
    }
}
