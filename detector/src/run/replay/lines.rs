//! The lines of a replay: names as in DESIGN, and floats with six digits, so that sums in another order give the same
//! text.

use std::collections::BTreeMap;

use epwatch_model::summary::{IncidentSummary, VerdictSummary};
use epwatch_model::{CohortVerdict, Incident, VerdictClass};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::called_false::CalledFalse;
use crate::notify::text_of;

/// One line of a replay, as JSON with `kind` for its variant.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Line {
    /// A cohort window, judged.
    Verdict(Box<VerdictSummary>),
    /// An incident that changed.
    Incident(Box<IncidentLine>),
    /// The last line: counts over all windows.
    Summary(ReplaySummary),
}

/// An incident that changed, and in which window.
#[derive(Debug, Clone, Serialize)]
pub struct IncidentLine {
    /// The exclusive end, in RFC 3339.
    pub window_end: String,
    /// The incident as it is now.
    #[serde(flatten)]
    pub incident: IncidentSummary,
    /// The notification, as people read it: headline, next steps, facts and statistics, a line each.
    pub text: String,
}

/// Counts of a replay's findings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReplaySummary {
    /// Model versions times chipsets times windows.
    pub cohort_windows: u64,
    /// Verdicts by name, including verdicts on single firmwares.
    pub verdicts: BTreeMap<VerdictClass, u64>,
    /// Incidents of severity `page` that fired.
    pub pages: u64,
    /// Cohort windows in which each CV rule fired: the configured ones, and two common ones for comparison.
    pub cv_rules: BTreeMap<String, u64>,
    /// Incidents that people called false; absent if there are none, or if the reports are from files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub called_false: Option<CalledFalse>,
}

impl Line {
    pub(super) fn verdict(verdict: &CohortVerdict) -> Self {
        Line::Verdict(Box::new(verdict.into()))
    }

    pub(super) fn incident(incident: &Incident, window_end: Timestamp) -> Self {
        Line::Incident(Box::new(IncidentLine {
            window_end: window_end.to_string(),
            incident: incident.into(),
            text: text_of(incident),
        }))
    }
}

/// Digits of a float in a line.
const DIGITS: i32 = 6;

/// Returns the line as JSON, without a line's end.
///
/// # Panics
/// It never panics, because a line has only text keys.
#[must_use]
pub fn to_json(line: &Line) -> String {
    let mut value = serde_json::to_value(line).expect("a line has text keys only");
    round(&mut value);
    value.to_string()
}

fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(rounded) = number.as_f64().and_then(rounded) {
                *number = rounded;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        _ => {}
    }
}

fn rounded(number: f64) -> Option<serde_json::Number> {
    let digits = usize::try_from(DIGITS - 1).ok()?;
    let text = format!("{number:.digits$e}");
    serde_json::Number::from_f64(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::advance;
    use crate::testing::{Fleet, judged, reference};

    #[test]
    fn floats_have_six_digits_and_counts_all_of_theirs() {
        let mut value = serde_json::json!({
            "p": 1.234_567_89e-12, "n": 123_456_789, "list": [0.333_333_333_333, 2.0]
        });
        round(&mut value);
        let expected = serde_json::json!({
            "p": 1.234_57e-12, "n": 123_456_789, "list": [0.333_333, 2.0]
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn the_names_that_programs_rely_on_are_there() {
        let verdict = judged(&Fleet::with_fallback(1.0).window(), None, &reference());
        let line = serde_json::to_value(VerdictSummary::from(&verdict)).unwrap();
        for name in [
            "window_end",
            "app",
            "model",
            "version",
            "chipset",
            "firmware",
            "verdict",
            "severity",
            "devices_hit",
            "devices_compared",
            "devices_seen",
            "latency_ratio",
            "cv_within",
            "cv_between",
            "cpu_ops",
        ] {
            assert!(!line[name].is_null(), "{name} in {line}");
        }
        assert_eq!(
            (&line["verdict"], &line["severity"]),
            (&"partial_fallback".into(), &"page".into())
        );
        for name in ["id", "value", "p"] {
            assert!(!line["signals"][0][name].is_null(), "{name} in {line}");
        }

        let mut open = std::collections::BTreeMap::new();
        let forget = std::time::Duration::from_secs(3600);
        let now = verdict.window_end;
        let changed = advance(&mut open, &[verdict], forget, now);
        let line = serde_json::to_value(IncidentSummary::from(&changed[0])).unwrap();
        for name in [
            "state",
            "severity",
            "app",
            "model",
            "version",
            "chipsets",
            "verdict",
            "devices_hit",
            "devices_compared",
            "devices_seen",
            "latency_ratio",
            "cv",
            "cpu_ops",
            "cpu_macs_share",
        ] {
            assert!(!line[name].is_null(), "{name} in {line}");
        }
        assert_eq!(line["state"], "firing");
    }
}
