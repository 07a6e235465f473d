//! The look of columns by their names, the same on every dashboard: units, colours, links. Red is only for bad.

use serde_json::{Value, json};

/// Verdicts and their colours, the mildest first. A test compares the names with the detector's.
pub(crate) const VERDICTS: [(&str, &str); 12] = [
    ("healthy", "green"),
    ("not_enough_data", "text"),
    ("thermal_or_load", "blue"),
    ("data_quality", "blue"),
    ("cv_spike", "yellow"),
    ("slow_without_placement", "yellow"),
    ("intermittent_fallback", "orange"),
    ("some_devices_fallback", "orange"),
    ("partial_fallback", "orange"),
    ("total_fallback", "red"),
    ("npu_start_failure", "red"),
    ("wrong_outputs", "red"),
];
const SEVERITIES: [(&str, &str); 4] = [
    ("page", "red"),
    ("ticket", "orange"),
    ("info", "blue"),
    ("none", "text"),
];
const STATES: [(&str, &str); 4] = [
    ("firing", "red"),
    ("pending", "orange"),
    ("mitigated", "yellow"),
    ("resolved", "green"),
];

/// Opens the model of a row; its `link_code` has the rest of the variables, encoded by the query.
const MODEL_LINK: &str = "/d/epwatch-model-per-chipset?var-datasource=${datasource:percentencode}\
    &var-app=${app:percentencode}&var-environment=${environment:percentencode}${__data.fields.link_code:raw}";

/// Makes the properties of an override.
type Look = fn() -> Value;

/// Columns by name, `*` for the rest of it.
const COLUMNS: [(&str, Look); 15] = [
    ("*_ms", || json!({"unit": "ms", "decimals": 2})),
    ("*share", || json!({"unit": "percentunit", "decimals": 1})),
    ("times_*", || json!({"unit": "suffix: ×", "decimals": 2})),
    ("cv_*", || json!({"decimals": 3})),
    ("dip", || json!({"decimals": 4})),
    ("verdict", || coloured(&VERDICTS)),
    ("severity", || coloured(&SEVERITIES)),
    ("state", || coloured(&STATES)),
    ("hit", || from_one_on("red")),
    ("pages", || from_one_on("red")),
    ("not_accounted", || from_one_on("red")),
    ("tickets", || from_one_on("orange")),
    ("missing", || from_one_on("orange")),
    ("link_code", || json!({"custom.hidden": true})),
    (
        "model",
        || json!({"links": [{"title": "Model on chipset", "url": MODEL_LINK}]}),
    ),
];

/// Returns the overrides of a query's columns.
pub(crate) fn overrides(sql: &str) -> Vec<Value> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: Vec<&str> = sql.split(|c| !is_word(c)).collect();
    let found = COLUMNS.iter().filter(|(name, _)| {
        let has = words.iter().any(
            |word| match (name.strip_prefix('*'), name.strip_suffix('*')) {
                (Some(end), _) => word.ends_with(end),
                (_, Some(start)) => word.starts_with(start),
                _ => word == name,
            },
        );
        has && (*name != "model" || words.contains(&"link_code"))
    });
    found
        .map(|(name, look)| {
            let regex = match name.strip_prefix('*') {
                Some(end) => format!("/{end}\\b/"),
                None if name.ends_with('*') => format!("/^{}/", name.trim_end_matches('*')),
                None => format!("/^{name}\\b/"),
            };
            let look = look();
            let properties = look.as_object().into_iter().flatten();
            let properties: Vec<Value> = properties
                .map(|(id, value)| json!({"id": id, "value": value}))
                .collect();
            json!({"matcher": {"id": "byRegexp", "options": regex}, "properties": properties})
        })
        .collect()
}

/// Returns the mapping of the numbers that a state timeline has for verdicts, from 1 on.
pub(crate) fn verdicts_by_number() -> Value {
    let options: serde_json::Map<String, Value> = (1..)
        .zip(VERDICTS)
        .map(|(number, (name, colour))| (f64::from(number).to_string(), mapped(name, colour)))
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

fn coloured(names: &[(&str, &str)]) -> Value {
    let options: serde_json::Map<String, Value> = names
        .iter()
        .map(|(name, colour)| ((*name).to_owned(), mapped(name, colour)))
        .collect();
    json!({
        "custom.cellOptions": {"type": "color-text"},
        "mappings": [{"type": "value", "options": options}],
    })
}

fn mapped(name: &str, colour: &str) -> Value {
    json!({"text": name, "color": colour})
}
