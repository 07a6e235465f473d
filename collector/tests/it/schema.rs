//! Tables and retention of the schema, on one server and on a cluster.

use clickhouse::Row;
use epwatch_collector::schema::{self, DATABASE, Retention, retention};
use epwatch_store::{
    Cluster, MigrateError, Migration, Migrations, StoreTarget, TemplateValues, migrate,
};
use serde::Deserialize;

use crate::support::{CLUSTER, COUNTED, Store, connect, report, request, start, store_all};

#[derive(Debug, Row, Deserialize)]
struct Name {
    name: String,
}

/// Returns the tables in `database` that have rows of their own and match `condition`.
async fn tables(store: &Store, database: &str, condition: &str) -> Vec<String> {
    let sql = format!(
        "SELECT name FROM system.tables WHERE database = '{database}' \
         AND engine LIKE '%MergeTree' AND {condition} ORDER BY name"
    );
    let rows = store.client.query_raw(&sql).fetch_all::<Name>();
    let rows = rows.await.unwrap();
    rows.into_iter().map(|row| row.name).collect()
}

/// Checks that tables keep acknowledged rows after a power loss. The embedded engine's default does not apply to a
/// server, so the tables have the setting themselves.
async fn check_inserts_are_synced(store: &Store, database: &str) {
    let synced = "engine_full LIKE '%fsync_after_insert = 1, fsync_part_directory = 1%'";
    let not_synced = tables(store, database, &format!("NOT ({synced})")).await;
    assert_eq!(
        not_synced,
        [
            "collector_checkpoints",
            "detector_beats",
            "rollup_checks",
            "rollup_watermark",
            "schema_migrations",
        ],
        "only what is written again by itself"
    );
    let synced = tables(store, database, synced).await;
    assert!(synced.contains(&"reports".to_owned()), "{synced:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_nowhere_else_is_on_disk_when_it_is_acknowledged() {
    let store = Store::start().await;
    check_inserts_are_synced(&store, "epwatch").await;
    store.engine.stop().await;

    let store = Store::start_on_cluster().await;
    check_inserts_are_synced(&store, "epwatch_shard").await;
    store.engine.stop().await;
}

/// Checks that the retention changes, and that the time since which reports are complete is recorded.
async fn check_retention_changes(
    store: &Store,
    target: &StoreTarget,
    values: impl Fn(Retention) -> TemplateValues,
    database: &str,
) {
    let unchanged = values(Retention::default());
    let none: [&str; 0] = [];
    assert_eq!(retention::changes(target, &unchanged).await.unwrap(), none);
    let longer = values(Retention {
        raw_days: 30,
        rollup_days: 400,
    });
    let planned = retention::changes(target, &longer).await.unwrap();
    assert_eq!(retention::apply(target, &longer).await.unwrap(), planned);
    assert_eq!(retention::changes(target, &longer).await.unwrap(), none);

    let has = |days: u16| format!("engine_full LIKE '%toIntervalDay({days})%'");
    let raw = ["report_copies", "reports"];
    assert_eq!(tables(store, database, &has(30)).await, raw);
    // The list of hidden copies stays longer than the copies.
    let lists = ["repeated_rows", "surplus_copies"];
    assert_eq!(tables(store, database, &has(32)).await, lists);
    let of_surplus = |sql: &String| sql.contains("surplus_copies");
    let of_reports = |sql: &String| sql.contains("reports") && sql.contains("MODIFY TTL");
    assert!(planned.iter().position(of_surplus) < planned.iter().position(of_reports));
    let rollup = tables(store, database, &has(400)).await;
    assert!(rollup.contains(&"cohort_buckets".to_owned()), "{rollup:?}");
    assert_eq!(tables(store, database, &has(14)).await, none);
    assert_eq!(tables(store, database, &has(396)).await, none);
    let said = "SELECT count() AS n FROM raw_retention WHERE raw_days = 30 \
                AND dateDiff('day', whole_since, changed_at) = 13";
    assert_eq!(store.number(said).await, 1);
    assert!(ledger_ends_after(store, 30).await);
}

/// True if the ledger goes back this many days.
async fn ledger_ends_after(store: &Store, days: u16) -> bool {
    let horizon = format!(
        "SELECT count() AS n FROM system.tables WHERE database = 'epwatch' \
         AND name = 'loss_ledger_entries_v1' AND as_select LIKE '%now(\\'UTC\\')) - {days}%'"
    );
    store.number(&horizon).await == 1
}

fn of_raw_days(raw_days: u16) -> TemplateValues {
    schema::single_server(Retention {
        raw_days,
        ..Retention::default()
    })
}

/// Runs only the statements of a change that `is_run` selects, then applies the earlier retention.
async fn begun_and_taken_back(store: &Store, raw_days: u16, is_run: impl Fn(&String) -> bool) {
    let target = store.engine.target(DATABASE);
    let planned = retention::changes(&target, &of_raw_days(raw_days)).await;
    for sql in planned.unwrap().into_iter().filter(is_run) {
        store.client.query_raw(&sql).execute().await.unwrap();
    }
    retention::apply(&target, &of_raw_days(14)).await.unwrap();
    let left = retention::changes(&target, &of_raw_days(14)).await.unwrap();
    assert_eq!(left, [""; 0]);
}

/// All reports are still stored. So a deletion must change the summaries of fourteen days, not of seven.
#[tokio::test(flavor = "multi_thread")]
async fn days_that_were_only_written_down_are_corrected() {
    let store = Store::start().await;
    let latest =
        "SELECT toUInt64(argMax(raw_retention.raw_days, changed_at)) AS n FROM raw_retention";
    begun_and_taken_back(&store, 7, |sql| sql.starts_with("INSERT")).await;
    assert_eq!(store.number(latest).await, 14);
    let whole = "SELECT count() AS n FROM raw_retention \
                 HAVING dateDiff('day', max(whole_since), now('UTC')) = 13";
    assert_eq!(store.number(whole).await, 2);
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn views_of_a_change_that_was_taken_back_are_as_before() {
    let store = Store::start().await;
    begun_and_taken_back(&store, 30, |sql| sql.contains("VIEW")).await;
    assert!(!ledger_ends_after(&store, 30).await);
    assert!(ledger_ends_after(&store, 14).await);
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_there_takes_another_retention() {
    let store = Store::start().await;
    let target = store.engine.target(DATABASE);
    check_retention_changes(&store, &target, schema::single_server, "epwatch").await;
    store.engine.stop().await;

    let store = Store::start_on_cluster().await;
    let target = store.engine.target(DATABASE).of_cluster();
    let target = target.with_setting("prefer_localhost_replica", "1");
    let cluster = Cluster::new(CLUSTER).on_each_server().without_replicas();
    let values = |retention| schema::cluster(retention, cluster.clone());
    check_retention_changes(&store, &target, values, "epwatch_shard").await;
    store.engine.stop().await;
}

/// A rolling upgrade: collectors of two schema numbers write one store. Both collectors are this build, because a
/// second build does not exist before the first release. The newer schema has one file more than the schema of this
/// build.
#[tokio::test(flavor = "multi_thread")]
async fn collectors_of_two_schemas_write_one_store_and_the_older_does_not_start_again() {
    let store = Store::start().await;
    let target = store.engine.target(DATABASE);
    let values = schema::single_server(Retention::default());
    let known = schema::MIGRATIONS.files;
    let next = Migration {
        version: known.last().unwrap().version + 1,
        name: "next",
        sql: "ALTER TABLE reports ADD COLUMN IF NOT EXISTS of_the_next_version UInt8 DEFAULT 7;",
    };
    let files: Vec<Migration> = known.iter().chain([&next]).copied().collect();
    let newer = Migrations {
        series: schema::MIGRATIONS.series,
        files: &files,
    };
    let (old, new) = (start(&store, "old").await, start(&store, "new").await);
    let reports = |installation, first| -> Vec<_> {
        (first..first + 20)
            .map(|sequence| report(installation, 1, sequence))
            .collect()
    };
    let mut device = connect(&old).await;
    store_all(&mut device, &reports(1, 1)).await;
    // The first collector of the new version migrates, while the others are under load.
    let meanwhile = reports(1, 21);
    let (migrated, ()) = tokio::join!(
        migrate(&target, newer, &values),
        store_all(&mut device, &meanwhile),
    );
    migrated.unwrap();
    store_all(&mut device, &reports(1, 41)).await;
    let mut device = connect(&new).await;
    store_all(&mut device, &reports(2, 1)).await;
    store.eventually(COUNTED, 80).await;
    store.check_views_show(80).await;
    // A report that the old collector acknowledged is sent again to the new one.
    store_all(&mut device, &reports(2, 21)).await;
    device.upload(request(&reports(1, 1))).await.unwrap();
    store.eventually(COUNTED, 100).await;

    // A downgrade: the older program refuses to start and changes nothing, and the newer one goes on.
    old.stop().await;
    let refused = migrate(&target, schema::MIGRATIONS, &values)
        .await
        .unwrap_err();
    assert!(matches!(refused, MigrateError::Newer { .. }), "{refused}");
    assert!(refused.to_string().contains("upgrade epwatch"), "{refused}");
    migrate(&target, newer, &values).await.unwrap();
    let old = start(&store, "old").await;
    store_all(&mut connect(&old).await, &reports(1, 61)).await;
    store.eventually(COUNTED, 120).await;
    old.stop().await;
    store.end(new).await;
}
