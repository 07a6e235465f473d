//! Splits Rust source into the tokens that its structure needs: comments are dropped, text and numbers are one
//! token each, and `::` stays whole.

/// One token and its line.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    pub(crate) fn is_name(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Reads a whole file.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while at < chars.len() {
        let end = end_of_token(&chars, at);
        let text: String = chars[at..end].iter().collect();
        let is_comment = text.starts_with("//") || text.starts_with("/*");
        if !is_comment && !chars[at].is_whitespace() {
            found.push(Token {
                text: text.trim_start_matches("r#").to_owned(),
                line,
            });
        }
        line += text.matches('\n').count();
        at = end;
    }
    found
}

/// The index after the token that begins at `at`.
fn end_of_token(chars: &[char], at: usize) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let next = |n: usize| chars.get(at + n).copied().unwrap_or(' ');
    let after = |from: usize, stop: &dyn Fn(char) -> bool| {
        (from..chars.len())
            .find(|i| stop(chars[*i]))
            .unwrap_or(chars.len())
    };
    match chars[at] {
        '/' if next(1) == '/' => after(at, &|c| c == '\n'),
        '/' if next(1) == '*' => end_of_block_comment(chars, at),
        '"' => end_of_text(chars, at),
        '\'' if next(1) == '\\' => after(at + 3, &|c| c == '\'') + 1,
        '\'' if next(2) == '\'' => at + 3,
        '\'' => after(at + 1, &|c| !is_word(c)),
        'b' | 'c' if next(1) == '"' => end_of_text(chars, at + 1),
        'b' if next(1) == '\'' => end_of_token(chars, at + 1),
        'r' if next(1) == '"' || next(1) == '#' && matches!(next(2), '"' | '#') => {
            end_of_raw_text(chars, at + 1)
        }
        'b' | 'c' if next(1) == 'r' && matches!(next(2), '"' | '#') => {
            end_of_raw_text(chars, at + 2)
        }
        'r' if next(1) == '#' => after(at + 2, &|c| !is_word(c)),
        ':' if next(1) == ':' => at + 2,
        '-' | '=' if next(1) == '>' => at + 2,
        c if is_word(c) => after(at, &|c| !is_word(c)),
        _ => at + 1,
    }
}

fn end_of_block_comment(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

fn end_of_text(chars: &[char], quote: usize) -> usize {
    let mut i = quote + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

fn end_of_raw_text(chars: &[char], hashes: usize) -> usize {
    let n = chars[hashes..].iter().take_while(|c| **c == '#').count();
    let is_end = |i: usize| {
        chars[i] == '"' && chars[i + 1..].iter().take(n).filter(|c| **c == '#').count() == n
    };
    let end = (hashes + n + 1..chars.len()).find(|i| is_end(*i));
    end.map_or(chars.len(), |i| i + 1 + n)
}
