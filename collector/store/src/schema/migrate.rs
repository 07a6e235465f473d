//! Brings a database to the schema of this program: numbered SQL files, forward only.
//!
//! The table `schema_migrations` records each applied file with its series and a checksum of its text before
//! placeholders are filled.
//!
//! ClickHouse has no locks and no DDL transactions, so a repeated statement must have no effect (`IF NOT EXISTS`,
//! `OR REPLACE`). Then two concurrent runners, or a killed runner and its successor, end in the same schema. The record
//! of a version may exist twice and counts once. If a view's text differs from the files, the migrations from the first
//! such view on run again.

use clickhouse::{Client, Row};
use futures::future::BoxFuture;
use serde::Deserialize;

use super::error::{MigrateError, unread};
use super::plan::plan;
use super::template::{Migration, Migrations, TemplateValues, render_all};
use super::version::check_version;
use super::views::{first_stale, stored_views};
use crate::client::{StoreTarget, client};

/// Makes the target's database if it does not exist, and applies the missing migrations in order. Returns the
/// applied versions. If none is missing, only SELECT statements run.
///
/// # Errors
/// The list or a placeholder is wrong, or a file was changed after it was applied. The store is newer than this
/// program or of another series. Its ClickHouse is too old, or it refused a statement. No statement runs unless all
/// files could be read.
pub fn migrate<'a>(
    target: &'a StoreTarget,
    migrations: Migrations<'a>,
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

/// Returns the migrations that [`migrate`] would apply, and changes nothing.
///
/// # Errors
/// The errors of [`migrate`], as far as they can be found without running a statement.
pub fn pending<'a>(
    target: &'a StoreTarget,
    migrations: Migrations<'a>,
    values: &'a TemplateValues,
) -> BoxFuture<'a, Result<Vec<&'a Migration>, MigrateError>> {
    Box::pin(async move {
        let rendered = render_all(migrations, values)?;
        check_version(target).await?;
        let Some(applied) = applied(target).await? else {
            return Ok(migrations.files.iter().collect());
        };
        let missing = missing(migrations, &applied)?;
        let first_stale = first_stale(&rendered, &stored_views(target).await?);
        let first = missing.first().map_or(u32::MAX, |first| first.version);
        let first = first.min(first_stale.unwrap_or(u32::MAX));
        let files = migrations.files.iter();
        Ok(files.filter(|file| file.version >= first).collect())
    })
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

/// Returns the files that were not applied, after checking that the others are the same.
fn missing<'a>(
    migrations: Migrations<'a>,
    applied: &[AppliedRow],
) -> Result<Vec<&'a Migration>, MigrateError> {
    if let Some(other) = applied.iter().find(|row| row.series != migrations.series) {
        return Err(MigrateError::OtherSeries {
            stored: other.series.clone(),
            known: migrations.series,
        });
    }
    let known = migrations.files.last().map_or(0, |last| last.version);
    if let Some(newer) = applied.iter().rfind(|row| row.version > known) {
        return Err(MigrateError::Newer {
            stored: newer.version,
            known,
        });
    }
    let mut missing = Vec::new();
    for migration in migrations.files {
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
    // Uses the raw form, because `query` binds a value to each question mark.
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

    const SERIES_1: Migrations<'_> = Migrations {
        series: "epwatch-1",
        files: &[ONE],
    };

    fn row(version: u32, checksum: &str) -> AppliedRow {
        AppliedRow {
            series: "epwatch-1".to_owned(),
            version,
            checksum: checksum.to_owned(),
        }
    }

    #[test]
    fn what_was_applied_must_be_what_is_known() {
        let sum = ONE.checksum();
        assert_eq!(missing(SERIES_1, &[]).unwrap(), [&ONE]);
        assert_eq!(missing(SERIES_1, &[row(1, &sum)]).unwrap(), [&ONE; 0]);
        let changed = missing(SERIES_1, &[row(1, "beef"), row(1, &sum)]);
        assert!(matches!(
            changed,
            Err(MigrateError::Changed { version: 1, .. })
        ));
        let other_series = AppliedRow {
            series: "epwatch-2".to_owned(),
            ..row(1, "beef")
        };
        let other = missing(SERIES_1, &[other_series]).unwrap_err();
        assert!(matches!(other, MigrateError::OtherSeries { .. }), "{other}");
        let text = other.to_string();
        assert!(
            text.contains("epwatch-2") && text.contains("new data_dir"),
            "{text}"
        );
        assert!(!text.contains("upgrade epwatch") && !other.is_temporary());
        let newer = missing(SERIES_1, &[row(1, &sum), row(2, "beef")]);
        assert!(matches!(
            newer,
            Err(MigrateError::Newer {
                stored: 2,
                known: 1
            })
        ));
    }
}
