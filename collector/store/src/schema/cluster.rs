//! One schema, for one server or for a replicated, sharded cluster.
//!
//! Migrations are written for one server. For a cluster each statement becomes the statements that do the same there. A
//! table becomes two: a replicated one on each shard in the database `<name>_shard`, and a `Distributed` one over it in
//! `<name>`. Views read the `Distributed` tables, with subqueries that run once for all shards (`GLOBAL`). So readers
//! and writers use the same names, and need the settings of [`CLUSTER_SETTINGS`]. Every name is qualified, because a
//! statement that runs `ON CLUSTER` has no current database on the other servers.
//!
//! Rows of an installation lie on one shard. Other rows are spread by their sorting key, so that rows which replace
//! each other, or add up, are on one shard.

use std::collections::{BTreeMap, BTreeSet};

use crate::lexer::{Token, TokenKind, quoted_name, tokens};

/// Settings of every statement on a cluster. With the servers' defaults an insert is acknowledged before its rows are
/// on their shard. A read may go to a replica that lags behind the written one.
pub(crate) const CLUSTER_SETTINGS: &[(&str, &str)] = &[
    // An ack means that the shards have the rows. Checkpoints depend on it.
    ("distributed_foreground_insert", "1"),
    // A subquery in our statements runs once for all shards, as in the views.
    ("distributed_product_mode", "global"),
    // Rows go to the shard of their key, not where they were selected.
    ("parallel_distributed_insert_select", "0"),
    // All writes and reads of a shard go to its first replica while it is up, from any server. So reads see the writes.
    ("prefer_localhost_replica", "0"),
    ("load_balancing", "in_order"),
];

/// Layout of the tables of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    name: String,
    on_cluster: bool,
    is_replicated: bool,
}

/// A statement that cannot be converted for a cluster.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "statement {0:?} cannot be turned into one for a cluster; expected CREATE TABLE, VIEW or \
     FUNCTION, or ALTER TABLE"
)]
pub struct ClusterStatementError(String);

impl Cluster {
    /// Returns the layout of a cluster that the servers' `remote_servers` define under this name. Each server must have
    /// the macros `{shard}` and `{replica}`. Statements run on all servers (`ON CLUSTER`).
    #[must_use]
    pub fn new(name: &str) -> Cluster {
        Cluster {
            name: name.to_owned(),
            on_cluster: true,
            is_replicated: true,
        }
    }

    /// Runs statements without `ON CLUSTER`, for a cluster whose servers are migrated one by one.
    #[must_use]
    pub fn on_each_server(mut self) -> Cluster {
        self.on_cluster = false;
        self
    }

    /// Uses plain tables, with one replica for each shard. This needs no Keeper, but a lost disk loses its rows, so it
    /// is for trials.
    #[must_use]
    pub fn without_replicas(mut self) -> Cluster {
        self.is_replicated = false;
        self
    }

    /// Returns the prefix of the engines' names.
    #[must_use]
    pub fn engine_prefix(&self) -> &'static str {
        if self.is_replicated { "Replicated" } else { "" }
    }

    /// Returns the table setting for the number of inserts that a shard remembers, so that it recognises a repeated
    /// insert.
    #[must_use]
    pub fn deduplication_window(&self) -> &'static str {
        if self.is_replicated {
            "replicated_deduplication_window"
        } else {
            "non_replicated_deduplication_window"
        }
    }

    /// Returns the clause after a name in DDL; empty without `ON CLUSTER`.
    #[must_use]
    pub fn on_cluster(&self) -> String {
        if self.on_cluster {
            format!("ON CLUSTER {}", quoted_name(&self.name))
        } else {
            String::new()
        }
    }

    /// Returns the database of the shards' own tables.
    #[must_use]
    pub fn shard_database(database: &str) -> String {
        format!("{database}_shard")
    }

    /// Returns the target of an `INSERT INTO` that returns only once the rows are on their shards.
    pub(crate) fn written_table(database: &str, table: &str, columns: &str) -> String {
        let (database, table) = (quoted_name(database), quoted_name(table));
        format!("{database}.{table} {columns} SETTINGS distributed_foreground_insert = 1")
    }

    /// Returns statements that do on the cluster what `statements` do on one server.
    pub(crate) fn spread(
        &self,
        database: &str,
        made: &mut Made,
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
            let name = tokens[4].name().ok_or_else(unknown)?;
            made.views.insert(name.to_owned());
            return Ok(vec![spread_view(database, made, statement, &tokens)]);
        }
        if starts(&["CREATE", "TABLE", "IF", "NOT", "EXISTS"]) {
            let table = Table::read(&tokens, 5).ok_or_else(unknown)?;
            let key = table.shard_key(&tokens).ok_or_else(unknown)?;
            made.shard_keys.insert(table.name.to_owned(), key);
            return Ok(vec![
                self.local(database, statement, &table),
                self.distributed(database, made, table.name, "CREATE TABLE IF NOT EXISTS"),
            ]);
        }
        if starts(&["ALTER", "TABLE"]) {
            let name = tokens[2].name().ok_or_else(unknown)?;
            if !made.shard_keys.contains_key(name) {
                return Err(unknown());
            }
            let of_shard = format!(
                "{}{}{}",
                &statement[..tokens[2].start],
                self.shard_name(database, name),
                &statement[tokens[2].end()..]
            );
            let is_of_rows = |pair: &[Token<'_>]| {
                let what = ["SETTING", "TTL"];
                pair[0].is_word("MODIFY") && what.iter().any(|word| pair[1].is_word(word))
            };
            if tokens.windows(2).any(is_of_rows) {
                return Ok(vec![of_shard]);
            }
            // A `Distributed` table has no rows of its own, and takes its columns from the shards' table again.
            let over_all = self.distributed(database, made, name, "CREATE OR REPLACE TABLE");
            return Ok(vec![of_shard, over_all]);
        }
        Err(unknown())
    }

    /// Returns the statement for a shard's own table, which is replicated under the shard's path.
    fn local(&self, database: &str, statement: &str, table: &Table<'_>) -> String {
        if !self.is_replicated {
            return format!(
                "{}{}{}",
                &statement[..table.name_at],
                self.shard_name(database, table.name),
                &statement[table.name_end..]
            );
        }
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

    fn distributed(&self, database: &str, made: &Made, table: &str, create: &str) -> String {
        format!(
            "{create} {}.{} {} AS {} ENGINE = Distributed({}, {}, {}, {})",
            quoted_name(database),
            quoted_name(table),
            self.on_cluster(),
            self.shard_name(database, table),
            literal(&self.name),
            literal(&Cluster::shard_database(database)),
            literal(table),
            made.shard_keys[table]
        )
    }

    /// Returns the name that `ALTER TABLE` needs to reach a table's rows.
    pub(crate) fn altered_name(&self, database: &str, table: &str) -> String {
        let name = self.shard_name(database, table);
        format!("{name} {}", self.on_cluster())
            .trim_end()
            .to_owned()
    }

    fn shard_name(&self, database: &str, table: &str) -> String {
        format!(
            "{}.{}",
            quoted_name(&Cluster::shard_database(database)),
            quoted_name(table)
        )
    }
}

/// Tables and views of the statements so far.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// The key that spreads each table's rows.
    shard_keys: BTreeMap<String, String>,
    views: BTreeSet<String>,
}

impl Made {
    fn holds(&self, name: &str) -> bool {
        self.shard_keys.contains_key(name) || self.views.contains(name)
    }
}

/// The parts of `CREATE TABLE IF NOT EXISTS name ... ENGINE = engine(arguments) ...`.
struct Table<'a> {
    name: &'a str,
    name_at: usize,
    name_end: usize,
    /// Position of the engine's first argument.
    arguments_at: usize,
    has_arguments: bool,
    /// Index of the token after the engine's name.
    after_engine: usize,
}

impl<'a> Table<'a> {
    fn read(tokens: &[Token<'a>], name_index: usize) -> Option<Table<'a>> {
        let name = tokens.get(name_index)?;
        // Finds the clause, and not a column of that name.
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

    /// Returns the installation's column if the sorting key has it, otherwise the whole sorting key.
    fn shard_key(&self, tokens: &[Token<'_>]) -> Option<String> {
        let rest = &tokens[self.after_engine..];
        let order = rest
            .windows(2)
            .position(|pair| pair[0].is_word("ORDER") && pair[1].is_word("BY"))?;
        let key = &rest[order + 2..];
        let columns: Vec<&str> = if key.first()?.kind == TokenKind::Open {
            let end = key.iter().position(|t| t.kind == TokenKind::Close)?;
            // Expressions are not accepted, only names of columns with commas between them.
            let all = key[1..end].iter().filter(|t| t.text != ",");
            all.map(Token::name).collect::<Option<_>>()?
        } else {
            vec![key.first()?.name()?]
        };
        if columns.contains(&"installation") {
            return Some("cityHash64(installation)".to_owned());
        }
        let is_key = !columns.is_empty() && columns != ["tuple"];
        is_key.then(|| format!("cityHash64({})", columns.join(", ")))
    }
}

/// Qualifies the names of a view, and makes its `IN (SELECT ...)` and joins run once for all shards.
fn spread_view(database: &str, made: &Made, statement: &str, tokens: &[Token<'_>]) -> String {
    let qualifier = format!("{}.", quoted_name(database));
    let mut out = String::with_capacity(statement.len() + 256);
    let mut copied = 0;
    let mut insert = |at: usize, text: &str| {
        out.push_str(&statement[copied..at]);
        out.push_str(text);
        copied = at;
    };
    for (at, token) in tokens.iter().enumerate() {
        let is_made = token.name().is_some_and(|name| made.holds(name));
        let is_source = at == 4
            || at.checked_sub(1).is_some_and(|before| {
                let before = &tokens[before];
                before.is_word("FROM") || before.is_word("JOIN")
            });
        if is_made && is_source {
            insert(token.start, &qualifier);
        } else if let Some(first) = asks_shards(tokens, at) {
            insert(first.start, "GLOBAL ");
        }
    }
    let rest = statement.len();
    insert(rest, "");
    out
}

/// Returns the first token of an `IN (SELECT` or a join at `at`, unless it is global already.
fn asks_shards<'a, 'b>(tokens: &'a [Token<'b>], at: usize) -> Option<&'a Token<'b>> {
    let first = if tokens[at].is_word("IN") && is_subquery(&tokens[at + 1..]) {
        at - usize::from(at > 0 && tokens[at - 1].is_word("NOT"))
    } else if tokens[at].is_word("JOIN") {
        let kinds = [
            "ANY", "ALL", "SEMI", "ANTI", "ASOF", "INNER", "LEFT", "RIGHT", "FULL", "OUTER",
        ];
        let is_kind = |t: &&Token<'_>| kinds.iter().any(|kind| t.is_word(kind));
        at - tokens[..at].iter().rev().take_while(is_kind).count()
    } else {
        return None;
    };
    let before = first.checked_sub(1).map(|at| &tokens[at]);
    // An array join runs on the row's own shard, so it stays as it is.
    let is_done = before.is_some_and(|t| t.is_word("GLOBAL") || t.is_word("ARRAY"));
    (!is_done).then(|| &tokens[first])
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

/// Returns a table's name for a statement that changes rows in place. Mutations do not go through a `Distributed`
/// table, so they name the shards' own tables and run on all of them.
///
/// `engine_full` is the column of `system.tables`. `None` if the table has the rows itself.
#[must_use]
pub fn mutated_name(engine_full: &str) -> Option<String> {
    let mut tokens = tokens(engine_full);
    if !tokens.next()?.is_word("Distributed") {
        return None;
    }
    let arguments: Vec<Token<'_>> = tokens.filter(|t| t.kind == TokenKind::Text).collect();
    let [cluster, database, table, ..] = &arguments[..] else {
        return None;
    };
    // Literals and names have the same escapes.
    let name = |t: &Token<'_>| t.text.trim_matches('\'').replace('`', "\\`");
    Some(format!(
        "`{}`.`{}` ON CLUSTER `{}`",
        name(database),
        name(table),
        name(cluster)
    ))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cluster: &Cluster, statements: &[&str], expected: &[&str]) {
        let mut made = Made::default();
        let mut spread = Vec::new();
        for statement in statements {
            spread.extend(cluster.spread("e", &mut made, statement).unwrap());
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
                "ALTER TABLE t MODIFY SETTING x = 1",
                "ALTER TABLE t MODIFY TTL a + INTERVAL 1 DAY",
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
                "ALTER TABLE `e_shard`.`t` MODIFY SETTING x = 1",
                "ALTER TABLE `e_shard`.`t` MODIFY TTL a + INTERVAL 1 DAY",
            ],
        );
    }

    const T: &str = "CREATE TABLE IF NOT EXISTS t (a UInt8) ENGINE = MergeTree ORDER BY a";

    /// A view is the last statement, after the table `t`.
    #[track_caller]
    fn check_view(view: &str, expected: &str) {
        let mut made = Made::default();
        let cluster = Cluster::new("c");
        cluster.spread("e", &mut made, T).unwrap();
        assert_eq!(cluster.spread("e", &mut made, view).unwrap(), [expected]);
    }

    #[test]
    fn subqueries_of_views_are_global() {
        check_view(
            "CREATE OR REPLACE VIEW v AS SELECT 'x IN (SELECT 1)' FROM u ARRAY JOIN a WHERE b IN (1, 2) AND b IN \
             (SELECT b FROM u) AND (b, c) NOT IN (\n(SELECT 1)) AND d GLOBAL IN (SELECT 1)",
            "CREATE OR REPLACE VIEW `e`.v AS SELECT 'x IN (SELECT 1)' FROM u ARRAY JOIN a WHERE b IN (1, 2) AND b \
             GLOBAL IN (SELECT b FROM u) AND (b, c) GLOBAL NOT IN (\n(SELECT 1)) AND d GLOBAL IN (SELECT 1)",
        );
        check_view(
            "CREATE OR REPLACE VIEW v AS SELECT 1 FROM a ANY LEFT JOIN b USING x JOIN c USING y",
            "CREATE OR REPLACE VIEW `e`.v AS SELECT 1 FROM a GLOBAL ANY LEFT JOIN b USING x GLOBAL JOIN c USING y",
        );
    }

    /// Other servers run the statement without our current database.
    #[test]
    fn a_view_names_the_database_of_what_it_reads() {
        check_view(
            "CREATE OR REPLACE VIEW `v` ON CLUSTER `c` AS WITH x AS (SELECT 1) SELECT t.a, t FROM t FINAL \
             UNION ALL SELECT * FROM x -- FROM t\nJOIN t USING a",
            "CREATE OR REPLACE VIEW `e`.`v` ON CLUSTER `c` AS WITH x AS (SELECT 1) SELECT t.a, t FROM `e`.t FINAL \
             UNION ALL SELECT * FROM x -- FROM t\nGLOBAL JOIN `e`.t USING a",
        );
    }

    #[test]
    fn shards_without_replicas_have_plain_tables() {
        check(
            &Cluster::new("c").on_each_server().without_replicas(),
            &[T],
            &[
                "CREATE TABLE IF NOT EXISTS `e_shard`.`t` (a UInt8) ENGINE = MergeTree ORDER BY a",
                "CREATE TABLE IF NOT EXISTS `e`.`t`  AS `e_shard`.`t` ENGINE = Distributed('c', 'e_shard', 't', \
                 cityHash64(a))",
            ],
        );
    }

    #[test]
    fn mutations_name_the_shards_table() {
        let full = "Distributed('it\\'s', 'e_shard', 't', cityHash64(a, b))";
        let expected = "`e_shard`.`t` ON CLUSTER `it\\'s`";
        assert_eq!(mutated_name(full).as_deref(), Some(expected));
        assert_eq!(mutated_name("MergeTree ORDER BY a"), None);
        assert_eq!(mutated_name(""), None);
    }

    #[test]
    fn what_cannot_be_spread_is_refused() {
        for statement in [
            "INSERT INTO t SELECT 1",
            "ALTER TABLE unknown DROP COLUMN x",
            "CREATE TABLE IF NOT EXISTS t (a UInt8) ENGINE = MergeTree",
            "CREATE TABLE IF NOT EXISTS t (a UInt8) ENGINE = MergeTree ORDER BY tuple()",
            "CREATE TABLE IF NOT EXISTS t (a UInt8) ENGINE = MergeTree ORDER BY (toDate(a), b)",
            "",
        ] {
            let cluster = Cluster::new("c");
            let spread = cluster.spread("e", &mut Made::default(), statement);
            assert!(spread.is_err(), "{statement}");
        }
    }
}
