//! What Prometheus reads. Every report ends in exactly one outcome, and the outcomes of the wire
//! contract are the label's values. `docs/metrics.md` lists all metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use epwatch_proto::Outcome;
use epwatch_server::{Clock, open_metrics};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::front::refusal::CallRefusal;
use crate::ledger::LedgerOf;
use crate::rows::Dimension;
use crate::wal::{Wal, WeakWal};

/// Why a report is unproven: the values of a label.
const UNPROVEN: [&str; 2] = ["app", "network"];

/// Why connections are closed by us: the values of a label.
const CLOSED: [&str; 3] = ["handshake", "idle", "too_many"];

/// The tables whose rows are counted.
const TABLES: [&str; 2] = ["placements", "reports"];

/// What is asked of the store all the time.
const STORE_CALLS: [&str; 9] = [
    "batch",
    "collector_checkpoints",
    "directives",
    "known_installations",
    "loss_ledger",
    "report_outcomes",
    "rollup",
    "rollup_check",
    "tombstones",
];

type Labels = [(&'static str, &'static str); 1];

/// Calls by the name of their app key. Names are the operator's, so they are few.
pub(crate) type KeyRequests = Family<[(&'static str, String); 1], Counter>;

/// All metrics of one collector. Counters can be read as well: tests and the demo's ledger do.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Of others in this process, on the same page.
    beside: Mutex<Vec<Registry>>,
    outcomes: Vec<Counter>,
    requests_refused: Family<Labels, Counter>,
    pub(crate) requests: Counter,
    pub(crate) key_requests: KeyRequests,
    pub(crate) connections: Gauge,
    pub(crate) connections_closed: Family<Labels, Counter>,
    /// Reads of key and certificate files, by file and end.
    pub(crate) reloads: Family<Labels, Counter>,
    pub(crate) deletions: Counter,
    pub(crate) deletions_pending: Gauge,
    pub(crate) directives_live: Gauge,
    pub(crate) directives_sent: Counter,
    pub(crate) ack_seconds: Histogram,
    pub(crate) batches: Counter,
    pub(crate) rows: Family<Labels, Counter>,
    cardinality_limited: Family<Labels, Counter>,
    pub(crate) new_installations: Counter,
    unproven_reports: [Counter; 2],
    pub(crate) installations_read: Gauge,
    pub(crate) ledger_reports: LedgerOf,
    pub(crate) ledger_runs: LedgerOf,
    pub(crate) store_errors: Family<Labels, Counter>,
    /// Set by the writer alone: another's missing grant says nothing of reports.
    pub(crate) store_up: Gauge,
    pub(crate) wal_torn_tails: Counter,
    pub(crate) wal_skipped_bytes: Counter,
    pub(crate) wal_unreadable_reports: Counter,
    pub(crate) buckets_closed: Counter,
    pub(crate) buckets_left: Counter,
    pub(crate) progress: Arc<Progress>,
}

/// Counters of these values of a label; others join when they first count.
fn at_zero(label: &'static str, values: &[&'static str]) -> Family<Labels, Counter> {
    let family = Family::<Labels, Counter>::default();
    for value in values {
        drop(family.get_or_create(&[(label, *value)]));
    }
    family
}

/// How far the writer is, for the lag.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) checkpoint: AtomicU64,
    /// Everything received before this is in the store; microseconds since 1970.
    pub(crate) complete_until_us: AtomicU64,
}

impl Metrics {
    /// Registers everything at zero, so that a rate is there from the first event on.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("collector");
        let reports = Family::<Labels, Counter>::default();
        registry.register("reports", "Reports by how they ended", reports.clone());
        let counter = |outcome: &Outcome| {
            reports
                .get_or_create(&[("outcome", outcome.label())])
                .clone()
        };
        let outcomes = Outcome::ALL.iter().map(counter).collect();
        let requests = Counter::default();
        registry.register(
            "requests",
            "Requests on the devices' port, of all calls, refused ones too",
            requests.clone(),
        );
        let requests_refused = at_zero("reason", &CallRefusal::ALL.map(CallRefusal::label));
        registry.register(
            "requests_refused",
            "Requests refused as a whole, by reason",
            requests_refused.clone(),
        );
        let key_requests = KeyRequests::default();
        registry.register(
            "key_requests",
            "Calls by the configured name of the app key that they proved",
            key_requests.clone(),
        );
        let connections = Gauge::default();
        registry.register(
            "connections",
            "Open connections of devices",
            connections.clone(),
        );
        let connections_closed = at_zero("reason", &CLOSED);
        registry.register(
            "connections_closed",
            "Connections that we ended, by reason",
            connections_closed.clone(),
        );
        let reloads = at_zero("end", &["done", "failed"]);
        registry.register(
            "reloads",
            "Key and certificate files read again, by end",
            reloads.clone(),
        );
        let deletions = Counter::default();
        registry.register(
            "deletions",
            "Installations hidden from every view",
            deletions.clone(),
        );
        let deletions_pending = Gauge::default();
        registry.register(
            "deletions_pending",
            "Deletions that this collector promised and the store does not hide yet",
            deletions_pending.clone(),
        );
        let directives_live = Gauge::default();
        registry.register(
            "directives_live",
            "Directives that are handed out to those they match",
            directives_live.clone(),
        );
        let directives_sent = Counter::default();
        registry.register(
            "directives_sent",
            "Directives handed out",
            directives_sent.clone(),
        );
        let ack_seconds = Histogram::new(exponential_buckets(0.000_25, 2.0, 16));
        registry.register(
            "ack_seconds",
            "From a call's arrival to its answer, the sync included",
            ack_seconds.clone(),
        );
        let batches = Counter::default();
        registry.register("batches", "Batches stored", batches.clone());
        let rows = at_zero("table", &TABLES);
        registry.register("rows", "Rows stored by table", rows.clone());
        let cardinality_limited = Family::<Labels, Counter>::default();
        for dimension in Dimension::ALL {
            let _ = cardinality_limited.get_or_create(&[("dimension", dimension.label())]);
        }
        registry.register(
            "cardinality_limited",
            "Names beyond an app's limit, stored as __other__, by dimension",
            cardinality_limited.clone(),
        );
        let new_installations = Counter::default();
        registry.register(
            "new_installations",
            "New installations that were let in as proven",
            new_installations.clone(),
        );
        let unproven = at_zero("reason", &UNPROVEN);
        registry.register(
            "unproven_reports",
            "Reports without a vote: more new installations than the app or a network may have in a day",
            unproven.clone(),
        );
        let unproven_reports =
            UNPROVEN.map(|reason| unproven.get_or_create(&[("reason", reason)]).clone());
        let installations_read = Gauge::default();
        registry.register(
            "installations_read",
            "1 once the store's known installations were read; until then nobody is new",
            installations_read.clone(),
        );
        let (ledger_reports, ledger_runs) = (LedgerOf::default(), LedgerOf::default());
        for (name, help, gauges) in [
            (
                "loss_ledger_reports",
                "What became of reports, by app, environment, day and entry; of the whole store",
                &ledger_reports.entries,
            ),
            (
                "loss_ledger_runs",
                "What became of runs, by app, environment, day and entry; of the whole store",
                &ledger_runs.entries,
            ),
            (
                "loss_ledger_reports_by_reason",
                "Why reports were dropped on devices, and what collectors answered; of the whole store",
                &ledger_reports.reasons,
            ),
            (
                "loss_ledger_runs_by_reason",
                "Why runs were dropped on devices; of the whole store",
                &ledger_runs.reasons,
            ),
        ] {
            registry.register(name, help, gauges.clone());
        }
        let store_errors = at_zero("what", &STORE_CALLS);
        registry.register(
            "store_errors",
            "Failed calls to the store",
            store_errors.clone(),
        );
        let store_up = Gauge::default();
        registry.register(
            "store_up",
            "1 while the store takes what the writer sends: reports, and now and then how far it is",
            store_up.clone(),
        );
        let wal_torn_tails = Counter::default();
        registry.register(
            "wal_torn_tails",
            "Unfinished groups cut off at start; nothing of them was acknowledged",
            wal_torn_tails.clone(),
        );
        let wal_skipped_bytes = Counter::default();
        registry.register(
            "wal_skipped_bytes",
            "Bytes of the log that were damaged and passed over",
            wal_skipped_bytes.clone(),
        );
        let wal_unreadable_reports = Counter::default();
        registry.register(
            "wal_unreadable_reports",
            "Whole records of the log that this version cannot read",
            wal_unreadable_reports.clone(),
        );
        let buckets_closed = Counter::default();
        registry.register(
            "buckets_closed",
            "Summaries of buckets built",
            buckets_closed.clone(),
        );
        let buckets_left = Counter::default();
        registry.register(
            "buckets_left",
            "Closed buckets that a backlog came too late for: their summary stays as it was",
            buckets_left.clone(),
        );
        Self {
            registry,
            beside: Mutex::default(),
            outcomes,
            requests_refused,
            requests,
            key_requests,
            connections,
            connections_closed,
            reloads,
            deletions,
            deletions_pending,
            directives_live,
            directives_sent,
            ack_seconds,
            batches,
            rows,
            cardinality_limited,
            new_installations,
            unproven_reports,
            installations_read,
            ledger_reports,
            ledger_runs,
            store_errors,
            store_up,
            wal_torn_tails,
            wal_skipped_bytes,
            wal_unreadable_reports,
            buckets_closed,
            buckets_left,
            progress: Arc::default(),
        }
    }

    /// Adds what the log itself counts.
    pub(crate) fn watch_wal(&mut self, wal: &Wal, clock: Arc<dyn Clock>) {
        let progress = self.progress.clone();
        let wal = wal.downgrade();
        self.registry.register_collector(Box::new(WalMetrics {
            wal,
            progress,
            clock,
        }));
    }

    /// Shows another component's metrics on the same page.
    pub fn show_beside(&self, registry: Registry) {
        self.beside.lock().push(registry);
    }

    /// Counts a call that was refused as a whole.
    pub(crate) fn count_refusal(&self, reason: CallRefusal) {
        let labels = [("reason", reason.label())];
        self.requests_refused.get_or_create(&labels).inc();
    }

    pub(crate) fn note_closed(&self, reason: &'static str) {
        let labels = [("reason", reason)];
        self.connections_closed.get_or_create(&labels).inc();
    }

    pub(crate) fn limited(&self, dimension: Dimension) -> Counter {
        let labels = [("dimension", dimension.label())];
        self.cardinality_limited.get_or_create(&labels).clone()
    }

    /// Counts reports of more new installations than the app may have.
    pub(crate) fn beyond_app(&self) -> &Counter {
        &self.unproven_reports[0]
    }

    /// Counts reports of more new installations than a network may have.
    pub(crate) fn beyond_network(&self) -> &Counter {
        &self.unproven_reports[1]
    }

    /// Counts one report.
    pub(crate) fn count(&self, outcome: Outcome) {
        self.count_many(outcome, 1);
    }

    pub(crate) fn count_many(&self, outcome: Outcome, n_reports: u64) {
        if let Some(index) = Outcome::ALL.iter().position(|known| *known == outcome) {
            self.outcomes[index].inc_by(n_reports);
        }
    }

    /// Returns how many reports ended so.
    #[must_use]
    pub fn n_reports(&self, outcome: Outcome) -> u64 {
        Outcome::ALL
            .iter()
            .position(|known| *known == outcome)
            .map_or(0, |at| self.outcomes[at].get())
    }

    /// Returns everything in the OpenMetrics text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let beside = self.beside.lock();
        open_metrics(std::iter::once(&self.registry).chain(&*beside))
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Asks the log when Prometheus asks.
#[derive(Debug)]
struct WalMetrics {
    wal: WeakWal,
    progress: Arc<Progress>,
    clock: Arc<dyn Clock>,
}

impl Collector for WalMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some((stats, is_writable)) = self.wal.stats() else {
            return Ok(());
        };
        let lag_bytes = stats
            .end
            .saturating_sub(self.progress.checkpoint.load(Relaxed));
        let complete_until_us = self.progress.complete_until_us.load(Relaxed);
        let lag_us = self.clock.now_us().saturating_sub(complete_until_us);
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let gauges = [
            (
                "wal_held_bytes",
                "Bytes in the log, the stored ones not yet removed",
                stats.held_bytes,
            ),
            (
                "wal_in_flight_bytes",
                "Bytes that wait for the disk",
                stats.in_flight_bytes,
            ),
            ("wal_lag_bytes", "Bytes that wait for the store", lag_bytes),
            (
                "wal_writable",
                "1 while reports can be taken",
                u64::from(is_writable),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(signed(value));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let lag_us = if complete_until_us == 0 { 0 } else { lag_us };
        let seconds = [
            (
                "wal_lag_seconds",
                "Age of the time up to which the store is complete",
                lag_us,
            ),
            (
                "wal_ahead_seconds",
                "How far receive times are ahead of this machine's clock, which was wrong or is",
                stats.ahead_us,
            ),
        ];
        for (name, help, us) in seconds {
            #[expect(clippy::cast_precision_loss, reason = "microseconds of a gauge")]
            let gauge = ConstGauge::new(us as f64 / 1e6);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let counters = [
            (
                "wal_groups",
                "Groups made durable, one sync each",
                stats.groups,
            ),
            ("wal_records", "Records made durable", stats.records),
            (
                "wal_failed_groups",
                "Groups that could not be written",
                stats.failed_groups,
            ),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a counter")]
        let sync = ConstCounter::new(stats.sync_us as f64 / 1e6);
        let help = "Time spent writing and syncing groups";
        sync.encode(encoder.encode_descriptor(
            "wal_sync_seconds",
            help,
            None,
            sync.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_there_from_the_start_and_count() {
        let metrics = Metrics::new();
        metrics.count(Outcome::Stored);
        metrics.count_many(Outcome::RefusedMalformed, 2);
        let text = metrics.encode();
        for line in [
            "collector_reports_total{outcome=\"stored\"} 1",
            "collector_reports_total{outcome=\"refused_malformed\"} 2",
            "collector_reports_total{outcome=\"duplicate\"} 0",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn another_s_metrics_stand_on_the_same_page() {
        let metrics = Metrics::new();
        let (mut registry, counter) = (Registry::with_prefix("other"), Counter::<u64>::default());
        registry.register("events", "Events", counter.clone());
        metrics.show_beside(registry);
        counter.inc();
        let text = metrics.encode();
        assert!(text.contains("other_events_total 1\n"), "{text}");
        assert_eq!(text.matches("# EOF").count(), 1);
    }
}
