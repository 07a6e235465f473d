//! Archives of the embedded engine's database: `BACKUP DATABASE x TO File('name')` and `RESTORE`.
//!
//! The command saves and restores with these statements, and moves the archive files. The engine keeps the parts of all
//! tables from the start of a backup and reads them while inserts go on. So an archive of a store under load is
//! complete, but its tables are of slightly different moments.
//!
//! Statements that reach files are refused on the socket. These two pass in one exact form, with a plain file name. The
//! engine's configuration keeps archives in one folder next to its data.

use std::path::{Path, PathBuf};

use clickhouse::{Client, Row};
use futures::future::BoxFuture;
use serde::Deserialize;

use crate::client::{StoreTarget, client};
use crate::lexer::{Token, TokenKind, quoted_name, tokens};

/// The reason why a backup or a restore failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The name is not one that [`save`] and [`bring_back`] pass on.
    #[error("archive name {0:?} is not a plain file name ending in .tar.zst")]
    Name(String),
    /// The list of functions contains a function that is not ours.
    #[error("function {0:?} of the backup does not belong to a store of epwatch")]
    Function(String),
    /// The store refused or did not answer.
    #[error("failed to {what}")]
    #[expect(missing_docs, reason = "the error's text names them")]
    Store {
        what: &'static str,
        #[source]
        source: clickhouse::error::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(clickhouse::error::Error) -> BackupError {
    move |source| BackupError::Store { what, source }
}

/// Size of a table.
#[derive(Debug, Clone, PartialEq, Eq, Row, serde::Serialize, Deserialize)]
pub struct TableSize {
    /// Name of the table.
    pub table: String,
    /// Rows of its parts, before any are merged away.
    pub rows: u64,
    /// Bytes of its parts on disk.
    pub bytes: u64,
}

/// A function that views of the database use. It belongs to the server, so it is not in the archive.
#[derive(Debug, Clone, PartialEq, Eq, Row, serde::Serialize, Deserialize)]
pub struct SqlFunction {
    /// Name of the function.
    pub name: String,
    /// The statement `CREATE FUNCTION`.
    pub create: String,
}

/// Prefix of our functions, because functions are global to a server.
const FUNCTION_PREFIX: &str = "epwatch_";

/// Writes the target's database into the archive `name` in the engine's [`backups_dir`].
///
/// # Errors
/// The name is not a plain file name, or the engine refused.
pub fn save<'a>(target: &'a StoreTarget, name: &'a str) -> BoxFuture<'a, Result<(), BackupError>> {
    Box::pin(async move {
        let what = "make an archive of the store";
        run(target, "BACKUP", "TO", name, what).await
    })
}

/// Makes the target's database from the archive `name` in the engine's [`backups_dir`]. The engine checks every
/// part. The database must not exist. `functions` are created first, because views need them.
///
/// # Errors
/// The name is not a plain file name, a function is not ours, or the engine refused.
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
    let database = quoted_name(target.database());
    let sql = format!("{verb} DATABASE {database} {direction} File('{name}')");
    let server = client(&target.clone().with_database(""));
    server.query_raw(&sql).execute().await.map_err(failed(what))
}

/// Returns the database's tables by name, without views.
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

/// Returns whether the text is one of the two statements, with a plain file name and nothing else.
pub(super) fn is_own_backup(sql: &str) -> bool {
    let tokens: Vec<Token<'_>> = tokens(sql).collect();
    let [verb, what, database, direction, file, open, name, close] = tokens.as_slice() else {
        return false;
    };
    let makes = verb.is_word("BACKUP") && direction.is_word("TO");
    let restores = verb.is_word("RESTORE") && direction.is_word("FROM");
    (makes || restores)
        && what.is_word("DATABASE")
        && database.name().is_some()
        && file.is_word("File")
        && open.kind == TokenKind::Open
        && close.kind == TokenKind::Close
        && name.kind == TokenKind::Text
        && is_archive_name(name.text.trim_matches('\''))
}

/// A file name of letters, digits, `-`, `_` and `.`, ending in `.tar.zst`.
fn is_archive_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.ends_with(".tar.zst")
        && name.len() <= 100
        && !name.starts_with('.')
        && name.bytes().all(is_plain)
}

/// Returns the folder of archives of the engine that runs on `data_dir`.
#[must_use]
pub fn backups_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("engine").join("backups")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sql: &str, expected: bool) {
        assert_eq!(is_own_backup(sql), expected, "{sql}");
    }

    #[test]
    fn only_the_two_statements_are_let_through() {
        check("BACKUP DATABASE `epwatch` TO File('a-1.tar.zst')", true);
        check("restore database epwatch from file('a.tar.zst')", true);
        check("BACKUP DATABASE e TO File('a.tar.zst') ASYNC", false);
        check("BACKUP DATABASE e TO File('../a.tar.zst')", false);
        check("BACKUP DATABASE e TO File('/etc/a.tar.zst')", false);
        check("BACKUP DATABASE e TO File('.tar.zst')", false);
        check("BACKUP DATABASE e TO File('a.zip')", false);
        check("BACKUP DATABASE e TO File('a\\'.tar.zst')", false);
        check("BACKUP DATABASE e FROM File('a.tar.zst')", false);
        check("BACKUP DATABASE e TO S3('a.tar.zst')", false);
        check("BACKUP ALL TO File('a.tar.zst')", false);
        check("BACKUP TABLE e TO File('a.tar.zst')", false);
        check("SELECT 1", false);
    }
}
