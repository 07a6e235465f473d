//! `docs/privacy.md` names every field that a device sends, and every table that knows an installation.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::support::docs;

/// The fields of each message, with the type of each.
type Messages = BTreeMap<String, Vec<(String, String)>>;

/// Reads the messages of the contract. None is nested.
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
