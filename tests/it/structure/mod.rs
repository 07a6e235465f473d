//! Each crate's files depend on each other one way, and a type's name is unique in its crate. A module with files of
//! its own is the `mod.rs` of their folder.
//!
//! An arrow leads to the file that defines an item, not to the module that re-exports it, and a call of a method makes
//! none. So folders of one crate may still use each other in a circle, as 14 files around `SignalId` did. The
//! detector's folders share the crate `epwatch-model` below them, so a circle through it does not compile.
//!
//! The test reads source text only, so it also runs alone, without a build of the workspace:
//! `rustc --edition 2024 --test -o /tmp/structure tests/it/structure/mod.rs && /tmp/structure`, from the repository's
//! root. `CRATE=epwatch-proto /tmp/structure` looks at one crate.

mod arrows;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use arrows::{Arrows, arrows, circles};
use source::{Sources, modules};

/// Each command has its own `Args`.
const MAY_REPEAT: &[&str] = &["Args"];

#[test]
fn files_depend_one_way_and_names_are_unique() {
    let root = PathBuf::from(option_env!("CARGO_MANIFEST_DIR").unwrap_or("."));
    let only = env::var("CRATE").ok();
    let mut problems = String::new();
    for (name, folder) in workspace_crates(&root) {
        if only.as_ref().is_none_or(|only| *only == name) {
            let sources = sources_below(&root.join(folder).join("src"));
            write!(problems, "{}", problems_of(&name, &sources)).unwrap();
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
}

/// Name and folder of the workspace's crates.
fn workspace_crates(root: &Path) -> Vec<(String, String)> {
    let manifest = |folder: &str| fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
    let behind = |text: &str, start: &str, end: char| {
        let (_, rest) = text.split_once(start).unwrap();
        rest.split(end).next().unwrap().to_owned()
    };
    let members = behind(&manifest(""), "members = [", ']');
    let folders = members.split('"').skip(1).step_by(2).chain(["."]);
    let name = |folder: &str| {
        let (_, package) = manifest(folder)
            .split_once("[package]")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        behind(&package, "name = \"", '"')
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

/// Returns the problems of a crate as text, empty for none. A program next to a library is a separate tree of modules.
fn problems_of(crate_name: &str, sources: &Sources) -> String {
    let mut text = String::new();
    let folders: BTreeSet<&str> = sources
        .keys()
        .filter_map(|file| Some(file.rsplit_once('/')?.0))
        .collect();
    for file in sources.keys() {
        if let Some(module) = file
            .strip_suffix(".rs")
            .filter(|name| folders.contains(name))
        {
            writeln!(
                text,
                "{crate_name}: {file} next to its folder; make it {module}/mod.rs"
            )
            .unwrap();
        }
    }
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for root in ["src/lib.rs", "src/main.rs"] {
        if !sources.contains_key(root) {
            continue;
        }
        let modules = modules(sources, root);
        let arrows = arrows(&modules);
        for circle in circles(&arrows) {
            describe(&mut text, crate_name, &circle, &arrows);
        }
        for module in &modules {
            for (name, line) in &module.types {
                let place = format!("{}:{line}", module.file);
                places.entry(name.clone()).or_default().insert(place);
            }
        }
    }
    places.retain(|name, places| places.len() > 1 && !MAY_REPEAT.contains(&name.as_str()));
    for (name, places) in places {
        let places = Vec::from_iter(places).join(", ");
        writeln!(text, "{crate_name}: type {name} is defined twice: {places}").unwrap();
    }
    text
}

fn describe(text: &mut String, crate_name: &str, circle: &BTreeSet<String>, arrows: &Arrows) {
    writeln!(text, "{crate_name}: a circle of {} files", circle.len()).unwrap();
    for ((from, to), items) in arrows {
        if circle.contains(from) && circle.contains(to) {
            let items = items
                .iter()
                .map(|(item, line)| format!("{item} (line {line})"));
            let items = Vec::from_iter(items).join(", ");
            writeln!(text, "    {from} -> {to}: {items}").unwrap();
        }
    }
}

/// A made-up crate: the rule that it shows, its files, and its problems without line numbers.
struct Case {
    rule: &'static str,
    files: &'static [(&'static str, &'static str)],
    problems: &'static [&'static str],
}

const A_AND_B: &[&str] = &[
    "made-up: a circle of 2 files",
    "src/a.rs -> src/b.rs: Log",
    "src/b.rs -> src/a.rs: lock",
];
const ROOT: (&str, &str) = ("lib.rs", "mod a; mod b;");
const LOCKS: (&str, &str) = ("b.rs", "pub struct Log; fn f() { super::a::lock(); }");
const CHILD: (&str, &str) = (
    "room/child.rs",
    "use super::Shared; pub struct Child(Shared);",
);
const LOG: (&str, &str) = (
    "log/mod.rs",
    "mod send; use send::Sent; pub struct Log; pub fn lock() {} fn f(s: Sent) {}",
);

const CASES: &[Case] = &[
    Case {
        rule: "a module with files of its own is the mod.rs of their folder",
        files: &[("lib.rs", "mod room;"), ("room.rs", "mod child;"), ("room/child.rs", "")],
        problems: &["made-up: src/room.rs next to its folder; make it src/room/mod.rs"],
    },
    Case {
        rule: "files that use each other are a circle: by import",
        files: &[ROOT, LOCKS, ("a.rs", "use crate::b::Log; pub fn lock() {}")],
        problems: A_AND_B,
    },
    Case {
        rule: "by path",
        files: &[ROOT, LOCKS, ("a.rs", "pub fn lock() -> crate::b::Log { todo!() }")],
        problems: A_AND_B,
    },
    Case {
        rule: "by path below an imported module",
        files: &[ROOT, LOCKS, ("a.rs", "use crate::b; pub fn lock(log: b::Log) {}")],
        problems: A_AND_B,
    },
    Case {
        rule: "by a glob",
        files: &[ROOT, LOCKS, ("a.rs", "use super::b::*; pub fn lock(log: Log) {}")],
        problems: A_AND_B,
    },
    Case {
        rule: "by an attribute",
        files: &[ROOT, LOCKS, ("a.rs", r#"#[serde(with = "super::b::Log")] pub struct A; pub fn lock() {}"#)],
        problems: A_AND_B,
    },
    Case {
        rule: "a re-export leads to the file that defines",
        files: &[
            ("lib.rs", "pub mod room; pub use room::Two;"),
            ("room/mod.rs", "mod one; mod two; pub use one::One; pub(crate) use two::{Two as Second};"),
            ("room/one.rs", "pub struct One; impl crate::room::Second { }"),
            ("room/two.rs", "use crate::room::One; pub struct Two(One);"),
        ],
        problems: &[
            "made-up: a circle of 2 files",
            "src/room/one.rs -> src/room/two.rs: Two",
            "src/room/two.rs -> src/room/one.rs: One",
        ],
    },
    Case {
        rule: "re-exports of a root make no circle with it",
        files: &[
            ("lib.rs", "mod one; mod two; mod three; pub use one::One; pub use two::Two; pub use three::Three;"),
            ("one.rs", "pub struct One;"),
            ("two.rs", "pub struct Two(crate::One);"),
            ("three.rs", "use super::{One, Two}; pub struct Three;"),
        ],
        problems: &[],
    },
    Case {
        rule: "a parent may re-export a child that uses its items",
        files: &[("lib.rs", "mod room;"), CHILD, ("room/mod.rs", "mod child; pub use child::Child; pub struct Shared;")],
        problems: &[],
    },
    Case {
        rule: "a parent that uses such a child is a circle with it",
        files: &[
            ("lib.rs", "mod room;"),
            CHILD,
            ("room/mod.rs", "mod child; pub use child::Child; pub struct Shared; fn f(c: Child) {}"),
        ],
        problems: &[
            "made-up: a circle of 2 files",
            "src/room/child.rs -> src/room/mod.rs: Shared",
            "src/room/mod.rs -> src/room/child.rs: Child",
        ],
    },
    Case {
        rule: "methods of one type may be in several files",
        files: &[
            ("lib.rs", "mod log;"),
            LOG,
            ("log/send.rs", "use super::Log; pub struct Sent; impl Log { fn send(&self) {} }"),
        ],
        problems: &[],
    },
    Case {
        rule: "such a file uses nothing else of the type's file",
        files: &[
            ("lib.rs", "mod log;"),
            LOG,
            ("log/send.rs", "use super::Log; pub struct Sent; impl Log { fn send(&self) {} } fn g() { super::lock() }"),
        ],
        problems: &[
            "made-up: a circle of 2 files",
            "src/log/mod.rs -> src/log/send.rs: Sent",
            "src/log/send.rs -> src/log/mod.rs: lock",
        ],
    },
    Case {
        rule: "tests, comments and text make no arrows",
        files: &[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests { use crate::a::A; struct A; struct B; }"),
            ("a.rs", "use crate::b::B; pub struct A; #[cfg(test)] mod tests { struct A; }"),
            (
                "b.rs",
                "//! crate::a::A\n/* crate::a::A */ pub struct B; const T: &str = \"crate::a::A\";
                impl B { #[cfg(test)] fn f() { crate::a::A; } fn g<'a>(x: &'a str) -> char { '\"' } }",
            ),
        ],
        problems: &[],
    },
    Case {
        rule: "a macro counts where it is called",
        files: &[
            ("lib.rs", "#[macro_use] mod a; mod b;"),
            ("a.rs", "use crate::b::B; macro_rules! made { ($n:ident) => { pub struct $n; } }"),
            ("b.rs", "made!(B);"),
        ],
        problems: &["made-up: a circle of 2 files", "src/a.rs -> src/b.rs: B", "src/b.rs -> src/a.rs: made"],
    },
    Case {
        rule: "a type's name is unique in its crate",
        files: &[
            ("lib.rs", "mod a; mod b; pub struct Args;"),
            ("a.rs", "pub struct State; pub enum Args {}"),
            ("b.rs", "pub type State = u8;"),
        ],
        problems: &["made-up: type State is defined twice: src/a.rs:1, src/b.rs:1"],
    },
];

#[test]
fn made_up_crates_have_their_problems() {
    for case in CASES {
        let sources = case
            .files
            .iter()
            .map(|(name, text)| (format!("src/{name}"), (*text).to_owned()));
        let found = problems_of("made-up", &sources.collect());
        let lines = found
            .lines()
            .map(|line| line.trim().split(" (line").next().unwrap());
        assert_eq!(
            Vec::from_iter(lines),
            case.problems,
            "{}\n{found}",
            case.rule
        );
    }
}
