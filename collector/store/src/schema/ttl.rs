//! TTLs of tables. A table gets its TTL when it is created; this module returns the statements that change it when
//! the schema's days have changed.

use std::collections::BTreeMap;

use clickhouse::Row;
use futures::future::BoxFuture;
use serde::Deserialize;

use super::cluster::Cluster;
use super::error::MigrateError;
use super::template::{Migrations, TemplateValues, render_all};
use crate::client::{StoreTarget, client};
use crate::lexer::{Token, tokens};

/// Actual and requested days for which a table keeps its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableTtl {
    /// Name of the table.
    pub table: String,
    /// Days in the store.
    pub days: u32,
    /// Days in the schema.
    pub asked_days: u32,
    /// Statements that set the requested days, in order.
    pub statements: Vec<String>,
}

impl TableTtl {
    /// Returns whether actual and requested days differ.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.days != self.asked_days
    }
}

#[derive(Debug, Row, Deserialize)]
struct Stored {
    name: String,
    engine_full: String,
}

/// Returns the TTLs of the existing tables of `migrations`, each with the TTL that `values` requests. Runs SELECT
/// statements only. A table whose TTL is not a number of days was changed by hand, and is left out.
///
/// # Errors
/// The list or a placeholder is wrong, or the store did not answer.
pub fn table_ttls<'a>(
    target: &'a StoreTarget,
    migrations: Migrations<'a>,
    values: &'a TemplateValues,
) -> BoxFuture<'a, Result<Vec<TableTtl>, MigrateError>> {
    Box::pin(async move {
        let rendered = render_all(migrations, values)?;
        let statements = rendered.iter().flat_map(|(_, statements)| statements);
        // The last statement with a TTL for a table counts.
        let asked: BTreeMap<&str, &str> = statements.filter_map(|sql| ttl_of(sql)).collect();
        let database = match values.cluster() {
            Some(_) => Cluster::shard_database(target.database()),
            None => target.database().to_owned(),
        };
        let stored = client(&target.clone().with_database("system"))
            .query("SELECT name, engine_full FROM system.tables WHERE database = ? ORDER BY name")
            .bind(&database)
            .fetch_all::<Stored>()
            .await
            .map_err(|source| MigrateError::Store {
                what: "read for how long tables keep their rows".to_owned(),
                source,
            })?;
        let mut ttls = Vec::new();
        for Stored { name, engine_full } in stored {
            let Some(ttl) = asked.get(name.as_str()) else {
                continue;
            };
            let (Some(days), Some(asked_days)) = (days(clause(&engine_full)), days(ttl)) else {
                continue;
            };
            let place = match values.cluster() {
                Some(cluster) => cluster.altered_name(target.database(), &name),
                None => name.clone(),
            };
            ttls.push(TableTtl {
                statements: vec![
                    // Without this setting every row would be rewritten.
                    format!(
                        "ALTER TABLE {place} MODIFY SETTING materialize_ttl_recalculate_only = 1"
                    ),
                    format!("ALTER TABLE {place} MODIFY TTL {ttl}"),
                ],
                table: name,
                days,
                asked_days,
            });
        }
        Ok(ttls)
    })
}

/// Returns the table that a statement creates or changes and its new TTL, if there is one.
fn ttl_of(statement: &str) -> Option<(&str, &str)> {
    let tokens: Vec<Token<'_>> = tokens(statement).collect();
    if !tokens.get(1)?.is_word("TABLE") {
        return None;
    }
    let name = if tokens[0].is_word("CREATE") {
        tokens.get(5)?.name()?
    } else {
        let mut pairs = tokens.windows(2);
        let changes_it = pairs.any(|two| two[0].is_word("MODIFY") && two[1].is_word("TTL"));
        tokens.get(2).filter(|_| changes_it)?.name()?
    };
    let ttl = clause(statement);
    (!ttl.is_empty()).then_some((name, ttl))
}

/// Returns the text between the last `TTL` of a table's definition and its `SETTINGS`.
fn clause(definition: &str) -> &str {
    let tokens: Vec<Token<'_>> = tokens(definition).collect();
    let Some(ttl) = tokens.iter().rposition(|token| token.is_word("TTL")) else {
        return "";
    };
    let rest = &tokens[ttl + 1..];
    let end = rest
        .iter()
        .find(|token| token.is_word("SETTINGS"))
        .map_or(definition.len(), |token| token.start);
    definition[tokens[ttl].end()..end].trim()
}

/// Returns the only number of days in a TTL, in our form or in the form of the store.
fn days(ttl: &str) -> Option<u32> {
    let tokens: Vec<Token<'_>> = tokens(ttl).collect();
    let mut intervals = tokens.windows(3).filter_map(|three| {
        let ours = three[0].is_word("INTERVAL") && three[2].is_word("DAY");
        let theirs = three[0].is_word("toIntervalDay");
        match (ours, theirs) {
            (true, _) => Some(three[1].text),
            (_, true) => Some(three[2].text),
            _ => None,
        }
    });
    let only = intervals.next()?.parse().ok()?;
    intervals.next().is_none().then_some(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_days_of_a_table_are_read_as_they_are_written_and_told() {
        let made = "CREATE TABLE IF NOT EXISTS t (ttl_x UInt8) ENGINE = MergeTree ORDER BY a\n\
                    TTL toDateTime(at) + INTERVAL 14 DAY\nSETTINGS x = 1";
        assert_eq!(
            ttl_of(made),
            Some(("t", "toDateTime(at) + INTERVAL 14 DAY"))
        );
        let changed = "ALTER TABLE t ON CLUSTER `c` MODIFY TTL at + INTERVAL 16 DAY";
        assert_eq!(ttl_of(changed), Some(("t", "at + INTERVAL 16 DAY")));
        assert_eq!(ttl_of("ALTER TABLE t MODIFY SETTING ttl = 1"), None);
        assert_eq!(days("toDateTime(at) + INTERVAL 14 DAY"), Some(14));
        let told = "MergeTree ORDER BY a TTL toDateTime(at) + toIntervalDay(30) SETTINGS x = 1";
        assert_eq!(days(clause(told)), Some(30));
        assert_eq!(days(clause("MergeTree ORDER BY a SETTINGS x = 1")), None);
        let by_hand = "MergeTree ORDER BY a TTL at + toIntervalDay(2) TO VOLUME 'cold', at + toIntervalDay(30)";
        assert_eq!(days(clause(by_hand)), None);
        assert_eq!(ttl_of("CREATE OR REPLACE VIEW v AS SELECT 1"), None);
    }
}
