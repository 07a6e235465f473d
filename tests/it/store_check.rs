//! `epwatch store check`: a collector's store passes all checks, and each kind of damage is found by its check.

use std::{fs, io::Write, os::unix::fs::FileExt, path::Path, process::Command};

use epwatch_test_support::until;
use serde_json::Value;

use crate::{
    backup::{Serve, acked},
    support::{check_ends, epwatch},
};

fn check(data_dir: &Path) -> Command {
    let mut command = epwatch(&format!("store check --data-dir {}", data_dir.display()));
    command.env("EPWATCH_LOG", "warn");
    command
}

/// Returns the examples of a check; `None` if the check did not run.
fn found<'a>(document: &'a Value, name: &str) -> Option<Vec<&'a str>> {
    let checks = document["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name).unwrap();
    check["found"].as_u64()?;
    let examples = check["examples"].as_array().unwrap();
    Some(examples.iter().map(|text| text.as_str().unwrap()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_store_is_whole_and_each_damage_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let serve = Serve::start(&data_dir, "100ms");
    let sent = acked(serve.load("--rate 200 --duration 2s --batch 10"));
    all_stored_and_checked(&serve, sent).await;

    // While it runs.
    let (text, _) = check_ends(&mut check(&data_dir), 0);
    assert_eq!(text.matches("ok           ").count(), 13, "{text}");
    assert!(
        text.contains(&format!("{sent} copies of reports, days: 1, ")),
        "{text}"
    );

    let nth = async |n: u32| {
        let at =
            format!("SELECT wal_offset FROM report_copies ORDER BY wal_offset LIMIT 1 OFFSET {n}");
        serve.number(&at).await
    };
    let (twice, report_twice, listed, lost) =
        (nth(10).await, nth(20).await, nth(40).await, nth(390).await);
    let one = |table: &str, offset: u64| {
        format!("FROM (SELECT * FROM {table} WHERE wal_offset = {offset} LIMIT 1)")
    };
    let old = "now64(3) - INTERVAL 3 DAY AS received_at, unhex(repeat('07', 16)) AS installation";
    let mut damages = vec![
        format!(
            "INSERT INTO report_copies SELECT * {}",
            one("report_copies", twice)
        ),
        format!(
            "INSERT INTO reports SELECT * {}",
            one("reports", report_twice)
        ),
        format!(
            "INSERT INTO report_copies SELECT * REPLACE (999999999 AS wal_offset, 7 AS stream_id) {}",
            one("report_copies", twice)
        ),
        format!(
            "INSERT INTO reports SELECT * REPLACE (888888888 AS wal_offset, 8 AS stream_id) {}",
            one("reports", twice)
        ),
        format!(
            "INSERT INTO surplus_copies SELECT bucket, collector_id, wal_offset {}",
            one("report_copies", listed)
        ),
        format!(
            "INSERT INTO reports SELECT * REPLACE (666666666 AS wal_offset, {old}) {}",
            one("reports", twice)
        ),
        "INSERT INTO tombstones SELECT unhex(repeat('07', 16)), now64(3) - INTERVAL 3 DAY"
            .to_owned(),
        "INSERT INTO hidden_installations SELECT unhex(repeat('07', 16)), now64(3) - INTERVAL 3 DAY, now64(3)"
            .to_owned(),
        "INSERT INTO deletion_log SELECT unhex(repeat('07', 16)), 'hidden', 1, now64(3), 0, 0"
            .to_owned(),
        "INSERT INTO rollup_watermark SELECT now() + INTERVAL 2 DAY, now64(3)".to_owned(),
    ];
    for table in ["cohort_buckets", "cohort_sessions", "bucket_revisions"] {
        damages.push(format!(
            "INSERT INTO {table} SELECT * REPLACE ('other' AS app_id) FROM {table}"
        ));
    }
    for table in ["report_copies", "reports"] {
        damages.push(format!(
            "ALTER TABLE {table} DELETE WHERE wal_offset = {lost} SETTINGS mutations_sync = 2"
        ));
    }
    // This damage is made last, because the collector marks the copy as surplus when it closes a bucket again.
    let resent = nth(30).await;
    for table in ["report_copies", "reports"] {
        let row = one(table, resent);
        damages.push(format!(
            "INSERT INTO {table} SELECT * REPLACE (777777777 AS wal_offset) {row}"
        ));
    }
    for sql in damages {
        let run = serve.client().query_raw(&sql).execute().await;
        run.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
    drop(serve);
    flip_a_byte(&data_dir.join("epwatch-wal"));

    // Once `serve` has ended, the check opens the store itself.
    let (text, _) = check_ends(check(&data_dir).arg("--json"), 1);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["ok"], false);
    for (name, offset) in [
        ("copies_once", twice),
        ("reports_once", report_twice),
        ("copies_have_reports", 999_999_999),
        ("reports_have_copies", 888_888_888),
        ("counted_at_all", listed),
        ("log_is_stored", lost),
    ] {
        let examples = found(&document, name).unwrap();
        let is_it = examples.len() == 1 && examples[0].ends_with(&format!("offset {offset}"));
        assert!(is_it, "{name}: {offset}, {document:#}");
    }
    assert_eq!(
        found(&document, "counted_once").unwrap().len(),
        2,
        "{document:#}"
    );
    for (name, what) in [("run_summaries", "runs"), ("session_summaries", "sessions")] {
        let of_other = found(&document, name).unwrap();
        let of_other = of_other.iter().find(|text| text.starts_with("other load"));
        assert!(
            of_other
                .unwrap()
                .ends_with(&format!("{what} in summaries, 0 in reports")),
            "{document:#}"
        );
    }
    assert!(
        !found(&document, "ledger").unwrap().is_empty(),
        "{document:#}"
    );
    assert!(found(&document, "deletions").unwrap()[0].starts_with("installation 07070707,"));
    assert!(found(&document, "clock").unwrap()[0].starts_with("closed until"));
    assert!(
        found(&document, "log_is_whole").unwrap()[0].contains("bytes"),
        "{document:#}"
    );
}

/// Flips a byte of the first record of the first segment.
fn flip_a_byte(wal: &Path) {
    let mut segments: Vec<_> = fs::read_dir(wal)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    let first = segments.iter().min().unwrap();
    let mut file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(first)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 64 + 100).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 64 + 100).unwrap();
    file.flush().unwrap();
}

async fn all_stored_and_checked(serve: &Serve, sent: u64) {
    until("all reports are in the store, in closed buckets", || async {
        let closed = "SELECT count() FROM reports WHERE bucket < (SELECT least(max(closed_until), \
                      (SELECT max(checked_until) FROM rollup_checks)) FROM rollup_watermark)";
        serve.number(closed).await == sent
            && serve.number("SELECT count() FROM report_copies").await == sent
    })
    .await;
}

async fn run(serve: &Serve, damages: &[String]) {
    for sql in damages {
        let run = serve.client().query_raw(sql).execute().await;
        run.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

/// Returns statements that insert rows of a deleted installation that are three days old.
fn old_rows() -> Vec<String> {
    let of_old =
        "now64(3) - INTERVAL 3 DAY AS received_at, unhex(repeat('07', 16)) AS installation";
    let rows = ["reports", "report_copies"].map(|table| {
        format!(
            "INSERT INTO {table} SELECT * REPLACE (666666666 AS wal_offset, {of_old}) \
             FROM (SELECT * FROM {table} LIMIT 1)"
        )
    });
    let tombstone =
        "INSERT INTO tombstones SELECT unhex(repeat('07', 16)), now64(3) - INTERVAL 3 DAY";
    let hidden = "INSERT INTO hidden_installations \
        SELECT unhex(repeat('07', 16)), now64(3) - INTERVAL 3 DAY, now64(3)";
    rows.into_iter()
        .chain([tombstone.to_owned(), hidden.to_owned()])
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn repair_mends_what_loses_nothing_and_the_next_start_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let serve = Serve::start(&data_dir, "100ms");
    let sent = acked(serve.load("--rate 100 --duration 2s --batch 10"));
    all_stored_and_checked(&serve, sent).await;
    let (_, error) = check_ends(check(&data_dir).arg("--repair"), 3);
    assert!(error.contains("held by process "), "{error}");

    let nth = async |n: u32| {
        let at =
            format!("SELECT wal_offset FROM report_copies ORDER BY wal_offset LIMIT 1 OFFSET {n}");
        serve.number(&at).await
    };
    let (twice, listed, lost) = (nth(10).await, nth(40).await, nth(150).await);
    let mut damages = Vec::new();
    for table in ["report_copies", "reports"] {
        damages.push(format!(
            "INSERT INTO {table} SELECT * FROM {table} WHERE wal_offset = {twice}"
        ));
        damages.push(format!(
            "ALTER TABLE {table} DELETE WHERE wal_offset = {lost} SETTINGS mutations_sync = 2"
        ));
    }
    damages.push(format!(
        "INSERT INTO surplus_copies SELECT bucket, collector_id, wal_offset FROM report_copies WHERE wal_offset = {listed}"
    ));
    for table in ["cohort_buckets", "cohort_sessions", "bucket_revisions"] {
        damages.push(format!(
            "INSERT INTO {table} SELECT * REPLACE ('other' AS app_id) FROM {table}"
        ));
    }
    run(&serve, &damages).await;
    drop(serve);
    let (text, _) = check_ends(check(&data_dir).args(["--repair", "--json"]), 0);
    let document: Value = serde_json::from_str(&text).unwrap();
    let states: Vec<_> = document["repairs"].as_array().unwrap().iter().collect();
    let states = states.iter().map(|repair| {
        let text = |key: &str| repair[key].as_str().unwrap();
        (text("check"), text("state"))
    });
    let expected = [
        ("copies_once", "done"),
        ("reports_once", "done"),
        ("counted_once", "next_start"),
        ("counted_at_all", "done"),
        ("run_summaries", "next_start"),
        ("session_summaries", "next_start"),
        ("ledger", "next_start"),
        ("log_is_stored", "next_start"),
    ];
    assert_eq!(states.collect::<Vec<_>>(), expected, "{document:#}");

    // The next start makes the repairs that the check left to it.
    let serve = Serve::start(&data_dir, "100ms");
    all_stored_and_checked(&serve, sent).await;
    run(&serve, &old_rows()).await;
    drop(serve);
    let (text, _) = check_ends(check(&data_dir).arg("--repair"), 0);
    assert_eq!(text.matches("next start ").count(), 1, "{text}");
    assert!(text.contains("1 deletions were promised again"), "{text}");
    let serve = Serve::start(&data_dir, "100ms");
    until("the deletion is carried out", || async {
        serve
            .number("SELECT count() FROM reports WHERE installation = unhex(repeat('07', 16))")
            .await
            == 0
    })
    .await;
    all_stored_and_checked(&serve, sent).await;
    check_ends(&mut check(&data_dir), 0);
}

#[test]
fn a_folder_without_a_store_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (_, error) = check_ends(&mut check(dir.path()), 2);
    assert!(error.contains("holds no embedded store"), "{error}");
}

/// `cargo test --release --test it store_check::time -- --ignored --nocapture` prints the seconds of a check of
/// 1,000,000 reports.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement that takes minutes"]
async fn time_of_a_check_of_a_million_reports() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let serve = Serve::start(&data_dir, "1s");
    let mut sent = 0;
    while sent < 1_000_000 {
        sent += acked(serve.load("--rate 20000 --duration 10s --batch 500"));
        // The test waits, because more reports would fill the WAL.
        until("the reports are in the store", || async {
            serve.number("SELECT count() FROM reports").await == sent
        })
        .await;
    }
    let (text, _) = check_ends(check(&data_dir).arg("--json"), 0);
    let document: Value = serde_json::from_str(&text).unwrap();
    println!("{} copies in {} s", document["copies"], document["seconds"]);
}
