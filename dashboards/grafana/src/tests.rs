//! The committed JSON is current, and keeps to the rules that Grafana's own linter has, and some of ours.

use std::collections::BTreeSet;

use serde_json::json;

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

/// Grafana replaces the name of a variable that does not exist by an empty text.
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

/// Words of this repository, of statistics or of code that a newcomer cannot read.
const PRIVATE: [&str; 15] = [
    "bimodal",
    "bury",
    "cohort",
    "dip",
    "fingerprint",
    "mixture",
    "modes",
    "octave",
    "patience",
    "quantile",
    "room",
    "standing",
    "strata",
    "stratum",
    "wal",
];

/// Returns why a newcomer cannot read a title, heading or value: the first private word or code in it.
fn unreadable(text: &str) -> Option<String> {
    // Grafana replaces label names of Prometheus and fields in braces by their values.
    let shown: Vec<&str> = text
        .split("{{")
        .map(|part| part.split_once("}}").map_or(part, |(_, rest)| rest))
        .collect();
    let shown = shown.concat();
    let shown = shown.split("${").next().unwrap_or_default();
    let words = shown.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
    for word in words.map(str::to_lowercase) {
        let is_setting = word.starts_with("detector.");
        if PRIVATE.contains(&word.as_str()) || word.contains('_') && !is_setting {
            return Some(format!("{word:?} of {text:?} says nothing to a newcomer"));
        }
        // A short code, as `B2.0`.
        let is_code = word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word.contains('.')
            && word.ends_with(|c: char| c.is_ascii_digit());
        if is_code {
            return Some(format!("{word:?} of {text:?} is a code"));
        }
    }
    None
}

/// Titles, headings, texts for values, and legends are read before any description.
#[test]
fn titles_headings_and_values_are_plain_words() {
    for (text, expected) in [
        ("Two modes", true),
        ("cv_within", true),
        ("B2.0", true),
        ("WAL of {{instance}}", true),
        ("Work on the NPU, ${__field.labels.cohort}", false),
        ("open, {{instance_name}}", false),
        ("Kept where detector.cohort_metrics is above 0", false),
    ] {
        assert_eq!(unreadable(text).is_some(), expected, "{text}");
    }
    let mut problems = Vec::new();
    let mut check = |name: &str, text: &str, is_title: bool| {
        // A quantile is written in lower case: `p95`.
        let rest = text.strip_prefix('p').unwrap_or(text);
        let is_capital = rest.starts_with(|c: char| !c.is_lowercase());
        let lower = (is_title && !is_capital).then(|| format!("{text:?} begins in lower case"));
        let problem = unreadable(text).or(lower);
        problems.extend(problem.map(|problem| format!("{name}: {problem}")));
    };
    for (name, dashboard) in dashboards().unwrap() {
        let mut title = |text: &Value| check(&name, text.as_str().unwrap(), true);
        title(&dashboard["title"]);
        for panel in dashboard["panels"].as_array().unwrap() {
            title(&panel["title"]);
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            title(&variable["label"]);
        }
        for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
            title(&annotation["name"]);
        }
        for panel in panels(&dashboard) {
            title(&panel["title"]);
            let config = &panel["fieldConfig"];
            let overrides = config["overrides"].as_array().unwrap().iter();
            let properties = overrides.flat_map(|o| o["properties"].as_array().unwrap());
            for property in properties {
                match property["id"].as_str().unwrap() {
                    "displayName" => title(&property["value"]),
                    "mappings" => {
                        let mut found = Vec::new();
                        mapped_texts(&property["value"], &mut found);
                        found.into_iter().for_each(&mut title);
                    }
                    _ => {}
                }
            }
            for text in mapped_texts_of(&config["defaults"]["mappings"]) {
                title(text);
            }
        }
        for panel in panels(&dashboard) {
            for target in panel["targets"].as_array().unwrap() {
                if let Some(legend) = target["legendFormat"].as_str() {
                    check(&name, legend, false);
                }
            }
            let none = &panel["fieldConfig"]["defaults"]["noValue"];
            assert!(none.as_str().unwrap().starts_with(char::is_uppercase));
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

fn mapped_texts<'a>(mappings: &'a Value, found: &mut Vec<&'a Value>) {
    match mappings {
        Value::Array(values) => values.iter().for_each(|value| mapped_texts(value, found)),
        Value::Object(members) => {
            found.extend(members.get("text"));
            members
                .values()
                .for_each(|value| mapped_texts(value, found));
        }
        _ => {}
    }
}

fn mapped_texts_of(mappings: &Value) -> Vec<&Value> {
    let mut found = Vec::new();
    mapped_texts(mappings, &mut found);
    found
}

/// The panels that are open at first can be read in five seconds. Other panels are one click away, and are queried only
/// when opened.
#[test]
fn the_system_dashboard_opens_with_five_numbers_and_folded_rows() {
    let all = dashboards().unwrap();
    let (_, system) = all.iter().find(|(name, _)| name == "system.json").unwrap();
    let top = system["panels"].as_array().unwrap();
    let (rows, open): (Vec<_>, Vec<_>) = top.iter().partition(|panel| panel["type"] == "row");
    assert_eq!(open.len(), 5);
    assert!(open.iter().all(|panel| panel["type"] == "stat"), "{open:?}");
    let folded: Vec<_> = rows.iter().filter(|row| row["collapsed"] == true).collect();
    assert_eq!(folded.len(), rows.len() - 1);
    // Folded rows lie one below the other, without the height of the panels in them.
    let height = |row: &Value| row["gridPos"]["y"].as_u64().unwrap();
    let heights: Vec<u64> = rows.iter().map(|row| height(row)).collect();
    assert_eq!(heights, [0, 6, 7, 8, 9, 10, 11]);
}

/// The page of the same model, incident or fleet is one click away.
#[test]
fn dashboards_and_rows_link_the_page() {
    for (name, dashboard) in dashboards().unwrap() {
        let link = dashboard["links"][0]["url"].as_str().unwrap();
        assert!(link.starts_with("${page:raw}/"), "{name}: {link}");
        for panel in panels(&dashboard) {
            let overrides = panel["fieldConfig"]["overrides"].as_array().unwrap();
            let sql = panel["targets"][0]["rawSql"].as_str().unwrap_or_default();
            let is_of_rows = panel["type"] == "table";
            let names_one = ["AS verdict", " verdict,", "incident_id", "AS signal"];
            if is_of_rows && names_one.iter().any(|word| sql.contains(word)) {
                let links = overrides
                    .iter()
                    .any(|o| o.to_string().contains("page_code:raw"));
                assert!(links, "{name}: {} has no link to the page", panel["title"]);
            }
        }
    }
}

/// Grafana's alerting and Prometheus have the same rules, in a file that Grafana's provisioning reads.
#[test]
fn grafana_alerts_on_the_same_conditions_as_prometheus() {
    // Keys that Grafana documents for file provisioning. It ignores others without a word.
    const OF_RULE: [&str; 14] = [
        "annotations",
        "condition",
        "dashboardUid",
        "data",
        "execErrState",
        "for",
        "isPaused",
        "keepFiringFor",
        "labels",
        "missing_series_evals_to_resolve",
        "noDataState",
        "panelId",
        "title",
        "uid",
    ];
    const OF_QUERY: [&str; 5] = [
        "datasourceUid",
        "model",
        "queryType",
        "refId",
        "relativeTimeRange",
    ];
    let root = Path::new(ROOT);
    let committed = fs::read_to_string(root.join(ALERTS)).unwrap_or_default();
    let expected = alert_rules().unwrap();
    assert!(
        committed == expected,
        "{ALERTS} is not what alerts.yml says: cargo run -p epwatch-grafana"
    );

    // A rule begins with its `uid`; each key has a line, and its value is JSON.
    let (_, rules) = committed.split_once("    rules:\n").unwrap();
    let mut found: Vec<serde_json::Map<String, Value>> = Vec::new();
    for line in rules.lines() {
        if let Some(query) = line.strip_prefix("          - ") {
            let query: Value = serde_json::from_str(query).unwrap();
            let keys = query.as_object().unwrap().keys();
            assert!(keys.into_iter().all(|key| OF_QUERY.contains(&key.as_str())));
            let data = found.last_mut().unwrap().get_mut("data").unwrap();
            data.as_array_mut().unwrap().push(query);
            continue;
        }
        let begun = line.strip_prefix("      - ");
        if begun.is_some() {
            found.push(serde_json::Map::new());
        }
        let entry = begun.or(line.strip_prefix("        ")).unwrap();
        let (key, value) = entry.split_once(':').unwrap();
        assert!(OF_RULE.contains(&key), "{line}");
        let value = match value.trim() {
            "" => json!([]),
            value => serde_json::from_str(value).unwrap(),
        };
        found.last_mut().unwrap().insert(key.to_owned(), value);
    }
    let of_prometheus = fs::read_to_string(root.join("../prometheus/alerts.yml")).unwrap();
    let of = |key: &str| -> Vec<&str> {
        let lines = of_prometheus.lines().map(str::trim);
        lines.filter_map(|line| line.strip_prefix(key)).collect()
    };
    let [names, exprs] = [of("- alert: "), of("expr: ")];
    let severities = of("labels: { severity: ");
    assert!(names.len() > 20, "{names:?}");
    assert_eq!(found.len(), names.len());
    for (at, rule) in found.iter().enumerate() {
        assert_eq!(rule["title"], names[at]);
        assert_eq!(rule["data"][0]["model"]["expr"], exprs[at]);
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert_eq!(format!("{severity} }}"), severities[at]);
        assert_eq!(rule["data"].as_array().unwrap().len(), 3);
        assert_eq!(rule["data"][2]["refId"], rule["condition"]);
        // Grafana takes `$` for a variable of the environment, and lacks some functions of Prometheus.
        let texts = rule["annotations"].to_string();
        let foreign = ["| query", "| first", "{{ with"];
        assert!(!foreign.iter().any(|word| texts.contains(word)), "{texts}");
        assert!(!texts.contains('$'), "{texts}");
        // Grafana allows at most 40 characters.
        assert!(rule["uid"].as_str().unwrap().len() <= 40);
    }
    let waits: Vec<&str> = of("for: ");
    let is_waiting = |rule: &&serde_json::Map<String, Value>| rule["for"] != "0s";
    let of_grafana = found.iter().filter(is_waiting).map(|rule| &rule["for"]);
    assert_eq!(of_grafana.collect::<Vec<_>>(), waits);
    let source = fs::read_to_string(root.join("provisioning/datasources/epwatch.yaml")).unwrap();
    let uid = found[0]["data"][0]["datasourceUid"].as_str().unwrap();
    assert!(source.contains(&format!("uid: {uid}\n")), "{uid}");
}
