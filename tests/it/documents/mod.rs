//! Checks of the documents: every link, in documents and in code, leads to a file and a heading. Places that
//! ARCHITECTURE.md names exist. Prose follows the rules of plain English.
//!
//! The tests read text only, so they also run alone, without a build of the workspace:
//! `rustc --edition 2024 --test -o /tmp/documents tests/it/documents/mod.rs && /tmp/documents`, from the repository's root.

mod links;
mod places;
mod prose;

use std::fs;
use std::path::PathBuf;

/// The repository's root.
fn root() -> PathBuf {
    PathBuf::from(option_env!("CARGO_MANIFEST_DIR").unwrap_or("."))
}

/// The files of the repository with one of these endings: path from the root, and text. Build output is left out.
fn files(endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![root()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_hidden = name.starts_with('.') && name != ".github";
            let is_output = is_hidden || ["target", "node_modules"].contains(&name);
            if path.is_dir() && !path.is_symlink() && !is_output {
                open.push(path);
            } else if path
                .extension()
                .is_some_and(|e| endings.iter().any(|ending| e == *ending))
            {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
                // Files of tests that are not text are left out.
                if let Ok(text) = fs::read_to_string(&path) {
                    found.push((name.to_owned(), text));
                }
            }
        }
    }
    found.sort();
    found
}
