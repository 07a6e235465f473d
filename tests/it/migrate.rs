//! `epwatch migrate --dry-run`: the printed SQL makes the schema.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use epwatch_collector::schema::{MIGRATIONS, Retention};
use serde_json::Value;

use crate::support::{Running, Store, check_fails, check_succeeds, epwatch};

fn migrate(args: &[&str]) -> Command {
    let mut command = epwatch();
    command.arg("migrate").args(args);
    command
}

#[track_caller]
fn printed(args: &[&str]) -> String {
    check_succeeds(&mut migrate(args))
}

#[track_caller]
fn check_wrong_use(args: &[&str], expected: &str) {
    check_fails(&mut migrate(args), 2, expected);
}

/// The printed statements, run by hand, make the schema that this program needs.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dry_run_prints_makes_the_schema() {
    let store = Store::without_schema().await;
    let engine = &store.engine;
    let document: Value = serde_json::from_str(&printed(&["--dry-run", "--json"])).unwrap();
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

    let address = store.address();
    let said = printed(&["--clickhouse", &address]);
    assert_eq!(said, "the schema is up to date\n");
    let said = printed(&["--clickhouse", &address, "--dry-run"]);
    assert_eq!(said, "-- the schema is up to date\n");
    store.engine.stop().await;
}

/// Returns the days that the store keeps reports.
async fn raw_days(store: &Store) -> u64 {
    let sql = "SELECT toUInt64OrZero(extract(engine_full, 'toIntervalDay\\\\((\\\\d+)\\\\)')) FROM system.tables \
               WHERE database = 'epwatch' AND name = 'reports'";
    store.client().query_raw(sql).fetch_one().await.unwrap()
}

/// Starts a collector on a store, and ends it once it takes reports.
fn start_collector(address: &str, data_dir: &Path, env: &[(&str, &str)]) {
    let child = epwatch()
        .args(["collector", "--clickhouse", address])
        .args(["--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0")
        .envs(env.iter().copied())
        .stdout(Stdio::piped())
        .spawn();
    let mut collector = Running(child.unwrap());
    let stdout = BufReader::new(collector.0.stdout.take().unwrap());
    let said = stdout.lines().next();
    let said = said.expect("it says where it listens").unwrap();
    assert!(said.starts_with("devices send to"), "{said}");
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
    assert_eq!(
        printed(&["--clickhouse", &address]),
        "the schema is up to date\n"
    );
    start_collector(&address, &data, &[]);
    assert_eq!(raw_days(&store).await, 30);
    start_collector(&address, &data, &[("EPWATCH_STORE__RAW_DAYS", "14")]);
    assert_eq!(raw_days(&store).await, 14);
    store.engine.stop().await;
}

#[test]
fn a_dry_run_for_one_server_chooses_the_database_after_it_is_made() {
    let sql = printed(&["--dry-run"]);
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
    let sql = printed(&["--dry-run", "--cluster", "fleet"]);
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

    let here = printed(&["--dry-run", "--cluster", "fleet", "--this-server-only"]);
    assert!(!here.contains("ON CLUSTER"), "{here}");
    assert!(here.contains("ReplicatedMergeTree("), "{here}");
}

#[test]
fn what_makes_no_sense_is_said() {
    check_wrong_use(&[], "no ClickHouse server is named");
    check_wrong_use(
        &["--dry-run", "--cluster", ""],
        "--cluster: must not be empty",
    );
    check_wrong_use(&["--dry-run", "--this-server-only"], "give --cluster NAME");
    check_wrong_use(&["--from-nothing"], "--dry-run");
}
