//! Brings a database to the schema this program knows: numbered SQL files, forward only.
//!
//! A file holds several statements and `${name}` placeholders, so that one text serves a single
//! engine and a replicated cluster. The table `schema_migrations` records each applied file with its
//! [`SERIES`] and a checksum of its text before placeholders are filled.
//!
//! ClickHouse has no lock to take and no DDL transaction, so every statement must be harmless
//! when run again (`IF NOT EXISTS`, `OR REPLACE`). Then two runners at once, and a runner killed
//! half way, end in the same schema; the record of a version may stand twice and counts once.
//!
//! A runner that is killed after another one got further may leave an older view behind, and one that
//! was told other values another view. So each view carries the checksum of its text, and the migrations
//! from the first one on whose views are not there as they should be run again.

use std::collections::BTreeMap;

use clickhouse::{Client, Row};
use futures::future::BoxFuture;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::cluster::{Cluster, ClusterStatementError, Made};
use crate::client::{StoreTarget, client};
use crate::lexer::{TokenKind, tokens};

/// Name of the files' series. It changes if files that were released are ever squashed into others. Stores
/// that were made before 0.1.0 have no series in their records, and no upgrade.
pub const SERIES: &str = "epwatch-1";

/// The columns of the record of a migration.
const RECORDED: &str = "(series, version, name, checksum)";

/// The end of a sentence on a store or a backup without a series.
pub const MADE_IN_DEVELOPMENT: &str =
    "made by a development version of epwatch, whose schema has no upgrade; start a new data_dir";

/// One numbered file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// 1 for the first, then one more each.
    pub version: u32,
    /// What it brings, for logs and errors.
    pub name: &'static str,
    /// Statements separated by `;`, with placeholders.
    pub sql: &'static str,
}

impl Migration {
    /// SHA-256 of the file as it is written, in lower-case hex: what is recorded of it.
    #[must_use]
    pub fn checksum(&self) -> String {
        checksum(self.sql)
    }
}

fn checksum(text: &str) -> String {
    epwatch_proto::hex(&Sha256::digest(text.as_bytes()))
}

/// The placeholders that a cluster fills.
const LAYOUT: [&str; 3] = ["on_cluster", "replicated", "deduplication_window"];

/// Values for the placeholders. They become SQL as they are: give numbers, and names that are
/// quoted already.
///
/// With a cluster, `on_cluster`, `replicated` and `deduplication_window` come from it, and each
/// statement becomes what does the same on the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateValues {
    values: BTreeMap<String, String>,
    cluster: Option<Cluster>,
}

impl TemplateValues {
    /// No values.
    pub fn new() -> TemplateValues {
        TemplateValues::default()
    }

    /// Sets one value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> TemplateValues {
        self.values.insert(name.to_owned(), value.to_string());
        self
    }

    /// Makes the schema one of a replicated, sharded cluster.
    #[must_use]
    pub fn for_cluster(mut self, cluster: Cluster) -> TemplateValues {
        self = self
            .with("on_cluster", cluster.on_cluster())
            .with("replicated", cluster.engine_prefix())
            .with("deduplication_window", cluster.deduplication_window());
        self.cluster = Some(cluster);
        self
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// What a view's comment says of its text: a checksum with the values that its rows depend on. Where
    /// it lies is none of them: a runner that asks each server in turn makes the same view.
    fn mark(&self, sql: &str) -> Result<String, String> {
        let as_written = |values: TemplateValues, name| values.with(name, format!("${{{name}}}"));
        let values = LAYOUT.into_iter().fold(self.clone(), as_written);
        values.render(sql).map(|text| checksum(&text))
    }

    fn get_or_empty(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// Puts the values in place of `${name}`; `Err` holds the name that has none.
    fn render(&self, sql: &str) -> Result<String, String> {
        let mut out = String::with_capacity(sql.len());
        let mut rest = sql;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or("(never closed)")?;
            out.push_str(before);
            out.push_str(self.values.get(name).ok_or(name)?);
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// Why a database cannot be brought to the schema.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The program's own list is wrong.
    #[error("migration {name} has version {found}, expected {expected}: versions count from 1")]
    Numbering {
        /// The file.
        name: &'static str,
        /// Its version.
        found: u32,
        /// The version its place in the list asks for.
        expected: u32,
    },
    /// A placeholder without a value.
    #[error("migration {version} ({name}) uses ${{{placeholder}}}, which has no value")]
    Placeholder {
        /// The file's version.
        version: u32,
        /// The file.
        name: &'static str,
        /// What has no value.
        placeholder: String,
    },
    /// A statement that has no form for a cluster.
    #[error("failed to spread migration {version} ({name}) over the cluster")]
    Cluster {
        /// The file's version; 0 for the runner's own table.
        version: u32,
        /// The file.
        name: &'static str,
        /// The statement.
        #[source]
        source: ClusterStatementError,
    },
    /// A file differs from the one that was applied.
    #[error(
        "migration {version} ({name}) differs from the one this store was made with (checksum \
         {found}, store has {stored}); restore the file and put the change in a new one"
    )]
    Changed {
        /// The file's version.
        version: u32,
        /// The file.
        name: &'static str,
        /// Its checksum here.
        found: String,
        /// The checksum that was applied.
        stored: String,
    },
    /// The store was made before the schema had a [`SERIES`].
    #[error("the store was {MADE_IN_DEVELOPMENT} (on a ClickHouse server: a new database)")]
    Development,
    /// The store was made by a newer program.
    #[error("the store has schema version {stored}, this epwatch knows {known}; upgrade epwatch")]
    Newer {
        /// Version in the store.
        stored: u32,
        /// Highest version known here.
        known: u32,
    },
    /// The store refused or did not answer.
    #[error("failed to {what}")]
    Store {
        /// What was being done.
        what: String,
        /// What the store said.
        #[source]
        source: clickhouse::error::Error,
    },
}

impl MigrateError {
    /// Says whether the same call may succeed later, the operator's hand apart: all that a store, its
    /// Keeper or a proxy before it says in bad times. What it is that nobody thought of passes for
    /// that too, since who waits for a store loses nothing.
    pub fn is_temporary(&self) -> bool {
        match self {
            MigrateError::Store { .. } => self.code().is_none_or(|code| !FOR_GOOD.contains(&code)),
            MigrateError::Numbering { .. }
            | MigrateError::Placeholder { .. }
            | MigrateError::Cluster { .. }
            | MigrateError::Changed { .. }
            | MigrateError::Development
            | MigrateError::Newer { .. } => false,
        }
    }

    /// Returns ClickHouse's number of the error, where it was ClickHouse that answered.
    pub fn code(&self) -> Option<u32> {
        let MigrateError::Store {
            source: clickhouse::error::Error::BadResponse(text),
            ..
        } = self
        else {
            return None;
        };
        let rest = text.strip_prefix("Code: ")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    }
}

/// ClickHouse's codes of errors that no waiting mends: the statement, the server's version or the
/// user's rights are not what they have to be.
const FOR_GOOD: [u32; 15] = [
    46,  // UNKNOWN_FUNCTION
    47,  // UNKNOWN_IDENTIFIER
    48,  // NOT_IMPLEMENTED
    50,  // UNKNOWN_TYPE
    56,  // UNKNOWN_STORAGE
    60,  // UNKNOWN_TABLE
    62,  // SYNTAX_ERROR
    115, // UNKNOWN_SETTING
    164, // READONLY
    192, // UNKNOWN_USER
    193, // WRONG_PASSWORD
    194, // REQUIRED_PASSWORD
    497, // ACCESS_DENIED
    516, // AUTHENTICATION_FAILED
    701, // CLUSTER_DOESNT_EXIST
];

/// Makes the target's database if need be and applies what it lacks, in order. Returns the
/// versions that were applied. Where nothing lacks, nothing but SELECT is asked for.
///
/// # Errors
/// The list or a placeholder is wrong, a file was changed after it was applied, the store is
/// newer than this program, or it refused a statement. Nothing is run unless all could be read.
pub fn migrate<'a>(
    target: &'a StoreTarget,
    migrations: &'a [Migration],
    values: &'a TemplateValues,
) -> BoxFuture<'a, Result<Vec<u32>, MigrateError>> {
    Box::pin(async move {
        let planned = plan(target.database(), migrations, values)?;
        let lacking = pending(target, migrations, values).await?;
        if lacking.is_empty() {
            return Ok(Vec::new());
        }
        let server = client(&target.clone().with_database(""));
        for sql in &planned.databases {
            execute(&server, sql, || format!("run {sql}")).await?;
        }
        let client = client(target);
        for sql in &planned.record {
            let what = || "create the table schema_migrations".to_owned();
            execute(&client, sql, what).await?;
        }

        let mut done = Vec::new();
        for planned in planned.migrations {
            let Migration { version, name, .. } = *planned.migration;
            if !lacking.contains(&planned.migration) {
                continue;
            }
            for (at, statement) in planned.statements.iter().enumerate() {
                let what = || {
                    let first = statement.lines().next().unwrap_or_default();
                    let number = at + 1;
                    format!("apply migration {version} ({name}), statement {number}: {first}")
                };
                execute(&client, statement, what).await?;
            }
            let what = || format!("record migration {version} ({name})");
            execute(&client, &planned.done, what).await?;
            tracing::info!(version, name, "migration applied");
            done.push(version);
        }
        Ok(done)
    })
}

/// The statements of a schema, in the order in which they run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned<'a> {
    /// What makes the databases; run without one.
    pub databases: Vec<String>,
    /// What makes the table that says which migrations were applied.
    pub record: Vec<String>,
    /// In order; run in the database.
    pub migrations: Vec<PlannedMigration<'a>>,
}

/// What one migration runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedMigration<'a> {
    /// The file.
    pub migration: &'a Migration,
    /// What changes the schema.
    pub statements: Vec<String>,
    /// What says afterwards that this was applied.
    pub done: String,
}

/// Returns what [`migrate`] runs on a database that has nothing yet; asks nobody.
///
/// # Errors
/// The list, a placeholder or a statement is wrong.
pub fn plan<'a>(
    database: &str,
    migrations: &'a [Migration],
    values: &TemplateValues,
) -> Result<Planned<'a>, MigrateError> {
    let rendered = render_all(migrations, values)?;
    let on_cluster = values.get_or_empty("on_cluster");
    let replicated = values.get_or_empty("replicated");
    let mut databases = Vec::new();
    if !database.is_empty() {
        databases.push(database.to_owned());
        if values.cluster.is_some() {
            databases.push(Cluster::shard_database(database));
        }
    }
    let databases = databases
        .iter()
        .map(|name| name.replace('\\', "\\\\").replace('`', "\\`"))
        .map(|name| format!("CREATE DATABASE IF NOT EXISTS `{name}` {on_cluster}"))
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
        let table = values.cluster.as_ref().map_or_else(
            || format!("schema_migrations {RECORDED}"),
            |_| Cluster::written_table(database, "schema_migrations", RECORDED),
        );
        let done = format!(
            "INSERT INTO {table} SELECT '{SERIES}', {}, '{}', '{}'",
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

/// What a statement of a migration is on the server or cluster that `values` are for.
fn spread(
    values: &TemplateValues,
    database: &str,
    made: &mut Made,
    (version, name): (u32, &'static str),
    statement: String,
) -> Result<Vec<String>, MigrateError> {
    let Some(cluster) = &values.cluster else {
        return Ok(vec![statement]);
    };
    let spread = cluster.spread(database, made, &statement);
    spread.map_err(|source| MigrateError::Cluster {
        version,
        name,
        source,
    })
}

/// Returns the statements that make those views of `target` anew which are there with another text than
/// `values` ask for. For a store with all migrations; changes nothing.
///
/// # Errors
/// The list, a placeholder or a statement is wrong, or the store did not answer.
pub fn stale_views<'a>(
    target: &'a StoreTarget,
    migrations: &'a [Migration],
    values: &'a TemplateValues,
) -> BoxFuture<'a, Result<Vec<String>, MigrateError>> {
    Box::pin(async move {
        let mut made = Made::default();
        let mut last = BTreeMap::new();
        for (migration, statements) in render_all(migrations, values)? {
            for statement in statements {
                let name = view_name(&statement).map(str::to_owned);
                let is_as = mark_at_end(&statement).map(str::to_owned);
                let of = (migration.version, migration.name);
                let spread = spread(values, target.database(), &mut made, of, statement)?;
                if let Some(name) = name {
                    last.insert(name, (is_as, spread));
                }
            }
        }
        let stored = stored_views(target).await?;
        let stale = last.into_iter().filter(|(name, (is_as, _))| {
            let found = stored.get(name);
            found.is_some() && found != is_as.as_ref()
        });
        Ok(stale.flat_map(|(_, (_, spread))| spread).collect())
    })
}

/// Returns the migrations that [`migrate`] would apply, and changes nothing.
///
/// # Errors
/// As [`migrate`], for what can be known without running a statement.
pub fn pending<'a>(
    target: &'a StoreTarget,
    migrations: &'a [Migration],
    values: &'a TemplateValues,
) -> BoxFuture<'a, Result<Vec<&'a Migration>, MigrateError>> {
    Box::pin(async move {
        let rendered = render_all(migrations, values)?;
        let Some(applied) = applied(target).await? else {
            return Ok(migrations.iter().collect());
        };
        let missing = missing(migrations, &applied)?;
        let first_stale = first_stale(&rendered, &stored_views(target).await?);
        let first = missing.first().map_or(u32::MAX, |first| first.version);
        let first = first.min(first_stale.unwrap_or(u32::MAX));
        Ok(migrations.iter().filter(|m| m.version >= first).collect())
    })
}

/// The comments of the views that are there, by name.
async fn stored_views(target: &StoreTarget) -> Result<BTreeMap<String, String>, MigrateError> {
    let views = client(&target.clone().with_database("system"))
        .query("SELECT name, comment FROM system.tables WHERE database = ? AND engine = 'View'")
        .bind(target.database())
        .fetch_all::<(String, String)>()
        .await
        .map_err(unread)?;
    Ok(views.into_iter().collect())
}

/// The first migration that says last what a view is, where `stored`, the views' comments by name, has
/// another one.
fn first_stale(
    rendered: &[(&Migration, Vec<String>)],
    stored: &BTreeMap<String, String>,
) -> Option<u32> {
    let mut last = BTreeMap::new();
    for (migration, statements) in rendered {
        for statement in statements {
            if let Some(name) = view_name(statement) {
                last.insert(name, (migration.version, mark_at_end(statement)));
            }
        }
    }
    let stale = last
        .into_iter()
        .filter(|(name, (_, mark))| stored.get(*name).map(String::as_str) != *mark);
    stale.map(|(_, (version, _))| version).min()
}

/// The mark that a rendered statement gives its view.
fn mark_at_end(statement: &str) -> Option<&str> {
    let (_, mark) = statement.rsplit_once("\nCOMMENT '")?;
    mark.strip_suffix('\'')
}

/// The name of the view that a statement makes, if it makes one.
fn view_name(statement: &str) -> Option<&str> {
    let first: Vec<_> = tokens(statement).take(5).collect();
    let words = ["CREATE", "OR", "REPLACE", "VIEW"];
    let is_view = first.len() == 5 && words.iter().zip(&first).all(|(word, t)| t.is_word(word));
    is_view.then(|| first[4].name()).flatten()
}

/// The statements of each migration, ready to run.
pub(crate) fn render_all<'a>(
    migrations: &'a [Migration],
    values: &TemplateValues,
) -> Result<Vec<(&'a Migration, Vec<String>)>, MigrateError> {
    let mut rendered = Vec::with_capacity(migrations.len());
    for (migration, expected) in migrations.iter().zip(1_u32..) {
        let Migration { version, name, sql } = *migration;
        if version != expected {
            return Err(MigrateError::Numbering {
                name,
                found: version,
                expected,
            });
        }
        let mut all = statements(sql);
        for statement in &mut all {
            let unknown = |placeholder| MigrateError::Placeholder {
                version,
                name,
                placeholder,
            };
            let text = values.render(statement).map_err(unknown)?;
            *statement = match view_name(statement) {
                // On a line of its own: a comment may stand at the end.
                Some(_) => {
                    let mark = values.mark(statement).map_err(unknown)?;
                    format!("{text}\nCOMMENT '{mark}'")
                }
                None => text,
            };
        }
        rendered.push((migration, all));
    }
    Ok(rendered)
}

/// Splits a text at the `;` that stand outside quotes and comments.
fn statements(sql: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut start = None;
    for token in tokens(sql) {
        match (token.kind, start) {
            (TokenKind::Semicolon, Some(from)) => {
                found.push(sql[from..token.start].trim_end().to_owned());
                start = None;
            }
            (TokenKind::Semicolon, None) => {}
            (_, None) => start = Some(token.start),
            (_, Some(_)) => {}
        }
    }
    if let Some(from) = start {
        found.push(sql[from..].trim_end().to_owned());
    }
    found
}

#[derive(Debug, Row, Deserialize)]
struct AppliedRow {
    series: String,
    version: u32,
    checksum: String,
}

/// The records of the store's migrations, by version; `None` if it has no table for them.
async fn applied(target: &StoreTarget) -> Result<Option<Vec<AppliedRow>>, MigrateError> {
    let columns = client(&target.clone().with_database("system"))
        .query("SELECT name FROM system.columns WHERE database = ? AND table = 'schema_migrations'")
        .bind(target.database());
    let columns = columns.fetch_all::<String>().await.map_err(unread)?;
    if columns.is_empty() {
        return Ok(None);
    }
    if !columns.iter().any(|name| name == "series") {
        return Err(MigrateError::Development);
    }
    let rows = client(target)
        .query("SELECT DISTINCT series, version, checksum FROM schema_migrations ORDER BY version");
    rows.fetch_all().await.map(Some).map_err(unread)
}

/// Returns the version of the target's schema, 0 if it has none.
///
/// # Errors
/// The store was made before 0.1.0, or it did not answer.
pub fn schema_version(target: &StoreTarget) -> BoxFuture<'_, Result<u32, MigrateError>> {
    Box::pin(async move {
        let applied = applied(target).await?.unwrap_or_default();
        Ok(applied.last().map_or(0, |last| last.version))
    })
}

fn unread(source: clickhouse::error::Error) -> MigrateError {
    let what = "read the applied migrations".to_owned();
    MigrateError::Store { what, source }
}

/// What is known here and not applied there, after checking that the rest is the same.
fn missing<'a>(
    migrations: &'a [Migration],
    applied: &[AppliedRow],
) -> Result<Vec<&'a Migration>, MigrateError> {
    let known = migrations.last().map_or(0, |last| last.version);
    let is_newer = |row: &&AppliedRow| row.series != SERIES || row.version > known;
    if let Some(newer) = applied.iter().rfind(is_newer) {
        return Err(MigrateError::Newer {
            stored: newer.version,
            known,
        });
    }
    let mut missing = Vec::new();
    for migration in migrations {
        let found = migration.checksum();
        let mut records = applied
            .iter()
            .filter(|row| row.version == migration.version)
            .peekable();
        if records.peek().is_none() {
            missing.push(migration);
        }
        if let Some(other) = records.find(|row| row.checksum != found) {
            return Err(MigrateError::Changed {
                version: migration.version,
                name: migration.name,
                found,
                stored: other.checksum.clone(),
            });
        }
    }
    Ok(missing)
}

async fn execute(
    client: &Client,
    sql: &str,
    what: impl FnOnce() -> String,
) -> Result<(), MigrateError> {
    // Raw, since elsewhere a question mark is a value to be bound.
    let done = client.query_raw(sql).execute().await;
    done.map_err(|source| MigrateError::Store {
        what: what(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Migration = Migration {
        version: 1,
        name: "one",
        sql: "CREATE TABLE ${prefix}a",
    };

    fn row(version: u32, checksum: &str) -> AppliedRow {
        AppliedRow {
            series: SERIES.to_owned(),
            version,
            checksum: checksum.to_owned(),
        }
    }

    #[test]
    fn statements_are_split_outside_quotes_and_comments() {
        let sql = "-- a; b\nCREATE 'x;y';\n;; /* ; */\nINSERT `;` -- end;\n; SELECT 1 -- ;\n";
        assert_eq!(
            statements(sql),
            ["CREATE 'x;y'", "INSERT `;` -- end;", "SELECT 1 -- ;"]
        );
        assert_eq!(statements(" -- nothing; here\n;"), [""; 0]);
    }

    #[test]
    fn placeholders_need_a_value() {
        let values = TemplateValues::new().with("days", 30).with("empty", "");
        assert_eq!(
            values.render("a ${days}${empty} DAY"),
            Ok("a 30 DAY".into())
        );
        assert_eq!(values.render("$days {days}"), Ok("$days {days}".into()));
        assert_eq!(values.render("${dayz}"), Err("dayz".into()));
        assert_eq!(values.render("${days"), Err("(never closed)".into()));
        let error = render_all(&[ONE], &values).unwrap_err();
        assert!(error.to_string().contains("${prefix}"), "{error}");
    }

    /// Other days make another view; another layout of the same rows does not.
    #[test]
    fn a_views_mark_is_of_its_text_and_values() {
        let mark = |values: TemplateValues, sql| {
            let view = Migration { sql, ..ONE };
            let (_, statements) = render_all(&[view], &values).unwrap().remove(0);
            mark_at_end(&statements[0]).unwrap().to_owned()
        };
        let sql = "CREATE OR REPLACE VIEW v ${on_cluster} AS SELECT ${days}";
        let days = |days: u8| {
            TemplateValues::new()
                .with("on_cluster", "")
                .with("days", days)
        };
        assert_ne!(mark(days(14), sql), mark(days(30), sql));
        let cluster = days(14).for_cluster(Cluster::new("c"));
        assert_eq!(mark(days(14), sql), mark(cluster, sql));
        // As versions before wrote it, where no value is in it.
        let plain = "CREATE OR REPLACE VIEW v ${on_cluster} AS SELECT 1";
        assert_eq!(mark(days(14), plain), checksum(plain));
    }

    #[test]
    fn versions_count_from_one() {
        let second = Migration { version: 3, ..ONE };
        let list = [ONE, second];
        let error = render_all(&list, &TemplateValues::new().with("prefix", ""));
        assert!(matches!(
            error,
            Err(MigrateError::Numbering {
                found: 3,
                expected: 2,
                ..
            })
        ));
    }

    #[track_caller]
    fn check_temporary(answer: &str, code: Option<u32>, is_temporary: bool) {
        let source = clickhouse::error::Error::BadResponse(answer.to_owned());
        let what = "read the applied migrations".to_owned();
        let error = MigrateError::Store { what, source };
        assert_eq!(error.code(), code, "{answer}");
        assert_eq!(error.is_temporary(), is_temporary, "{answer}");
    }

    #[test]
    fn bad_times_of_a_store_are_temporary_and_refusals_are_not() {
        for answer in [
            "503 Service Unavailable",
            "<html>502 Bad Gateway</html>",
            "Code: ?",
        ] {
            check_temporary(answer, None, true);
        }
        for (code, name) in [
            (159, "TIMEOUT_EXCEEDED"),
            (202, "TOO_MANY_SIMULTANEOUS_QUERIES"),
            (241, "MEMORY_LIMIT_EXCEEDED"),
            (242, "TABLE_IS_READ_ONLY"),
            (243, "NOT_ENOUGH_SPACE"),
            (999, "KEEPER_EXCEPTION"),
        ] {
            let answer = format!("Code: {code}. DB::Exception: no. ({name})");
            check_temporary(&answer, Some(code), true);
        }
        let denied = "Code: 497. DB::Exception: epwatch: Not enough privileges. (ACCESS_DENIED)";
        check_temporary(denied, Some(497), false);
        // Of an answer without a body.
        check_temporary("Code: 516", Some(516), false);
        let newer = MigrateError::Newer {
            stored: 2,
            known: 1,
        };
        assert!(!newer.is_temporary() && newer.code().is_none());
    }

    #[test]
    fn what_was_applied_must_be_what_is_known() {
        let sum = ONE.checksum();
        assert_eq!(missing(&[ONE], &[]).unwrap(), [&ONE]);
        assert_eq!(missing(&[ONE], &[row(1, &sum)]).unwrap(), [&ONE; 0]);
        let changed = missing(&[ONE], &[row(1, "beef"), row(1, &sum)]);
        assert!(matches!(
            changed,
            Err(MigrateError::Changed { version: 1, .. })
        ));
        let other_series = AppliedRow {
            series: "epwatch-2".to_owned(),
            ..row(1, "beef")
        };
        let newer = missing(&[ONE], &[other_series]);
        assert!(matches!(newer, Err(MigrateError::Newer { .. })));
        let newer = missing(&[ONE], &[row(1, &sum), row(2, "beef")]);
        assert!(matches!(
            newer,
            Err(MigrateError::Newer {
                stored: 2,
                known: 1
            })
        ));
    }
}
