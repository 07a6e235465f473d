//! The verdicts of the last window as metrics, for people who use Prometheus. Off by default: each cohort is five
//! series.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use epwatch_model::CohortVerdict;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// Prefix of every name.
const PREFIX: &str = "epwatch_cohort";

/// Returns a registry of the chipsets' verdicts, read at each scrape. The most severe come first, then the largest
/// cohorts, `max_cohorts` at most. The number of the others is a metric too.
pub(crate) fn registry(
    verdicts: watch::Receiver<Arc<Vec<CohortVerdict>>>,
    max_cohorts: usize,
) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(CohortMetrics {
        verdicts,
        max_cohorts,
    }));
    registry
}

#[derive(Debug)]
struct CohortMetrics {
    verdicts: watch::Receiver<Arc<Vec<CohortVerdict>>>,
    max_cohorts: usize,
}

/// A gauge of each cohort: name, help, value.
type CohortGauge = (
    &'static str,
    &'static str,
    fn(&CohortVerdict) -> Option<f64>,
);

const GAUGES: [CohortGauge; 4] = [
    ("devices", "Devices of a cohort that vote", |verdict| {
        Some(verdict.numbers.devices_seen as f64)
    }),
    (
        "devices_hit",
        "Those that the deciding signal counts as hit",
        |verdict| Some(verdict.numbers.devices_hit as f64),
    ),
    (
        "npu_share",
        "Share of the work on the NPU, from 0 to 1: on the devices hit, without a finding on all",
        |verdict| verdict.numbers.npu_share,
    ),
    ("p50_seconds", "Median of all runs of a cohort", |verdict| {
        verdict.statistics.p50_us.map(|us| us / 1e6)
    }),
];

impl Collector for CohortMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let verdicts = self.verdicts.borrow().clone();
        let of_chipsets = verdicts.iter().filter(|v| v.key.firmware.is_none());
        let mut cohorts: Vec<&CohortVerdict> = of_chipsets.collect();
        cohorts.sort_by_key(|v| (Reverse((v.severity, v.numbers.devices_seen)), &v.key));
        let n_omitted = cohorts.len().saturating_sub(self.max_cohorts);
        cohorts.truncate(self.max_cohorts);

        let help = "Always 1: the verdict of a cohort's last window";
        let gauge = MetricType::Gauge;
        let mut metric = encoder.encode_descriptor("verdict", help, None, gauge)?;
        for verdict in &cohorts {
            let class = [
                ("verdict", verdict.class.as_str()),
                ("severity", verdict.severity.as_str()),
            ];
            let labels = [&labels(verdict)[..], &class].concat();
            metric.encode_family(&labels)?.encode_gauge(&1_i64)?;
        }
        for (name, help, value) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, gauge)?;
            for verdict in &cohorts {
                if let Some(value) = value(verdict) {
                    metric
                        .encode_family(&labels(verdict))?
                        .encode_gauge(&value)?;
                }
            }
        }
        let help = "Cohorts without series, beyond detector.cohort_metrics";
        let omitted = encoder.encode_descriptor("omitted", help, None, gauge)?;
        ConstGauge::new(i64::try_from(n_omitted).unwrap_or(i64::MAX)).encode(omitted)
    }
}

fn labels(verdict: &CohortVerdict) -> [(&'static str, &str); 5] {
    let key = &verdict.key;
    [
        ("app", &key.model.app_id),
        ("environment", &key.model.environment),
        ("model", &key.model.model_id),
        ("version", &key.model_version),
        ("chipset", &key.chipset),
    ]
}

#[cfg(test)]
mod tests {
    use epwatch_server::open_metrics;

    use super::*;
    use crate::testing::{Fleet, judged, reference};

    fn verdict(fleet: &Fleet, chipset: &str, firmware: Option<&str>) -> CohortVerdict {
        let mut verdict = judged(&fleet.window(), None, &reference());
        verdict.key.chipset = chipset.into();
        verdict.key.firmware = firmware.map(Into::into);
        verdict
    }

    fn samples(page: &str) -> Vec<&str> {
        let lines = page.lines();
        lines.filter(|line| line.starts_with(PREFIX)).collect()
    }

    #[test]
    fn findings_come_first_and_what_is_left_out_is_counted() {
        let sick = Fleet::with_fallback(1.0);
        let healthy = Fleet {
            devices: 500,
            ..Fleet::with_fallback(0.0)
        };
        let mut verdicts = vec![
            verdict(&healthy, "a \"b\"\n", None),
            verdict(&sick, "SM8635", None),
            verdict(&sick, "SM8635", Some("f1")),
            verdict(&Fleet::with_fallback(0.0), "small", None),
        ];
        verdicts[1].statistics.p50_us = Some(25_000.0);
        let (verdicts_tx, verdicts) = watch::channel(Arc::new(verdicts));
        let registry = registry(verdicts, 2);
        let page = open_metrics([&registry]);
        let lines = samples(&page);
        let sick = "app=\"camera\",environment=\"production\",model=\"segmenter\",version=\"2.0.0\",chipset=\"SM8635\"";
        let expected = format!(
            "epwatch_cohort_verdict{{{sick},verdict=\"partial_fallback\",severity=\"page\"}} 1"
        );
        assert_eq!(lines[0], expected);
        assert!(
            lines[1].contains(r#"chipset="a \"b\"\n",verdict="healthy""#),
            "{page}"
        );
        assert_eq!(lines.len(), 2 * (1 + GAUGES.len()) + 1, "{page}");
        let p50 = format!("epwatch_cohort_p50_seconds{{{sick}}} 0.025");
        assert!(lines.contains(&p50.as_str()), "{p50} in {page}");
        assert_eq!(lines.last(), Some(&"epwatch_cohort_omitted 1"));

        // A detector that no longer leads shows none of its earlier verdicts.
        verdicts_tx.send_replace(Arc::default());
        let page = open_metrics([&registry]);
        let lines = samples(&page);
        assert_eq!(lines, ["epwatch_cohort_omitted 0"]);
    }
}
