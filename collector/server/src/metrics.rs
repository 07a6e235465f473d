//! Registration of a component's metrics as a table: name, help and kind in one line each.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Metric, Registry};

/// One label with a value of a known set.
pub type Label = [(&'static str, &'static str); 1];

/// Metrics under one prefix. Counters are named without `_total`, which the text format adds.
#[derive(Debug)]
pub struct MetricTable(Registry);

impl MetricTable {
    /// Returns a table whose names begin with `prefix` and an underscore.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self(Registry::with_prefix(prefix))
    }

    /// Adds a metric at zero; its kind follows from the field that takes it.
    pub fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.add_metric(name, help, M::default())
    }

    /// Adds a metric that needs arguments, such as a histogram.
    pub fn add_metric<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    /// Adds a counter for each value of a label, at zero, so that a rate exists from the first event on. Other values
    /// may be counted later.
    pub fn add_counters(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
    ) -> Family<Label, Counter> {
        let counters = Family::<Label, Counter>::default();
        for value in values {
            drop(counters.get_or_create(&[(label, value)]));
        }
        self.add_metric(name, help, counters)
    }

    /// Returns the registry of all that was added.
    #[must_use]
    pub fn into_registry(self) -> Registry {
        self.0
    }
}

/// A metric that is read at a scrape: name, help, value.
pub type MetricReading = (&'static str, &'static str, ReadValue);

/// The value of a [`MetricReading`], with its kind.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(
    missing_docs,
    reason = "the kinds of metrics, of whole numbers and of others"
)]
pub enum ReadValue {
    Gauge(u64),
    GaugeF64(f64),
    Counter(u64),
    CounterF64(f64),
}

/// Metrics that are read at each scrape instead of kept.
pub struct Scraped<F>(pub F);

impl<F> fmt::Debug for Scraped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraped").finish_non_exhaustive()
    }
}

impl<F, R> Collector for Scraped<F>
where
    F: Fn() -> R + Send + Sync + 'static,
    R: IntoIterator<Item = MetricReading>,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in (self.0)() {
            let mut write = |metric: &dyn EncodeMetric| {
                metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
            };
            match value {
                ReadValue::Gauge(n) => {
                    write(&ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX)))
                }
                ReadValue::GaugeF64(x) => write(&ConstGauge::new(x)),
                ReadValue::Counter(n) => write(&ConstCounter::new(n)),
                ReadValue::CounterF64(x) => write(&ConstCounter::new(x)),
            }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::open_metrics;

    #[test]
    fn every_metric_is_on_the_page_from_the_start() {
        let mut table = MetricTable::new("epwatch_test");
        let requests: Counter = table.add("requests", "Requests");
        let _open: Gauge = table.add("open", "Open requests");
        let _ends = table.add_counters("ends", "Ends of requests", "result", ["done", "failed"]);
        requests.inc();
        let other = Registry::with_prefix("other");
        let text = open_metrics([&table.into_registry(), &other]);
        for line in [
            "# HELP epwatch_test_requests Requests.",
            "epwatch_test_requests_total 1",
            "epwatch_test_open 0",
            "epwatch_test_ends_total{result=\"done\"} 0",
            "epwatch_test_ends_total{result=\"failed\"} 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "no {line} in\n{text}"
            );
        }
    }
}
