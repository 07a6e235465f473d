//! Statements of requests, checked before the engine gets them.
//!
//! Rows must be separated from the statement, because the engine runs the text after a blank line in inline data as
//! SQL. Statements that reach files, programs or other hosts are refused. The refusal guards our own clients against
//! mistakes and injected SQL. It is not a sandbox: it uses the engine's own lists of table functions and engines, and
//! does not cover every setting. The socket's mode keeps strangers out.

use std::collections::HashSet;

use crate::lexer::{Token, TokenKind, tokens};

/// The engine's call that a statement needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A query whose rows are fetched in chunks.
    Select,
    /// INSERT whose rows follow: `head` has no FORMAT clause, `data_at` is the offset of the
    /// first byte of rows in the text.
    InsertRows {
        head: String,
        format: String,
        data_at: usize,
    },
    /// Any other statement, run as a whole.
    Whole,
}

/// The reason why a statement is refused before the engine sees it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StatementRefusal {
    #[error("empty query")]
    Empty,
    #[error("only one statement a request is allowed")]
    SeveralStatements,
    #[error("{0} is not allowed on this socket: it reaches outside the store")]
    OutsideStore(String),
    #[error("control and non-ASCII characters are allowed only inside quotes and comments")]
    Foreign,
    #[error("INSERT must be followed by VALUES, FORMAT or SELECT, and a SELECT by no rows")]
    UnclearInsert,
    #[error(
        "{0} is not allowed on this socket: no session outlives a request; send settings and \
         database as parameters"
    )]
    Session(String),
}

/// Table functions that stay inside the store.
const INSIDE_FUNCTIONS: &[&str] = &[
    "dictionary",
    "format",
    "generate_series",
    "generaterandom",
    "generateseries",
    "merge",
    "mergetreeindex",
    "mergetreeprojection",
    "null",
    "numbers",
    "numbers_mt",
    "primes",
    "sqlstandardvalues",
    "values",
    "view",
    "viewexplain",
    "viewifpermitted",
    "zeros",
    "zeros_mt",
];

/// Engines that stay inside the store, in addition to `*MergeTree`. `Distributed` reaches only the clusters of the
/// engine's configuration, which has none unless our own program adds one.
const INSIDE_ENGINES: &[&str] = &[
    "alias",
    "atomic",
    "buffer",
    "dictionary",
    "distributed",
    "join",
    "log",
    "materializedview",
    "memory",
    "merge",
    "null",
    "set",
    "stripelog",
    "tinylog",
    "view",
];

/// Statements that change the session or the server, and are allowed.
const CONTROL_ALLOWED: &[&str] = &["ALTER", "INSERT", "KILL", "SYSTEM"];

/// The names that reach outside the store, from the engine's own lists.
#[derive(Debug, Default)]
pub(crate) struct OutsideNames {
    functions: HashSet<String>,
    engines: HashSet<String>,
}

impl OutsideNames {
    /// Keeps the engine's table functions and engines that are not known to be harmless.
    pub(crate) fn new<'a>(
        functions: impl Iterator<Item = &'a str>,
        engines: impl Iterator<Item = &'a str>,
    ) -> OutsideNames {
        let inside_engine =
            |name: &String| name.ends_with("mergetree") || INSIDE_ENGINES.contains(&name.as_str());
        let mut functions: HashSet<String> = functions
            .map(str::to_ascii_lowercase)
            .filter(|name| !INSIDE_FUNCTIONS.contains(&name.as_str()))
            .collect();
        // `file` is a scalar function too; `disk` defines a disk inside a table's settings.
        functions.extend(["file", "disk"].map(String::from));
        OutsideNames {
            functions,
            engines: engines
                .map(str::to_ascii_lowercase)
                .filter(|name| !inside_engine(name))
                .collect(),
        }
    }

    /// Refuses a statement that names a file, a program or another host.
    pub(crate) fn check(&self, sql: &str) -> Result<(), StatementRefusal> {
        let tokens: Vec<Token<'_>> = tokens(sql).collect();
        // The engine takes some of these characters for blanks or quotes, and would read another text than this check.
        if tokens.iter().any(|token| token.kind == TokenKind::Foreign) {
            return Err(StatementRefusal::Foreign);
        }
        let defines_dictionary = tokens.iter().any(|token| token.is_word("DICTIONARY"));
        for (at, token) in tokens.iter().enumerate() {
            let previous = at.checked_sub(1).map(|at| &tokens[at]);
            let next = tokens.get(at + 1);
            let follows = |word| previous.is_some_and(|previous| previous.is_word(word));
            if token.is_word("OUTFILE") && follows("INTO") {
                return outside("INTO OUTFILE");
            }
            if token.is_word("INFILE") && follows("FROM") {
                return outside("FROM INFILE");
            }
            let Some(name) = token.name().map(str::to_ascii_lowercase) else {
                continue;
            };
            let is_call = next.is_some_and(|next| next.text == "(");
            if is_call && self.functions.contains(&name) {
                return outside(&format!("the function {name}"));
            }
            if token.is_word("ENGINE") {
                let named = next.filter(|next| next.text == "=");
                let named = if named.is_some() {
                    tokens.get(at + 2)
                } else {
                    next
                };
                let engine = named.and_then(Token::name).map(str::to_ascii_lowercase);
                if let Some(engine) = engine.filter(|engine| self.engines.contains(engine)) {
                    return outside(&format!("the engine {engine}"));
                }
            }
            if defines_dictionary && is_call && token.is_word("SOURCE") {
                let source = tokens.get(at + 2).map_or("", |source| source.text);
                if !["clickhouse", "null"].contains(&source.to_ascii_lowercase().as_str()) {
                    return outside(&format!("the source {source}"));
                }
            }
        }
        Ok(())
    }
}

fn outside(what: &str) -> Result<(), StatementRefusal> {
    Err(StatementRefusal::OutsideStore(what.to_owned()))
}

/// Refuses session and server statements that have no use here or reach outside the store.
///
/// The engine's parser puts INTO OUTFILE, INSERT INTO FUNCTION, BACKUP, ATTACH and COPY into the same class. So an
/// allow-list of first words refuses them in any spelling.
pub(crate) fn check_control(sql: &str) -> Result<(), StatementRefusal> {
    let first = tokens(sql).find(|token| token.kind == TokenKind::Word);
    let first = first.map_or("", |token| token.text).to_ascii_uppercase();
    if first == "INSERT" && tokens(sql).nth(2).is_some_and(|t| t.is_word("FUNCTION")) {
        return outside("INSERT INTO FUNCTION");
    }
    if CONTROL_ALLOWED.contains(&first.as_str()) {
        return Ok(());
    }
    match first.as_str() {
        "SET" | "USE" | "CREATE" | "DROP" => Err(StatementRefusal::Session(first)),
        "SELECT" | "WITH" => outside("INTO OUTFILE"),
        other => outside(other),
    }
}

/// Reads which call of the engine the text needs.
pub(crate) fn read(sql: &str) -> Result<Kind, StatementRefusal> {
    let mut first = tokens(sql).filter(|token| token.kind != TokenKind::Open);
    let first = first.next().ok_or(StatementRefusal::Empty)?;
    if first.is_word("INSERT") {
        return read_insert(sql);
    }
    let mut after_end = tokens(sql)
        .skip_while(|token| token.kind != TokenKind::Semicolon)
        .filter(|token| token.kind != TokenKind::Semicolon);
    if after_end.next().is_some() {
        return Err(StatementRefusal::SeveralStatements);
    }
    let selects = ["SELECT", "WITH", "FROM"];
    if selects.iter().any(|word| first.is_word(word)) {
        return Ok(Kind::Select);
    }
    Ok(Kind::Whole)
}

fn read_insert(sql: &str) -> Result<Kind, StatementRefusal> {
    let mut depth = 0_i32;
    let mut selects = false;
    let mut iter = tokens(sql);
    while let Some(token) = iter.next() {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth -= 1,
            TokenKind::Semicolon if iter.next().is_some() => {
                return Err(StatementRefusal::SeveralStatements);
            }
            TokenKind::Word if depth == 0 => {
                if token.is_word("SELECT") || token.is_word("WITH") {
                    selects = true;
                } else if token.is_word("VALUES") || token.is_word("FORMAT") {
                    // Rows after a SELECT (the function `input`) would take the path that cuts them at a blank line.
                    if selects {
                        return Err(StatementRefusal::UnclearInsert);
                    }
                    return rows(sql, &token, iter.next());
                }
            }
            _ => {}
        }
    }
    if selects {
        return Ok(Kind::Whole);
    }
    Err(StatementRefusal::UnclearInsert)
}

/// Returns the INSERT up to `word` (FORMAT or VALUES), and where its rows begin.
fn rows(sql: &str, word: &Token<'_>, next: Option<Token<'_>>) -> Result<Kind, StatementRefusal> {
    let head = sql[..word.start].trim_end().to_owned();
    if word.is_word("VALUES") {
        return Ok(Kind::InsertRows {
            head,
            format: "Values".to_owned(),
            data_at: word.end(),
        });
    }
    let format = next.filter(|next| next.kind == TokenKind::Word);
    let format = format.ok_or(StatementRefusal::UnclearInsert)?;
    Ok(Kind::InsertRows {
        head,
        format: format.text.to_owned(),
        data_at: format.end() + separator_length(&sql[format.end()..]),
    })
}

/// Returns the length of the text that separates FORMAT from the rows, by the engine's rule: `;`, blanks, then one line
/// end.
fn separator_length(rest: &str) -> usize {
    let after = rest.strip_prefix(';').unwrap_or(rest);
    let after = after.trim_start_matches([' ', '\t', '\x0c']);
    let after = after.strip_prefix('\r').unwrap_or(after);
    let after = after.strip_prefix('\n').unwrap_or(after);
    rest.len() - after.len()
}

/// Returns the format that a statement's own FORMAT clause names.
pub(crate) fn output_format(sql: &str) -> Option<&str> {
    let mut depth = 0_i32;
    let mut after_format = false;
    let mut found = None;
    for token in tokens(sql) {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth -= 1,
            TokenKind::Word if after_format && depth == 0 => found = Some(token.text),
            _ => {}
        }
        after_format = token.is_word("FORMAT") && !after_format;
    }
    found
}

#[cfg(test)]
mod tests;
