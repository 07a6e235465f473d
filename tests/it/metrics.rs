//! The metrics' page, its documents and the alert rules agree, and Prometheus accepts them.

use epwatch_test_support::until;
use std::{collections::BTreeSet, io::Write, process::Stdio};

use crate::support::{Running, docs, get, server};

/// Prefixes of this product's metrics.
const PREFIXES: [&str; 8] = [
    "epwatch_build_",
    "epwatch_cohort_",
    "epwatch_collector_",
    "epwatch_detector_",
    "epwatch_log_",
    "epwatch_store_last_",
    "epwatch_task_",
    "process_",
];

/// Stands for the address at which people on call read `docs/`.
const REPOSITORY: &str = "https://git.example/epwatch/blob/main";

fn is_ours(word: &str) -> bool {
    PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}

/// Returns the metrics in backquotes, without labels.
fn metrics_named(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let metrics = quoted.filter(|word| is_ours(word));
    let name = |word: &str| word.split('{').next().unwrap_or_default().to_owned();
    metrics.map(name).collect()
}

/// Returns the metric families of a page, without the suffix of counters.
fn families(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| line.split(' ').next().map(family))
        .collect()
}

fn family(metric: &str) -> String {
    metric.strip_suffix("_total").unwrap_or(metric).to_owned()
}

/// One rule of alerts.yml.
#[derive(Debug, Default)]
struct Rule {
    name: String,
    expr: String,
    severity: String,
    summary: String,
    runbook: String,
    runbook_url: String,
    waits: String,
}

/// Parses rules with one key a line; panics at any key that the rules do not use.
fn rules(text: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("{line}"));
        let value = value.trim().trim_matches('"');
        if key == "- alert" {
            rules.push(Rule::default());
        }
        let Some(rule) = rules.last_mut() else {
            assert!(["groups", "- name", "rules"].contains(&key), "{line}");
            continue;
        };
        let field = match key {
            "- alert" => &mut rule.name,
            "expr" => &mut rule.expr,
            "labels" => &mut rule.severity,
            "summary" => &mut rule.summary,
            "runbook" => &mut rule.runbook,
            "runbook_url" => &mut rule.runbook_url,
            "for" => &mut rule.waits,
            "annotations" => continue,
            _ => panic!("{line}"),
        };
        value.clone_into(field);
    }
    rules
}

/// Returns this product's metrics in an expression.
fn metrics_of(expr: &str) -> Vec<String> {
    let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| is_ours(word));
    ours.map(str::to_owned).collect()
}

fn alerts() -> Vec<Rule> {
    rules(include_str!("../../dashboards/prometheus/alerts.yml"))
}

/// A rule on a metric that does not exist would never fire.
#[test]
fn every_alert_says_who_is_woken_what_is_the_matter_and_what_to_do() {
    let alerts = alerts();
    assert!(alerts.len() > 10, "{alerts:#?}");
    let named = metrics_named(&docs("monitor.md"));
    let listed = metrics_named(&docs("metrics.md"));
    let oncall = docs("oncall.md");
    for rule in &alerts {
        let severities = ["{ severity: page }", "{ severity: ticket }"];
        assert!(severities.contains(&rule.severity.as_str()), "{rule:#?}");
        assert!(
            rule.waits.is_empty() || rule.waits.ends_with('m'),
            "{rule:#?}"
        );
        assert!(!rule.summary.is_empty(), "{rule:#?}");
        assert!(rule.runbook.ends_with('.'), "{rule:#?}");
        let section = format!("docs/oncall.md#{}", rule.name.to_lowercase());
        // The link in Alertmanager is below the single address that first-hour.md replaces.
        let link = format!("{REPOSITORY}/{section}");
        assert_eq!(rule.runbook_url, link, "{rule:#?}");
        assert!(oncall.contains(&format!("# {}\n", rule.name)), "{rule:#?}");
        let metrics = metrics_of(&rule.expr);
        assert!(
            !metrics.is_empty() || rule.name == "EpwatchDown",
            "{rule:#?}"
        );
        for metric in metrics {
            assert!(named.contains(&metric), "{metric} is not in monitor.md");
            assert!(listed.contains(&metric), "{metric} is not in metrics.md");
        }
    }
    let replaced = format!("s|{REPOSITORY}|");
    assert!(docs("first-hour.md").contains(&replaced), "{replaced}");
    for example in ["compose.yaml", "prometheus.yml"] {
        let text = docs(&format!("examples/{example}"));
        assert!(text.contains("/etc/prometheus/alerts.yml"), "{example}");
    }
}

/// Inserts a report with losses of today, since without one the ledger has no reasons.
async fn put_a_report_with_losses(store: &str) {
    let target = epwatch_store::StoreTarget::parse(store, "epwatch").unwrap();
    let client = epwatch_store::client(&target);
    let key = "unhex(repeat('01', 16)) AS installation, 1 AS stream_id, 2 AS sequence, \
               toStartOfHour(now('UTC')) AS received_at, 1 AS collector_id, 1 AS wal_offset, \
               toStartOfHour(now('UTC')) AS bucket";
    let columns =
        "installation, stream_id, sequence, received_at, collector_id, wal_offset, bucket";
    let lost = "map('spool_full', 1)";
    for sql in [
        format!("INSERT INTO report_copies ({columns}) SELECT {key}"),
        format!(
            "INSERT INTO reports ({columns}, app_id, environment, health_dropped_reports, \
             health_dropped_runs) SELECT {key}, 'app', 'production', {lost}, {lost}"
        ),
    ] {
        let run = client.query_raw(&sql).execute().await;
        run.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

#[tokio::test]
async fn every_metric_of_serve_is_told_of_and_every_one_told_of_is_there() {
    let dir = tempfile::tempdir().unwrap();
    // A key and a channel, for their metrics. No notification is sent.
    let config = dir.path().join("epwatch.toml");
    let keys = dir.path().join("keys.toml");
    let text = format!(
        "[collector]\nrefresh = \"10ms\"\nkeys_file = {keys:?}\n\
         [detector]\ncohort_metrics = 10\n\
         [[detector.alertmanager]]\nurl = \"http://127.0.0.1:9\"\n"
    );
    let sha256 = "0".repeat(64);
    let entry = format!("[[keys]]\nname = \"old\"\nsha256 = \"{sha256}\"\napp = \"a\"\n");
    std::fs::write(&keys, entry).unwrap();
    std::fs::write(&config, text).unwrap();
    let words = format!("serve --config {}", config.display());
    let mut serve = server(&words, &dir.path().join("data"));
    serve.env("EPWATCH_LOG", "warn");
    let (_running, addresses) = Running::start(&mut serve);
    put_a_report_with_losses(addresses["store"].as_str().unwrap()).await;
    let url = format!("http://{}/metrics", addresses["http"].as_str().unwrap());
    let page = async || get(&url).await.unwrap().text;
    // The gauges exist once the ledger was read.
    let gauges = ["reports{", "reports_by_reason{", "runs{", "runs_by_reason{"];
    until("the ledger is read", async || {
        let page = page().await;
        gauges
            .iter()
            .all(|gauge| page.contains(&format!("_loss_ledger_{gauge}")))
    })
    .await;
    let page = page().await;

    let listed: BTreeSet<String> = metrics_named(&docs("metrics.md"))
        .iter()
        .map(|metric| family(metric))
        .collect();
    assert_eq!(families(&page), listed, "page and docs/metrics.md");
    promtool(&["check", "metrics"], &page);
    // The page shows the versions of the program and the runtimes.
    let mut lines = page.lines();
    let info = lines
        .find(|line| line.starts_with("epwatch_build_info{"))
        .unwrap();
    for label in [
        "version=\"0.1.0\"",
        "revision=",
        "date=",
        "libchdb=\"26",
        "onnxruntime=",
    ] {
        assert!(info.contains(label), "no {label} in {info}");
    }
    let tasks = ["backup", "cluster", "keys", "monitor", "repair", "size"];
    let named: Vec<String> = tasks
        .iter()
        .flat_map(|task| metrics_named(&docs(&format!("{task}.md"))))
        .collect();
    assert!(named.len() > 10, "{named:?}");
    for metric in named {
        assert!(
            listed.contains(&family(&metric)),
            "{metric} is not on the page"
        );
    }
}

#[test]
fn prometheus_accepts_the_rules() {
    let rules = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/dashboards/prometheus/alerts.yml"
    );
    promtool(&["check", "rules", rules], "");
}

/// The alert tells a person how often the channel failed, since when and why.
#[test]
fn the_alert_of_a_channel_that_fails_says_since_when_and_why() {
    let rules = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/dashboards/prometheus/alerts.yml"
    );
    let alert = alerts()
        .into_iter()
        .find(|rule| rule.name == "EpwatchPageRefused")
        .unwrap();
    let labels = "notifier=\"slack\",instance=\"a\",job=\"epwatch\"";
    let case = format!(
        "rule_files: [{rules:?}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'epwatch_detector_failing_notifications{{answer=\"404\",{labels}}}'
        values: '14x10'
      - series: 'epwatch_detector_failing_since_timestamp_seconds{{{labels}}}'
        values: '1800000000x10'
    alert_rule_test:
      - eval_time: 5m
        alertname: EpwatchPageRefused
        exp_alerts:
          - exp_labels: {{severity: page, notifier: slack, answer: '404', instance: a, job: epwatch}}
            exp_annotations:
              summary: 'slack has failed 14 times since 2027-01-15 08:00:00 +0000 UTC: 404'
              runbook: {:?}
              runbook_url: {:?}
",
        alert.runbook, alert.runbook_url
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), case).unwrap();
    promtool(&["test", "rules", &file.path().display().to_string()], "");
}

/// Runs Prometheus' own check, which must not complain.
fn promtool(args: &[&str], input: &str) {
    let mut command = epwatch_runtimes::tool("promtool");
    command.args(args).stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
}
