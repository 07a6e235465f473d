//! The statements of a schema on one server or on a cluster, without a store.

use super::cluster::{Cluster, Made};
use super::error::MigrateError;
use super::template::{Migration, Migrations, TemplateValues, render_all};
use crate::lexer::quoted_name;

/// The columns of the record of a migration.
const RECORDED: &str = "(series, version, name, checksum)";

/// The statements of a schema, in the order in which they run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned<'a> {
    /// Statements that create the databases. They run without a database.
    pub databases: Vec<String>,
    /// Statements that create the table of applied migrations.
    pub record: Vec<String>,
    /// The migrations in order. Their statements run in the database.
    pub migrations: Vec<PlannedMigration<'a>>,
}

/// The statements of one migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedMigration<'a> {
    /// The file of the migration.
    pub migration: &'a Migration,
    /// Statements that change the schema.
    pub statements: Vec<String>,
    /// Statement that records the migration as applied.
    pub done: String,
}

/// Returns the statements that [`migrate`](super::migrate()) runs on an empty database. Needs no store.
///
/// # Errors
/// The list, a placeholder or a statement is wrong.
pub fn plan<'a>(
    database: &str,
    migrations: Migrations<'a>,
    values: &TemplateValues,
) -> Result<Planned<'a>, MigrateError> {
    let rendered = render_all(migrations, values)?;
    let on_cluster = values.get_or_empty("on_cluster");
    let replicated = values.get_or_empty("replicated");
    let mut databases = Vec::new();
    if !database.is_empty() {
        databases.push(database.to_owned());
        if values.cluster().is_some() {
            databases.push(Cluster::shard_database(database));
        }
    }
    let databases = databases
        .iter()
        .map(|name| {
            format!(
                "CREATE DATABASE IF NOT EXISTS {} {on_cluster}",
                quoted_name(name)
            )
        })
        .map(|sql| sql.trim_end().to_owned())
        .collect();
    let table = format!(
        "CREATE TABLE IF NOT EXISTS schema_migrations {on_cluster} (series LowCardinality(String), \
         version UInt32, name String, checksum String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3)) \
         ENGINE = {replicated}ReplacingMergeTree(applied_at) ORDER BY (series, version, checksum)"
    );
    let mut made = Made::default();
    let record = spread(values, database, &mut made, (0, "schema_migrations"), table)?;
    let mut planned = Vec::with_capacity(rendered.len());
    for (migration, statements) in rendered {
        let mut all = Vec::with_capacity(statements.len());
        for statement in statements {
            let of = (migration.version, migration.name);
            all.extend(spread(values, database, &mut made, of, statement)?);
        }
        let table = values.cluster().map_or_else(
            || format!("schema_migrations {RECORDED}"),
            |_| Cluster::written_table(database, "schema_migrations", RECORDED),
        );
        let done = format!(
            "INSERT INTO {table} SELECT '{}', {}, '{}', '{}'",
            migrations.series,
            migration.version,
            migration.name,
            migration.checksum()
        );
        planned.push(PlannedMigration {
            migration,
            statements: all,
            done,
        });
    }
    Ok(Planned {
        databases,
        record,
        migrations: planned,
    })
}

/// Returns the statements that do the same on the server or cluster of `values`.
pub(super) fn spread(
    values: &TemplateValues,
    database: &str,
    made: &mut Made,
    (version, name): (u32, &'static str),
    statement: String,
) -> Result<Vec<String>, MigrateError> {
    let Some(cluster) = values.cluster() else {
        return Ok(vec![statement]);
    };
    let spread = cluster.spread(database, made, &statement);
    spread.map_err(|source| MigrateError::Cluster {
        version,
        name,
        source,
    })
}
