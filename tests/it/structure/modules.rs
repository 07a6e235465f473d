//! Reads a crate's source into its modules: what each defines, imports and names. Items of tests are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::{Token, tokens};

/// The files of a crate, by path.
pub(crate) type Sources = BTreeMap<String, String>;

/// A path as the code spells it: `crate::wal::Log`, `Log`.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) names: Vec<String>,
    pub(crate) line: usize,
    /// The token after it, by which a call and a macro are told from a variable.
    pub(crate) next: String,
}

/// A leaf of a `use` declaration.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) path: Vec<String>,
    /// The name it has here; `None` for `*`.
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
    /// The types that have methods here: `impl Type`, not `impl Trait for Type`.
    pub(crate) methods_of: BTreeSet<String>,
    /// Its text is made by the build: `include!`.
    pub(crate) is_generated: bool,
    /// Where `mod name;` looks for files.
    folder: String,
}

/// The modules of one crate; the first is its root.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    pub(crate) all: Vec<Module>,
}

impl Modules {
    /// Reads the crate whose root file is `root`, and the files it names.
    pub(crate) fn read(sources: &Sources, root: &str) -> Self {
        let mut modules = Self::default();
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        modules.add_file(sources, root, folder, None);
        modules
    }

    fn add(&mut self, module: Module) -> usize {
        self.all.push(module);
        self.all.len() - 1
    }

    fn add_file(
        &mut self,
        sources: &Sources,
        file: &str,
        folder: &str,
        parent: Option<usize>,
    ) -> usize {
        let id = self.add(Module {
            file: file.to_owned(),
            parent,
            folder: folder.to_owned(),
            ..Module::default()
        });
        let tokens = tokens(&sources[file]);
        let mut reader = Reader {
            modules: self,
            sources,
            tokens: &tokens,
        };
        reader.items(id, 0, tokens.len());
        id
    }
}

struct Reader<'a> {
    modules: &'a mut Modules,
    sources: &'a Sources,
    tokens: &'a [Token],
}

impl Reader<'_> {
    fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is(text))
    }

    fn module(&mut self, id: usize) -> &mut Module {
        &mut self.modules.all[id]
    }

    /// The items of a module, between two tokens.
    fn items(&mut self, module: usize, mut at: usize, end: usize) {
        let mut is_public = false;
        while at < end {
            let next = self.tokens.get(at + 1);
            at = match self.tokens[at].text.as_str() {
                "#" => self.attribute(module, at),
                "use" => self.use_declaration(module, at, is_public),
                "mod" => self.child(module, at),
                "impl" => self.implementation(module, at),
                "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" | "fn"
                    if next.is_some_and(|next| next.is_name() && !next.is("fn")) =>
                {
                    self.definition(module, at)
                }
                name if next.is_some_and(|next| next.is("!")) => self.macro_call(module, name, at),
                word => {
                    is_public |= word == "pub";
                    at += 1;
                    continue;
                }
            };
            is_public = false;
        }
    }

    /// Skips an attribute, and with `#[cfg(test)]` and `#[test]` the item that follows too.
    fn attribute(&mut self, module: usize, at: usize) -> usize {
        let open = if self.is(at + 1, "!") { at + 2 } else { at + 1 };
        let end = self.closing(open) + 1;
        let text: String = self.tokens[open + 1..end - 1]
            .iter()
            .map(|t| t.text.as_str())
            .collect();
        if text == "test" || text == "cfg(test)" {
            return if open == at + 2 {
                self.tokens.len()
            } else {
                self.end_of_item(end)
            };
        }
        for token in &self.tokens[open..end] {
            let quoted = token.text.trim_matches('"');
            if token.text.starts_with('"') && quoted.contains("::") && !quoted.contains(' ') {
                let names = quoted.split("::").map(str::to_owned).collect();
                self.modules.all[module].paths.push(Path {
                    names,
                    line: token.line,
                    next: "(".to_owned(),
                });
            }
        }
        end
    }

    /// The index after the item that begins at `at`: after its `;` or braces. A field or a value of a list ends at
    /// its comma.
    fn end_of_item(&self, mut at: usize) -> usize {
        let keyword = (at..self.tokens.len())
            .find(|i| !self.is(*i, "pub"))
            .unwrap_or(at);
        let keyword = if self.is(keyword, "(") {
            self.closing(keyword) + 1
        } else {
            keyword
        };
        let is_any = |words: &[&str]| words.iter().any(|word| self.is(keyword, word));
        let is_value =
            is_any(&["const", "static", "let", "use", "type"]) && !self.is(keyword + 1, "fn");
        let is_item = is_value
            || is_any(&[
                "fn", "struct", "enum", "trait", "impl", "mod", "async", "unsafe", "const",
            ]);
        while at < self.tokens.len() {
            match self.tokens[at].text.as_str() {
                ";" => return at + 1,
                "," if !is_item => return at + 1,
                "}" | ")" | "]" => return at,
                "{" if !is_value => return self.closing(at) + 1,
                "{" | "(" | "[" => at = self.closing(at) + 1,
                _ => at += 1,
            }
        }
        at
    }

    /// The index of the bracket that closes the one at `open`.
    fn closing(&self, open: usize) -> usize {
        let mut depth = 0;
        for at in open..self.tokens.len() {
            match self.tokens[at].text.as_str() {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => continue,
            }
            if depth == 0 {
                return at;
            }
        }
        self.tokens.len() - 1
    }

    fn definition(&mut self, module: usize, at: usize) -> usize {
        let (kind, name) = (&self.tokens[at].text, self.tokens[at + 1].text.clone());
        let line = self.tokens[at + 1].line;
        let is_type = matches!(
            kind.as_str(),
            "struct" | "enum" | "union" | "trait" | "type"
        );
        let end = self.end_of_item(at);
        let module_data = self.module(module);
        module_data.items.insert(name.clone());
        if is_type {
            module_data.types.insert(name, line);
        }
        self.body(module, at + 2, end);
        end
    }

    fn child(&mut self, module: usize, at: usize) -> usize {
        let name = self.tokens[at + 1].text.clone();
        let (file, folder) = (
            self.module(module).file.clone(),
            format!("{}/{name}", self.module(module).folder),
        );
        if self.is(at + 2, "{") {
            let end = self.closing(at + 2);
            let id = self.modules.add(Module {
                file,
                parent: Some(module),
                folder,
                ..Module::default()
            });
            self.module(module).children.insert(name, id);
            self.items(id, at + 3, end);
            return end + 1;
        }
        let candidates = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
        if let Some(file) = candidates
            .iter()
            .find(|file| self.sources.contains_key(*file))
        {
            let id = self
                .modules
                .add_file(self.sources, file, &folder, Some(module));
            self.module(module).children.insert(name, id);
        }
        at + 3
    }

    fn implementation(&mut self, module: usize, at: usize) -> usize {
        let end = self.end_of_item(at);
        let mut header = at + 1;
        if self.is(header, "<") {
            let mut depth = 0;
            loop {
                depth += i32::from(self.is(header, "<")) - i32::from(self.is(header, ">"));
                header += 1;
                if depth == 0 {
                    break;
                }
            }
        }
        let open = (header..end).find(|i| self.is(*i, "{")).unwrap_or(end);
        let is_of_trait = (header..open).any(|i| self.is(i, "for") && !self.is(i + 1, "<"));
        let mut last = None;
        while self.tokens[header].is_name() || self.is(header, "::") {
            last = Some(header);
            header += 1;
        }
        if let Some(last) = last.filter(|_| !is_of_trait) {
            let name = self.tokens[last].text.clone();
            self.module(module).methods_of.insert(name);
        }
        self.body(module, at + 1, end);
        end
    }

    /// `macro_rules! name` defines; any other call at this level may define items in its braces.
    fn macro_call(&mut self, module: usize, name: &str, at: usize) -> usize {
        if name == "macro_rules" {
            let (name, end) = (self.tokens[at + 2].text.clone(), self.closing(at + 3) + 1);
            self.module(module).macros.insert(name.clone());
            self.module(module).items.insert(name);
            self.body(module, at + 4, end);
            return end;
        }
        let end = self.closing(at + 2) + 1;
        self.module(module).is_generated |= name == "include";
        let (names, line) = (vec![name.to_owned()], self.tokens[at].line);
        self.module(module).paths.push(Path {
            names,
            line,
            next: "!".to_owned(),
        });
        self.body(module, at + 3, end);
        let n_paths = self.module(module).paths.len();
        self.items(module, at + 3, end - 1);
        self.module(module).paths.truncate(n_paths);
        end
    }

    /// The paths and inner imports of the text between two tokens.
    fn body(&mut self, module: usize, mut at: usize, end: usize) {
        while at < end {
            let token = &self.tokens[at];
            let is_start = token.is_name() && !self.is(at - 1, ".") && !self.is(at - 1, "::");
            if token.is("#")
                && (self.is(at + 1, "[") || self.is(at + 1, "!") && self.is(at + 2, "["))
            {
                at = self.attribute(module, at);
            } else if token.is("use") && self.tokens[at + 1].is_name() {
                at = self.use_declaration(module, at, false);
            } else if is_start {
                let (line, mut names) = (token.line, vec![token.text.clone()]);
                at += 1;
                while self.is(at, "::") && self.tokens[at + 1].is_name() {
                    names.push(self.tokens[at + 1].text.clone());
                    at += 2;
                }
                let next = self
                    .tokens
                    .get(at)
                    .map_or(String::new(), |t| t.text.clone());
                self.module(module).paths.push(Path { names, line, next });
            } else {
                at += 1;
            }
        }
    }

    fn use_declaration(&mut self, module: usize, at: usize, is_public: bool) -> usize {
        let end = (at..self.tokens.len())
            .find(|i| self.is(*i, ";"))
            .unwrap_or(at);
        self.use_tree(module, at + 1, end, &[], is_public);
        end + 1
    }

    /// One or several trees of a `use`, separated by commas, each below `prefix`.
    fn use_tree(
        &mut self,
        module: usize,
        mut at: usize,
        end: usize,
        prefix: &[String],
        is_public: bool,
    ) {
        let mut path = prefix.to_vec();
        let mut name = None;
        let mut is_group = false;
        let start = at;
        let line = self.tokens[start].line;
        while at < end && !self.is(at, ",") {
            match self.tokens[at].text.as_str() {
                "::" => {}
                "{" => {
                    let close = self.closing(at);
                    self.use_tree(module, at + 1, close, &path, is_public);
                    is_group = true;
                    at = close;
                }
                "*" => name = Some(None),
                "as" => {
                    name = Some(Some(self.tokens[at + 1].text.clone()));
                    at += 1;
                }
                "self" if path.len() > prefix.len() || !prefix.is_empty() => {}
                text => path.push(text.to_owned()),
            }
            at += 1;
        }
        if !is_group && at > start {
            let name = name.unwrap_or_else(|| path.last().cloned());
            self.module(module).uses.push(Use {
                path,
                name,
                is_public,
                line,
            });
        }
        if at + 1 < end {
            self.use_tree(module, at + 1, end, prefix, is_public);
        }
    }
}
