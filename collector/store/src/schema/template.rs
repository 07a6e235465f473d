//! Turns migrations into statements: fills placeholders, splits the text, and marks views with a checksum of their
//! text.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::cluster::Cluster;
use super::error::MigrateError;
use crate::lexer::{TokenKind, tokens};

/// The files of a schema. A store is migrated only forward, and only within one series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrations<'a> {
    /// Name of the series. Files that replace released ones start another series.
    pub series: &'static str,
    /// Files by version, the oldest first.
    pub files: &'a [Migration],
}

/// One numbered file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// The version: 1 for the first file, then one more for each.
    pub version: u32,
    /// Content of the file, for logs and errors.
    pub name: &'static str,
    /// Statements separated by `;`, with placeholders.
    pub sql: &'static str,
}

impl Migration {
    /// Returns the recorded SHA-256 of the file before placeholders are filled, in lower-case hex.
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

/// Values for the placeholders. They go into SQL unchanged, so they must be numbers or quoted names.
///
/// A cluster sets `on_cluster`, `replicated` and `deduplication_window`, and each statement becomes the statements that
/// do the same on the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateValues {
    values: BTreeMap<String, String>,
    cluster: Option<Cluster>,
}

impl TemplateValues {
    /// Returns an empty set of values.
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

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// Returns the comment of a view: a checksum of its text, with the values on which its rows depend. The cluster is
    /// left out, because a runner that goes to each server in turn makes the same view.
    fn mark(&self, sql: &str) -> Result<String, String> {
        let as_written = |values: TemplateValues, name| values.with(name, format!("${{{name}}}"));
        let values = LAYOUT.into_iter().fold(self.clone(), as_written);
        values.render(sql).map(|text| checksum(&text))
    }

    pub(super) fn get_or_empty(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// Puts the values in place of `${name}`; `Err` has the name of a placeholder without a value.
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

/// Returns the statement of a view with a comment.
///
/// The query is in parentheses, because ClickHouse before 26.7 reads `COMMENT` after a table or a subquery as its
/// alias. The closing parenthesis needs its own line, because the text may end with a comment.
fn commented(view: &str, mark: &str) -> String {
    let query_at = tokens(view)
        .skip(5)
        .find(|token| token.is_word("AS"))
        .map_or(view.len(), |token| token.end());
    let (head, query) = view.split_at(query_at);
    format!("{head} ({}\n)\nCOMMENT '{mark}'", query.trim_start())
}

/// The mark that a rendered statement gives its view.
pub(super) fn mark_at_end(statement: &str) -> Option<&str> {
    let (_, mark) = statement.rsplit_once("\nCOMMENT '")?;
    mark.strip_suffix('\'')
}

/// The name of the view that a statement makes, if it makes one.
pub(super) fn view_name(statement: &str) -> Option<&str> {
    let first: Vec<_> = tokens(statement).take(5).collect();
    let words = ["CREATE", "OR", "REPLACE", "VIEW"];
    let is_view = first.len() == 5 && words.iter().zip(&first).all(|(word, t)| t.is_word(word));
    is_view.then(|| first[4].name()).flatten()
}

/// The statements of each migration, ready to run.
pub(super) fn render_all<'a>(
    migrations: Migrations<'a>,
    values: &TemplateValues,
) -> Result<Vec<(&'a Migration, Vec<String>)>, MigrateError> {
    let mut rendered = Vec::with_capacity(migrations.files.len());
    for (migration, expected) in migrations.files.iter().zip(1_u32..) {
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
                Some(_) => commented(&text, &values.mark(statement).map_err(unknown)?),
                None => text,
            };
        }
        rendered.push((migration, all));
    }
    Ok(rendered)
}

/// Splits a text at each `;` outside quotes and comments.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn series(files: &[Migration]) -> Migrations<'_> {
        Migrations {
            series: "series",
            files,
        }
    }

    const ONE: Migration = Migration {
        version: 1,
        name: "one",
        sql: "CREATE TABLE ${prefix}a",
    };

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
        let error = render_all(series(&[ONE]), &values).unwrap_err();
        assert!(error.to_string().contains("${prefix}"), "{error}");
    }

    /// Other days give a view another mark; another layout of the same rows does not.
    #[test]
    fn a_views_mark_is_of_its_text_and_values() {
        let mark = |values: TemplateValues, sql| {
            let view = Migration { sql, ..ONE };
            let (_, statements) = render_all(series(&[view]), &values).unwrap().remove(0);
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
        // A view without values has the mark that earlier versions wrote.
        let plain = "CREATE OR REPLACE VIEW v ${on_cluster} AS SELECT 1";
        assert_eq!(mark(days(14), plain), checksum(plain));
    }

    #[test]
    fn a_comment_never_follows_a_table() {
        let view = "CREATE OR REPLACE VIEW `as` ON CLUSTER `c` AS\nSELECT 1 AS n FROM t -- all";
        assert_eq!(
            commented(view, "beef"),
            "CREATE OR REPLACE VIEW `as` ON CLUSTER `c` AS (SELECT 1 AS n FROM t -- all\n)\nCOMMENT 'beef'"
        );
    }

    #[test]
    fn versions_count_from_one() {
        let second = Migration { version: 3, ..ONE };
        let list = [ONE, second];
        let error = render_all(series(&list), &TemplateValues::new().with("prefix", ""));
        assert!(matches!(
            error,
            Err(MigrateError::Numbering {
                found: 3,
                expected: 2,
                ..
            })
        ));
    }
}
