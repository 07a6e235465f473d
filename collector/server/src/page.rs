//! The page of metrics: registries of all components, and the process, in the OpenMetrics format or in
//! Prometheus' older text format.

use std::collections::BTreeMap;
use std::fmt::Write;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use crate::metrics::Scraped;
use crate::process;

/// Returns the metrics of several registries and of the process as one page in the OpenMetrics text format. The samples
/// of a metric have the same order at every scrape.
pub fn open_metrics<'a>(registries: impl IntoIterator<Item = &'a Registry>) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail, and a metric that encodes wrongly fails its test.
    let encoded = registries
        .into_iter()
        .try_for_each(|registry| encode_registry(&mut text, registry))
        .and_then(|()| {
            let mut process = Registry::with_prefix("process");
            process.register_collector(Box::new(Scraped(process::readings)));
            encode_registry(&mut text, &process)
        })
        .and_then(|()| encode_eof(&mut text));
    debug_assert!(encoded.is_ok(), "metrics do not encode");
    in_order(&text)
}

/// Sorts the samples of each counter and gauge: the registry keeps labels in the order of their hashes, which differs
/// between scrapes. Buckets of a histogram stay in the order of their bounds.
fn in_order(text: &str) -> String {
    let mut sorted = String::with_capacity(text.len());
    let mut lines: Vec<&str> = text.lines().collect();
    for family in lines.chunk_by_mut(|_, next| !next.starts_with("# HELP")) {
        let is_histogram = family.iter().any(|line| line.ends_with(" histogram"));
        let n_comments = family
            .iter()
            .take_while(|line| line.starts_with('#'))
            .count();
        let n_samples = family.iter().filter(|line| !line.starts_with('#')).count();
        if !is_histogram {
            family[n_comments..n_comments + n_samples].sort_unstable();
        }
        for line in family {
            sorted.push_str(line);
            sorted.push('\n');
        }
    }
    sorted
}

/// Returns a page in the text format 0.0.4, for tools that cannot read OpenMetrics. In this format a counter's name has
/// `_total` in the comments too.
pub(crate) fn plain_text(open_metrics: &str) -> String {
    let comments = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let kinds: BTreeMap<&str, &str> = comments.filter_map(|line| line.split_once(' ')).collect();
    let mut plain = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let comment = line
            .strip_prefix("# ")
            .and_then(|line| line.split_once(' '));
        let Some((word @ ("HELP" | "TYPE"), rest)) = comment else {
            if !line.starts_with('#') {
                plain.push_str(line);
                plain.push('\n');
            }
            continue;
        };
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let suffix = if kinds.get(name) == Some(&"counter") {
            "_total"
        } else {
            ""
        };
        // Writing to a string cannot fail.
        let _ = writeln!(plain, "# {word} {name}{suffix} {text}");
    }
    plain
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::histogram::Histogram;

    use super::*;
    use crate::MetricTable;

    fn page() -> String {
        let mut table = MetricTable::new("epwatch_test");
        let values = [
            "pear", "apple", "fig", "plum", "quince", "date", "lime", "kiwi",
        ];
        table.add_counters("fruits", "Fruits", "kind", values);
        let _total: Counter = table.add("events", "Events");
        let times = table.add_metric("seconds", "Times", Histogram::new([0.5, 10.0, 100.0]));
        times.observe(7.0);
        open_metrics([&table.into_registry()])
    }

    #[test]
    fn samples_are_in_one_order_and_buckets_in_theirs() {
        let first = page();
        let fruits: Vec<&str> = first.lines().filter(|l| l.contains("{kind=")).collect();
        assert_eq!(fruits.len(), 8);
        assert!(fruits.is_sorted(), "{fruits:?}");
        let bounds: Vec<&str> = first
            .lines()
            .filter_map(|l| l.split("le=\"").nth(1))
            .collect();
        assert_eq!(bounds, ["0.5\"} 0", "10.0\"} 1", "100.0\"} 1", "+Inf\"} 1"]);
        assert!(first.ends_with("# EOF\n"));
        assert_eq!(first.matches("# EOF").count(), 1);
    }

    #[test]
    fn every_page_has_the_process() {
        let page = page();
        assert!(page.contains("\nprocess_open_fds "), "{page}");
        assert!(page.contains("\nprocess_cpu_seconds_total "), "{page}");
    }

    #[test]
    fn the_plain_format_names_counters_by_their_samples() {
        let plain = plain_text(&page());
        for line in [
            "# HELP epwatch_test_events_total Events.",
            "# TYPE epwatch_test_events_total counter",
            "epwatch_test_events_total 0",
            "# TYPE epwatch_test_seconds histogram",
            "# TYPE process_open_fds gauge",
        ] {
            assert!(
                plain.lines().any(|found| found == line),
                "no {line} in\n{plain}"
            );
        }
        assert!(!plain.contains("# EOF"));
    }
}
