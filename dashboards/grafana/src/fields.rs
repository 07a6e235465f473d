//! The look of columns by their names, the same on every dashboard: headings, units, colours, links. Red is only for bad.

use anyhow::{Context, ensure};
use epwatch_model::{Severity, SignalId, State, VerdictClass};
use serde_json::{Value, json};

use crate::headings::HEADINGS;

/// Verdicts, their headings and their colours, the mildest first.
pub(crate) const VERDICTS: [(&str, &str, &str); 14] = [
    verdict(VerdictClass::Healthy, "green"),
    verdict(VerdictClass::NotEnoughData, "#8e8e8e"),
    verdict(VerdictClass::ThermalOrLoad, "blue"),
    verdict(VerdictClass::DataQuality, "blue"),
    verdict(VerdictClass::CvSpike, "yellow"),
    verdict(VerdictClass::CompiledForAnother, "yellow"),
    verdict(VerdictClass::SlowWithoutPlacement, "yellow"),
    verdict(VerdictClass::IntermittentFallback, "orange"),
    verdict(VerdictClass::SomeDevicesFallback, "orange"),
    verdict(VerdictClass::PartialFallback, "orange"),
    verdict(VerdictClass::TotalFallback, "red"),
    verdict(VerdictClass::NpuStartFailure, "red"),
    verdict(VerdictClass::QuantisationLoss, "red"),
    verdict(VerdictClass::WrongOutputs, "red"),
];
const SEVERITIES: [(&str, &str, &str); 4] = [
    (Severity::Page.as_str(), "Page", "red"),
    (Severity::Ticket.as_str(), "Ticket", "orange"),
    (Severity::Info.as_str(), "For information", "blue"),
    (Severity::None.as_str(), "Nothing to do", "text"),
];
const STATES: [(&str, &str, &str); 4] = [
    (State::Firing.as_str(), "Firing", "red"),
    (State::Pending.as_str(), "Pending", "orange"),
    (State::Mitigated.as_str(), "Held by a directive", "yellow"),
    (State::Resolved.as_str(), "Resolved", "green"),
];

/// Signals and the questions that they answer.
const SIGNALS: [(&str, &str, &str); 14] = [
    signal(SignalId::SlowerAndMoved),
    signal(SignalId::Placement),
    signal(SignalId::Certificate),
    signal(SignalId::Median),
    signal(SignalId::Shift),
    signal(SignalId::ShiftOfModel),
    signal(SignalId::Tail),
    signal(SignalId::NearTail),
    signal(SignalId::Moved),
    signal(SignalId::Start),
    signal(SignalId::Outputs),
    signal(SignalId::OutputHash),
    signal(SignalId::OutputDrop),
    signal(SignalId::CvIncrease),
];

const fn verdict(
    class: VerdictClass,
    colour: &'static str,
) -> (&'static str, &'static str, &'static str) {
    (class.as_str(), class.heading(), colour)
}

const fn signal(id: SignalId) -> (&'static str, &'static str, &'static str) {
    match (id.name(), id.question()) {
        (Some(name), Some(question)) => (name, question, "text"),
        _ => panic!("a count of history has no question"),
    }
}

/// Counts of devices that the detector keeps for each limit, with the limit in the signal's name.
const COUNTS: [(&str, &str); 3] = [
    (
        "/^slower_than_(.*)x$/",
        "Devices more than $1 times slower than their own past",
    ),
    (
        "/^intermittent_runs_from_(.*)_percent$/",
        "Devices with $1 % or more runs far beyond their own p95",
    ),
    (
        "/^near_intermittent_runs_from_(.*)_percent$/",
        "Devices with $1 % or more slow runs that are a group of their own",
    ),
];

/// Opens the model of a row; its `link_code` has the rest of the variables, encoded by the query.
const MODEL_LINK: &str = "/d/epwatch-model-per-chipset?var-datasource=${datasource:percentencode}\
    &var-app=${app:percentencode}&var-environment=${environment:percentencode}${__data.fields.link_code:raw}";

/// Opens the row's incident or cohort on epwatch's page; its `page_code` is appended to the page's address.
const PAGE_LINK: &str = "${page:raw}${__data.fields.page_code:raw}";

/// Columns with a link of their own to epwatch's page.
const LINKED: [&str; 3] = ["verdict", "incident_id", "signal"];

/// Columns of a table that are wider than the others, with their least width in pixels.
const WIDE: [(&str, u64); 13] = [
    ("changed_at", 150),
    ("cpu_ops", 170),
    ("example", 400),
    ("expires", 150),
    ("incident_id", 150),
    ("judged", 150),
    ("names", 300),
    ("not_before", 150),
    ("signal", 340),
    ("started_at", 150),
    ("summary", 400),
    ("verdict", 170),
    ("why", 220),
];

/// Returns the properties of a column by its name.
fn look(column: &str) -> Value {
    if let Some(columns) = match column {
        "verdict" => Some(coloured(&VERDICTS)),
        "severity" => Some(coloured(&SEVERITIES)),
        "state" => Some(coloured(&STATES)),
        "signal" => Some(signals()),
        "p" => Some(json!({"decimals": 4, "mappings": [tiny()]})),
        "hit" | "pages" | "not_accounted" => Some(from_one_on("red")),
        "tickets" | "missing" => Some(from_one_on("orange")),
        "link_code" | "page_code" => Some(json!({"custom.hidden": true})),
        _ => None,
    } {
        return columns;
    }
    match column {
        _ if column.ends_with("_ms") => json!({"unit": "ms", "decimals": 2}),
        _ if column.ends_with("share") => json!({"unit": "percentunit", "decimals": 1}),
        _ if column.starts_with("times_") => json!({"unit": "suffix: ×", "decimals": 2}),
        "cv_within" | "cv_between" => json!({"decimals": 3}),
        "dip" => json!({"decimals": 4}),
        _ => json!({}),
    }
}

/// Returns the overrides of the columns that a query answers with. `kind` is the kind of the panel.
pub(crate) fn overrides(kind: &str, sql: &str) -> anyhow::Result<Vec<Value>> {
    let columns = result_columns(sql)?;
    // A state timeline maps its numbers to verdicts by itself.
    if kind == "state-timeline" {
        return Ok(Vec::new());
    }
    let is_series = matches!(kind, "timeseries" | "heatmap");
    let mut found = Vec::new();
    for column in &columns {
        let mut properties = look(column);
        let is_hidden = properties.get("custom.hidden").is_some();
        if !is_series && !is_hidden {
            properties["displayName"] = json!(heading(column)?);
        }
        // With several values, a series is named after the value and the cohort. With a single value, it is named after
        // the cohort alone.
        if kind == "timeseries" && columns.len() > 3 && !["time", "cohort"].contains(column) {
            let words = heading(column)?;
            properties["displayName"] = json!(format!("{words}, ${{__field.labels.cohort}}"));
        }
        if kind == "table" && !is_hidden {
            let width = WIDE.iter().find(|(name, _)| name == column);
            if let Some((_, width)) = width {
                properties["custom.minWidth"] = json!(width);
            }
        }
        let mut links = Vec::new();
        if LINKED.contains(column) && columns.contains(&"page_code") {
            links.push(json!({"title": "Open on epwatch's page", "url": PAGE_LINK}));
        }
        if *column == "model" && columns.contains(&"link_code") {
            links.push(json!({"title": "Model on chipset", "url": MODEL_LINK}));
        }
        if !links.is_empty() {
            properties["links"] = json!(links);
        }
        let properties = properties.as_object().into_iter().flatten();
        let properties: Vec<Value> = properties
            .map(|(id, value)| json!({"id": id, "value": value}))
            .collect();
        if !properties.is_empty() {
            // Grafana appends a series' labels to its name.
            let matcher = json!({"id": "byRegexp", "options": format!("/^{column}\\b/")});
            found.push(json!({"matcher": matcher, "properties": properties}));
        }
    }
    Ok(found)
}

fn heading(column: &str) -> anyhow::Result<&'static str> {
    let found = HEADINGS.iter().find(|(name, _)| *name == column);
    let (_, heading) = found.with_context(|| format!("{column:?} has no heading"))?;
    Ok(heading)
}

/// Returns the names of the columns that a query answers with: the last words of the outermost select list.
pub(crate) fn result_columns(sql: &str) -> anyhow::Result<Vec<&str>> {
    let mut depth = 0i32;
    let (mut begin, mut items) = (None, Vec::new());
    for (at, c) in sql.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth > 0 {
            continue;
        }
        let rest = &sql[at..];
        match begin {
            None if rest.starts_with("SELECT ") || rest.starts_with("SELECT\n") => {
                begin = Some(at);
            }
            Some(start) if c == ',' || rest.starts_with("\nFROM ") => {
                items.push(&sql[start..at]);
                begin = Some(at);
                if c != ',' {
                    break;
                }
            }
            _ => {}
        }
    }
    ensure!(!items.is_empty(), "no select list in {sql:?}");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = items.into_iter().map(|item| {
        let name = item.rsplit(|c| !is_word(c)).next();
        name.filter(|name| !name.is_empty())
            .with_context(|| format!("{item:?} has no name"))
    });
    names.collect()
}

/// Returns the mapping of the numbers that a state timeline has for verdicts, from 1 on.
pub(crate) fn verdicts_by_number() -> Value {
    let options: serde_json::Map<String, Value> = (1..)
        .zip(VERDICTS)
        .map(|(number, (_, title, colour))| (f64::from(number).to_string(), mapped(title, colour)))
        .collect();
    json!([{"type": "value", "options": options}])
}

/// Returns steps of colours: `red above 600` is green below 600, `red below 1` is green from 1 on.
pub(crate) fn thresholds(limit: Option<&str>) -> Option<Value> {
    let Some(limit) = limit else {
        return Some(steps("text", None));
    };
    let mut words = limit.split(' ');
    let (colour, side, value) = (words.next()?, words.next()?, words.next()?);
    let value = value.parse().ok()?;
    match side {
        "above" => Some(steps("green", Some((colour, value)))),
        "below" => Some(steps(colour, Some(("green", value)))),
        _ => None,
    }
}

fn steps(base: &str, next: Option<(&str, f64)>) -> Value {
    let mut steps = vec![json!({"color": base, "value": null})];
    steps.extend(next.map(|(colour, value)| json!({"color": colour, "value": value})));
    json!({"mode": "absolute", "steps": steps})
}

fn from_one_on(colour: &str) -> Value {
    json!({
        "custom.cellOptions": {"type": "color-text"},
        "thresholds": steps("text", Some((colour, 1.0))),
        "color": {"mode": "thresholds"},
    })
}

fn coloured(names: &[(&str, &str, &str)]) -> Value {
    json!({"custom.cellOptions": {"type": "color-text"}, "mappings": [by_value(names)]})
}

fn signals() -> Value {
    let mut mappings = vec![by_value(&SIGNALS)];
    mappings.extend(COUNTS.map(|(pattern, text)| {
        json!({"type": "regex", "options": {"pattern": pattern, "result": {"text": text}}})
    }));
    json!({"mappings": mappings})
}

/// Maps a chance that would be shown as 0 to a text.
fn tiny() -> Value {
    json!({"type": "range", "options": {"from": 0, "to": 0.000_1, "result": {"text": "Below 0.0001"}}})
}

fn by_value(names: &[(&str, &str, &str)]) -> Value {
    let options: serde_json::Map<String, Value> = names
        .iter()
        .map(|(name, text, colour)| ((*name).to_owned(), mapped(text, colour)))
        .collect();
    json!({"type": "value", "options": options})
}

fn mapped(text: &str, colour: &str) -> Value {
    json!({"text": text, "color": colour})
}
