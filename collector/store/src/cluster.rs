//! One schema, for one server or for a replicated, sharded cluster.
//!
//! Migrations are written for one server. For a cluster each statement becomes what does the same
//! there: a table is two, a replicated one on each shard in the database `<name>_shard` and a
//! `Distributed` one over it in `<name>`; views stay as they are, over the latter, with subqueries
//! that are asked once for all shards (`GLOBAL`). So readers and writers name what they always name.
//!
//! Rows of an installation lie on one shard. Rows without one are spread by their sorting key, so
//! that rows which replace each other, or add up, meet.

use std::collections::BTreeMap;

use crate::lexer::{Token, TokenKind, tokens};

/// How the tables of a cluster are laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    name: String,
    on_cluster: bool,
}

/// A statement that nobody taught us to spread.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "statement {0:?} cannot be turned into one for a cluster; expected CREATE TABLE, VIEW or \
     FUNCTION, or ALTER TABLE"
)]
pub struct ClusterStatementError(String);

impl Cluster {
    /// A cluster that the servers' `remote_servers` define under this name; each server's macros
    /// say its `{shard}` and `{replica}`. Statements run on all of them (`ON CLUSTER`).
    #[must_use]
    pub fn new(name: &str) -> Cluster {
        Cluster {
            name: name.to_owned(),
            on_cluster: true,
        }
    }

    /// Statements run on the server that is asked, and nowhere else: for a cluster where each is
    /// asked in turn.
    #[must_use]
    pub fn on_each_server(mut self) -> Cluster {
        self.on_cluster = false;
        self
    }

    /// The clause that follows a name in DDL; empty where each server is asked.
    #[must_use]
    pub fn on_cluster(&self) -> String {
        if self.on_cluster {
            format!("ON CLUSTER {}", quoted(&self.name))
        } else {
            String::new()
        }
    }

    /// The database of the shards' own tables.
    #[must_use]
    pub fn shard_database(database: &str) -> String {
        format!("{database}_shard")
    }

    /// The statements that do on the cluster what each of `statements` does on one server.
    pub(crate) fn spread(
        &self,
        database: &str,
        keys: &mut ShardKeys,
        statement: &str,
    ) -> Result<Vec<String>, ClusterStatementError> {
        let tokens: Vec<Token<'_>> = tokens(statement).collect();
        let starts = |words: &[&str]| {
            tokens.len() > words.len() && words.iter().zip(&tokens).all(|(word, t)| t.is_word(word))
        };
        let unknown = || ClusterStatementError(statement.lines().next().unwrap_or("").to_owned());
        if starts(&["CREATE", "OR", "REPLACE", "FUNCTION"]) {
            return Ok(vec![statement.to_owned()]);
        }
        if starts(&["CREATE", "OR", "REPLACE", "VIEW"]) {
            return Ok(vec![with_global(statement, &tokens)]);
        }
        if starts(&["CREATE", "TABLE", "IF", "NOT", "EXISTS"]) {
            let table = Table::read(&tokens, 5).ok_or_else(unknown)?;
            keys.0
                .insert(table.name.to_owned(), table.shard_key(&tokens));
            return Ok(vec![
                self.local(database, statement, &table),
                self.distributed(database, keys, table.name, "CREATE TABLE IF NOT EXISTS"),
            ]);
        }
        if starts(&["ALTER", "TABLE"]) {
            let name = tokens[2].name().ok_or_else(unknown)?;
            if !keys.0.contains_key(name) {
                return Err(unknown());
            }
            return Ok(vec![
                format!(
                    "{}{}{}",
                    &statement[..tokens[2].start],
                    self.shard_name(database, name),
                    &statement[tokens[2].end()..]
                ),
                // It holds no rows, and takes its columns from the shards' table anew.
                self.distributed(database, keys, name, "CREATE OR REPLACE TABLE"),
            ]);
        }
        Err(unknown())
    }

    /// A shard's own table: replicated under the shard's path.
    fn local(&self, database: &str, statement: &str, table: &Table<'_>) -> String {
        let shard_database = Cluster::shard_database(database);
        let path = format!(
            "/clickhouse/tables/{{shard}}/{shard_database}/{}",
            table.name
        );
        let arguments = format!("{}, '{{replica}}'", literal(&path));
        let (open, close) = if table.has_arguments {
            ("", ", ")
        } else {
            ("(", ")")
        };
        format!(
            "{}{}{}{open}{arguments}{close}{}",
            &statement[..table.name_at],
            self.shard_name(database, table.name),
            &statement[table.name_end..table.arguments_at],
            &statement[table.arguments_at..]
        )
    }

    fn distributed(&self, database: &str, keys: &ShardKeys, table: &str, create: &str) -> String {
        format!(
            "{create} {}.{} {} AS {} ENGINE = Distributed({}, {}, {}, {})",
            quoted(database),
            quoted(table),
            self.on_cluster(),
            self.shard_name(database, table),
            literal(&self.name),
            literal(&Cluster::shard_database(database)),
            literal(table),
            keys.0[table]
        )
    }

    fn shard_name(&self, database: &str, table: &str) -> String {
        format!(
            "{}.{}",
            quoted(&Cluster::shard_database(database)),
            quoted(table)
        )
    }
}

/// By what each table's rows are spread, as the statements so far made them.
#[derive(Debug, Default)]
pub(crate) struct ShardKeys(BTreeMap<String, String>);

/// The parts of `CREATE TABLE IF NOT EXISTS name ... ENGINE = engine(arguments) ...`.
struct Table<'a> {
    name: &'a str,
    name_at: usize,
    name_end: usize,
    /// Where the engine's first argument stands, or would.
    arguments_at: usize,
    has_arguments: bool,
    /// Index of the token after the engine's name.
    after_engine: usize,
}

impl<'a> Table<'a> {
    fn read(tokens: &[Token<'a>], name_index: usize) -> Option<Table<'a>> {
        let name = tokens.get(name_index)?;
        // The clause, not a column of that name.
        let engine = (0..tokens.len()).find(|at| {
            tokens[*at].is_word("ENGINE") && tokens.get(at + 1).is_some_and(|t| t.text == "=")
        })?;
        let engine_name = tokens.get(engine + 2)?;
        let arguments = tokens.get(engine + 3).filter(|t| t.kind == TokenKind::Open);
        Some(Table {
            name: name.name()?,
            name_at: name.start,
            name_end: name.end(),
            arguments_at: arguments.map_or(engine_name.end(), Token::end),
            has_arguments: arguments.is_some(),
            after_engine: engine + 3,
        })
    }

    /// The installation where the table is sorted by it too, else the whole sorting key.
    fn shard_key(&self, tokens: &[Token<'_>]) -> String {
        let rest = &tokens[self.after_engine..];
        let order = rest
            .windows(2)
            .position(|pair| pair[0].is_word("ORDER") && pair[1].is_word("BY"));
        let key = order.map_or(&[][..], |at| &rest[at + 2..]);
        let is_list = key.first().is_some_and(|t| t.kind == TokenKind::Open);
        let columns: Vec<&str> = if is_list {
            let end = key.iter().position(|t| t.kind == TokenKind::Close);
            let names = key[..end.unwrap_or(key.len())].iter();
            names.filter_map(Token::name).collect()
        } else {
            key.first().and_then(Token::name).into_iter().collect()
        };
        if columns.contains(&"installation") {
            return "cityHash64(installation)".to_owned();
        }
        format!("cityHash64({})", columns.join(", "))
    }
}

/// Makes `IN (SELECT ...)` and joins of a view ask all shards once, on behalf of all.
fn with_global(statement: &str, tokens: &[Token<'_>]) -> String {
    let mut out = String::with_capacity(statement.len() + 128);
    let mut copied = 0;
    for (at, token) in tokens.iter().enumerate() {
        let before = |n: usize| at.checked_sub(n).map(|at| &tokens[at]);
        let first = if token.is_word("IN") && is_subquery(&tokens[at + 1..]) {
            before(1).filter(|t| t.is_word("NOT")).unwrap_or(token)
        } else if token.is_word("JOIN") && !before(1).is_some_and(|t| t.is_word("ARRAY")) {
            let kinds = [
                "ANY", "ALL", "SEMI", "ANTI", "ASOF", "INNER", "LEFT", "RIGHT", "FULL", "OUTER",
            ];
            let is_kind = |t: &Token<'_>| kinds.iter().any(|kind| t.is_word(kind));
            let n_kinds = tokens[..at].iter().rev().take_while(|t| is_kind(t)).count();
            &tokens[at - n_kinds]
        } else {
            continue;
        };
        let is_global = tokens
            .iter()
            .rev()
            .find(|t| t.start < first.start)
            .is_some_and(|t| t.is_word("GLOBAL"));
        if is_global {
            continue;
        }
        out.push_str(&statement[copied..first.start]);
        out.push_str("GLOBAL ");
        copied = first.start;
    }
    out.push_str(&statement[copied..]);
    out
}

fn is_subquery(after_in: &[Token<'_>]) -> bool {
    let mut inside = after_in
        .iter()
        .skip_while(|token| token.kind == TokenKind::Open);
    after_in.first().is_some_and(|t| t.kind == TokenKind::Open)
        && inside
            .next()
            .is_some_and(|t| t.is_word("SELECT") || t.is_word("WITH"))
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('\\', "\\\\").replace('`', "\\`"))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cluster: &Cluster, statements: &[&str], expected: &[&str]) {
        let mut keys = ShardKeys::default();
        let mut spread = Vec::new();
        for statement in statements {
            spread.extend(cluster.spread("e", &mut keys, statement).unwrap());
        }
        assert_eq!(spread, expected);
    }

    #[test]
    fn a_table_is_a_replicated_one_on_each_shard_and_a_distributed_one_over_it() {
        check(
            &Cluster::new("c"),
            &[
                "CREATE TABLE IF NOT EXISTS t ON CLUSTER `c` (installation UInt8, engine String) ENGINE = \
               ReplicatedReplacingMergeTree(at) ORDER BY (x, installation) TTL at",
            ],
            &[
                "CREATE TABLE IF NOT EXISTS `e_shard`.`t` ON CLUSTER `c` (installation UInt8, engine String) \
                 ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/e_shard/t', \
                 '{replica}', at) ORDER BY (x, installation) TTL at",
                "CREATE TABLE IF NOT EXISTS `e`.`t` ON CLUSTER `c` AS `e_shard`.`t` ENGINE = \
                 Distributed('c', 'e_shard', 't', cityHash64(installation))",
            ],
        );
    }

    #[test]
    fn a_table_without_installations_is_spread_by_its_sorting_key() {
        check(
            &Cluster::new("it's").on_each_server(),
            &[
                "CREATE TABLE IF NOT EXISTS t (a UInt8) ENGINE = ReplicatedMergeTree\nORDER BY (a, b);",
                "CREATE TABLE IF NOT EXISTS u (a UInt8) ENGINE = ReplicatedMergeTree ORDER BY a",
                "ALTER TABLE u ADD COLUMN z UInt8",
            ],
            &[
                "CREATE TABLE IF NOT EXISTS `e_shard`.`t` (a UInt8) ENGINE = \
                 ReplicatedMergeTree('/clickhouse/tables/{shard}/e_shard/t', '{replica}')\nORDER BY (a, b);",
                "CREATE TABLE IF NOT EXISTS `e`.`t`  AS `e_shard`.`t` ENGINE = \
                 Distributed('it\\'s', 'e_shard', 't', cityHash64(a, b))",
                "CREATE TABLE IF NOT EXISTS `e_shard`.`u` (a UInt8) ENGINE = \
                 ReplicatedMergeTree('/clickhouse/tables/{shard}/e_shard/u', '{replica}') ORDER BY a",
                "CREATE TABLE IF NOT EXISTS `e`.`u`  AS `e_shard`.`u` ENGINE = \
                 Distributed('it\\'s', 'e_shard', 'u', cityHash64(a))",
                "ALTER TABLE `e_shard`.`u` ADD COLUMN z UInt8",
                "CREATE OR REPLACE TABLE `e`.`u`  AS `e_shard`.`u` ENGINE = \
                 Distributed('it\\'s', 'e_shard', 'u', cityHash64(a))",
            ],
        );
    }

    #[test]
    fn subqueries_of_views_are_global() {
        check(
            &Cluster::new("c"),
            &[
                "CREATE OR REPLACE VIEW v AS SELECT 'x IN (SELECT 1)' FROM t ARRAY JOIN a WHERE b IN (1, 2) AND b IN \
               (SELECT b FROM u) AND (b, c) NOT IN (\n(SELECT 1)) AND d GLOBAL IN (SELECT 1)",
            ],
            &[
                "CREATE OR REPLACE VIEW v AS SELECT 'x IN (SELECT 1)' FROM t ARRAY JOIN a WHERE b IN (1, 2) AND b \
               GLOBAL IN (SELECT b FROM u) AND (b, c) GLOBAL NOT IN (\n(SELECT 1)) AND d GLOBAL IN (SELECT 1)",
            ],
        );
        check(
            &Cluster::new("c"),
            &["CREATE OR REPLACE VIEW v AS SELECT 1 FROM a ANY LEFT JOIN b USING x JOIN c USING y"],
            &[
                "CREATE OR REPLACE VIEW v AS SELECT 1 FROM a GLOBAL ANY LEFT JOIN b USING x GLOBAL JOIN c USING y",
            ],
        );
    }

    #[test]
    fn what_cannot_be_spread_is_refused() {
        for statement in [
            "INSERT INTO t SELECT 1",
            "ALTER TABLE unknown DROP COLUMN x",
            "",
        ] {
            let cluster = Cluster::new("c");
            let spread = cluster.spread("e", &mut ShardKeys::default(), statement);
            assert!(spread.is_err(), "{statement}");
        }
    }
}
