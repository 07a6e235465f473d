//! The table "What each language has" of docs/sdk.md: every name is in the sources of its language.

use std::{fs, path::Path};

use crate::c::crate_file;

/// The text of all files below a folder with this extension.
fn sources(folder: &str, extension: &str) -> String {
    let mut text = String::new();
    let mut todo = vec![crate_file(folder)];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            todo.extend(entries.map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|found| found == extension) {
            text += &fs::read_to_string(&path).unwrap();
        }
    }
    assert!(!text.is_empty(), "{folder}");
    text
}

/// Whether a language's sources declare a name.
fn declares(language: usize, sources: &str, name: &str) -> bool {
    let has = |before: &[&str], after: &[&str]| {
        before.iter().any(|b| {
            let found = |a: &&str| sources.contains(&format!("{b}{name}{a}"));
            after.iter().any(found)
        })
    };
    match language {
        0 => has(&["pub fn ", "pub unsafe fn "], &["(", "<"]),
        1 => has(&[" ", " *"], &["(", ";"]),
        2 => has(
            &["fun ", "fun <T> ", "class ", "interface ", " ", "Epwatch."],
            &["(", " {", ": Map<", ": Boolean\n"],
        ),
        _ => has(&["def ", "class ", "    "], &["(", ":"]),
    }
}

#[test]
fn the_table_of_languages_names_what_is_there() {
    let guide = fs::read_to_string(crate_file("../../docs/sdk.md")).unwrap();
    let (_, section) = guide.split_once("\n## What each language has\n").unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 25, "{}", rows.len());
    let of_languages = [
        sources("../src", "rs"),
        sources("include", "h") + &sources("include", "hpp"),
        sources("../android/src", "kt") + &sources("../android/ktx/src/main", "kt"),
        sources("../python/epwatch", "py"),
    ];
    assert!(Path::new(&crate_file("include/epwatch.hpp")).exists());
    let mut missing = Vec::new();
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split('|').collect();
        assert_eq!(cells.len(), 5, "{row}");
        for (language, cell) in cells[1..].iter().enumerate() {
            for name in cell.split('`').skip(1).step_by(2) {
                if !declares(language, &of_languages[language], name) {
                    missing.push(format!("{row}\n  {name}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
