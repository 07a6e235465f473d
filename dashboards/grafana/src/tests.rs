//! The committed JSON is current, and keeps to the rules that Grafana's own linter has, and some of ours.

use std::collections::BTreeSet;

use super::*;

fn texts<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(values) => values.iter().for_each(|value| texts(value, found)),
        Value::Object(members) => members.values().for_each(|value| texts(value, found)),
        _ => {}
    }
}

/// Returns the panels, those in collapsed rows too, without the rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let top = dashboard["panels"].as_array().unwrap().iter();
    let all = top.flat_map(|panel| {
        let inner = panel["panels"].as_array().into_iter().flatten();
        std::iter::once(panel).chain(inner)
    });
    all.filter(|panel| panel["type"] != "row").collect()
}

/// Returns the SQL of the panels, annotations and variables.
fn queries(dashboard: &Value) -> Vec<&str> {
    let annotations = dashboard["annotations"]["list"].as_array().unwrap().iter();
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let targets = panels(dashboard)
        .into_iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let targets = targets.chain(annotations.map(|annotation| &annotation["target"]));
    targets
        .filter_map(|target| target["rawSql"].as_str())
        .chain(variables.filter_map(|variable| variable["definition"].as_str()))
        .filter(|query| query.starts_with("SELECT"))
        .collect()
}

#[test]
fn committed_dashboards_are_current() {
    let mut expected = BTreeSet::new();
    for (name, dashboard) in dashboards().unwrap() {
        let committed = fs::read(Path::new(ROOT).join(&name)).unwrap_or_default();
        let committed: Option<Value> = serde_json::from_slice(&committed).ok();
        assert!(
            committed == Some(dashboard),
            "{name} is not what panels/ says: cargo run -p epwatch-grafana"
        );
        expected.insert(name);
    }
    let files = fs::read_dir(ROOT).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let found: BTreeSet<String> = files.filter(|name| name.ends_with(".json")).collect();
    assert_eq!(found, expected);
}

#[test]
fn panels_say_what_to_do_and_what_no_data_means() {
    let mut uids = BTreeSet::new();
    for (name, dashboard) in dashboards().unwrap() {
        assert!(uids.insert(dashboard["uid"].to_string()), "{name}");
        assert_eq!(dashboard["editable"], false, "{name}");
        let mut ids = BTreeSet::new();
        for panel in panels(&dashboard) {
            let title = &panel["title"];
            assert!(ids.insert(panel["id"].as_u64()), "{name} {title}");
            let defaults = &panel["fieldConfig"]["defaults"];
            for word in [
                &panel["description"],
                &defaults["noValue"],
                &defaults["unit"],
            ] {
                assert!(!word.as_str().unwrap().is_empty(), "{name} {title}");
            }
            assert!(panel["description"].as_str().unwrap().ends_with('.'));
            let targets = panel["targets"].as_array().unwrap();
            let refs: BTreeSet<String> = targets.iter().map(|t| t["refId"].to_string()).collect();
            assert_eq!(refs.len(), targets.len(), "{name} {title}");
            assert!(!targets.is_empty(), "{name} {title}");
            for target in targets.iter().chain([panel]) {
                let source = target["datasource"]["uid"].as_str().unwrap();
                assert!(source.starts_with("${"), "{name} {title}: {source}");
            }
        }
    }
    assert_eq!(uids.len(), 8);
}

/// A name of a variable that does not exist is an empty text for Grafana.
#[test]
fn every_reference_is_a_variable_or_a_dashboard() {
    let dashboards = dashboards().unwrap();
    let uids: Vec<_> = dashboards
        .iter()
        .filter_map(|(_, d)| d["uid"].as_str())
        .collect();
    for (name, dashboard) in &dashboards {
        let list = dashboard["templating"]["list"].as_array().unwrap();
        let variables: Vec<_> = list.iter().filter_map(|v| v["name"].as_str()).collect();
        let mut all = Vec::new();
        texts(dashboard, &mut all);
        for text in all {
            for reference in text.split("${").skip(1) {
                let word = reference.split(['}', ':', '.']).next().unwrap();
                let is_known = variables.contains(&word) || word.starts_with("__");
                assert!(is_known, "{name}: {word} in {text}");
            }
            for link in text.split("/d/").skip(1) {
                let uid = link.split(['?', '/']).next().unwrap();
                assert!(uids.contains(&uid), "{name}: {uid}");
            }
        }
    }
}

/// A name is only ever inside a literal, percent-encoded. Tables count reports twice and show deleted devices.
#[test]
fn queries_read_views_and_take_names_encoded() {
    for (name, dashboard) in dashboards().unwrap() {
        for sql in queries(&dashboard) {
            for part in sql.split("('${").skip(1) {
                let (reference, rest) = part.split_once('}').unwrap();
                assert!(reference.ends_with(":percentencode"), "{name}: {sql}");
                assert!(rest.starts_with("')"), "{name}: {sql}");
            }
            let in_literals = sql.matches("('${").count();
            assert_eq!(sql.matches("${").count(), in_literals, "{name}: {sql}");
            let words: Vec<&str> = sql.split_whitespace().collect();
            for three in words.windows(3) {
                let [before, word, table] = [three[0], three[1], three[2]];
                if word == "FROM" || word == "JOIN" && before != "ARRAY" {
                    let is_view = table.starts_with('(') || table.ends_with("_v1");
                    assert!(is_view, "{name}: {table} in {sql}");
                }
            }
        }
    }
}

/// Each metric and each alert has its panel, so that a new one gets its place.
#[test]
fn the_system_dashboard_has_every_metric_and_every_alert() {
    let root = Path::new(ROOT);
    let listed = fs::read_to_string(root.join("../../docs/metrics.md")).unwrap();
    let rows = listed.lines().filter_map(|line| line.strip_prefix("| `"));
    let metrics: BTreeSet<&str> = rows
        .flat_map(|row| row.split(" | ").next().unwrap().split('`'))
        .filter(|word| word.contains('_'))
        .collect();
    assert!(metrics.len() > 50, "{metrics:?}");
    let panels = fs::read_to_string(root.join("panels/system.promql")).unwrap();
    let words = panels.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = ["epwatch_", "process_"];
    let shown = words.filter(|word| ours.iter().any(|prefix| word.starts_with(prefix)));
    // A histogram is shown by its buckets.
    let shown: BTreeSet<&str> = shown
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
        .collect();
    assert_eq!(shown, metrics);

    let rules = fs::read_to_string(root.join("../prometheus/alerts.yml")).unwrap();
    let alerts = rules
        .lines()
        .filter_map(|l| l.trim().strip_prefix("- alert: "));
    let lines = panels.lines().filter_map(|l| l.strip_prefix("# alert: "));
    let linked: BTreeSet<&str> = lines.flat_map(|line| line.split(' ')).collect();
    assert_eq!(linked, alerts.collect());
}
