//! Writes the dashboards `dashboards/grafana/*.json` from `panels/`: one file for each dashboard, with each query once
//! and its panel's texts. Writes Grafana's alert rules from Prometheus' rules. `cargo run -p epwatch-grafana` writes
//! them all; a test compares. `tests/it` runs the queries.

mod alerts;
mod fields;
mod headings;
mod json;
mod panels;

use std::{fs, path::Path};

use anyhow::Context;
use serde_json::Value;

use panels::Dashboard;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns each dashboard with the name of its file.
fn dashboards() -> anyhow::Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(Path::new(ROOT).join("panels"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let read = Dashboard::parse(&text).and_then(|dashboard| json::dashboard(&dashboard));
        let dashboard = read.with_context(|| format!("failed to read {}", path.display()))?;
        let name = path.with_extension("json");
        let name = name.file_name().context("a file has a name")?;
        found.push((name.to_string_lossy().into_owned(), dashboard));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// The file of Grafana's alert rules.
const ALERTS: &str = "alerting/epwatch.yaml";

/// Returns Grafana's alert rules.
fn alert_rules() -> anyhow::Result<String> {
    let read = |path: &str| {
        fs::read_to_string(Path::new(ROOT).join(path))
            .with_context(|| format!("failed to read {path}"))
    };
    let system = Dashboard::parse(&read("panels/system.promql")?)?;
    alerts::provisioning(&read("../prometheus/alerts.yml")?, &system)
}

fn main() -> anyhow::Result<()> {
    for (name, dashboard) in dashboards()? {
        let text = serde_json::to_string_pretty(&dashboard)? + "\n";
        fs::write(Path::new(ROOT).join(name), text)?;
    }
    fs::write(Path::new(ROOT).join(ALERTS), alert_rules()?)?;
    Ok(())
}

#[cfg(test)]
mod tests;
