//! The short form of the kill harness: collectors and store are killed under load, and no acknowledged report is lost
//! or counted twice. `just faults` is the long form.

use std::{fs, path::Path, time::Duration};

use epwatch_faults::{FaultOptions, Servers};
use epwatch_runtimes::is_nightly;
use epwatch_server::Period;
use tokio_util::sync::CancellationToken;

use crate::support::{EPWATCH, docs};

async fn break_things(servers: Servers, kills: u32, late_reads: Option<Period>) {
    let dir = tempfile::tempdir().unwrap();
    // The engine is fetched before the time starts.
    let _ = epwatch_engines::for_tests(epwatch_engines::Engine::Chdb);
    let seconds = |seconds| Period(Duration::from_secs_f64(seconds));
    let options = FaultOptions {
        program: EPWATCH.into(),
        servers,
        kills: kills.into(),
        length: seconds(20.0 * f64::from(kills) / 12.0),
        seed: 3,
        devices: 8,
        pause: seconds(0.2),
        fault_pause: seconds(0.7),
        spell: seconds(2.0),
        // A store that shows rows late is read back twice for each bucket.
        drain: seconds(if late_reads.is_some() { 300.0 } else { 90.0 }),
        late_reads,
    };
    let document = epwatch_faults::run(&options, dir.path(), |_| {}, CancellationToken::new());
    let document = document.await.unwrap();
    let json = serde_json::to_string_pretty(&document).unwrap();
    assert!(document.ok, "{document}\n{json}");
    assert!(document.kills.collectors > 0, "{document}");
    assert!(document.kills.stores > 0, "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_collectors_and_stores_lose_and_double_nothing() {
    let is_nightly = is_nightly("88 of 100 kills of two collectors and their store");
    break_things(Servers::Collectors, if is_nightly { 100 } else { 12 }, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn collectors_killed_before_a_store_that_shows_rows_late_lose_and_double_nothing() {
    let is_nightly = is_nightly(
        "88 of 100 kills where reads are 1 s late, and all where they are 0 and 5 s late",
    );
    let (kills, late_s): (_, &[u64]) = if is_nightly {
        (100, &[0, 1, 5])
    } else {
        (12, &[1])
    };
    for late_s in late_s {
        let late = Period(Duration::from_secs(*late_s));
        break_things(Servers::Collectors, kills, Some(late)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_serve_loses_and_doubles_nothing() {
    if !is_nightly("a killed `epwatch serve` under load") {
        return;
    }
    break_things(Servers::Serve, 12, None).await;
}

/// Returns the source of all Rust files below a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    text
}

/// Documents and the table of attacks name tests, so these tests must exist.
#[test]
fn the_tests_that_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rooms = [
        "collector",
        "dashboards",
        "detector",
        "proto",
        "sdk/src",
        "sdk/tests",
        "src",
        "tests/detection/tests",
        "tests/io_faults",
        "tests/it",
    ];
    let sources: String = rooms.map(|folder| sources(&root.join(folder))).concat();
    let attacks = fs::read_to_string(root.join("tests/hostile/attacks.tsv")).unwrap();
    for line in attacks.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let test = columns[4..].join("\t");
        assert!(sources.contains(&format!("fn {test}(")), "{line}");
    }
    for name in ["faults.md", "security.md"] {
        let document = docs(name);
        let code = document.split('`').skip(1).step_by(2);
        let is_test = |name: &&str| {
            name.matches('_').count() > 3
                && name.starts_with(|c: char| c.is_ascii_lowercase())
                && !name.starts_with("epwatch_")
        };
        let tests: Vec<&str> = code.filter(is_test).collect();
        assert!(tests.len() > 20, "{name}: {tests:?}");
        for test in tests {
            assert!(
                sources.contains(&format!("fn {test}(")),
                "{name}: {test} is gone"
            );
        }
    }
}
