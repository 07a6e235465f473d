//! Paths of ARCHITECTURE.md and CONTRIBUTING.md exist, and a file that a table names with an item has that item.

use std::fs;

use super::root;

/// Words before the name of an item that a file defines.
const DEFINES: [&str; 11] = [
    "fn", "struct", "enum", "trait", "const", "static", "type", "mod", "message", "VIEW", "EXISTS",
];

/// Expected numbers of terms in the glossary, and of answers to the questions.
const N_TERMS: usize = 30;
const N_QUESTIONS: usize = 10;

#[test]
fn named_places_exist_and_have_the_named_items() {
    let documents = ["ARCHITECTURE.md", "CONTRIBUTING.md"];
    let text = documents
        .map(|name| fs::read_to_string(root().join(name)).unwrap())
        .join("\n");
    let (mut n_paths, mut n_items) = (0, 0);
    let mut missing = Vec::new();
    for line in text.lines() {
        // The last path, and whether a colon followed it. If so, further code spans are items of that file.
        let mut file = None;
        let mut is_list = false;
        let mut between = "";
        for (i, part) in line.split('`').enumerate() {
            if i % 2 == 0 {
                between = part;
                continue;
            }
            if is_path(part) {
                n_paths += 1;
                if !expanded(part).iter().all(|path| root().join(path).exists()) {
                    missing.push(part.to_owned());
                }
                file = fs::read_to_string(root().join(part)).ok();
                is_list = false;
                continue;
            }
            is_list = between == ": " || (is_list && between == ", ");
            if let Some(source) = file.as_ref().filter(|_| is_list) {
                n_items += 1;
                if !defines(source, part) {
                    missing.push(format!("{part}: {line}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(n_paths > 100 && n_items > 40, "{n_paths} {n_items}");
}

#[test]
fn the_glossary_is_short_and_the_ten_questions_are_answered() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = |head: &str| -> Vec<&str> {
        let (_, table) = text.split_once(head).unwrap_or_else(|| panic!("no {head}"));
        let rows = table.lines().skip(2);
        rows.take_while(|line| line.starts_with('|')).collect()
    };
    assert!(rows("| term | meaning | defined in |").len() <= N_TERMS);
    let questions = rows("| question | answer |");
    assert_eq!(questions.len(), N_QUESTIONS);
    for question in questions {
        let files = question.split('`').filter(|code| is_path(code)).count();
        let with_items = question.matches("`: `").count();
        assert!(
            (1..=2).contains(&files) && with_items == files,
            "{question}"
        );
    }
}

/// Whether the code is a path from the repository's root, and not a name within a folder.
fn is_path(code: &str) -> bool {
    let Some((top, _)) = code.split_once('/') else {
        return false;
    };
    let is_plain = !code.contains([' ', '$', '<', '=']);
    is_plain && !top.is_empty() && top != "target" && root().join(top).is_dir()
}

/// Returns the paths that a pattern with `{a,b}` stands for. For a pattern with a star, returns the folder before it.
fn expanded(pattern: &str) -> Vec<String> {
    let pattern = match pattern.split_once('*') {
        Some((before, _)) => before.rsplit_once('/').map_or("", |(folder, _)| folder),
        None => pattern,
    };
    let Some((before, rest)) = pattern.split_once('{') else {
        return vec![pattern.to_owned()];
    };
    let (names, after) = rest.split_once('}').expect("a closed brace");
    let names = names.split(',');
    names.map(|name| format!("{before}{name}{after}")).collect()
}

/// Whether a file defines an item: `fn name`, `VIEW name`, or a field `name:`.
fn defines(source: &str, item: &str) -> bool {
    let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let defined = |start: &str| source.split(start).skip(1).any(is_end);
    DEFINES
        .iter()
        .any(|word| defined(&format!("{word} {item}")))
        || source.contains(&format!(" {item}: "))
}
