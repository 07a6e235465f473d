//! The metrics of one collector. `docs/metrics.md` lists them, and a test compares the two.
//!
//! Each report ends in exactly one outcome. The label's values are the outcomes of the wire contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use epwatch_proto::Outcome;
use epwatch_server::{Clock, Label, MetricReading, MetricTable, ReadValue, Scraped, open_metrics};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::config::CollectorConfig;
use crate::encode::Dimension;
use crate::ingest::shares::SharedSpace;
use crate::server::reject_reason::RejectReason;
use crate::wal::{Wal, WalStats};

/// Prefix of every name.
const PREFIX: &str = "epwatch_collector";

/// Reasons why a report is unproven.
const UNPROVEN: [&str; 2] = ["app", "network"];

/// Findings about the WAL's folder at start.
const WAL_FINDINGS: [&str; 3] = ["checkpoint_lost", "older_than_store", "stray_file"];

/// Periodic calls to the store.
const STORE_CALLS: [&str; 12] = [
    "batch",
    "collector_checkpoints",
    "directives",
    "known_installations",
    "loss_ledger",
    "names",
    "rebuild",
    "report_outcomes",
    "rollup",
    "rollup_check",
    "store_size",
    "tombstones",
];

/// Calls by the name of their app key, and whether the key was accepted. The operator chooses the names, so they are few.
pub(crate) type KeyRequests = Family<[(&'static str, String); 2], Counter>;

/// Calls and refused reports by app key.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyMetrics {
    pub(crate) requests: KeyRequests,
    /// Refused reports by key and outcome.
    pub(crate) refused_reports: KeyRequests,
    /// The number of keys that are not revoked.
    pub(crate) n_keys: Gauge,
}

/// The labels `app`, `environment`, `day` and `entry`; gauges by reason also have `reason`.
pub(crate) type LedgerLabels = Vec<(&'static str, String)>;
pub(crate) type LedgerGauges = Family<LedgerLabels, Gauge>;

/// The gauges of one view of the loss ledger.
#[derive(Debug)]
pub(crate) struct LossLedgerGauges {
    pub(crate) entries: LedgerGauges,
    pub(crate) reasons: LedgerGauges,
}

/// All metrics of one collector. Tests and the demo read counters too.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Registries of other components, shown on the same page.
    others: Mutex<Vec<Registry>>,
    outcomes: Vec<Counter>,
    requests_refused: Family<Label, Counter>,
    pub(crate) requests: Counter,
    pub(crate) keys: KeyMetrics,
    pub(crate) connections: Gauge,
    pub(crate) connections_closed: Family<Label, Counter>,
    pub(crate) reloads: Family<Label, Counter>,
    pub(crate) files_current: Family<Label, Gauge>,
    pub(crate) tls_not_before: Gauge,
    pub(crate) tls_not_after: Gauge,
    pub(crate) tls_client_ca_not_after: Gauge,
    pub(crate) connections_max: Gauge,
    pub(crate) wal_max_bytes: Gauge,
    pub(crate) wal_min_free_bytes: Gauge,
    pub(crate) store_disk_bytes: Gauge,
    pub(crate) store_disk_free_bytes: Gauge,
    pub(crate) deletions: Counter,
    pub(crate) deletions_pending: Gauge,
    pub(crate) deletions_waiting: Gauge,
    pub(crate) deletions_unknown_refused: Counter,
    pub(crate) directives_live: Gauge,
    pub(crate) directives_sent: Counter,
    pub(crate) ack_seconds: Histogram,
    pub(crate) rows: Family<Label, Counter>,
    cardinality_limited: Family<Label, Counter>,
    pub(crate) new_installations: Counter,
    pub(crate) reports_weighed: Counter,
    pub(crate) reports_unweighed: Counter,
    pub(crate) series_dropped: Counter,
    pub(crate) share_refused_reports: Family<Label, Counter>,
    unproven_reports: [Counter; 2],
    pub(crate) installations_loaded: Gauge,
    pub(crate) ledger_reports: LossLedgerGauges,
    pub(crate) ledger_runs: LossLedgerGauges,
    pub(crate) store_errors: Family<Label, Counter>,
    /// Only the writer sets it, because another call may fail for a missing grant while reports are stored.
    pub(crate) store_up: Gauge,
    pub(crate) wal_torn_tails: Counter,
    pub(crate) wal_repairs: Family<Label, Counter>,
    pub(crate) wal_skipped_bytes: Counter,
    pub(crate) wal_unreadable_reports: Counter,
    pub(crate) buckets_closed: Counter,
    pub(crate) buckets_incomplete: Counter,
    pub(crate) progress: Arc<WriterProgress>,
}

/// Progress of the writer, for the gauges of lag.
#[derive(Debug, Default)]
pub(crate) struct WriterProgress {
    pub(crate) checkpoint: AtomicU64,
    /// Reports received before this time are in the store. The time is in microseconds since 1970.
    pub(crate) complete_until_us: AtomicU64,
    /// Time since which the oldest closed bucket has waited for its summary to be built again; 0 if none waits.
    pub(crate) rebuild_since_us: AtomicU64,
}

impl Metrics {
    /// Registers all metrics at zero, so that rates exist from the first event.
    #[must_use]
    pub fn new() -> Self {
        let mut table = MetricTable::new(PREFIX);
        let outcomes = Outcome::ALL.iter().map(|outcome| outcome.label());
        let reports =
            table.add_counters("reports", "Reports by how they ended", "outcome", outcomes);
        let outcome = |outcome: &Outcome| {
            reports
                .get_or_create(&[("outcome", outcome.label())])
                .clone()
        };
        let unproven = table.add_counters(
            "unproven_reports",
            "Reports without a vote: more new installations than the app or a network may have in a day",
            "reason",
            UNPROVEN,
        );
        let reason = |reason| unproven.get_or_create(&[("reason", reason)]).clone();
        Self {
            others: Mutex::default(),
            outcomes: Outcome::ALL.iter().map(outcome).collect(),
            requests: table.add("requests", "Requests on the device port, unknown and refused ones too"),
            requests_refused: table.add_counters(
                "requests_refused",
                "Requests refused as a whole",
                "reason",
                RejectReason::LABELS,
            ),
            keys: KeyMetrics {
                requests: table.add(
                    "key_requests",
                    "Requests by the configured name of their app key, and whether it was accepted",
                ),
                refused_reports: table.add(
                    "key_refused_reports",
                    "Refused reports by the configured name of their app key",
                ),
                n_keys: table.add("app_keys", "App keys in force, without revoked ones"),
            },
            connections: table.add("connections", "Open connections of devices"),
            connections_closed: table.add_counters(
                "connections_closed",
                "Connections that the collector closed",
                "reason",
                ["handshake", "idle", "too_many"],
            ),
            reloads: table.add_counters(
                "reloads",
                "Key and certificate files read again",
                "result",
                ["done", "failed"],
            ),
            files_current: table.add(
                "files_current",
                "1 while the files on disk are in use: keys_file, or tls for certificate, key and client_ca",
            ),
            tls_not_before: table.add(
                "tls_not_before_timestamp_seconds",
                "Latest begin in the certificate's chain in use, since 1970; 0 without one",
            ),
            tls_not_after: table.add(
                "tls_not_after_timestamp_seconds",
                "Earliest end in the certificate's chain in use, since 1970; 0 without one",
            ),
            tls_client_ca_not_after: table.add(
                "tls_client_ca_not_after_timestamp_seconds",
                "Earliest end of an authority in client_ca, since 1970; 0 without one",
            ),
            connections_max: table.add("connections_max", "Limit of open connections"),
            wal_max_bytes: table.add("wal_max_bytes", "Limit of the bytes in the WAL"),
            wal_min_free_bytes: table.add(
                "wal_min_free_bytes",
                "Free bytes on the WAL's volume below which reports are refused",
            ),
            store_disk_bytes: table.add("store_disk_bytes", "Bytes of the database on the store's disk"),
            store_disk_free_bytes: table.add("store_disk_free_bytes", "Free bytes on the store's disk"),
            deletions: table.add("deletions", "Installations hidden from every view"),
            deletions_pending: table.add(
                "deletions_pending",
                "Deletions that this collector promised and the store does not hide yet",
            ),
            deletions_waiting: table.add(
                "deletions_waiting",
                "Deletions of installations that nothing was received from; they are forgotten after store.raw_days",
            ),
            deletions_unknown_refused: table.add(
                "deletions_unknown_refused",
                "Deletions of unknown installations that were refused for now, because too many wait",
            ),
            directives_live: table.add("directives_live", "Directives on offer"),
            directives_sent: table.add("directives_sent", "Directives sent to devices"),
            ack_seconds: table.add_metric(
                "ack_seconds",
                "Time from an upload's arrival to its answer, the sync included",
                Histogram::new(exponential_buckets(0.000_25, 2.0, 16)),
            ),
            rows: table.add_counters("rows", "Rows stored", "table", ["placements", "reports"]),
            cardinality_limited: table.add_counters(
                "cardinality_limited",
                "Names beyond an app's limit, stored as __other__",
                "dimension",
                Dimension::ALL.map(Dimension::label),
            ),
            share_refused_reports: table.add_counters(
                "share_refused_reports",
                "Reports refused for now, because their app holds its share of the WAL or of the store's disk",
                "of",
                SharedSpace::LABELS,
            ),
            series_dropped: table.add(
                "series_dropped",
                "Latency series with numbers that no device can measure, left out of their reports",
            ),
            new_installations: table.add("new_installations", "New installations in the quota of their app and network"),
            reports_weighed: table.add(
                "weighed_reports",
                "Reports of keys of kind app from a known network",
            ),
            reports_unweighed: table.add(
                "unweighed_reports",
                "Reports of keys of kind app from private addresses: networks do not weigh their devices",
            ),
            unproven_reports: UNPROVEN.map(reason),
            installations_loaded: table.add(
                "known_installations_loaded",
                "1 once the known installations were read from the store; until then none is new",
            ),
            ledger_reports: LossLedgerGauges {
                entries: table.add(
                    "loss_ledger_reports",
                    "Reports by app, environment, day and what became of them, in the whole store",
                ),
                reasons: table.add(
                    "loss_ledger_reports_by_reason",
                    "Reports that devices dropped, and answers of collectors, by reason, in the whole store",
                ),
            },
            ledger_runs: LossLedgerGauges {
                entries: table.add(
                    "loss_ledger_runs",
                    "Runs by app, environment, day and what became of them, in the whole store",
                ),
                reasons: table.add(
                    "loss_ledger_runs_by_reason",
                    "Runs that devices dropped, by reason, in the whole store",
                ),
            },
            store_errors: table.add_counters("store_errors", "Failed calls to the store", "call", STORE_CALLS),
            store_up: table.add(
                "store_up",
                "1 while the store takes what the writer sends: reports, and its progress now and then",
            ),
            wal_torn_tails: table.add(
                "wal_torn_tails",
                "Unfinished groups cut off at start; nothing of them was acknowledged",
            ),
            wal_repairs: table.add_counters(
                "wal_repairs",
                "Findings at start that the collector mended without losing a report",
                "finding",
                WAL_FINDINGS,
            ),
            wal_skipped_bytes: table.add("wal_skipped_bytes", "Damaged bytes of the WAL that were skipped"),
            wal_unreadable_reports: table.add(
                "wal_unreadable_reports",
                "Whole records of the WAL that this version cannot read",
            ),
            buckets_closed: table.add("buckets_closed", "Summaries of buckets built"),
            buckets_incomplete: table.add(
                "buckets_incomplete",
                "Closed buckets whose summary misses reports that came after raw ones had expired",
            ),
            progress: Arc::default(),
            registry: table.into_registry(),
        }
    }

    /// Shows the limits of the config next to the values that they bound.
    pub(crate) fn show_limits(&self, config: &CollectorConfig) {
        let max_connections = config.connections.max as u64;
        for (gauge, limit) in [
            (&self.connections_max, max_connections),
            (&self.wal_max_bytes, config.wal.max_bytes.0),
            (&self.wal_min_free_bytes, config.wal.min_free_bytes.0),
        ] {
            gauge.set(i64::try_from(limit).unwrap_or(i64::MAX));
        }
    }

    /// Adds the WAL's own metrics, which are shown as long as the WAL is open.
    pub(crate) fn watch_wal(&mut self, wal: &Wal, clock: Arc<dyn Clock>) {
        let (wal, progress) = (wal.downgrade(), self.progress.clone());
        let read = move || {
            let stats = wal.stats();
            stats.map(|(stats, refusal)| readings(&stats, refusal.is_none(), &progress, &*clock))
        };
        let read = move || read().into_iter().flatten();
        self.registry.register_collector(Box::new(Scraped(read)));
    }

    /// Shows another component's metrics on the same page.
    pub fn show_also(&self, registry: Registry) {
        self.others.lock().push(registry);
    }

    pub(crate) fn count_refusal(&self, reason: RejectReason) {
        let labels = [("reason", reason.label())];
        self.requests_refused.get_or_create(&labels).inc();
    }

    pub(crate) fn note_closed(&self, reason: &'static str) {
        let labels = [("reason", reason)];
        self.connections_closed.get_or_create(&labels).inc();
    }

    pub(crate) fn count_wal_findings(&self, finding: &'static str, n: u64) {
        let repairs = self.wal_repairs.get_or_create(&[("finding", finding)]);
        repairs.inc_by(n);
    }

    pub(crate) fn limited(&self, dimension: Dimension) -> Counter {
        let labels = [("dimension", dimension.label())];
        self.cardinality_limited.get_or_create(&labels).clone()
    }

    /// Unproven reports beyond the app's quota.
    pub(crate) fn beyond_app(&self) -> &Counter {
        &self.unproven_reports[0]
    }

    /// Unproven reports beyond a network's limit.
    pub(crate) fn beyond_network(&self) -> &Counter {
        &self.unproven_reports[1]
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.count_many(outcome, 1);
    }

    /// Counts refused reports of one app key.
    pub(crate) fn count_refused(&self, key: &str, outcome: Outcome, n_reports: u64) {
        self.count_many(outcome, n_reports);
        let labels = [
            ("key", key.to_owned()),
            ("outcome", outcome.label().to_owned()),
        ];
        let counter = self.keys.refused_reports.get_or_create(&labels);
        counter.inc_by(n_reports);
    }

    pub(crate) fn count_many(&self, outcome: Outcome, n_reports: u64) {
        if let Some(counter) = self.reports(outcome) {
            counter.inc_by(n_reports);
        }
    }

    /// Returns the number of reports with this outcome.
    #[must_use]
    pub fn n_reports(&self, outcome: Outcome) -> u64 {
        self.reports(outcome).map_or(0, Counter::get)
    }

    fn reports(&self, outcome: Outcome) -> Option<&Counter> {
        let at = Outcome::ALL.iter().position(|known| *known == outcome)?;
        self.outcomes.get(at)
    }

    /// Returns all metrics in the OpenMetrics text format.
    #[must_use]
    pub fn encode(&self) -> String {
        open_metrics(std::iter::once(&self.registry).chain(&*self.others.lock()))
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn readings(
    stats: &WalStats,
    is_writable: bool,
    progress: &WriterProgress,
    clock: &dyn Clock,
) -> [MetricReading; 11] {
    let stored = progress.checkpoint.load(Relaxed);
    let age_us = |time: &AtomicU64| match time.load(Relaxed) {
        0 => 0,
        at_us => clock.now_us().saturating_sub(at_us),
    };
    let lag_us = age_us(&progress.complete_until_us);
    [
        (
            "wal_held_bytes",
            "Bytes in the WAL, stored ones that are not yet removed included",
            ReadValue::Gauge(stats.held_bytes),
        ),
        (
            "wal_free_bytes",
            "Free bytes on the WAL's volume",
            ReadValue::Gauge(stats.free_bytes),
        ),
        (
            "wal_in_flight_bytes",
            "Bytes that wait for the disk",
            ReadValue::Gauge(stats.in_flight_bytes),
        ),
        (
            "wal_lag_bytes",
            "Bytes that wait for the store",
            ReadValue::Gauge(stats.end.saturating_sub(stored)),
        ),
        (
            "wal_writable",
            "1 while reports can be taken",
            ReadValue::Gauge(is_writable.into()),
        ),
        (
            "wal_lag_seconds",
            "Age of the time up to which the store is complete",
            ReadValue::GaugeF64(seconds(lag_us)),
        ),
        (
            "wal_ahead_seconds",
            "Lead of receive times over this machine's clock, which was wrong or is",
            ReadValue::GaugeF64(seconds(stats.ahead_us)),
        ),
        (
            "wal_syncs",
            "Groups of records made durable, with one sync each",
            ReadValue::Counter(stats.groups),
        ),
        (
            "wal_failed_syncs",
            "Groups of records that could not be written",
            ReadValue::Counter(stats.failed_groups),
        ),
        (
            "wal_sync_seconds",
            "Time spent writing and syncing groups",
            ReadValue::CounterF64(seconds(stats.sync_us)),
        ),
        (
            "rebuild_oldest_seconds",
            "Age of the oldest closed bucket whose summary has to be built again; 0 if none has",
            ReadValue::GaugeF64(seconds(age_us(&progress.rebuild_since_us))),
        ),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a metric")]
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
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
            "epwatch_collector_reports_total{outcome=\"stored\"} 1",
            "epwatch_collector_reports_total{outcome=\"refused_malformed\"} 2",
            "epwatch_collector_reports_total{outcome=\"duplicate\"} 0",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn metrics_of_other_components_are_on_the_same_page() {
        let metrics = Metrics::new();
        let mut other = MetricTable::new("other");
        let counter: Counter = other.add("events", "Events");
        metrics.show_also(other.into_registry());
        counter.inc();
        let text = metrics.encode();
        assert!(text.contains("other_events_total 1\n"), "{text}");
        assert_eq!(text.matches("# EOF").count(), 1);
    }
}
