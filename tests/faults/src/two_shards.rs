//! Two shards with rows in one engine. The engine opens no port, so it cannot be another server of its own cluster. A
//! shard with its own database counts as another server, too. So both shards are the engine itself, and each table of
//! `epwatch_shard` has the rows of both, in separate partitions. Inserts reach a shard through `Distributed`, which
//! splits them, and a filter shows a shard its own rows only. Plans, splits, tokens and `GLOBAL` subqueries are the
//! same as with two servers; connections are not.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use epwatch_collector::schema::{self, DATABASE, MIGRATIONS, Retention};
use epwatch_store::embedded::EmbeddedStore;
use epwatch_store::{Cluster, Planned, StoreTarget, plan};

use crate::servers::start_engine;

const CLUSTER: &str = "two";

const SHARD: &str = "<shard><internal_replication>true</internal_replication>\
                     <replica><host>127.0.0.1</host><port>9000</port></replica></shard>";

/// Starts an engine on `dir/store` that knows a cluster of two shards, without a schema.
///
/// # Errors
/// The engine cannot be fetched or started.
pub async fn start_two_shards(program: &Path, dir: &Path) -> anyhow::Result<EmbeddedStore> {
    let elements = format!(
        "<tcp_port>9000</tcp_port><remote_servers><{CLUSTER}>{SHARD}{SHARD}</{CLUSTER}></remote_servers>"
    );
    start_engine(program, dir, &elements).await
}

/// Creates the missing parts of the cluster's schema, and returns the target that all of its users need.
///
/// # Errors
/// The engine refuses a statement.
pub async fn migrate_two_shards(store: &EmbeddedStore) -> anyhow::Result<StoreTarget> {
    let cluster = Cluster::new(CLUSTER).on_each_server().without_replicas();
    let values = schema::cluster(Retention::default(), cluster);
    let planned = plan(DATABASE, MIGRATIONS, &values)?;
    let keys = shard_keys(&planned);
    let of = |database| {
        let target = store.target(database).of_cluster();
        target.with_setting("prefer_localhost_replica", "1")
    };
    let server = epwatch_store::client(&of(""));
    for sql in &planned.databases {
        run(&server, sql).await?;
    }
    let client = epwatch_store::client(&of(DATABASE));
    let migrations = planned.migrations.iter();
    let statements = migrations.flat_map(|one| one.statements.iter().chain([&one.done]));
    for sql in planned.record.iter().chain(statements) {
        run(&client, &in_partitions(sql, &keys)).await?;
    }
    let filters = keys.iter().map(|(table, key)| {
        let own = format!("shardNum() = 0 OR {key} % 2 = shardNum() - 1");
        format!("'{DATABASE}_shard.{table}':'{own}'")
    });
    let filters = format!("{{{}}}", filters.collect::<Vec<_>>().join(","));
    let target = of(DATABASE).with_setting("additional_table_filters", &filters);
    Ok(target)
}

async fn run(client: &clickhouse::Client, sql: &str) -> anyhow::Result<()> {
    let done = client.query_raw(sql).execute().await;
    done.with_context(|| sql.to_owned())
}

/// Returns each table's sharding key.
fn shard_keys(planned: &Planned<'_>) -> BTreeMap<String, String> {
    let migrations = planned.migrations.iter().flat_map(|one| &one.statements);
    let statements = planned.record.iter().chain(migrations);
    let mut keys = BTreeMap::new();
    for sql in statements {
        let start = format!("ENGINE = Distributed('{CLUSTER}', '{DATABASE}_shard', '");
        if let Some((_, rest)) = sql.split_once(&start)
            && let Some((table, key)) = rest.split_once("', ")
        {
            let key = key.strip_suffix(')').unwrap_or(key);
            keys.insert(table.to_owned(), key.to_owned());
        }
    }
    keys
}

/// Gives a shard's own table a partition for each shard.
fn in_partitions(sql: &str, keys: &BTreeMap<String, String>) -> String {
    let begin = format!("CREATE TABLE IF NOT EXISTS `{DATABASE}_shard`.`");
    let table = sql.find(&begin).map(|at| &sql[at + begin.len()..]);
    let table = table.and_then(|rest| rest.split('`').next());
    let Some(key) = table.and_then(|table| keys.get(table)) else {
        return sql.to_owned();
    };
    let at = sql.rfind("ORDER BY").expect("a table has a sorting key");
    let (head, order) = sql.split_at(at);
    match head.split_once("PARTITION BY ") {
        Some((head, partition)) => {
            format!(
                "{head}PARTITION BY ({}, {key} % 2)\n{order}",
                partition.trim_end()
            )
        }
        None => format!("{head}PARTITION BY {key} % 2\n{order}"),
    }
}
