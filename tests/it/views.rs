//! `docs/views.md` matches the schema: it has views, columns and types of the migrated engine, and sentences of the
//! migrations.
//!
//! The meanings of columns are written by hand in the document and are kept. `EPWATCH_BLESS=1` rewrites the rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs,
};

use clickhouse::Row;
use epwatch_collector::schema::MIGRATIONS;
use serde::Deserialize;

use crate::support::Store;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/views.md");
const VIEWS: &str = "\n## Views\n";
const COLUMNS: &str = "\n## Columns\n";

#[derive(Debug, Row, Deserialize)]
struct Column {
    table: String,
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

/// Returns each view with the comment above it.
fn sentences() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for migration in MIGRATIONS.files {
        let mut comment = Vec::new();
        for line in migration.sql.lines() {
            if let Some(text) = line.strip_prefix("-- ") {
                comment.push(text);
            } else if let Some(rest) = line.strip_prefix("CREATE OR REPLACE VIEW ") {
                let name = rest.split(' ').next().unwrap_or_default();
                found.insert(name.to_owned(), comment.join(" "));
                comment.clear();
            } else {
                comment.clear();
            }
        }
    }
    found
}

/// Returns the meanings of the document's table of columns.
fn meanings(document: &str) -> BTreeMap<String, String> {
    let (_, table) = document
        .split_once(COLUMNS)
        .expect("the document lists columns");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.trim_end_matches(" |").split(" | ").collect::<Vec<_>>());
    cells
        .map(|cells| {
            (
                cells[0].trim_end_matches('`').to_owned(),
                cells[2].to_owned(),
            )
        })
        .collect()
}

/// Returns a type without its storage encoding.
fn plain(kind: &str) -> String {
    let kind = kind.replace("LowCardinality(String)", "String");
    kind.replace("(3, 'UTC')", "").replace("('UTC')", "")
}

fn rendered(document: &str, columns: &[Column]) -> String {
    let (head, _) = document
        .split_once(VIEWS)
        .expect("the document lists views");
    let (sentences, meanings) = (sentences(), meanings(document));
    let mut text = format!("{head}{VIEWS}");
    let mut kinds: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for view in columns.chunk_by(|a, b| a.table == b.table) {
        let name = &view[0].table;
        let sentence = &sentences[name];
        assert!(
            !sentence.is_empty(),
            "{name} has no comment in its migration"
        );
        let names = view.iter().map(|column| format!("`{}`", column.name));
        let names = Vec::from_iter(names).join(", ");
        write!(text, "\n### {name}\n\n{sentence}\n\n{names}\n").unwrap();
        for column in view {
            let kinds = kinds.entry(&column.name).or_default();
            kinds.insert(plain(&column.kind));
        }
    }
    text.push_str(COLUMNS);
    text.push_str("\n| column | type | meaning |\n|---|---|---|\n");
    for (name, kinds) in kinds {
        let kinds = Vec::from_iter(kinds).join(" or ");
        let meaning = meanings.get(name).map_or("", String::as_str);
        writeln!(text, "| `{name}` | {kinds} | {meaning} |").unwrap();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dictionary_has_each_column_of_each_view() {
    let store = Store::start().await;
    let sql = "SELECT table, name, type FROM system.columns WHERE database = currentDatabase() \
               AND endsWith(table, '_v1') ORDER BY table, position";
    let columns: Vec<Column> = store.client().query(sql).fetch_all().await.unwrap();
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let example = document
        .split("```")
        .find_map(|block| block.strip_prefix("sql\n"));
    let run = store.client().query_raw(example.unwrap()).execute().await;
    run.unwrap();
    store.engine.stop().await;
    let expected = rendered(&document, &columns);
    let must_write = env::var_os("EPWATCH_BLESS").is_some();
    if must_write {
        fs::write(DOCUMENT, &expected).unwrap();
    }
    let is_same = must_write || document == expected;
    assert!(
        is_same,
        "docs/views.md is of another schema: EPWATCH_BLESS=1 with this test writes it"
    );
    let meanings = meanings(&expected);
    let without = meanings.keys().filter(|name| meanings[*name].is_empty());
    assert_eq!(
        Vec::from_iter(without),
        Vec::<&String>::new(),
        "columns without a meaning"
    );
}
