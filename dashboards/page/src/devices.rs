//! Installations for a terminal, as text and JSON. No page lists them: a browser's reader needs no ids.

use std::fmt::Write as _;

use bytes::Bytes;
use clickhouse::Client;
use jiff::Timestamp;
use serde::Serialize;

use crate::read::installations::{self, DAYS, InstallationPage, InstallationRow, MOST};
use crate::read::store::StoreReader;
use crate::terminal::{TerminalAnswer, TerminalError, head, table};
use crate::text::name::{visible, visible_sentence};
use crate::text::number;
use crate::text::time::ago;

/// Number of digits of an id that a list shows. They are enough to query one installation.
const SHORT: usize = 8;

/// Which installations a shell shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DevicesQuery {
    /// All installations that reported in the last day.
    List {
        /// Only the installations of this app.
        app: Option<String>,
    },
    /// The last report of the installation that reported last.
    Latest {
        /// Only an installation of this app.
        app: Option<String>,
    },
    /// The last report of one installation.
    One {
        /// The installation's id, or at least its first eight digits. Dashes and case do not count.
        id: String,
    },
}

/// The JSON of a list.
#[derive(Serialize)]
struct Installations {
    installations: Vec<InstallationRow>,
}

/// Answers `epwatch devices`: a list of installations, or the last report of one.
///
/// # Errors
/// The text is not an id, none or several installations have the id, or the store does not answer.
pub async fn devices(store: Client, query: &DevicesQuery) -> Result<TerminalAnswer, TerminalError> {
    let store = StoreReader::for_command(store);
    let now = Timestamp::now();
    let one = match query {
        DevicesQuery::List { app } => {
            let installations = installations::list(&store, 1, "", app.as_deref()).await?;
            let text = listed(&installations, now);
            return Ok(answer(&Installations { installations }, text));
        }
        DevicesQuery::Latest { app } => {
            let all = installations::list(&store, 1, "", app.as_deref()).await?;
            let last = all.into_iter().next().ok_or(TerminalError::NoneYet)?;
            Some(last)
        }
        DevicesQuery::One { id } => {
            let digits = digits(id).ok_or_else(|| TerminalError::Id(visible(id)))?;
            let mut all = installations::list(&store, DAYS, &digits, None).await?;
            if all.len() > 1 {
                return Err(TerminalError::Several(digits));
            }
            all.pop()
        }
    };
    let one = one.ok_or(TerminalError::NoDevice)?;
    let page = installations::read(&store, one).await;
    let text = shown(&page, now);
    Ok(answer(&page, text))
}

fn answer<T: Serialize>(page: &T, text: String) -> TerminalAnswer {
    let json = Bytes::from(serde_json::to_vec(page).unwrap_or_default());
    TerminalAnswer {
        state: json.clone(),
        json,
        text,
    }
}

/// Returns the digits of an id or of its beginning.
fn digits(id: &str) -> Option<String> {
    let digits = id.replace('-', "").to_ascii_lowercase();
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    (is_hex && (SHORT..=32).contains(&digits.len())).then_some(digits)
}

fn received(ms: i64, now: Timestamp) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| String::new(), |at| ago(at, now))
}

/// Returns a text that an app may leave out.
fn given(text: &str, absent: &str) -> String {
    match text.trim() {
        "" => absent.to_owned(),
        text => visible(text),
    }
}

fn listed(installations: &[InstallationRow], now: Timestamp) -> String {
    if installations.is_empty() {
        return "No device reported in the last day; `epwatch health` shows whether reports arrive.\n"
            .to_owned();
    }
    let mut rows = vec![head(&[
        "ID", "APP", "VERSION", "CHIPSET", "DEVICE", "SDK", "REPORTS", "LAST",
    ])];
    rows.extend(installations.iter().map(|row| {
        vec![
            row.id.chars().take(SHORT).collect(),
            visible(&row.app),
            given(&row.app_version, "-"),
            visible(&row.chipset),
            given(&row.device, "-"),
            visible(&row.sdk_version),
            number::count(row.reports),
            received(row.last_received_ms, now),
        ]
    }));
    let mut text = table(&rows);
    if installations.len() == MOST {
        _ = writeln!(
            text,
            "The {MOST} that reported last. `--app` shows the devices of one app."
        );
    }
    text
}

fn shown(page: &InstallationPage, now: Timestamp) -> String {
    let row = &page.installation;
    let mut text = format!(
        "{}\n{} {}, {}; {} on {}, firmware {}; runtime {}, SDK {}\n{} reports in {DAYS} days, the last {}",
        row.id,
        visible(&row.app),
        given(&row.app_version, "without a version"),
        visible(&row.environment),
        given(&row.device, "unnamed device"),
        visible(&row.chipset),
        given(&row.firmware, "unknown"),
        given(&row.runtime, "unknown"),
        visible(&row.sdk_version),
        number::count(row.reports),
        received(row.last_received_ms, now),
    );
    if row.unproven > 0 {
        _ = write!(
            text,
            "; {} without a vote, because the device was new",
            number::count(row.unproven)
        );
    }
    if row.late > 0 {
        _ = write!(text, "; {} late", number::count(row.late));
    }
    let mut rows = vec![head(&[
        "MODEL", "VERSION", "SESSIONS", "ON NPU", "ON CPU", "RUNS", "MEAN", "MIN", "MAX", "REASONS",
    ])];
    rows.extend(page.models.iter().flatten().map(|of| {
        let mut runs = page.latencies.iter().flatten();
        let runs = runs.find(|runs| runs.model == of.model && runs.version == of.version);
        let reasons: Vec<String> = of.reasons.iter().map(|reason| visible(reason)).collect();
        let nodes = |nodes: u64| match of.n_nodes {
            0 => String::new(),
            all => format!("{nodes} of {all}"),
        };
        vec![
            visible(&of.model),
            visible(&of.version),
            number::count(of.sessions),
            nodes(of.npu_nodes),
            nodes(of.cpu_nodes),
            runs.map_or_else(String::new, |runs| number::count(runs.runs)),
            number::ms(runs.map(|runs| runs.mean_us)),
            number::ms(runs.map(|runs| runs.min_us)),
            number::ms(runs.map(|runs| runs.max_us)),
            reasons.join(", "),
        ]
    }));
    text.push_str("\n\n");
    text.push_str(&table(&rows));
    let models = page.models.iter().flatten();
    for of in models.filter(|of| !of.devices.is_empty()) {
        let [model, version, devices] =
            [&of.model, &of.version, &of.devices.join(", ")].map(|text| visible(text));
        _ = writeln!(text, "{model} {version}: {devices}");
    }
    text.push_str(&failures(page, now));
    for line in page.left_out.lines() {
        _ = writeln!(text, "{line}");
    }
    text
}

/// Returns the sessions that could not be made and the runs that failed, or nothing.
fn failures(page: &InstallationPage, now: Timestamp) -> String {
    let mut text = String::new();
    let start_failures = page.start_failures.as_deref().unwrap_or_default();
    if !start_failures.is_empty() {
        let mut rows = vec![head(&[
            "MODEL", "VERSION", "TIMES", "LAST", "STEP", "REASON", "STATUS", "MESSAGE",
        ])];
        rows.extend(start_failures.iter().map(|of| {
            vec![
                visible(&of.model),
                visible(&of.version),
                number::count(of.failures),
                received(of.last_received_ms, now),
                visible(&of.phase),
                visible(&of.reason),
                of.ort_status.to_string(),
                visible_sentence(&of.text),
            ]
        }));
        text.push_str("\nSessions that could not be made:\n");
        text.push_str(&table(&rows));
    }
    let run_errors = page.run_errors.as_deref().unwrap_or_default();
    if !run_errors.is_empty() {
        let mut rows = vec![head(&["MODEL", "VERSION", "TIMES", "LAST", "STATUS"])];
        rows.extend(run_errors.iter().map(|of| {
            vec![
                given(&of.model, "-"),
                given(&of.version, "-"),
                number::count(of.errors),
                received(of.last_received_ms, now),
                of.ort_status.to_string(),
            ]
        }));
        text.push_str("\nRuns that failed:\n");
        text.push_str(&table(&rows));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::store::ReadError;

    /// The page of an installation that sent one report and nothing else.
    fn page() -> InstallationPage {
        let installation = InstallationRow {
            id: "0a1b2c3d000040008000000000000001".to_owned(),
            app: "camera".to_owned(),
            environment: "production".to_owned(),
            app_version: String::new(),
            chipset: "SM8650".to_owned(),
            device: String::new(),
            firmware: String::new(),
            runtime: String::new(),
            sdk_version: "0.1.0".to_owned(),
            reports: 1,
            late: 0,
            unproven: 0,
            first_received_ms: 0,
            last_received_ms: 0,
        };
        InstallationPage {
            installation,
            models: Some(Vec::new()),
            latencies: Some(Vec::new()),
            start_failures: Some(Vec::new()),
            run_errors: Some(Vec::new()),
            left_out: Default::default(),
        }
    }

    #[test]
    fn what_an_app_leaves_out_has_a_word() {
        let line = "camera without a version, production; unnamed device on SM8650, firmware unknown; runtime unknown, \
                    SDK 0.1.0\n";
        let text = shown(&page(), Timestamp::UNIX_EPOCH);
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("could not be"), "{text}");
        assert!(!text.contains("failed"), "{text}");
    }

    #[test]
    fn a_list_that_was_not_read_is_not_an_empty_one() {
        let mut page = page();
        page.start_failures = page
            .left_out
            .part("sessions that could not be made", Err(ReadError::Slow));
        let json = serde_json::to_value(&page).unwrap();
        assert_eq!(json["start_failures"], serde_json::Value::Null);
        assert_eq!(json["run_errors"], serde_json::json!([]));
        let text = shown(&page, Timestamp::UNIX_EPOCH);
        let line = "could not be read in time: sessions that could not be made\n";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn an_id_is_eight_digits_at_least() {
        assert_eq!(digits("0A1b2c3d").as_deref(), Some("0a1b2c3d"));
        let whole = "0a1b2c3d-0000-4000-8000-000000000001";
        assert_eq!(
            digits(whole).as_deref(),
            Some("0a1b2c3d000040008000000000000001")
        );
        for wrong in ["", "0a1b2c3", "0a1b2c3g", "%", &"0".repeat(33), "０a1b2c3d"] {
            assert_eq!(digits(wrong), None, "{wrong}");
        }
    }
}
