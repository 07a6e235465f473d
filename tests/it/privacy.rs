//! `docs/privacy.md` names every field that a device sends with its column in the store, every column, and every table
//! with an installation's data.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::support::docs;

/// Prefixes of the columns of a message's fields. Without a prefix, field and column have the same name.
const PREFIXES: [(&str, &[&str]); 23] = [
    ("App", &["app_", ""]),
    ("CpuNode", &["cpu_node_"]),
    ("Device", &["", "device_"]),
    ("Dropped", &["health_dropped_"]),
    ("EndedStream", &["ended_"]),
    ("EpShare", &["ep_"]),
    ("ExceedCounts", &["series_"]),
    ("LatencySeries", &["series_"]),
    ("Model", &["session_model_", "session_"]),
    ("Placement", &["session_", "session_placement_", ""]),
    ("Report", &[""]),
    ("ReportKey", &[""]),
    ("RunErrors", &["run_error_"]),
    ("Runtime", &[""]),
    ("Sdk", &["sdk_"]),
    ("SdkHealth", &["health_"]),
    ("SelfBaseline", &["series_previous_", "series_earlier_"]),
    ("SelfTest", &["self_test_"]),
    ("Session", &["session_app_", "session_"]),
    ("SessionOptions", &["session_"]),
    ("StartFailure", &["start_failure_"]),
    ("Stratum", &["series_"]),
    ("WholeNanoseconds", &["series_"]),
];

/// Fields whose columns have other names.
#[rustfmt::skip]
const KEPT_AS: [(&str, &[&str]); 35] = [
    ("DirectivesRefused.count", &["health_directives_refused"]),
    ("DirectivesRefused.reason", &["health_directives_refused"]),
    ("Dropped.reason", &["health_dropped_reports", "health_dropped_runs"]),
    ("Device.vendor_fingerprint_hash", &["firmware"]),
    ("EpDevice.device_type", &["session_devices"]),
    ("EpDevice.ep", &["session_devices"]),
    ("EpDevice.vendor", &["session_devices"]),
    ("EpShare.ep", &["ep"]),
    ("EpShare.n_nodes", &["ep_nodes"]),
    ("EpShare.n_partitions", &["ep_partitions"]),
    ("Fingerprint.algorithm", &["session_fingerprint_algorithm", "fingerprint_algorithm"]),
    ("Fingerprint.value", &["session_fingerprint_exact", "session_fingerprint_normalised", "fingerprint_exact", "fingerprint_normalised"]),
    ("Label.key", &["rollout_labels"]),
    ("Label.value", &["rollout_labels"]),
    ("LatencySeries.histogram", &["series_hist_bucket", "series_hist_count"]),
    ("LatencySeries.session_uid", &["series_session"]),
    ("Model.id", &["session_model_id", "start_failure_model_id", "model_id"]),
    ("Model.version", &["session_model_version", "start_failure_model_version", "model_version"]),
    ("Report.interval_end_unix_ms", &["occurred_at"]),
    ("ReportKey.installation_id", &["installation"]),
    ("RunErrors.ort_status_code", &["run_error_ort_status"]),
    ("RunErrors.session_uid", &["run_error_session"]),
    ("SelfBaseline.ep_version", &["series_earlier_runtime"]),
    ("SelfBaseline.kind", &["series_previous_n", "series_earlier_n"]),
    ("SelfBaseline.model_version", &["series_previous_version"]),
    ("SelfBaseline.ort_version", &["series_earlier_runtime"]),
    ("SelfBaseline.vendor_fingerprint_hash", &["series_earlier_firmware"]),
    ("SelfTest.cpu_output_hash", &["self_test_cpu_hash"]),
    ("SelfTest.npu_output_hash", &["self_test_npu_hash"]),
    ("SelfTest.session_uid", &["self_test_session"]),
    ("SendClock.wall_unix_ms", &["clock_skew_ms"]),
    ("Session.created_at_unix_ms", &["session_created_at"]),
    ("StartFailure.ort_status_code", &["start_failure_ort_status"]),
    ("UploadFailures.count", &["health_upload_failures"]),
    ("UploadFailures.kind", &["health_upload_failures"]),
];

/// The fields of each message, with their types.
type Messages = BTreeMap<String, Vec<(String, String)>>;

/// Reads the messages of the contract. No message is nested.
fn messages() -> Messages {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/epwatch/v1");
    let mut messages = Messages::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let mut message = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match (&words[..], &message) {
                (["message", name, ..], _) => {
                    messages.insert((*name).to_owned(), Vec::new());
                    message = (!line.ends_with('}')).then(|| (*name).to_owned());
                }
                (["}"], _) => message = None,
                (["//", ..], _) => {}
                ([.., kind, name, "=", _], Some(message)) => {
                    let field = ((*name).to_owned(), (*kind).to_owned());
                    messages.get_mut(message).unwrap().push(field);
                }
                _ => {}
            }
        }
    }
    messages
}

/// Returns the messages that devices send.
fn sent(messages: &Messages) -> BTreeSet<&str> {
    let mut sent = BTreeSet::new();
    let mut open = vec!["UploadRequest", "DeleteInstallationRequest"];
    while let Some(message) = open.pop() {
        if sent.insert(message) {
            let fields = messages[message].iter();
            open.extend(fields.filter_map(|(_, kind)| {
                let (name, _) = messages.get_key_value(kind)?;
                Some(name.as_str())
            }));
        }
    }
    sent
}

/// Returns the words in backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_field_that_a_device_sends_is_named_with_its_reason() {
    let messages = messages();
    let document = docs("privacy.md");
    let table = document.split("\n## ").nth(1).unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut named = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        let [message, fields, why, kept] = cells[..] else {
            panic!("{row}");
        };
        assert!(!why.is_empty() && !kept.is_empty(), "{row}");
        named.insert(message.trim_end_matches('`'), quoted(fields));
    }
    let sent = sent(&messages);
    assert!(sent.len() > 25, "{sent:?}");
    assert_eq!(named.keys().copied().collect::<BTreeSet<_>>(), sent);
    for (message, fields) in named {
        let contract = messages[message].iter().map(|(name, _)| name.as_str());
        assert_eq!(fields, contract.collect::<Vec<_>>(), "{message}");
    }
}

/// Returns the columns of the tables with data that devices send.
fn columns() -> BTreeSet<&'static str> {
    let sql = include_str!("../../collector/migrations/0002_reports.sql");
    let mut columns = BTreeSet::new();
    for table in ["report_copies", "reports", "placements"] {
        let (_, rest) = sql
            .split_once(&format!("CREATE TABLE IF NOT EXISTS {table} "))
            .unwrap();
        let (definition, _) = rest.split_once("\n) ENGINE").unwrap();
        let lines = definition
            .lines()
            .filter_map(|line| line.strip_prefix("    "));
        let names = lines.filter_map(|line| line.split_once(' ').map(|(name, _)| name));
        columns.extend(names.filter(|name| !["--", "INDEX"].contains(name)));
    }
    columns
}

/// Returns the columns that a field is stored in.
fn columns_of<'a>(message: &str, field: &str, columns: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let path = format!("{message}.{field}");
    if let Some((_, names)) = KEPT_AS.iter().find(|(name, _)| *name == path) {
        let found: Vec<&str> = names
            .iter()
            .filter_map(|name| columns.get(name).copied())
            .collect();
        assert_eq!(found.len(), names.len(), "{path} is in {names:?}");
        return found;
    }
    let prefixes = PREFIXES.iter().find(|(name, _)| *name == message);
    let prefixes = prefixes.map_or(&[][..], |(_, prefixes)| prefixes);
    let names = prefixes.iter().flat_map(|prefix| {
        let name = format!("{prefix}{field}");
        [format!("{name}_us"), name]
    });
    names
        .filter_map(|name| columns.get(&*name).copied())
        .collect()
}

/// A field that is sent but not stored is useless. A field that is stored but not documented breaks a promise.
#[test]
fn what_is_kept_of_each_field_is_what_the_store_has_columns_for() {
    let (messages, columns) = (messages(), columns());
    assert!(columns.len() > 150, "{columns:?}");
    let document = docs("privacy.md");
    let section = document.split("\n## ").nth(1).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut told = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        let (message, kept) = (cells[0].trim_end_matches('`'), cells[3]);
        let is_kept = kept.contains("raw") || kept.contains("once for each placement");
        let without = kept.split_once("without ").map_or("", |(_, rest)| rest);
        let without = quoted(without.split(';').next().unwrap());
        for (field, kind) in &messages[message] {
            if messages.contains_key(kind) {
                continue;
            }
            let found = columns_of(message, field, &columns);
            let must_be_there = is_kept && !without.contains(&&**field);
            assert_eq!(
                !found.is_empty(),
                must_be_there,
                "docs/privacy.md says of {message}.{field}: {kept}; its columns are {found:?}"
            );
            told.extend(found);
        }
    }
    let (_, prose) = section.split_once("To these the collector adds").unwrap();
    told.extend(quoted(prose));
    let untold: Vec<_> = columns.difference(&told).collect();
    assert_eq!(
        untold,
        Vec::<&&str>::new(),
        "columns that docs/privacy.md does not name"
    );
}

#[test]
fn every_table_that_knows_an_installation_is_named_with_its_deletion() {
    let document = docs("privacy.md");
    let deletion = document.split("## How it is deleted").nth(1).unwrap();
    let named: BTreeSet<&str> = quoted(deletion).into_iter().collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("collector/migrations");
    let mut tables = 0;
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for table in text.split("CREATE TABLE IF NOT EXISTS ").skip(1) {
            let (name, rest) = table.split_once(' ').unwrap();
            let columns = rest.split("ENGINE").next().unwrap();
            if columns.contains("installation FixedString") {
                tables += 1;
                assert!(named.contains(name), "{name} is not in docs/privacy.md");
            }
        }
    }
    assert_eq!(tables, 5);
}
