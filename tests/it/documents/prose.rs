//! The part of plain English that a program can check, in documents and in comments of Rust files. Sentences have at most
//! 25 words, and none of the phrases that hide a noun. Messages in the code of products have none of these either.
//!
//! Code in backquotes, a link's text and each number count as words. A sentence ends at a full stop, a cell of a table or a
//! paragraph. `PROSE=docs/gate.md cargo test --test it documents::prose` checks one file or folder alone.

use std::{env, mem};

use super::files;

const MAX_WORDS: usize = 25;

/// Each has a plain form: "runs from before", "rows of X", "is not a", "certainly", "whether it is", "recently", "otherwise".
const PHRASES: [&str; 15] = [
    "of before",
    "those of",
    "that of",
    "is no",
    "for sure",
    "be it",
    "of late",
    "at hand",
    "as ever",
    "but for",
    "seldom",
    "the matter",
    "speaks for",
    "at its begin",
    "nobody has",
];

#[test]
fn documents_and_comments_are_plain() {
    let only = env::var("PROSE").ok();
    let mut problems = Vec::new();
    for (name, text) in files(&["md", "rs"]) {
        if only.as_ref().is_some_and(|only| !name.starts_with(only)) {
            continue;
        }
        let is_document = name.ends_with(".md");
        let prose = if is_document { text } else { comments(&text) };
        for sentence in sentences(&prose) {
            let found = problem(&sentence);
            problems.extend(found.map(|problem| format!("{name}: {problem}: {sentence}")));
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Reads the lines of code that have a literal. Tests compare with texts of others, which may be of any kind.
#[test]
fn messages_have_no_phrase_that_hides_a_noun() {
    let mut problems = Vec::new();
    for (name, text) in files(&["rs"]) {
        if name
            .split('/')
            .any(|part| part == "tests" || part == "tests.rs")
        {
            continue;
        }
        let mut is_literal = false;
        for (line, text) in text.lines().enumerate() {
            let text = text.trim_start();
            let found = phrase(&text.replace('"', " ")).filter(|_| !text.starts_with("//"));
            // A literal goes on behind a line that ends with a backslash.
            if found.is_some() && (is_literal || text.contains('"')) {
                problems.push(format!("{name}:{}: {text}", line + 1));
            }
            is_literal = text.ends_with('\\');
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Messages of the SDK reach C, Kotlin and Python too. So they have no path of a Rust type, and no method of a builder.
#[test]
fn messages_of_the_sdk_have_no_names_of_rust() {
    let mut problems = Vec::new();
    for (name, source) in files(&["rs"]) {
        let is_of_sdk = ["sdk/src/", "sdk/ffi/src/", "sdk/python/src/", "proto/src/"]
            .iter()
            .any(|folder| name.starts_with(folder));
        if !is_of_sdk || name.ends_with("tests.rs") {
            continue;
        }
        let (product, _) = source.split_once("#[cfg(test)]").unwrap_or((&source, ""));
        for (line, literal) in literals(product) {
            problems.extend(
                literal
                    .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
                    .filter(|word| is_name_of_rust(word))
                    .map(|word| format!("{name}:{line}: {word}")),
            );
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
    assert!(is_name_of_rust("Watch::flush") && is_name_of_rust("with_root_certificate"));
    let source = "// \"a\"\nlet x = f('\"', \"b \\\"c\\\" \\\n   d\");";
    let expected = [(2, "b 'c' \\".to_owned()), (3, "   d".to_owned())];
    assert_eq!(literals(source), expected);
}

fn is_name_of_rust(word: &str) -> bool {
    let is_path = word.contains("::") && word.starts_with(char::is_uppercase);
    is_path || word.starts_with("with_")
}

/// Returns the literals of a Rust file, line by line, with the numbers of their lines. Comments are left out.
fn literals(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_literal = false;
    for (at, line) in source.lines().enumerate() {
        if !is_literal && line.trim_start().starts_with("//") {
            continue;
        }
        let line = line.replace("'\"'", "' '").replace("\\\"", "'");
        for (i, part) in line.split('"').enumerate() {
            is_literal ^= i > 0;
            if is_literal {
                found.push((at + 1, part.to_owned()));
            }
        }
    }
    found
}

/// Proves that the check really reads text, because it could also find nothing for lack of input.
#[test]
fn made_up_sentences_have_their_problems() {
    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let found: Vec<_> = sentences(text).iter().filter_map(|s| problem(s)).collect();
        assert_eq!(found, expected, "{text}");
    }
    let long = "word ".repeat(26);
    check(&long, &["26 words"]);
    check(&"word ".repeat(25), &[]);
    check(&format!("- {}\n- {}", &long[..60], &long[..70]), &[]);
    check(&format!("# {long}\n```\n{long}\n```\n"), &[]);
    check(&format!("| `a` | {long} |"), &["26 words"]);
    check(&"`a b` ".repeat(20), &[]);
    check(
        "One sentence, those of a table. It is no\nlonger wrong.",
        &["\"those of\""],
    );
    check("[those](of.md) and `those of`", &[]);
    let source = format!("let a = 1;\n    // {long}\n/// Runs of before\n/// the repair.\n");
    check(&comments(&source), &["26 words", "\"of before\""]);
}

fn problem(sentence: &str) -> Option<String> {
    let n_words = sentence.split(' ').count();
    // A list of names is not a sentence.
    let is_list = sentence
        .split([' ', ','])
        .all(|word| word.is_empty() || word == "code");
    if n_words > MAX_WORDS && !is_list {
        return Some(format!("{n_words} words"));
    }
    phrase(sentence).map(|phrase| format!("{phrase:?}"))
}

fn phrase(text: &str) -> Option<&'static str> {
    let padded = format!(
        " {} ",
        text.to_lowercase().replace([',', ';', ':', '.'], " ")
    )
    .replace(" there is no ", " ")
    .replace(" is no longer ", " ");
    let mut phrases = PHRASES.into_iter();
    phrases.find(|phrase| padded.contains(&format!(" {phrase} ")))
}

/// Returns the comments of a Rust file. An empty line stands for each line of code, and for a change of the kind of
/// comment.
fn comments(source: &str) -> String {
    let mut prose = String::new();
    let mut before = None;
    for line in source.lines() {
        let line = line.trim_start();
        let start = ["//!", "///", "// "]
            .into_iter()
            .find(|start| line.starts_with(start));
        if start != before {
            prose.push('\n');
        }
        before = start;
        prose += start.map_or("", |start| line[start.len()..].trim());
        prose.push('\n');
    }
    prose
}

/// The sentences of a Markdown text, without headings and blocks of code.
fn sentences(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut blocks = vec![String::new()];
    for line in text.lines().map(str::trim) {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || line.is_empty() || line.starts_with('#') {
            blocks.push(String::new());
        } else if line.starts_with('|') {
            blocks.extend(line.split(" | ").map(str::to_owned));
            blocks.push(String::new());
        } else {
            let number = line.split_once(". ").map(|(number, _)| number);
            if line.starts_with("- ") || number.is_some_and(|number| number.parse::<u8>().is_ok()) {
                blocks.push(String::new());
            }
            let block = blocks.last_mut().expect("there is a first one");
            *block += " ";
            *block += line;
        }
    }
    blocks
        .iter()
        .flat_map(|block| split(&plain(block)))
        .collect()
}

fn split(block: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut words = Vec::new();
    for word in block.split_whitespace() {
        // A dash, a bullet and a unit's sign do not count as words.
        if word.contains(char::is_alphanumeric) {
            words.push(word);
        }
        let end = word.trim_end_matches(['*', ')', '"', '_']);
        if end.ends_with(['.', '?', '!']) && !end.ends_with("...") {
            found.push(mem::take(&mut words).join(" "));
        }
    }
    found.push(words.join(" "));
    found
}

/// Replaces each code in backquotes by one word, and each link by its text.
fn plain(block: &str) -> String {
    let parts = block.split('`').enumerate();
    let text: String = parts
        .map(|(i, part)| if i % 2 == 0 { part } else { "code" })
        .collect();
    let mut pieces = text.split("](");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain += piece.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.replace('[', "")
}
