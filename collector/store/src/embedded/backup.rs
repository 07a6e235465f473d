//! Backups that the engine makes of itself: `BACKUP DATABASE x TO File('name')` and its way back.
//!
//! Statements that reach files are refused on the socket; these two are let through in one exact
//! form, since the engine's configuration keeps such files in one folder beside its data, and the
//! name is a plain one. Moving an archive to where it is wanted is the caller's business.

use std::path::{Path, PathBuf};

use crate::lexer::{Token, TokenKind, tokens};

/// Says whether the text is one of the two statements, with a plain file name, and nothing else.
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
pub(crate) fn is_archive_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.ends_with(".tar.zst")
        && name.len() <= 100
        && !name.starts_with('.')
        && name.bytes().all(is_plain)
}

/// Where the engine of `data_dir` keeps archives that it makes and reads.
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
