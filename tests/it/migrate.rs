//! `epwatch migrate --dry-run`: the printed SQL makes the schema.

use std::{path::Path, process::Command};

use crate::support::{Running, Store, check_fails, check_succeeds, epwatch, json, server};
use epwatch_collector::schema::{MIGRATIONS, Retention};

fn migrate(words: &str) -> Command {
    epwatch(&format!("migrate {words}"))
}

#[track_caller]
fn printed(words: &str) -> String {
    check_succeeds(&mut migrate(words))
}

/// The printed statements, run by hand, make the schema that this program needs.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dry_run_prints_makes_the_schema() {
    let store = Store::without_schema().await;
    let engine = &store.engine;
    let document = json(&mut migrate("--dry-run"));
    assert_eq!(document["dry_run"], true, "{document:#}");
    let migrations = document["migrations"].as_array().unwrap();
    assert_eq!(migrations.len(), MIGRATIONS.files.len(), "{document:#}");
    let of_each = migrations
        .iter()
        .map(|m| m["statements"].as_array().unwrap());
    for statement in of_each.flatten().map(|s| s.as_str().unwrap()) {
        // The first statement makes the database.
        let is_first = statement.starts_with("CREATE DATABASE");
        let client = engine.client(if is_first { "" } else { "epwatch" });
        let run = client.query_raw(statement).execute().await;
        run.unwrap_or_else(|error| panic!("{error}: {statement}"));
    }

    let at = format!("--clickhouse {}", store.address());
    assert_eq!(printed(&at), "the schema is up to date\n");
    assert_eq!(
        printed(&format!("{at} --dry-run")),
        "-- the schema is up to date\n"
    );
    store.engine.stop().await;
}

/// Returns the days that the store keeps reports.
async fn raw_days(store: &Store) -> u64 {
    let sql = "SELECT toUInt64OrZero(extract(engine_full, 'toIntervalDay\\\\((\\\\d+)\\\\)')) FROM system.tables \
               WHERE database = 'epwatch' AND name = 'reports'";
    store.client().query_raw(sql).fetch_one().await.unwrap()
}

/// Starts a collector on a store, and ends it once it takes reports.
fn start_collector(address: &str, data_dir: &Path, raw_days: Option<&str>) {
    let mut collector = server(&format!("collector --clickhouse {address}"), data_dir);
    collector.envs(raw_days.map(|days| ("EPWATCH_STORE__RAW_DAYS", days)));
    let (_running, addresses) = Running::start(&mut collector);
    assert!(addresses["collector"].is_string(), "{addresses}");
}

/// Rows that expire are lost, so defaults must not shorten the retention.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_keeps_the_days_that_it_has_until_others_are_asked_for() {
    let store = Store::without_schema().await;
    store
        .migrate(Retention {
            raw_days: 30,
            ..Retention::default()
        })
        .await;
    let (address, data) = (store.address(), store.dir.path().join("data"));
    let said = printed(&format!("--clickhouse {address}"));
    assert_eq!(said, "the schema is up to date\n");
    start_collector(&address, &data, None);
    assert_eq!(raw_days(&store).await, 30);
    start_collector(&address, &data, Some("14"));
    assert_eq!(raw_days(&store).await, 14);
    store.engine.stop().await;
}

#[test]
fn a_dry_run_for_one_server_chooses_the_database_after_it_is_made() {
    let sql = printed("--dry-run");
    let lines: Vec<&str> = sql.lines().take(2).collect();
    assert_eq!(
        lines,
        ["CREATE DATABASE IF NOT EXISTS `epwatch`;", "USE `epwatch`;"]
    );
    for word in ["Replicated", "Distributed", "ON CLUSTER", "${"] {
        assert!(!sql.contains(word), "{word} in {sql}");
    }
    for migration in MIGRATIONS.files {
        assert!(sql.contains(&migration.checksum()), "{}", migration.name);
    }
}

#[test]
fn a_dry_run_for_a_cluster_names_it_in_every_statement() {
    let sql = printed("--dry-run --cluster fleet");
    let distributed = "CREATE TABLE IF NOT EXISTS `epwatch`.`reports` ON CLUSTER `fleet` AS \
                       `epwatch_shard`.`reports` ENGINE = Distributed('fleet', 'epwatch_shard', \
                       'reports', cityHash64(installation));";
    assert!(sql.contains(distributed), "{sql}");
    let path =
        "ReplicatedMergeTree('/clickhouse/tables/{shard}/epwatch_shard/reports', '{replica}')";
    assert!(sql.contains(path), "{sql}");
    let makes = |line: &&str| line.starts_with("CREATE ") || line.starts_with("ALTER ");
    for line in sql.lines().filter(makes) {
        assert!(line.contains("ON CLUSTER `fleet`"), "{line}");
    }

    let here = printed("--dry-run --cluster fleet --this-server-only");
    assert!(!here.contains("ON CLUSTER"), "{here}");
    assert!(here.contains("ReplicatedMergeTree("), "{here}");
}

#[test]
fn what_makes_no_sense_is_said() {
    for (words, expected) in [
        ("", "no ClickHouse server is named"),
        ("--dry-run --cluster=", "--cluster: must not be empty"),
        ("--dry-run --this-server-only", "give --cluster NAME"),
        ("--from-nothing", "--dry-run"),
    ] {
        check_fails(&mut migrate(words), 2, expected);
    }
}

#[test]
fn a_server_that_does_not_answer_is_named() {
    for words in ["", "--dry-run", "--cluster fleet"] {
        let words = format!("--clickhouse http://127.0.0.1:9 {words}");
        check_fails(&mut migrate(&words), 3, "http://127.0.0.1:9");
    }
}
