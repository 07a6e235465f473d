//! Splits ClickHouse SQL into tokens, just enough to separate code from quoted text and comments.
//!
//! The checks of the engine's socket and the migrations runner use it. It never fails: an unclosed quote or comment
//! runs to the end, and the engine then refuses the text.

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A bare word or number: keyword, identifier, literal.
    Word,
    /// `'text'`, or `$tag$text$tag$`.
    Text,
    /// `` `name` `` or `"name"`.
    QuotedName,
    Open,
    Close,
    Semicolon,
    Other,
    /// A control or non-ASCII character. ClickHouse reads some as blanks, some as quotes.
    Foreign,
}

/// One token and its position in the text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
    pub(crate) start: usize,
}

impl<'a> Token<'a> {
    pub(crate) fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// Returns whether this is the given keyword, unquoted and in any case.
    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.kind == TokenKind::Word && self.text.eq_ignore_ascii_case(word)
    }

    /// Returns the name that a word or a quoted name stands for, with escapes unchanged.
    pub(crate) fn name(&self) -> Option<&'a str> {
        match self.kind {
            TokenKind::Word => Some(self.text),
            TokenKind::QuotedName => Some(self.text.trim_matches(['`', '"'])),
            _ => None,
        }
    }
}

/// Iterates over the tokens of `sql`, without comments and white space.
pub(crate) fn tokens(sql: &str) -> SqlTokens<'_> {
    SqlTokens { sql, at: 0 }
}

#[derive(Debug, Clone)]
pub(crate) struct SqlTokens<'a> {
    sql: &'a str,
    at: usize,
}

impl SqlTokens<'_> {
    fn skip_blank(&mut self) {
        let bytes = self.sql.as_bytes();
        loop {
            while bytes.get(self.at).is_some_and(|byte| is_blank(*byte)) {
                self.at += 1;
            }
            let rest = &bytes[self.at..];
            let ends_line = [&b"--"[..], b"#!", b"# "];
            if ends_line.iter().any(|mark| rest.starts_with(mark)) {
                self.at += find(rest, b"\n").unwrap_or(rest.len());
            } else if rest.starts_with(b"/*") {
                self.at += comment_length(rest);
            } else {
                return;
            }
        }
    }

    fn quoted_end(&self, quote: u8) -> usize {
        let bytes = self.sql.as_bytes();
        let mut at = self.at + 1;
        while let Some(&byte) = bytes.get(at) {
            if byte == b'\\' {
                at += 2;
            } else if byte != quote {
                at += 1;
            } else if bytes.get(at + 1) == Some(&quote) {
                at += 2;
            } else {
                return at + 1;
            }
        }
        bytes.len()
    }
}

impl<'a> Iterator for SqlTokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blank();
        let bytes = self.sql.as_bytes();
        let start = self.at;
        let &first = bytes.get(start)?;
        let (kind, end) = match first {
            b'\'' => (TokenKind::Text, self.quoted_end(first)),
            b'"' | b'`' => (TokenKind::QuotedName, self.quoted_end(first)),
            b'(' | b'[' | b'{' => (TokenKind::Open, start + 1),
            b')' | b']' | b'}' => (TokenKind::Close, start + 1),
            b';' => (TokenKind::Semicolon, start + 1),
            b'$' => match heredoc_length(&bytes[start..]) {
                Some(length) => (TokenKind::Text, start + length),
                None => (TokenKind::Other, start + 1),
            },
            _ if is_word_byte(first) => {
                // A dollar sign belongs to a name, not to a number.
                let is_name = !first.is_ascii_digit();
                let belongs = |b: &&u8| is_word_byte(**b) || (is_name && **b == b'$');
                let length = bytes[start..].iter().take_while(belongs).count();
                (TokenKind::Word, start + length)
            }
            0x20..0x7f => (TokenKind::Other, start + 1),
            _ => {
                let width = self.sql[start..].chars().next().map_or(1, char::len_utf8);
                (TokenKind::Foreign, start + width)
            }
        };
        self.at = end;
        // Every end is after an ASCII byte or at the text's end, so it is on a character boundary.
        let text = self.sql.get(start..end)?;
        Some(Token { kind, text, start })
    }
}

/// Returns a name of the database in backquotes, as a statement needs it.
#[must_use]
pub fn quoted_name(name: &str) -> String {
    format!("`{}`", name.replace('\\', "\\\\").replace('`', "\\`"))
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Returns the length of a comment, which may contain inner comments.
fn comment_length(text: &[u8]) -> usize {
    let mut depth = 0_u32;
    let mut at = 0;
    while at + 2 <= text.len() {
        match &text[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of `$tag$ ... $tag$`, if `text` begins with one.
fn heredoc_length(text: &[u8]) -> Option<usize> {
    let word = text[1..].iter().take_while(|byte| is_word_byte(**byte));
    let tag = word.count() + 2;
    let (open, rest) = text.split_at_checked(tag)?;
    if !open.ends_with(b"$") {
        return None;
    }
    find(rest, open).map(|at| tag + at + tag)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sql: &str, expected: &[&str]) {
        let found: Vec<&str> = tokens(sql).map(|token| token.text).collect();
        assert_eq!(found, expected, "{sql}");
    }

    #[test]
    fn comments_and_blanks_are_left_out() {
        check("SELECT/* a ; */1 -- b ;\n, 2", &["SELECT", "1", ",", "2"]);
        check("# note\nSELECT 1", &["SELECT", "1"]);
        check("/* never closed", &[]);
    }

    #[test]
    fn quoted_text_is_one_token() {
        check(r"a 'it''s; \' b' c", &["a", r"'it''s; \' b'", "c"]);
        check("`a``b`.\"c\"", &["`a``b`", ".", "\"c\""]);
        check("'never closed; \\", &["'never closed; \\"]);
        check("é 'ü' ü(", &["é", "'ü'", "ü", "("]);
        check(
            "a $$ ' $ $$ b $x$ $$ $x$ $ c",
            &["a", "$$ ' $ $$", "b", "$x$ $$ $x$", "$", "c"],
        );
        check("a$$ 1$$'$$", &["a$$", "1", "$$'$$"]);
    }

    proptest::proptest! {
        /// A text that is not read to its end would hide the rest from the guard.
        #[test]
        fn any_text_is_read_to_its_end(sql in "([$a1 '\"`\\\\/*;(#\n-]|\\PC){0,40}") {
            let mut iter = tokens(&sql);
            let mut end = 0;
            for token in iter.by_ref() {
                assert!(token.start >= end && !token.text.is_empty());
                end = token.end();
            }
            assert_eq!(iter.at, sql.len());
        }
    }

    #[test]
    fn comments_nest_as_the_engine_has_it() {
        check("/* /* ' */ ' */ a /**/ b", &["a", "b"]);
        check("/* /* */ never closed", &[]);
    }

    #[test]
    fn foreign_characters_stand_alone() {
        use TokenKind::{Foreign, Text, Word};
        let sql = "a\u{a0}\u{2018}\0'\u{a0}'";
        let kinds: Vec<_> = tokens(sql).map(|token| token.kind).collect();
        assert_eq!(kinds, [Word, Foreign, Foreign, Foreign, Text]);
    }

    #[test]
    fn escape_before_a_wide_character_stays_on_a_boundary() {
        check("'\\é' x", &["'\\é'", "x"]);
        check("'\\é", &["'\\é"]);
    }
}
