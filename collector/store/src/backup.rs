//! One database of the embedded engine as an archive file, and back.
//!
//! The engine takes the parts of all tables when it begins and reads them while inserts go on, so
//! an archive of a store under load is whole, though its tables are of slightly different moments.

use clickhouse::{Client, Row};
use futures::future::BoxFuture;
use serde::Deserialize;

use crate::client::{StoreTarget, client};
use crate::embedded::is_archive_name;

/// Why a store cannot be saved or brought back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// Our own mistake, or a name from outside.
    #[error("archive name {0:?} is no plain file name ending in .tar.zst")]
    Name(String),
    /// What the archive holds makes no sense here.
    #[error("function {0:?} of the backup is none that a store of epwatch has")]
    Function(String),
    /// The store refused or did not answer.
    #[error("failed to {what}")]
    Store {
        /// What was being done.
        what: &'static str,
        /// What the store said.
        #[source]
        source: clickhouse::error::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(clickhouse::error::Error) -> BackupError {
    move |source| BackupError::Store { what, source }
}

/// A table and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Row, serde::Serialize, Deserialize)]
pub struct TableSize {
    /// Its name.
    pub table: String,
    /// Rows of its parts, before any are merged away.
    pub rows: u64,
    /// Bytes of its parts on disk.
    pub bytes: u64,
}

/// A function of the server that views of the database use; an archive does not hold it.
#[derive(Debug, Clone, PartialEq, Eq, Row, serde::Serialize, Deserialize)]
pub struct SqlFunction {
    /// Its name.
    pub name: String,
    /// The statement that makes it.
    pub create: String,
}

/// Our functions carry this, since functions are global to a server.
const FUNCTION_PREFIX: &str = "epwatch_";

/// Writes the target's database into the archive `name` in the engine's
/// [`backups_dir`](crate::embedded::backups_dir).
///
/// # Errors
/// The name is no plain one, or the engine refused.
pub fn save<'a>(target: &'a StoreTarget, name: &'a str) -> BoxFuture<'a, Result<(), BackupError>> {
    Box::pin(async move {
        let what = "make an archive of the store";
        run(target, "BACKUP", "TO", name, what).await
    })
}

/// Makes the target's database from the archive `name` in the engine's
/// [`backups_dir`](crate::embedded::backups_dir). The engine checks every part; nothing of that
/// database may be there before. `functions` are made first: views need them.
///
/// # Errors
/// The name is no plain one, a function is none of ours, or the engine refused.
pub fn bring_back<'a>(
    target: &'a StoreTarget,
    name: &'a str,
    functions: &'a [SqlFunction],
) -> BoxFuture<'a, Result<(), BackupError>> {
    Box::pin(async move {
        let server = client(&target.clone().with_database(""));
        for function in functions {
            let words: Vec<&str> = function.create.split_whitespace().take(3).collect();
            let is_ours = function.name.starts_with(FUNCTION_PREFIX)
                && words == ["CREATE", "FUNCTION", function.name.as_str()];
            if !is_ours {
                return Err(BackupError::Function(function.name.clone()));
            }
            let create = format!(
                "CREATE OR REPLACE FUNCTION{}",
                &function.create["CREATE FUNCTION".len()..]
            );
            let made = server.query_raw(&create).execute().await;
            made.map_err(failed("make a function of the backup"))?;
        }
        let what = "bring back the store from its archive";
        run(target, "RESTORE", "FROM", name, what).await
    })
}

async fn run(
    target: &StoreTarget,
    verb: &str,
    direction: &str,
    name: &str,
    what: &'static str,
) -> Result<(), BackupError> {
    if !is_archive_name(name) {
        return Err(BackupError::Name(name.to_owned()));
    }
    let database = target.database().replace('\\', "\\\\").replace('`', "\\`");
    let sql = format!("{verb} DATABASE `{database}` {direction} File('{name}')");
    let server = client(&target.clone().with_database(""));
    server.query_raw(&sql).execute().await.map_err(failed(what))
}

/// Returns the database's tables, by name. Views are none.
///
/// # Errors
/// The store refused or did not answer.
pub fn tables(target: &StoreTarget) -> BoxFuture<'_, Result<Vec<TableSize>, BackupError>> {
    Box::pin(async move {
        let sql = "SELECT name AS table, ifNull(total_rows, 0) AS rows, ifNull(total_bytes, 0) AS bytes \
                   FROM system.tables WHERE database = ? AND engine LIKE '%MergeTree' ORDER BY name";
        system(target)
            .query(sql)
            .bind(target.database())
            .fetch_all()
            .await
            .map_err(failed("list the store's tables"))
    })
}

/// Returns the functions that the database's views use, by name.
///
/// # Errors
/// The store refused or did not answer.
pub fn functions(target: &StoreTarget) -> BoxFuture<'_, Result<Vec<SqlFunction>, BackupError>> {
    Box::pin(async move {
        let sql = "SELECT name, create_query AS create FROM system.functions \
                   WHERE origin = 'SQLUserDefined' AND startsWith(name, ?) ORDER BY name";
        system(target)
            .query(sql)
            .bind(FUNCTION_PREFIX)
            .fetch_all()
            .await
            .map_err(failed("list the store's functions"))
    })
}

fn system(target: &StoreTarget) -> Client {
    client(&target.clone().with_database("system"))
}
