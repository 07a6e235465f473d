//! Log lines about refused reports and calls. For each key and outcome, the first is logged at once, then at most one
//! an hour. Ingest and the key check call it. Metrics count each refusal; the log names the sender's mistake.
//!
//! Memory is bounded: keys come from the config, outcomes are a fixed list, and only a limited number of apps is kept.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const PERIOD: Duration = Duration::from_secs(3_600);
/// How many app ids are counted by name for a key and outcome; further ids share one count. A sender chooses its app
/// ids, so their number is unbounded.
const MAX_APPS: usize = 100;

#[derive(Debug, Default)]
pub(crate) struct RefusalWarnings(Mutex<HashMap<&'static str, HashMap<String, Pending>>>);

/// Refusals since the last line.
#[derive(Debug, Default)]
struct Pending {
    warned_at: Option<Instant>,
    n_refused: u64,
    first_app: String,
    other_apps: HashSet<String>,
}

/// A log line that is due.
#[derive(Debug, PartialEq, Eq)]
struct Warning {
    n_refused: u64,
    /// The first refused app id since the last line, escaped.
    app: String,
    n_other_apps: usize,
}

impl RefusalWarnings {
    /// Logs `n` refused reports of one app, or counts them for the next line.
    pub(crate) fn reports(
        &self,
        key: &str,
        admits: impl FnOnce() -> String,
        outcome: &'static str,
        (app, n): (&str, u64),
    ) {
        if let Some(warning) = self.note(key, outcome, app, n, Instant::now()) {
            tracing::warn!(
                key,
                outcome,
                app = warning.app,
                reports = warning.n_refused,
                other_apps = warning.n_other_apps,
                "reports refused; the app key admits {}, the next line of this kind is in an hour",
                admits()
            );
        }
    }

    /// Logs a call that is refused for its app key, or counts it for the next line.
    pub(crate) fn call(&self, key: &str, result: &'static str) {
        if let Some(warning) = self.note(key, result, "", 1, Instant::now()) {
            tracing::warn!(
                key,
                calls = warning.n_refused,
                "calls refused: the app key is {result}; the next line of this kind is in an hour"
            );
        }
    }

    fn note(
        &self,
        key: &str,
        outcome: &'static str,
        app: &str,
        n: u64,
        now: Instant,
    ) -> Option<Warning> {
        let mut all = self.0.lock();
        let by_key = all.entry(outcome).or_default();
        if !by_key.contains_key(key) {
            by_key.insert(key.to_owned(), Pending::default());
        }
        let pending = by_key.get_mut(key)?;
        if pending.n_refused == 0 {
            app.clone_into(&mut pending.first_app);
        } else if pending.first_app != app && pending.other_apps.len() < MAX_APPS {
            pending.other_apps.insert(app.to_owned());
        }
        pending.n_refused += n;
        let is_due = |at: Instant| now.saturating_duration_since(at) >= PERIOD;
        if !pending.warned_at.is_none_or(is_due) {
            return None;
        }
        let due = std::mem::take(pending);
        pending.warned_at = Some(now);
        Some(Warning {
            n_refused: due.n_refused,
            app: due.first_app.escape_debug().to_string(),
            n_other_apps: due.other_apps.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_at_once_then_one_an_hour_with_the_first_app_and_the_number_of_others() {
        let warnings = RefusalWarnings::default();
        let start = Instant::now();
        let note = |key: &str, app: &str, seconds| {
            let now = start + Duration::from_secs(seconds);
            let warning = warnings.note(key, "refused_wrong_app", app, 1, now)?;
            Some((warning.n_refused, warning.app, warning.n_other_apps))
        };
        let line = |n, app: &str, others| Some((n, app.to_owned(), others));
        assert_eq!(
            note("a", "line\nbreak\u{1b}[2J", 0),
            line(1, "line\\nbreak\\u{1b}[2J", 0)
        );
        assert_eq!(
            note("b", "x", 1),
            line(1, "x", 0),
            "another key has its own line"
        );
        for n in 0..300 {
            assert_eq!(note("a", &format!("app-{}", n % 3), 10), None);
        }
        assert_eq!(note("a", "app-3", 3_600), line(301, "app-0", 3));
        assert_eq!(note("a", "app-3", 3_601), None);
        for n in 0..3_000 {
            note("a", &format!("made-up-{n}"), 3_700);
        }
        assert_eq!(note("a", "last", 7_200), line(3_002, "app-3", MAX_APPS));
    }
}
