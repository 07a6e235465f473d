//! The schema of a cluster. Its statements run against a real ZooKeeper. The collector's inserts run on `Distributed`
//! tables over a shard without replicas. The embedded engine has no address from which a replica could fetch parts, so
//! it takes no rows into replicated tables.

use std::collections::BTreeSet;

use clickhouse::Row;
use epwatch_collector::Client;
use epwatch_collector::schema::{self, DATABASE, MIGRATIONS, Retention};
use epwatch_runtimes::is_nightly;
use epwatch_store::embedded::EmbeddedStore;
use epwatch_store::{Cluster, plan};
use serde::Deserialize;

use crate::support::{
    CLUSTER, COUNTED, OPEN, Store, cluster_config, connect, engine_in, number, report, start,
    store_all,
};
use crate::zookeeper::ZooKeeper;

#[derive(Debug, Row, Deserialize)]
struct Name {
    name: String,
}

async fn names(client: &Client, sql: &str) -> BTreeSet<String> {
    let rows = client.query_raw(sql).fetch_all::<Name>().await.unwrap();
    rows.into_iter().map(|row| row.name).collect()
}

/// Runs the statements that `epwatch migrate --dry-run` prints.
async fn run_schema(engine: &EmbeddedStore, cluster: Cluster) {
    let values = schema::cluster(Retention::default(), cluster);
    let planned = plan(DATABASE, MIGRATIONS, &values).unwrap();
    let of_migrations = planned.migrations.iter().flat_map(|m| &m.statements);
    // No database is selected, as on a server that gets the statement by `ON CLUSTER`.
    let client = engine.client("");
    for sql in planned
        .databases
        .iter()
        .chain(&planned.record)
        .chain(of_migrations)
    {
        let Err(error) = client.query_raw(sql).execute().await else {
            continue;
        };
        // The engine's replicated tables are read-only, so even a valid ALTER fails with this error. The test `schema`
        // runs these statements without replicas.
        let is_read_only = error.to_string().contains("TABLE_IS_READ_ONLY");
        assert!(sql.starts_with("ALTER ") && is_read_only, "{error}: {sql}");
    }
}

/// Two servers that are replicas of one shard.
#[tokio::test(flavor = "multi_thread")]
async fn the_schema_of_a_replicated_cluster_is_made_on_zookeeper() {
    if !is_nightly("the schema of a replicated cluster on ZooKeeper") {
        return;
    }
    let Some(zookeeper) = ZooKeeper::start().await else {
        return;
    };
    let mut engines = Vec::new();
    for replica in ["one", "two"] {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "{}{}<macros><shard>01</shard><replica>{replica}</replica></macros>",
            cluster_config(),
            zookeeper.engine_config()
        );
        let engine = engine_in(&dir, &config).await;
        run_schema(&engine, Cluster::new(CLUSTER).on_each_server()).await;
        engines.push((engine, dir));
    }

    for (engine, _) in &engines {
        let client = engine.client(DATABASE);
        let of_shards = names(
            &client,
            "SELECT name FROM system.tables WHERE database = 'epwatch_shard'",
        )
        .await;
        assert!(of_shards.contains("reports"), "{of_shards:?}");
        // The number of replicas comes from ZooKeeper.
        let registered = "SELECT table AS name FROM system.replicas \
                          WHERE database = 'epwatch_shard' AND total_replicas = 2 \
                          AND NOT is_session_expired AND zookeeper_exception = '' \
                          AND zookeeper_path = concat('/clickhouse/tables/01/epwatch_shard/', table)";
        assert_eq!(names(&client, registered).await, of_shards);
        let distributed = "SELECT name FROM system.tables \
                           WHERE database = 'epwatch' AND engine = 'Distributed'";
        assert_eq!(names(&client, distributed).await, of_shards);

        let views = "SELECT name FROM system.tables WHERE database = 'epwatch' AND engine = 'View'";
        let views = names(&client, views).await;
        assert!(views.contains("counted_reports_v1"), "{views:?}");
        for view in views {
            let rows = number(&client, &format!("SELECT count() AS n FROM {view}")).await;
            let rows = rows.unwrap_or_else(|error| panic!("{error}: {view}"));
            // The view of the store's progress has one row from the start.
            assert_eq!(rows, u64::from(view == "store_progress_v1"), "{view}");
            // A count may not read every column, and every column must work too.
            let all = client.query_raw(&format!("SELECT * FROM {view} FORMAT Null"));
            let all = all.execute().await;
            all.unwrap_or_else(|error| panic!("{error}: {view}"));
        }
    }
    for (engine, _) in engines {
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_count_once_on_distributed_tables() {
    let store = Store::start_on_cluster().await;
    let (one, two) = (start(&store, "one").await, start(&store, "two").await);
    let (mut to_one, mut to_two) = (connect(&one).await, connect(&two).await);
    let reports: Vec<_> = (1..=9).map(|n| report(n, 10, 1)).collect();
    store_all(&mut to_one, &reports).await;
    store_all(&mut to_two, &reports[..4]).await;

    store.eventually(COUNTED, 9).await;
    // The rows are on the shard; the table that the collector writes to has no rows of its own.
    let on_shard = "SELECT count() AS n FROM epwatch_shard.reports";
    store.eventually(on_shard, 13).await;
    store.eventually(OPEN, 0).await;
    store
        .eventually(
            "SELECT toUInt64(sum(sessions)) AS n FROM cohort_sessions_v1",
            9,
        )
        .await;
    store
        .eventually(
            // Two builders may list the same copy.
            "SELECT uniqExact(collector_id, wal_offset) AS n FROM surplus_copies_v1",
            4,
        )
        .await;
    store
        .eventually(
            "SELECT toUInt64(sum(stored)) AS n FROM loss_ledger_daily_v1",
            9,
        )
        .await;
    one.stop().await;
    two.stop().await;
    assert_eq!(store.number(COUNTED).await, 9);
    store.engine.stop().await;
}
