//! The metrics of one detector. `docs/metrics.md` lists them; a test compares the two.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use epwatch_model::{FailedAttempts, VerdictClass, named};
use epwatch_server::{AdminPages, MetricTable, open_metrics};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Prefix of every name.
const PREFIX: &str = "epwatch_detector";

named! {
    /// The result of one attempt to notify.
    pub(crate) enum Delivery {
        /// The receiver accepted it.
        Delivered = "delivered",
        /// The receiver accepted news that it had accepted before. Alertmanager's alerts are sent again until the
        /// incident ends.
        Repeated = "repeated",
        /// It failed and will be tried again.
        Failed = "failed",
        /// The receiver rejected it: an address, a key or a proxy is wrong. It is tried again with growing pauses.
        Refused = "refused",
    }
}

type VerdictLabels = [(&'static str, &'static str); 1];
type NotificationLabels = [(&'static str, String); 2];
type FailingLabels = [(&'static str, String); 2];
type NotifierLabels = [(&'static str, String); 1];

/// All metrics of one detector.
#[derive(Debug)]
pub struct Metrics {
    windows: Family<VerdictLabels, Counter>,
    evaluation_seconds: Histogram,
    failures: Counter,
    notifications: Family<NotificationLabels, Counter>,
    last_evaluation: Gauge<f64, AtomicU64>,
    open_incidents: Gauge,
    /// Their names.
    notifiers: Mutex<BTreeSet<String>>,
    failing_attempts: Family<FailingLabels, Gauge>,
    failing_since: Family<NotifierLabels, Gauge<f64, AtomicU64>>,
    unreadable_incidents: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        // Counters start at zero, so that rates exist from the first window on.
        let windows = Family::<VerdictLabels, Counter>::default();
        for class in VerdictClass::ALL {
            drop(windows.get_or_create(&[("verdict", class.as_str())]));
        }
        Self {
            windows,
            // 10 ms to about 3 minutes.
            evaluation_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 15)),
            failures: Counter::default(),
            notifications: Family::default(),
            last_evaluation: Gauge::default(),
            open_incidents: Gauge::default(),
            notifiers: Mutex::default(),
            failing_attempts: Family::default(),
            failing_since: Family::default(),
            unreadable_incidents: Gauge::default(),
        }
    }
}

impl Metrics {
    /// Returns a registry of all of them.
    #[must_use]
    pub fn registry(&self) -> Registry {
        let mut table = MetricTable::new(PREFIX);
        let windows = "Cohort windows judged, by verdict";
        table.add_metric("windows", windows, self.windows.clone());
        let evaluation = "Time one evaluation of all cohorts took";
        let seconds = self.evaluation_seconds.clone();
        table.add_metric("evaluation_seconds", evaluation, seconds);
        let failures = "Models, or whole evaluations, that could not be judged";
        table.add_metric("evaluation_failures", failures, self.failures.clone());
        let notifications = "Attempts to notify, by notifier and result";
        table.add_metric("notifications", notifications, self.notifications.clone());
        let last = "End of the last window that was judged, since 1970";
        let name = "last_evaluation_timestamp_seconds";
        table.add_metric(name, last, self.last_evaluation.clone());
        let open = "Incidents pending, firing or mitigated";
        table.add_metric("open_incidents", open, self.open_incidents.clone());
        let failing = "Attempts to notify that failed since the last one that was taken, with the last answer";
        let attempts = self.failing_attempts.clone();
        table.add_metric("failing_notifications", failing, attempts);
        let since = "Time of the first of these attempts, since 1970";
        let name = "failing_since_timestamp_seconds";
        table.add_metric(name, since, self.failing_since.clone());
        let unreadable = "Stored incidents that another version made and this one cannot read";
        let gauge = self.unreadable_incidents.clone();
        table.add_metric("unreadable_incidents", unreadable, gauge);
        table.into_registry()
    }

    pub(crate) fn admin_pages(self: &Arc<Self>) -> AdminPages {
        let metrics = self.clone();
        AdminPages {
            metrics: Box::new(move || open_metrics(&[metrics.registry()])),
            // `Judging` has its own check in the set of tasks.
            not_ready: Box::new(Vec::new),
        }
    }

    pub(crate) fn judged(&self, class: VerdictClass) {
        self.windows
            .get_or_create(&[("verdict", class.as_str())])
            .inc();
    }

    pub(crate) fn evaluated(&self, seconds: f64, window_end_s: f64) {
        self.took(seconds);
        self.last_evaluation.set(window_end_s);
    }

    /// Notes the time of an evaluation of an earlier window.
    pub(crate) fn took(&self, seconds: f64) {
        self.evaluation_seconds.observe(seconds);
    }

    pub(crate) fn failed(&self, models: u64) {
        self.failures.inc_by(models);
    }

    pub(crate) fn set_open_incidents(&self, open: usize) {
        self.open_incidents
            .set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    /// Shows the attempts that fail at present, by the notifier's name. A notifier that delivers has 0, without an answer.
    pub(crate) fn set_failing(&self, failing: &BTreeMap<String, FailedAttempts>) {
        self.failing_attempts.clear();
        self.failing_since.clear();
        for name in self.notifiers.lock().iter() {
            let of = failing.get(name);
            let answer = of.map_or_else(String::new, |of| of.answer.clone());
            let times = of.map_or(0, |of| i64::try_from(of.times).unwrap_or(i64::MAX));
            let since = of.map_or(0, |of| of.since.as_second());
            let labels = [("notifier", name.clone()), ("answer", answer)];
            self.failing_attempts.get_or_create(&labels).set(times);
            self.failing_since
                .get_or_create(&[("notifier", name.clone())])
                .set(since as f64);
        }
    }

    pub(crate) fn set_unreadable_incidents(&self, n: usize) {
        self.unreadable_incidents
            .set(i64::try_from(n).unwrap_or(i64::MAX));
    }

    /// Starts a notifier's counters at zero, so that rates exist from its first attempt on.
    pub(crate) fn begin_notifier(&self, notifier: &str) {
        for result in Delivery::ALL {
            drop(self.notifications(notifier, *result));
        }
        self.notifiers.lock().insert(notifier.to_owned());
        self.set_failing(&BTreeMap::new());
    }

    pub(crate) fn notified(&self, notifier: &str, result: Delivery) {
        self.notifications(notifier, result).inc();
    }

    /// Returns the number of models, or whole evaluations, that could not be judged.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    pub(crate) fn notifications(&self, notifier: &str, result: Delivery) -> Counter {
        let labels = [
            ("notifier", notifier.to_owned()),
            ("result", result.as_str().to_owned()),
        ];
        self.notifications.get_or_create(&labels).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_that_fails_shows_its_answer_until_it_delivers() {
        let metrics = Metrics::default();
        metrics.begin_notifier("slack");
        let page = || open_metrics(&[metrics.registry()]);
        let since = crate::testing::at(0);
        let failing = FailedAttempts {
            since,
            times: 14,
            answer: "404".into(),
        };
        metrics.set_failing(&BTreeMap::from([("slack".to_owned(), failing)]));
        let row = "epwatch_detector_failing_notifications{notifier=\"slack\",answer=";
        assert!(
            page().contains(&format!("{row}\"404\"}} 14\n")),
            "{}",
            page()
        );
        metrics.set_failing(&BTreeMap::new());
        assert!(page().contains(&format!("{row}\"\"}} 0\n")), "{}", page());
        assert!(!page().contains("\"404\""), "{}", page());
    }

    #[test]
    fn names_and_labels_are_what_dashboards_ask_for() {
        let metrics = Metrics::default();
        let registry = metrics.registry();
        metrics.judged(VerdictClass::Healthy);
        metrics.evaluated(0.2, 1_800_000_000.0);
        metrics.failed(1);
        metrics.set_open_incidents(2);
        metrics.notified("pager", Delivery::Refused);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "epwatch_detector_windows_total{verdict=\"healthy\"} 1",
            "epwatch_detector_evaluation_seconds_count 1",
            "epwatch_detector_evaluation_failures_total 1",
            "epwatch_detector_notifications_total{notifier=\"pager\",result=\"refused\"} 1",
            "epwatch_detector_last_evaluation_timestamp_seconds 1800000000.0",
            "epwatch_detector_open_incidents 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
