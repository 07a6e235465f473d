//! A cluster of two shards gives the same counts as one server for the same reports. They come through two collectors,
//! with duplicates, roll-ups, a deletion and the ledger. A copy to more shards and a restored backup also give the same
//! counts.
//!
//! `EPWATCH_TEST_CLICKHOUSE` and `EPWATCH_TEST_CLICKHOUSE_CLUSTER` are addresses of real servers, with user and password:
//! one alone, and one of a cluster with the name `epwatch`. `tests/clickhouse/compose.yaml` starts both. Without them the
//! tests run on the embedded engine.

use std::time::Duration;

use clickhouse::Client;
use epwatch_collector::{
    Collector, WalOffset,
    config::CollectorConfig,
    sample_rows::{self, ReceivedReport},
    schema,
};
use epwatch_faults::{migrate_two_shards, start_two_shards};
use epwatch_proto::{InstallationId, Report, SendClock, samples, v1};
use epwatch_server::Period;
use epwatch_store::{
    Cluster, StoreTarget, TemplateValues,
    embedded::{EmbeddedStore, backup},
    migrate,
};
use epwatch_test_support::until;
use jiff::Timestamp;
use prost::Message;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::{EPWATCH, Store};

const BUCKET: Duration = Duration::from_secs(60);
const SECRET: [u8; 32] = [42; 32];
const DEVICES: u8 = 40;
const ROUNDS: u64 = 5;

/// A store with a name for messages.
struct Side {
    name: &'static str,
    client: Client,
    /// The embedded engine; `None` if a real server is used.
    engine: Option<EmbeddedStore>,
    dir: TempDir,
}

/// Returns a separate database with the schema, on the server that a variable names.
async fn server(variable: &str, values: TemplateValues) -> Option<Client> {
    let address = std::env::var(variable).ok()?;
    let database = format!("epwatch_test_{:x}", Timestamp::now().as_nanosecond());
    let mut target = StoreTarget::parse(&address, &database).unwrap();
    if variable.ends_with("_CLUSTER") {
        target = target.of_cluster();
    }
    migrate(&target, schema::MIGRATIONS, &values).await.unwrap();
    Some(epwatch_store::client(&target))
}

impl Side {
    async fn one_server() -> Self {
        let name = "one server";
        let values = schema::single_server(schema::Retention::default());
        if let Some(client) = server("EPWATCH_TEST_CLICKHOUSE", values).await {
            return Self::of_server(name, client);
        }
        let Store { engine, dir } = Store::start().await;
        Self {
            name,
            client: engine.client("epwatch"),
            engine: Some(engine),
            dir,
        }
    }

    async fn two_shards() -> Self {
        let name = "two shards";
        let cluster = Cluster::new("epwatch");
        let values = schema::cluster(schema::Retention::default(), cluster);
        if let Some(client) = server("EPWATCH_TEST_CLICKHOUSE_CLUSTER", values).await {
            return Self::of_server(name, client);
        }
        let dir = tempfile::tempdir().unwrap();
        let engine = start_two_shards(EPWATCH.as_ref(), dir.path()).await;
        Self::migrated(name, engine.unwrap(), dir).await
    }

    async fn migrated(name: &'static str, engine: EmbeddedStore, dir: TempDir) -> Self {
        let target = migrate_two_shards(&engine).await.unwrap();
        Self {
            name,
            client: epwatch_store::client(&target),
            engine: Some(engine),
            dir,
        }
    }

    fn of_server(name: &'static str, client: Client) -> Self {
        Self {
            name,
            client,
            engine: None,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    async fn stop(self) {
        if let Some(engine) = self.engine {
            engine.stop().await;
        }
    }

    async fn number(&self, sql: &str) -> u64 {
        let found = self.client.query(sql).fetch_one::<u64>().await;
        found.unwrap_or_else(|error| panic!("{}: {error}: {sql}", self.name))
    }

    async fn reaches(&self, sql: &str, expected: u64) {
        until(&format!("{}: {sql} is {expected}", self.name), async || {
            self.number(sql).await == expected
        })
        .await;
    }

    /// Starts a collector that closes buckets, with its own WAL.
    async fn collector(&self, name: &str) -> Collector {
        let any_port = ([127, 0, 0, 1], 0).into();
        let mut config = CollectorConfig {
            listen: any_port,
            http_listen: any_port,
            refresh: Period(Duration::from_millis(200)),
            ..CollectorConfig::default()
        };
        config.wal.dir = self.dir.path().join(name);
        config.batch.period = Period(Duration::from_millis(20));
        config.rollup.bucket = Period(BUCKET);
        let starting = Collector::start(config, self.client.clone(), CancellationToken::new());
        starting.await.unwrap()
    }
}

/// Returns the reports of a fleet over ten past minutes, each with the number of the collector that received it.
fn reports(first_us: u64) -> Vec<(u64, ReceivedReport)> {
    let mut received = Vec::new();
    let mut put = |collector: u64, offset: u64, at_us: u64, report: Report| {
        let report = ReceivedReport {
            offset: WalOffset(offset),
            received_at_us: at_us,
            sent: SendClock::default(),
            is_unproven: false,
            report,
        };
        received.push((collector, report));
    };
    let mut offset = 1;
    for round in 0..ROUNDS {
        for device in 0..DEVICES {
            let id = match device {
                0 => *InstallationId::from_secret(&SECRET).as_bytes(),
                _ => [device; 16],
            };
            let of = |sequence| {
                let key = samples::key(id, u64::from(device) + 1, sequence);
                let session = u64::from(device) << 32 | sequence;
                samples::report(key, samples::session_uid(session + 1))
            };
            let at_us = first_us + round * 90_000_000 + u64::from(device) * 1_000_000;
            let collector = 1 + u64::from(device % 2);
            put(collector, offset, at_us, of(round + 1));
            // The ack was lost, so the report came again, through the other collector and in a later bucket.
            if device % 5 == 1 {
                put(3 - collector, offset + 1, at_us + 70_000_000, of(round + 1));
            }
            offset += 2;
        }
    }
    received
}

async fn store(side: &Side, first_us: u64) {
    for collector in [1, 2] {
        let reports = reports(first_us).into_iter();
        let of_collector = reports.filter(|(of, _)| *of == collector);
        let of_collector: Vec<ReceivedReport> = of_collector.map(|(_, report)| report).collect();
        let client = side.client.clone();
        sample_rows::store_of(collector, client, BUCKET, &of_collector).await;
    }
}

async fn delete(collector: &Collector) {
    let address = format!("http://{}", collector.listen());
    let client = v1::collector_service_client::CollectorServiceClient::connect(address);
    let secret = SECRET.to_vec().into();
    let request = v1::DeleteInstallationRequest { secret };
    client
        .await
        .unwrap()
        .delete_installation(request)
        .await
        .unwrap();
}

async fn upload(collector: &Collector, reports: &[Report]) {
    let address = format!("http://{}", collector.listen());
    let client = v1::collector_service_client::CollectorServiceClient::connect(address);
    let encoded = reports
        .iter()
        .map(|report| v1::Report::from(report).encode_to_vec());
    let request = v1::UploadRequest {
        reports: encoded.map(Into::into).collect(),
        sdk: Some((&samples::sdk()).into()),
        ..v1::UploadRequest::default()
    };
    let answer = client.await.unwrap().upload(request).await.unwrap();
    assert_eq!(answer.into_inner().results, []);
}

/// Stores the reports, closes their buckets, and deletes one installation.
async fn fill(side: &Side, first_us: u64) {
    store(side, first_us).await;
    let collectors = [
        side.collector("first").await,
        side.collector("second").await,
    ];
    let reports = u64::from(DEVICES) * ROUNDS;
    let copies = reports + reports / 5;
    assert_eq!(
        side.number("SELECT count() FROM report_copies").await,
        copies
    );
    let open = "SELECT count() FROM report_copies \
                WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)";
    side.reaches(open, 0).await;
    let counted = "SELECT count() FROM counted_reports_v1";
    assert_eq!(side.number(counted).await, reports, "{}", side.name);
    delete(&collectors[0]).await;
    let hidden = "SELECT count() FROM deletions_v1 WHERE toYear(hidden_at) > 1970";
    side.reaches(hidden, 1).await;
    let rest = reports - ROUNDS;
    assert_eq!(side.number(counted).await, rest);
    let sessions = "SELECT toUInt64(sum(sessions)) FROM cohort_sessions_v1";
    assert_eq!(side.number(sessions).await, rest);
    for collector in collectors {
        collector.stop().await;
    }
    // A starting collector reads the ledger at once.
    let collector = side.collector("first").await;
    let ledger = "SELECT toUInt64(sumIf(reports, kind = 'stored')) FROM loss_ledger_read_v1";
    side.reaches(ledger, rest).await;
    collector.stop().await;
}

/// Returns the time twenty minutes ago, at the beginning of a bucket.
fn first_us() -> u64 {
    let now = u64::try_from(Timestamp::now().as_second()).unwrap();
    (now / 60 - 20) * 60_000_000
}

/// Checks that the views of both stores give the same counts. The rows of the deleted installation are erased
/// `ON CLUSTER`, which the embedded engine cannot do.
async fn check_counts(one: &Side, two: &Side) {
    for sql in [
        "SELECT count() FROM counted_reports_v1",
        "SELECT count() FROM device_series_v1",
        "SELECT toUInt64(sum(n)) FROM device_buckets_v1",
        "SELECT toUInt64(sum(n)) FROM cohort_buckets_v1",
        "SELECT toUInt64(sum(sessions)) FROM cohort_sessions_v1",
        "SELECT uniqExact(collector_id, wal_offset) FROM surplus_copies_v1",
        "SELECT toUInt64(sum(recorded)) FROM loss_ledger_v1",
        "SELECT toUInt64(sum(stored)) FROM loss_ledger_v1",
        "SELECT toUInt64(sum(abs(missing))) FROM loss_ledger_v1",
    ] {
        assert_eq!(one.number(sql).await, two.number(sql).await, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_shards_give_the_counts_of_one_server() {
    let (one, two) = (Side::one_server().await, Side::two_shards().await);
    let first_us = first_us();
    fill(&one, first_us).await;
    fill(&two, first_us).await;
    let shards = "SELECT uniqExact(_shard_num) FROM reports";
    assert_eq!(two.number(shards).await, 2);
    check_counts(&one, &two).await;
    one.stop().await;
    two.stop().await;
}

/// Copies every row to another store, as docs/cluster.md does to give a cluster another shard.
async fn copy(from: &Side, to: &Side) {
    let tables = "SELECT name FROM system.tables WHERE database = currentDatabase() \
                  AND (engine LIKE '%MergeTree' OR engine = 'Distributed') AND name != 'schema_migrations'";
    let tables: Vec<String> = from.client.query(tables).fetch_all().await.unwrap();
    assert!(tables.len() > 20, "{tables:?}");
    for table in tables {
        let select = format!("SELECT * FROM {table}");
        let rows = from.client.query_raw(&select).fetch_bytes("Native");
        let rows = rows.unwrap().collect().await.unwrap();
        if rows.is_empty() {
            continue;
        }
        let insert = format!("INSERT INTO {table} FORMAT Native");
        let mut insert = to.client.insert_formatted_with(insert);
        insert.send(rows).await.unwrap();
        insert
            .end()
            .await
            .unwrap_or_else(|error| panic!("{table}: {error}"));
    }
}

/// Another shard is added by making a store with more shards and copying every row.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_copied_to_more_shards_gives_the_same_counts() {
    let (one, two) = (Side::one_server().await, Side::two_shards().await);
    fill(&one, first_us()).await;
    copy(&one, &two).await;
    check_counts(&one, &two).await;
    // A device sends a report again that the old store had.
    let collector = two.collector("next").await;
    let known = samples::report(samples::key([1; 16], 2, 1), samples::session_uid(9));
    upload(&collector, &[known]).await;
    two.reaches(
        "SELECT count() FROM report_copies WHERE collector_id NOT IN (1, 2)",
        1,
    )
    .await;
    let counted = "SELECT count() FROM counted_reports_v1";
    assert_eq!(two.number(counted).await, one.number(counted).await);
    collector.stop().await;
    one.stop().await;
    two.stop().await;
}

/// Restores with `BACKUP` of the shards' database, `RESTORE` in a new cluster, and a migration, which makes the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_restored_from_the_backup_of_its_shards_gives_the_same_counts() {
    const ARCHIVE: &str = "shards.tar.zst";
    let two = Side::two_shards().await;
    // On a real server, BACKUP needs a disk or bucket of the operator, so only the embedded engine is tested.
    let Some(engine) = &two.engine else {
        return;
    };
    fill(&two, first_us()).await;
    let shards = |engine: &EmbeddedStore| engine.target("epwatch_shard");
    backup::save(&shards(engine), ARCHIVE).await.unwrap();
    let saved = backup::backups_dir(&two.dir.path().join("store")).join(ARCHIVE);

    let dir = tempfile::tempdir().unwrap();
    let new = start_two_shards(EPWATCH.as_ref(), dir.path())
        .await
        .unwrap();
    let backups = backup::backups_dir(&dir.path().join("store"));
    std::fs::create_dir_all(&backups).unwrap();
    std::fs::copy(saved, backups.join(ARCHIVE)).unwrap();
    backup::bring_back(&shards(&new), ARCHIVE, &[])
        .await
        .unwrap();
    let restored = Side::migrated("restored", new, dir).await;
    check_counts(&two, &restored).await;
    let copies = "SELECT count() FROM report_copies";
    assert_eq!(two.number(copies).await, restored.number(copies).await);
    two.stop().await;
    restored.stop().await;
}
