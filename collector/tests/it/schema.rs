//! What the tables of the schema promise, on one server and on a cluster.

use clickhouse::Row;
use serde::Deserialize;

use crate::support::Store;

#[derive(Debug, Row, Deserialize)]
struct Name {
    name: String,
}

/// Tables that hold rows in `database`, as far as `condition` holds of their engine.
async fn tables(store: &Store, database: &str, condition: &str) -> Vec<String> {
    let sql = format!(
        "SELECT name FROM system.tables WHERE database = '{database}' \
         AND engine LIKE '%MergeTree' AND {condition} ORDER BY name"
    );
    let rows = store.client.query_raw(&sql).fetch_all::<Name>();
    let rows = rows.await.unwrap();
    rows.into_iter().map(|row| row.name).collect()
}

/// After a power loss they hold what was acknowledged. The engine's own default is no help where a
/// server keeps the tables, so they say it themselves.
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
