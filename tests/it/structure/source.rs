//! Reads a crate's source into its modules: their definitions, imports and paths. Items of tests are left out.

use std::collections::{BTreeMap, BTreeSet};

/// The files of a crate, by path.
pub(crate) type Sources = BTreeMap<String, String>;

/// A path as written in the code: `crate::wal::Log`, `Log`.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) names: Vec<String>,
    pub(crate) line: usize,
    /// The token after the path, which shows a call or a macro.
    pub(crate) next: String,
}

/// A leaf of a `use` declaration.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) path: Vec<String>,
    /// The name that the import gets; `None` for `*`.
    pub(crate) name: Option<String>,
    pub(crate) is_public: bool,
    pub(crate) line: usize,
}

/// A module, inline or of its own file.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) file: String,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    pub(crate) items: BTreeSet<String>,
    /// Structs, enums, unions, traits and type aliases, with their lines.
    pub(crate) types: BTreeMap<String, usize>,
    pub(crate) macros: BTreeSet<String>,
    pub(crate) uses: Vec<Use>,
    pub(crate) paths: Vec<Path>,
    /// The types of its `impl Type` blocks, without types of `impl Trait for Type`.
    pub(crate) methods_of: BTreeSet<String>,
    /// Whether the module has an `include!` of generated code.
    pub(crate) is_generated: bool,
}

/// Reads the modules of the crate whose root file is `root`; the root is the first.
pub(crate) fn modules(sources: &Sources, root: &str) -> Vec<Module> {
    let mut reader = Reader {
        sources,
        modules: Vec::new(),
    };
    let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
    reader.file(root, folder, None);
    reader.modules
}

struct Reader<'a> {
    sources: &'a Sources,
    modules: Vec<Module>,
}

impl Reader<'_> {
    fn module(&mut self, file: &str, parent: Option<usize>) -> usize {
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            ..Module::default()
        });
        self.modules.len() - 1
    }

    /// Reads a file; `folder` is where its `mod name;` finds files.
    fn file(&mut self, file: &str, folder: &str, parent: Option<usize>) -> usize {
        let root = self.module(file, parent);
        let tokens = Tokens(without_tests(&Tokens(tokens(&self.sources[file]))));
        // The open braces around items, each with its module, its folder, and the depth in it.
        let mut open = vec![(root, folder.to_owned(), 0)];
        let (mut depth, mut at) = (0, 0);
        while at < tokens.0.len() {
            let (id, folder, level) = open.last().expect("the root is never closed").clone();
            let is_item = depth == level;
            let (word, next) = (tokens.at(at), tokens.at(at + 1));
            let before = tokens.at(at.wrapping_sub(1));
            let line = tokens.0[at].line;
            match word {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => {
                    if is_item && open.len() > 1 {
                        open.pop();
                    }
                    depth -= 1;
                }
                "use" if next != "<" => {
                    let is_public = is_item && matches!(before, "pub" | ")");
                    at = self.imports(id, &tokens, at + 1, &[], is_public);
                }
                "mod" if is_item => {
                    let folder = format!("{folder}/{next}");
                    let child = if tokens.at(at + 2) == "{" {
                        let child = self.module(file, Some(id));
                        open.push((child, folder, depth + 1));
                        Some(child)
                    } else {
                        let paths = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
                        let path = paths.iter().find(|path| self.sources.contains_key(*path));
                        path.map(|path| self.file(path, &folder, Some(id)))
                    };
                    let children = &mut self.modules[id].children;
                    children.extend(child.map(|child| (next.to_owned(), child)));
                    at += 1;
                }
                "macro_rules" => {
                    let name = tokens.at(at + 2).to_owned();
                    self.modules[id].macros.insert(name.clone());
                    self.modules[id].items.insert(name);
                    at += 2;
                }
                "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" | "fn"
                    if is_item && is_name(next) && next != "fn" =>
                {
                    self.modules[id].items.insert(next.to_owned());
                    if !matches!(word, "const" | "static" | "fn") {
                        self.modules[id].types.insert(next.to_owned(), line);
                    }
                    at += 1;
                }
                "impl" if is_item && matches!(before, "" | ";" | "}" | "{" | "unsafe") => {
                    let of = tokens.inherent_type(at).map(str::to_owned);
                    self.modules[id].methods_of.extend(of);
                }
                _ if is_name(word) && !matches!(before, "." | "::" | "fn") => {
                    let mut names = vec![word.to_owned()];
                    while tokens.at(at + 1) == "::" && is_name(tokens.at(at + 2)) {
                        names.push(tokens.at(at + 2).to_owned());
                        at += 2;
                    }
                    let next = tokens.at(at + 1).to_owned();
                    if is_item && next == "!" {
                        // The macro call may define items.
                        open.push((id, folder, depth + 1));
                        self.modules[id].is_generated |= word == "include";
                    }
                    self.modules[id].paths.push(Path { names, line, next });
                }
                _ => {}
            }
            at += 1;
        }
        root
    }

    /// Reads one tree of a `use` below `prefix`; returns the index of the token after it.
    fn imports(
        &mut self,
        id: usize,
        tokens: &Tokens,
        mut at: usize,
        prefix: &[String],
        is_public: bool,
    ) -> usize {
        let line = tokens.0[at].line;
        let mut path = prefix.to_vec();
        let mut renamed = None;
        loop {
            match tokens.at(at) {
                "{" => {
                    at += 1;
                    while tokens.at(at) != "}" {
                        at = self.imports(id, tokens, at, &path, is_public);
                        at += usize::from(tokens.at(at) == ",");
                    }
                    return at + 1;
                }
                "as" => {
                    at += 1;
                    renamed = Some(tokens.at(at).to_owned());
                }
                end @ ("*" | "," | "}" | ";") => {
                    let is_glob = end == "*";
                    let name = renamed.or_else(|| path.last().cloned());
                    self.modules[id].uses.push(Use {
                        name: name.filter(|_| !is_glob),
                        path,
                        is_public,
                        line,
                    });
                    return at + usize::from(is_glob);
                }
                "::" => {}
                "self" if !path.is_empty() => {}
                word => path.push(word.to_owned()),
            }
            at += 1;
        }
    }
}

#[derive(Debug, Clone)]
struct Token {
    text: String,
    line: usize,
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

struct Tokens(Vec<Token>);

impl Tokens {
    /// Returns the text of a token, which is empty beyond the ends.
    fn at(&self, at: usize) -> &str {
        self.0.get(at).map_or("", |token| &token.text)
    }

    /// The index of the bracket that closes the one at `open`.
    fn closing(&self, open: usize) -> usize {
        let mut depth = 0;
        for at in open..self.0.len() {
            match self.at(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        self.0.len()
    }

    /// The index after the item, field or variant that begins at `at`.
    fn end_of_item(&self, mut at: usize) -> usize {
        let (mut is_item, mut is_value) = (false, false);
        while at < self.0.len() {
            match self.at(at) {
                "fn" | "struct" | "enum" | "trait" | "impl" | "mod" => is_item = true,
                "=" | "use" => is_value |= !is_item,
                ";" => return at + 1,
                "," if !is_item => return at + 1,
                "}" | ")" | "]" => return at,
                "{" if !is_value => return self.closing(at) + 1,
                "{" | "(" | "[" => at = self.closing(at),
                _ => {}
            }
            at += 1;
        }
        at
    }

    /// The type of an `impl Type` block; `None` for `impl Trait for Type`.
    fn inherent_type(&self, at: usize) -> Option<&str> {
        let mut header = at + 1;
        let mut depth = 0;
        while self.at(header) == "<" || depth > 0 {
            depth += i32::from(self.at(header) == "<") - i32::from(self.at(header) == ">");
            header += 1;
        }
        let mut words = (header..self.0.len()).take_while(|i| self.at(*i) != "{");
        if words.any(|i| self.at(i) == "for" && self.at(i + 1) != "<") {
            return None;
        }
        let path = (header..).take_while(|i| is_name(self.at(*i)) || self.at(*i) == "::");
        path.last().map(|last| self.at(last))
    }
}

/// Leaves out attributes, and the items behind `#[test]` and `#[cfg(test)]`. The quoted paths of an attribute stay.
fn without_tests(all: &Tokens) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < all.0.len() {
        let is_inner = all.at(at + 1) == "!";
        let open = at + 1 + usize::from(is_inner);
        if all.at(at) != "#" || all.at(open) != "[" {
            kept.push(all.0[at].clone());
            at += 1;
            continue;
        }
        let end = all.closing(open) + 1;
        let inside = &all.0[open + 1..end - 1];
        let text: String = inside.iter().map(|token| token.text.as_str()).collect();
        let is_test = text == "test" || text == "cfg(test)";
        if is_test && is_inner {
            return Vec::new();
        }
        at = if is_test { all.end_of_item(end) } else { end };
        for token in inside {
            let quoted = token.text.trim_matches('"');
            if !is_test && quoted != token.text && quoted.contains("::") && !quoted.contains(' ') {
                let line = token.line;
                kept.extend(
                    tokens(quoted)
                        .into_iter()
                        .map(|token| Token { line, ..token }),
                );
            }
        }
    }
    kept
}

/// Splits source into tokens: comments are dropped, a text is one token, and so are `::`, `->` and `=>`.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while at < chars.len() {
        let end = end_of_token(&chars, at);
        let text: String = chars[at..end].iter().collect();
        let n_lines = text.matches('\n').count();
        let is_comment = text.starts_with("//") || text.starts_with("/*");
        if !is_comment && !chars[at].is_whitespace() {
            let text = text.trim_start_matches("r#").to_owned();
            found.push(Token { text, line });
        }
        (at, line) = (end, line + n_lines);
    }
    found
}

/// The index after the token that begins at `at`.
fn end_of_token(chars: &[char], at: usize) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let starts = |text: &str| {
        text.chars()
            .enumerate()
            .all(|(i, c)| chars.get(at + i) == Some(&c))
    };
    let next = |n: usize| chars.get(at + n).copied().unwrap_or(' ');
    let find = |from: usize, is_end: &dyn Fn(usize) -> bool| {
        (from..chars.len())
            .find(|i| is_end(*i))
            .unwrap_or(chars.len())
    };
    let prefix = (0..2).take_while(|n| "bcr".contains(next(*n))).count();
    let hashes = (prefix..).take_while(|n| next(*n) == '#').count();
    let is_raw = prefix > 0 && next(prefix - 1) == 'r';
    if is_raw && next(prefix + hashes) == '"' {
        let close: Vec<char> = std::iter::once('"').chain(vec!['#'; hashes]).collect();
        let open = at + prefix + hashes + 1;
        return (find(open, &|i| chars[i..].starts_with(&close)) + close.len()).min(chars.len());
    }
    if next(prefix) == '"' {
        let is_escaped =
            |i: usize| chars[..i].iter().rev().take_while(|c| **c == '\\').count() % 2 == 1;
        let end = find(at + prefix + 1, &|i| chars[i] == '"' && !is_escaped(i));
        return (end + 1).min(chars.len());
    }
    match chars[at] {
        _ if starts("//") => find(at, &|i| chars[i] == '\n'),
        _ if starts("/*") => find(at + 2, &|i| chars[i..].starts_with(&['*', '/'])) + 2,
        _ if starts("'\\") => find(at + 3, &|i| chars[i] == '\'') + 1,
        '\'' if next(2) == '\'' => at + 3,
        '\'' => find(at + 1, &|i| !is_word(chars[i])),
        _ if starts("b'") => end_of_token(chars, at + 1),
        _ if starts("r#") => find(at + 2, &|i| !is_word(chars[i])),
        _ if starts("::") || starts("->") || starts("=>") => at + 2,
        c if is_word(c) => find(at, &|i| !is_word(chars[i])),
        _ => at + 1,
    }
}
