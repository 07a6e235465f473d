//! Alert rules for Grafana's own alerting, written from Prometheus' rules: the same conditions, waits and words.
//!
//! A rule of Prometheus fires for each series that its expression returns, whatever the value. Grafana fires only on a
//! number above zero, so a second step turns each existing series into such a number. A rule links the panel that shows
//! its metric.

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};

use crate::panels::Dashboard;

/// Of `provisioning/datasources/epwatch.yaml`.
const DATA_SOURCE: &str = "epwatch-prometheus";

/// Seconds of data that a query may look at; each expression names its own range.
const RANGE_S: u64 = 600;

const HEAD: &str = "\
# The alert rules of dashboards/prometheus/alerts.yml for Grafana's own alerting. Use one of the two, or both page. Grafana
# reads this file in `provisioning/alerting/`.
# `cargo run -p epwatch-grafana` writes this file. Put the address where on-call reads docs/oncall.md in for
# https://git.example/epwatch/blob/main. Labels have `severity: page` or `ticket` for notification policies.
apiVersion: 1
groups:
  - orgId: 1
    name: epwatch
    folder: epwatch
    interval: 1m
    rules:
";

/// One rule of alerts.yml: its keys, labels and annotations.
type Rule = Map<String, Value>;

/// Returns the file of Grafana's rules. `system` is the dashboard whose panels name the alerts.
pub(crate) fn provisioning(rules: &str, system: &Dashboard) -> anyhow::Result<String> {
    let mut text = HEAD.to_owned();
    for rule in parsed(rules)? {
        let of_grafana = grafana_rule(&rule, system)?;
        for (at, (key, value)) in of_grafana.into_iter().enumerate() {
            text.push_str(if at == 0 { "      - " } else { "        " });
            match value {
                Value::Array(queries) => {
                    text.push_str(&format!("{key}:\n"));
                    for query in queries {
                        text.push_str(&format!("          - {query}\n"));
                    }
                }
                value => text.push_str(&format!("{key}: {value}\n")),
            }
        }
    }
    Ok(text)
}

/// Reads rules with one key a line.
pub(crate) fn parsed(text: &str) -> anyhow::Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line
            .split_once(':')
            .with_context(|| format!("no key in {line:?}"))?;
        if key == "- alert" {
            rules.push(Rule::new());
        }
        let Some(rule) = rules.last_mut() else {
            ensure!(
                ["groups", "- name", "rules"].contains(&key),
                "unknown: {line}"
            );
            continue;
        };
        let value = value.trim();
        let value = match key {
            "- alert" | "expr" | "for" => value.to_owned(),
            "summary" | "runbook" => {
                serde_json::from_str(value).with_context(|| format!("not a quoted text: {line}"))?
            }
            "runbook_url" => value.to_owned(),
            "labels" => {
                let severity = value.strip_prefix("{ severity: ");
                let severity = severity.and_then(|rest| rest.strip_suffix(" }"));
                severity.context("a label severity")?.to_owned()
            }
            "annotations" => continue,
            _ => bail!("unknown: {line}"),
        };
        rule.insert(key.trim_start_matches("- ").to_owned(), value.into());
    }
    Ok(rules)
}

fn grafana_rule(rule: &Rule, system: &Dashboard) -> anyhow::Result<Vec<(&'static str, Value)>> {
    let text = |key: &str| {
        let value = rule.get(key).and_then(Value::as_str);
        value.with_context(|| format!("{rule:?} lacks {key}"))
    };
    let name = text("alert")?;
    let expr = text("expr")?;
    let query = json!({
        "refId": "query", "datasourceUid": DATA_SOURCE,
        "relativeTimeRange": {"from": RANGE_S, "to": 0},
        "model": {
            "refId": "query", "datasource": {"type": "prometheus", "uid": DATA_SOURCE},
            "expr": expr, "instant": true, "range": false,
        },
    });
    let step = |id: &str, mut model: Value| {
        model["refId"] = id.into();
        model["datasource"] = json!({"type": "__expr__", "uid": "__expr__"});
        json!({
            "refId": id, "datasourceUid": "__expr__",
            "relativeTimeRange": {"from": RANGE_S, "to": 0}, "model": model,
        })
    };
    let is_there = "is_number($query) || is_nan($query) || is_inf($query)";
    let there = step("there", json!({"type": "math", "expression": is_there}));
    let above = json!({"evaluator": {"type": "gt", "params": [0]}});
    let firing = json!({"type": "threshold", "expression": "there", "conditions": [above]});
    let firing = step("firing", firing);
    let panel = panel_of(name, system)?;
    let annotations = json!({
        "summary": template(text("summary")?),
        "runbook": template(text("runbook")?),
        "runbook_url": text("runbook_url")?,
    });
    Ok(vec![
        ("uid", name.to_lowercase().into()),
        ("title", name.into()),
        ("condition", "firing".into()),
        ("for", text("for").unwrap_or("0s").into()),
        // Without a series the rule does not fire. An alert whose series disappears ends at once, as in Prometheus.
        ("noDataState", "OK".into()),
        ("execErrState", "Error".into()),
        ("missing_series_evals_to_resolve", 1.into()),
        ("dashboardUid", system.head.word("uid")?.into()),
        ("panelId", panel.into()),
        ("labels", json!({"severity": text("labels")?})),
        ("annotations", annotations),
        ("data", json!([query, there, firing])),
    ])
}

/// Returns the id of the panel that names an alert.
fn panel_of(alert: &str, system: &Dashboard) -> anyhow::Result<u64> {
    let mut panels = (1u64..).zip(&system.blocks);
    let found = panels.find(|(_, block)| {
        let mut alerts = block.get("alert").into_iter().flat_map(|a| a.split(' '));
        alerts.any(|named| named == alert)
    });
    let (id, _) = found.with_context(|| format!("no panel names {alert}"))?;
    Ok(id)
}

/// Returns a template of Prometheus in the form that Grafana expands. It has no `$`, which Grafana's provisioning takes
/// for an environment variable. A block around `query` is left out, because Grafana has no such function.
fn template(text: &str) -> String {
    let mut out = text.to_owned();
    while let Some((before, rest)) = out.split_once("{{ with ") {
        let after = rest.split_once("{{ end }}").map_or("", |(_, after)| after);
        out = format!("{before}{after}");
    }
    out.replace("$labels.", ".Labels.")
        .replace("$value", ".Values.query.Value")
}
