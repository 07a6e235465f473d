//! Each crate's files depend on each other one way, and a type's name is unique in its crate.
//!
//! The test reads source text only, so it also runs alone, without a build of the workspace:
//! `rustc --edition 2024 --test -o /tmp/structure tests/it/structure/mod.rs && /tmp/structure`, from the repository's
//! root. `CRATE=epwatch-proto /tmp/structure` looks at one crate, whether it is in `KNOWN` or not.

mod arrows;
mod modules;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use arrows::{Arrows, circles};
use modules::{Modules, Sources};

/// Crates that still have circles or repeated names. Each leaves the list when it is mended; then the list goes.
const KNOWN: &[&str] = &["epwatch-detector"];

/// Each command has its own `Args`.
const MAY_REPEAT: &[&str] = &["Args"];

#[test]
fn files_depend_one_way_and_names_are_unique() {
    let root = PathBuf::from(option_env!("CARGO_MANIFEST_DIR").unwrap_or("."));
    let only = env::var("CRATE").ok();
    let mut problems = String::new();
    for (name, folder) in workspace_crates(&root) {
        let is_wanted = only
            .as_ref()
            .map_or(!KNOWN.contains(&name.as_str()), |only| *only == name);
        if is_wanted {
            let sources = sources_below(&root.join(folder).join("src"));
            write!(problems, "{}", problems_of(&name, &sources)).unwrap();
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
}

/// Name and folder of the workspace's crates.
fn workspace_crates(root: &Path) -> Vec<(String, String)> {
    let read = |folder: &str| fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
    let manifest = read("");
    let members = manifest
        .split("members = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next())
        .unwrap();
    let folders = members.split('"').skip(1).step_by(2).chain(["."]);
    let name = |folder: &str| {
        let manifest = read(folder);
        let package = manifest.split("[package]").nth(1).unwrap();
        package
            .split("name = \"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .to_owned()
    };
    folders
        .map(|folder| (name(folder), folder.to_owned()))
        .collect()
}

fn sources_below(folder: &Path) -> Sources {
    let mut sources = Sources::new();
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
            sources.insert(format!("src/{name}"), fs::read_to_string(&path).unwrap());
        }
    }
    sources
}

/// What is wrong with a crate, as text; empty for a clean one. A program beside a library is a tree of its own.
fn problems_of(crate_name: &str, sources: &Sources) -> String {
    let mut text = String::new();
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for root in ["src/lib.rs", "src/main.rs"]
        .into_iter()
        .filter(|root| sources.contains_key(*root))
    {
        let modules = Modules::read(sources, root);
        let arrows = modules.arrows();
        for circle in circles(&arrows) {
            describe(&mut text, crate_name, &circle, &arrows);
        }
        for module in &modules.all {
            for (name, line) in &module.types {
                places
                    .entry(name.clone())
                    .or_default()
                    .insert(format!("{}:{line}", module.file));
            }
        }
    }
    for (name, places) in places {
        if places.len() > 1 && !MAY_REPEAT.contains(&name.as_str()) {
            let places: Vec<_> = places.into_iter().collect();
            writeln!(
                text,
                "{crate_name}: type {name} is defined twice: {}",
                places.join(", ")
            )
            .unwrap();
        }
    }
    text
}

fn describe(text: &mut String, crate_name: &str, circle: &BTreeSet<String>, arrows: &Arrows) {
    writeln!(text, "{crate_name}: a circle of {} files", circle.len()).unwrap();
    let inside = arrows
        .iter()
        .filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
    for ((from, to), items) in inside {
        let items: Vec<_> = items
            .iter()
            .map(|(item, line)| format!("{item} (line {line})"))
            .collect();
        writeln!(text, "    {from} -> {to}: {}", items.join(", ")).unwrap();
    }
}

/// The problems of a made-up crate, a file a pair, without line numbers.
#[track_caller]
fn check(files: &[(&str, &str)], expected: &[&str]) {
    let sources = files
        .iter()
        .map(|(name, text)| (format!("src/{name}"), (*text).to_owned()));
    let found = problems_of("made-up", &sources.collect());
    let lines: Vec<_> = found
        .lines()
        .map(|line| line.trim().split(" (line").next().unwrap())
        .collect();
    assert_eq!(lines, expected, "{found}");
}

#[test]
fn files_that_use_each_other_are_a_circle() {
    let circle = [
        "made-up: a circle of 2 files",
        "src/a.rs -> src/b.rs: Log",
        "src/b.rs -> src/a.rs: lock",
    ];
    let root = ("lib.rs", "mod a; mod b;");
    let locks = ("b.rs", "pub struct Log; fn f() { super::a::lock(); }");
    check(
        &[root, ("a.rs", "use crate::b::Log; pub fn lock() {}"), locks],
        &circle,
    );
    check(
        &[
            root,
            ("a.rs", "pub fn lock() -> crate::b::Log { todo!() }"),
            locks,
        ],
        &circle,
    );
    check(
        &[
            root,
            ("a.rs", "use crate::b; pub fn lock(log: b::Log) {}"),
            locks,
        ],
        &circle,
    );
    check(
        &[
            root,
            ("a.rs", "use super::b::*; pub fn lock(log: Log) {}"),
            locks,
        ],
        &circle,
    );
    let attribute = r#"#[serde(with = "super::b::Log")] pub struct A; pub fn lock() {}"#;
    check(&[root, ("a.rs", attribute), locks], &circle);
}

#[test]
fn a_reexport_leads_to_the_file_that_defines() {
    let child = "use super::{One, Two}; pub struct Three;";
    check(
        &[
            ("lib.rs", "pub mod room; pub use room::Two;"),
            (
                "room/mod.rs",
                "mod one; mod two; pub use one::One; pub(crate) use two::{Two as Second};",
            ),
            (
                "room/one.rs",
                "pub struct One; impl crate::room::Second { }",
            ),
            ("room/two.rs", "use crate::room::One; pub struct Two(One);"),
        ],
        &[
            "made-up: a circle of 2 files",
            "src/room/one.rs -> src/room/two.rs: Two",
            "src/room/two.rs -> src/room/one.rs: One",
        ],
    );
    check(
        &[
            (
                "lib.rs",
                "mod one; mod two; mod three; pub use one::One; pub use two::Two; pub use three::Three;",
            ),
            ("one.rs", "pub struct One;"),
            ("two.rs", "pub struct Two(crate::One);"),
            ("three.rs", child),
        ],
        &[],
    );
}

#[test]
fn a_child_that_uses_what_its_parents_file_defines_is_a_circle_with_it() {
    let child = (
        "room/child.rs",
        "use super::Shared; pub struct Child(Shared);",
    );
    let circle = [
        "made-up: a circle of 2 files",
        "src/room/child.rs -> src/room/mod.rs: Shared",
        "src/room/mod.rs -> src/room/child.rs: Child",
    ];
    let root = ("lib.rs", "mod room;");
    let reexports = (
        "room/mod.rs",
        "mod child; pub use child::Child; pub struct Shared;",
    );
    check(&[root, reexports, child], &[]);
    let uses = (
        "room/mod.rs",
        "mod child; pub use child::Child; pub struct Shared; fn f(c: Child) {}",
    );
    check(&[root, uses, child], &circle);
}

#[test]
fn methods_of_one_type_may_be_in_several_files() {
    let root = ("lib.rs", "mod log;");
    let log = (
        "log/mod.rs",
        "mod send; use send::Sent; pub struct Log; pub fn lock() {} fn f(s: Sent) {}",
    );
    let send = "use super::Log; pub struct Sent; impl Log { fn send(&self) {} }";
    check(&[root, log, ("log/send.rs", send)], &[]);
    let locks = format!("{send} fn g() {{ super::lock() }}");
    check(
        &[root, log, ("log/send.rs", &locks)],
        &[
            "made-up: a circle of 2 files",
            "src/log/mod.rs -> src/log/send.rs: Sent",
            "src/log/send.rs -> src/log/mod.rs: lock",
        ],
    );
}

#[test]
fn tests_comments_and_text_make_no_arrows() {
    check(
        &[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests { use crate::a::A; struct A; struct B; }"),
            ("a.rs", "use crate::b::B; pub struct A; #[cfg(test)] mod tests { struct A; }"),
            ("b.rs", "//! crate::a::A\n/* crate::a::A */ pub struct B; const T: &str = \"crate::a::A\";
                impl B { #[cfg(test)] fn f() { crate::a::A; } fn g<'a>(x: &'a str) -> char { '\"' } }"),
        ],
        &[],
    );
}

#[test]
fn a_macro_counts_where_it_is_called() {
    check(
        &[
            ("lib.rs", "#[macro_use] mod a; mod b;"),
            (
                "a.rs",
                "use crate::b::B; macro_rules! made { ($n:ident) => { pub struct $n; } }",
            ),
            ("b.rs", "made!(B);"),
        ],
        &[
            "made-up: a circle of 2 files",
            "src/a.rs -> src/b.rs: B",
            "src/b.rs -> src/a.rs: made",
        ],
    );
}

#[test]
fn a_type_name_may_stand_once() {
    check(
        &[
            ("lib.rs", "mod a; mod b; pub struct Args;"),
            ("a.rs", "pub struct State; pub enum Args {}"),
            ("b.rs", "pub type State = u8;"),
        ],
        &["made-up: type State is defined twice: src/a.rs:1, src/b.rs:1"],
    );
}
