//! Links from one document to another, and from code to documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{files, root};

/// The documents and their headings.
struct Targets(BTreeMap<String, BTreeSet<String>>);

impl Targets {
    fn read() -> Self {
        let documents = files(&["md"]).into_iter();
        Self(
            documents
                .map(|(name, text)| (name, headings(&text)))
                .collect(),
        )
    }

    /// Whether the file exists and, if it is a document, has this heading.
    fn has(&self, path: &str, heading: &str) -> bool {
        let Some(headings) = self.0.get(path) else {
            return root().join(path).exists();
        };
        heading.is_empty() || headings.contains(heading)
    }
}

#[test]
fn every_link_of_a_document_leads_to_a_file_and_a_heading() {
    let targets = Targets::read();
    let mut n_links = 0;
    let mut broken = Vec::new();
    for (name, text) in files(&["md"]) {
        for link in links(&text) {
            n_links += 1;
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => name.clone(),
                path => seen_from_root(&name, path),
            };
            if !targets.has(&target, heading) {
                broken.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(n_links > 100, "{n_links}");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_document_that_code_names_exists() {
    let targets = Targets::read();
    let endings = [
        "h", "json", "kt", "md", "promql", "proto", "py", "rs", "service", "sql", "toml", "xml",
        "yaml", "yml",
    ];
    let mut n_names = 0;
    let mut broken = Vec::new();
    for (name, text) in files(&endings) {
        for part in text.split("docs/").skip(1) {
            let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_./#".contains(c);
            let end = part.find(|c| !is_of_name(c)).unwrap_or(part.len());
            let path = part[..end].trim_end_matches('.');
            let (path, heading) = path.split_once('#').unwrap_or((path, ""));
            if path.ends_with(".md") {
                n_names += 1;
                if !targets.has(&format!("docs/{path}"), heading) {
                    broken.push(format!("{name}: docs/{path}#{heading}"));
                }
            }
        }
    }
    assert!(n_names > 100, "{n_names}");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Returns the links of a text, without links to other hosts.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1);
    let links = links.filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://") && !link.contains(char::is_whitespace))
}

/// Returns the headings of a document in the form of GitHub's anchors.
fn headings(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        if !is_code && title.len() < line.len() && title.starts_with(' ') {
            let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
            let title: String = title.trim().to_lowercase().chars().filter(kept).collect();
            found.insert(title.replace(' ', "-"));
        }
    }
    found
}

/// Returns the path of a link in a document, relative to the root.
fn seen_from_root(document: &str, link: &str) -> String {
    let folder = Path::new(document).parent().unwrap();
    let folder = folder.iter().map(|part| part.to_str().unwrap());
    let mut parts = Vec::new();
    for part in folder.chain(link.split('/')) {
        match part {
            ".." => {
                parts.pop();
            }
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}
