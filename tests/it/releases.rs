//! ClickHouse releases that people run: the whole path works on other releases than the embedded engine's, with the
//! same answers.
//!
//! A real fleet's collector, roll-ups, deletion, detector and commands work on the release, with the client of
//! production. Then its rows are copied to the embedded engine. There each view, each statement that was run, each
//! query of Grafana and a replay must give the same answers. The newest release and a store of two shards are checked
//! in the same way.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use clickhouse::Client;
use epwatch_collector::{check::check, schema::DATABASE};
use epwatch_faults::{Proxy, migrate_two_shards, start_two_shards};
use epwatch_fleet::{Placements, RecordedModel};
use epwatch_proto::{InstallationId, samples, v1};
use epwatch_runtimes::{ClickHouse, RELEASES, Release, is_nightly};
use epwatch_server::Period;
use epwatch_store::{LEAST_VERSION, StoreTarget, client};
use epwatch_test_support::until;
use serde_json::Value;

use crate::{
    dashboards::{self, Range, put_the_rest, queries},
    fleet::{APP, MODEL, Watched, scenario},
    support::{EPWATCH, Store, check_succeeds, collector_config, docs, epwatch},
};

/// Secret of the installation that is deleted.
const SECRET: [u8; 32] = [42; 32];

/// Number of statements of one shape that are run again. They are the latest, because their times cover the most rows.
const MAX_OF_A_SHAPE: usize = 2;

#[test]
fn the_least_version_is_the_oldest_of_the_matrix_and_documents_name_it() {
    let least = format!("{}.{}", LEAST_VERSION.0, LEAST_VERSION.1);
    assert_eq!(RELEASES[0].line, least);
    let readme = include_str!("../../README.md");
    let named = format!("ClickHouse {least} or newer");
    let cluster = docs("cluster.md");
    for (name, text) in [("README.md", readme), ("cluster.md", &*cluster)] {
        assert!(text.contains(&named), "{name} does not say {named:?}");
    }
    let lines: Vec<&str> = RELEASES.iter().map(|release| release.line).collect();
    let compose = docs("examples/compose.yaml");
    let (_, rest) = compose
        .split_once("image: docker.io/clickhouse/clickhouse-server:")
        .unwrap();
    let pinned = rest.lines().next().unwrap();
    assert!(
        lines.contains(&pinned),
        "compose.yaml pins {pinned}, of {lines:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_release_takes_the_whole_path_and_answers_the_same() {
    check_release(&RELEASES[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_release_takes_the_whole_path_and_answers_the_same() {
    check_release(RELEASES.last().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_in_between_take_the_whole_path_and_answer_the_same() {
    let [_, between @ .., _] = &RELEASES;
    let lines: Vec<&str> = between.iter().map(|release| release.line).collect();
    if !is_nightly(&format!("the whole path on ClickHouse {lines:?}")) {
        return;
    }
    for release in between {
        check_release(release).await;
    }
}

async fn check_release(release: &'static Release) {
    let dir = tempfile::tempdir().unwrap();
    let server = tokio::task::block_in_place(|| ClickHouse::start(release, dir.path()));
    let target = StoreTarget::unix(&server.socket(), DATABASE);
    let old = client(&target);
    let to = format!("--clickhouse unix:{}", server.socket().display());
    check_succeeds(&mut epwatch(&format!("migrate {to}")));
    let again = check_succeeds(&mut epwatch(&format!("migrate {to}")));
    assert_eq!(again, "the schema is up to date\n");
    // A release refuses unknown settings, so this tests the settings for a cluster.
    let of_cluster = client(&target.clone().of_cluster());
    let asked = of_cluster.query("SELECT version()").fetch_one::<String>();
    assert_eq!(asked.await.unwrap(), server.version());

    let judged = run_the_whole_path(&old, &to, &dir.path().join("wal")).await;
    let checked = check(&old, 14, None, |_| {}).await.unwrap();

    // From here on no program writes to the store.
    let replayed = replay(&to, judged);
    let now = jiff::Timestamp::now();
    let questions = Questions {
        statements: statements(&server.statements(), now),
        range: Range::now(),
        now,
        judged,
        replayed,
    };
    let n_statements = questions.statements.len();
    assert!(n_statements > 80, "only {n_statements} statements");
    let newest = Store::start().await;
    let new = newest.client();
    copy_rows(&old, &new).await;
    let there = format!("--clickhouse {}", newest.address());
    let differences = questions.compare(&old, &new, &there).await;
    let checked_there = check(&new, 14, None, |_| {}).await.unwrap();
    let text = |report| serde_json::to_value(report).unwrap();
    assert_eq!(text(&checked), text(&checked_there));
    differences.are_none(release.line);
    if release.line == RELEASES.last().unwrap().line {
        let dir = tempfile::tempdir().unwrap();
        let shards = start_two_shards(EPWATCH.as_ref(), dir.path())
            .await
            .unwrap();
        let target = migrate_two_shards(&shards).await.unwrap();
        let two = client(&target);
        copy_rows(&new, &two).await;
        let proxy = Proxy::with_settings_of(&target, &shards).await.unwrap();
        let there_too = format!("--clickhouse {}", proxy.url());
        let differences = questions.compare(&new, &two, &there_too).await;
        differences.are_none("two shards");
        shards.stop().await;
    }
    newest.engine.stop().await;
}

/// The queries to two stores with the same rows.
struct Questions {
    /// All statements that collector, detector and commands ran.
    statements: Vec<Statement>,
    /// Time range of Grafana's queries.
    range: Range,
    now: jiff::Timestamp,
    /// End of the replay; the next field has its answer.
    judged: jiff::Timestamp,
    replayed: Vec<String>,
}

impl Questions {
    /// Compares the answers of each view, each statement, each query of Grafana and a replay. Commands find the new
    /// store by `there`.
    async fn compare(&self, old: &Client, new: &Client, there: &str) -> Differences {
        let mut differences = Differences::default();
        for view in names(old, "engine = 'View'").await {
            let sql = format!("SELECT * FROM {view}");
            differences.compare(old, new, &view, &sql).await;
        }
        for statement in &self.statements {
            let [old, new] = [old, new].map(|store| statement.settings(store));
            differences
                .compare(&old, &new, "a statement", &statement.sql)
                .await;
        }
        let mut all = dashboards::names(&["1", "2"], &["SM8635", "SM8650"]);
        let several = all.clone();
        all.extend([("version", None), ("chipset", None)]);
        for (name, sql) in queries() {
            for names in [&several, &all] {
                let sql = at(&self.range.expanded(&sql, names), self.now);
                differences.compare(old, new, &name, &sql).await;
            }
        }
        let replayed = replay(there, self.judged);
        differences.note("a replay", &self.replayed, &replayed);
        differences
    }
}

/// Runs reports, an incident, an order, a deletion and every page on this store. Returns the time before which all rows
/// belong to the fleet.
async fn run_the_whole_path(store: &Client, to: &str, wal: &Path) -> jiff::Timestamp {
    let mut config = collector_config(wal.to_owned());
    config.erase_period = Period(Duration::from_millis(200));
    let placements =
        Placements::recorded(&[("1", RecordedModel::INT8), ("2", RecordedModel::FLOAT_HEAD)]);
    let mut scenario = scenario();
    scenario.n_devices = 60;
    let watched = Watched::start(store.clone(), config, scenario, placements, Vec::new()).await;
    let count = async |sql: &str| -> u64 {
        let sql = format!("SELECT toUInt64(count()) FROM {sql}");
        store.query_raw(&sql).fetch_one().await.unwrap()
    };

    let mut key = samples::key([0; 16], 1, 1);
    key.installation = InstallationId::from_secret(&SECRET);
    let mut doomed = samples::report(key, samples::session_uid(1));
    doomed.app.id = APP.to_owned();
    let upload = v1::UploadRequest {
        reports: vec![doomed.to_bytes().into()],
        sdk: Some(v1::Sdk {
            name: "test".into(),
            version: "1".into(),
            language: "rust".into(),
        }),
        ..v1::UploadRequest::default()
    };
    // The upload is repeated, as after a lost ack.
    watched.call("Upload", &upload).await;
    watched.call("Upload", &upload).await;
    let row = format!(
        "counted_reports_v1 WHERE hex(installation) = upper('{}')",
        InstallationId::from_secret(&SECRET).to_hex()
    );
    until("the report counts", async || count(&row).await == 1).await;
    let deletion = v1::DeleteInstallationRequest {
        secret: SECRET.to_vec().into(),
    };
    watched.call("DeleteInstallation", &deletion).await;
    until("its rows are erased", async || {
        count("deletions_v1 WHERE toYear(erased_at) > 1970 AND erased_reports > 0").await == 1
    })
    .await;
    assert_eq!(count(&row).await, 0);

    until("an incident pages", async || {
        count("incidents_v1 WHERE state = 'firing' AND severity = 'page'").await > 0
    })
    .await;
    let closed = "SELECT toInt64(toUnixTimestamp(max(closed_until))) FROM rollup_watermark";
    let closed = async || -> i64 { store.query_raw(closed).fetch_one().await.unwrap() };
    let before = closed().await;
    put_the_rest(store).await;
    let paging =
        "SELECT incident_id FROM incidents_v1 WHERE state = 'firing' AND severity = 'page' LIMIT 1";
    let id: String = store.query_raw(paging).fetch_one().await.unwrap();
    let mut ack = epwatch(&format!("incident ack --who it --why read {to}"));
    check_succeeds(ack.arg(&id));
    assert_eq!(count("incident_orders_v1").await, 1);
    let installation = InstallationId::from_secret(&SECRET).to_hex();
    for look in [
        "status".to_owned(),
        format!("show {APP} {MODEL}"),
        format!("show {APP} {MODEL} 2 SM8635"),
        "devices".to_owned(),
        "devices --latest".to_owned(),
        "ledger".to_owned(),
        "health".to_owned(),
        "orders".to_owned(),
    ] {
        answered(&format!("{look} {to}")).await;
    }
    answered(&format!("incident {id} {to}")).await;
    // The deleted device must not be found.
    let look = format!("devices {installation} {to}");
    until(&look, async || {
        let output = epwatch(&look).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        assert!(code == Some(1) || error.contains("in time"), "{error}");
        code == Some(1)
    })
    .await;
    let looked_at = closed().await;
    until("a few more buckets are closed", async || {
        closed().await > looked_at + 3
    })
    .await;
    watched.stop().await;
    jiff::Timestamp::from_second(before).unwrap()
}

/// Runs a command until it has an answer: a busy store may take longer than a person waits.
async fn answered(words: &str) {
    until(words, async || {
        let output = epwatch(words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let is_late = error.contains("in time");
        assert!(output.status.success() || is_late, "{words}: {error}");
        output.status.success()
    })
    .await;
}

/// Returns the lines of a replay until `end`.
fn replay(to: &str, end: jiff::Timestamp) -> Vec<String> {
    let words = format!("replay --all --json --window 4s --bucket 1s --baseline 1h --to {end}");
    let printed = check_succeeds(&mut epwatch(&format!("{words} {to}")));
    printed.lines().map(rounded_line).collect()
}

async fn names(store: &Client, condition: &str) -> Vec<String> {
    let sql = format!(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND {condition} ORDER BY name"
    );
    store.query_raw(&sql).fetch_all().await.unwrap()
}

/// Copies the rows of each table. The records of migrations are there already.
async fn copy_rows(from: &Client, to: &Client) {
    let tables = "engine LIKE '%MergeTree' AND name != 'schema_migrations'";
    for table in names(from, tables).await {
        let select = format!("SELECT * FROM {table}");
        let mut rows = from.query_raw(&select).fetch_bytes("Native").unwrap();
        let rows = rows.collect().await.unwrap();
        if rows.is_empty() {
            continue;
        }
        let mut insert = to.insert_formatted_with(format!("INSERT INTO {table} FORMAT Native"));
        insert.send(rows).await.unwrap();
        insert.end().await.unwrap();
    }
}

/// A statement that was run, as a query.
#[derive(Debug)]
struct Statement {
    sql: String,
    settings: BTreeMap<String, String>,
}

impl Statement {
    fn settings(&self, store: &Client) -> Client {
        let settings = self.settings.iter();
        settings.fold(store.clone(), |store, (name, value)| {
            store.with_setting(name, value)
        })
    }
}

/// Returns the latest statements of each shape that read rows: queries, and the queries of inserts. `now` replaces the
/// present time in all of them.
fn statements(log: &str, now: jiff::Timestamp) -> Vec<Statement> {
    let mut shapes: BTreeMap<String, Vec<Statement>> = BTreeMap::new();
    for line in log.lines() {
        let document: Value = serde_json::from_str(line).unwrap();
        let mut settings: BTreeMap<String, String> =
            serde_json::from_value(document["settings"].clone()).unwrap();
        // The time limit is removed, because the machine may be busy.
        settings.remove("max_execution_time");
        let Some(sql) = query_of(document["sql"].as_str().unwrap()) else {
            continue;
        };
        if document["database"] != DATABASE {
            continue;
        }
        let of_shape = shapes.entry(shape(&sql)).or_default();
        if of_shape.len() == MAX_OF_A_SHAPE {
            of_shape.remove(0);
        }
        of_shape.push(Statement {
            sql: at(&sql, now),
            settings,
        });
    }
    shapes.into_values().flatten().collect()
}

/// Returns the part of a statement that is a query of our tables.
fn query_of(sql: &str) -> Option<String> {
    let sql = sql.trim();
    // A column's name may begin with a word of SQL.
    let upper = sql.to_ascii_uppercase().replace('\n', " ");
    let begins = |word: &str| upper.starts_with(word);
    if !["SELECT", "WITH", "INSERT"].iter().any(|word| begins(word)) {
        return None;
    }
    let words = ["SELECT ", "WITH "].iter();
    let start = words.filter_map(|word| upper.find(word)).min()?;
    let end = upper.rfind(" FORMAT ").unwrap_or(sql.len());
    let query = &sql[start..end];
    // Parts and the record of migrations are the engine's own.
    let own = ["system.", "schema_migrations", " _part "];
    let is_of_engine = own.iter().any(|name| query.contains(name));
    (query.contains(" FROM ") && !is_of_engine).then(|| query.trim().to_owned())
}

/// A statement without its literals.
fn shape(sql: &str) -> String {
    let mut parts = sql.split('\'');
    let mut shape = String::new();
    while let Some(code) = parts.next() {
        shape.extend(code.chars().filter(|c| !c.is_ascii_digit() && *c != ','));
        // A literal.
        let _ = parts.next();
    }
    shape
}

/// Replaces functions that return the present time by a fixed time.
fn at(sql: &str, now: jiff::Timestamp) -> String {
    let second = now.as_second();
    let mut sql = sql.to_owned();
    for call in ["now64(3, 'UTC')", "now64(3)"] {
        let fixed = format!("toDateTime64({second}, 3, 'UTC')");
        sql = sql.replace(call, &fixed);
    }
    for call in ["now('UTC')", "now()"] {
        sql = sql.replace(call, &format!("toDateTime({second}, 'UTC')"));
    }
    sql
}

/// Answers that differed.
#[derive(Debug, Default)]
struct Differences {
    n_compared: usize,
    n_rows: usize,
    found: BTreeSet<String>,
}

impl Differences {
    async fn compare(&mut self, old: &Client, new: &Client, name: &str, sql: &str) {
        let name = format!("{name}: {sql}");
        match (answer(old, sql).await, answer(new, sql).await) {
            (Ok(old), Ok(new)) => self.note(&name, &old, &new),
            (old, new) => {
                let failures = [old.err(), new.err()];
                self.found.insert(format!("{name}\n{failures:?}"));
            }
        }
    }

    fn note(&mut self, name: &str, old: &[String], new: &[String]) {
        self.n_compared += 1;
        self.n_rows += old.len();
        let differs = |at: &usize| match (old.get(*at), new.get(*at)) {
            (Some(old), Some(new)) => !is_same_row(old, new),
            _ => true,
        };
        let Some(place) = (0..old.len().max(new.len())).find(differs) else {
            return;
        };
        self.found.insert(format!(
            "{name}\n{} rows, and {} on the other store; the first difference\n  {:?}\n  {:?}",
            old.len(),
            new.len(),
            old.get(place),
            new.get(place)
        ));
    }

    #[track_caller]
    fn are_none(&self, line: &str) {
        let found: Vec<&str> = self.found.iter().map(String::as_str).collect();
        assert!(
            found.is_empty(),
            "{} of {} answers of {line} differ:\n{}",
            found.len(),
            self.n_compared,
            found.join("\n")
        );
        assert!(self.n_rows > 10_000, "only {} rows", self.n_rows);
    }
}

/// Returns the sorted rows of an answer, or the error.
async fn answer(store: &Client, sql: &str) -> Result<Vec<String>, clickhouse::error::Error> {
    let mut rows = store.query_raw(sql).fetch_bytes("JSONCompactEachRow")?;
    let rows = rows.collect().await?;
    let text = String::from_utf8_lossy(&rows);
    let mut lines: Vec<String> = text.lines().map(rounded_line).collect();
    lines.sort_unstable();
    Ok(lines)
}

/// Returns a line of JSON with each fraction rounded to six digits, because engines may add in different orders.
fn rounded_line(line: &str) -> String {
    match serde_json::from_str(line) {
        Ok(value) => rounded(value).to_string(),
        Err(_) => line.to_owned(),
    }
}

/// Whether two rows are equal up to the last of the six digits, because a sum may be close to a rounding limit.
fn is_same_row(old: &str, new: &str) -> bool {
    let value = |row| serde_json::from_str::<Value>(row).ok();
    old == new || matches!((value(old), value(new)), (Some(old), Some(new)) if is_near(&old, &new))
}

fn is_near(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::String(old), Value::String(new)) if old != new => {
            let number = |text: &str| text.parse::<f64>().ok().filter(|_| text.contains('e'));
            number(old)
                .zip(number(new))
                .is_some_and(|(old, new)| (old - new).abs() <= 2e-6 * old.abs())
        }
        (Value::Array(old), Value::Array(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| is_near(old, new))
        }
        (Value::Object(old), Value::Object(new)) => {
            let is_near = |(name, old)| new.get(name).is_some_and(|new| is_near(old, new));
            old.len() == new.len() && old.iter().all(is_near)
        }
        _ => old == new,
    }
}

fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            format!("{:.6e}", number.as_f64().unwrap()).into()
        }
        Value::Array(values) => values.into_iter().map(rounded).collect(),
        Value::Object(members) => {
            let members = members.into_iter();
            members
                .map(|(name, value)| (name, rounded(value)))
                .collect()
        }
        other => other,
    }
}
