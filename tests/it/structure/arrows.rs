//! Finds which file uses what of which other file, and the circles that these arrows make.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::Modules;

/// What a file uses of another: names with the line of their first use.
pub(crate) type Arrows = BTreeMap<(String, String), BTreeMap<String, usize>>;

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(usize),
    Item { module: usize, name: String },
}

impl Modules {
    /// The arrows between files.
    ///
    /// None comes from a `mod` line, from the re-export of what lies below a module, or from a file that has
    /// methods of another file's type (`impl Type`) and uses only this type: it is a part of that type.
    pub(crate) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (id, module) in self.all.iter().enumerate() {
            let mut add = |targets: BTreeSet<Target>, line: usize| {
                for target in targets {
                    let Target::Item { module: to, name } = target else {
                        continue;
                    };
                    let (from, to) = (module.file.clone(), self.all[to].file.clone());
                    if from != to {
                        arrows
                            .entry((from, to))
                            .or_default()
                            .entry(name)
                            .or_insert(line);
                    }
                }
            };
            for import in &module.uses {
                let mut targets = self.resolve(id, &import.path, &mut BTreeSet::new());
                // A function that is called like its module counts where it is called.
                let is_of_module = targets
                    .iter()
                    .any(|target| matches!(target, Target::Module(_)));
                let is_reexport = |to: usize| import.is_public && self.is_below(to, id);
                targets.retain(|target| match target {
                    Target::Item { module: to, .. } => !is_of_module && !is_reexport(*to),
                    Target::Module(_) => false,
                });
                if import.name.is_some() {
                    add(targets, import.line);
                }
            }
            for path in &module.paths {
                let is_variable = path.names.len() == 1
                    && path.names[0].starts_with(char::is_lowercase)
                    && !matches!(path.next.as_str(), "(" | "!");
                if is_variable {
                    continue;
                }
                let mut targets = self.resolve(id, &path.names, &mut BTreeSet::new());
                if targets.is_empty() && path.next == "!" {
                    targets = self.textual_macro(path.names.last().map_or("", String::as_str));
                }
                add(targets, path.line);
            }
        }
        for ((from, to), items) in &mut arrows {
            items.retain(|item, _| !self.is_part_of_type(from, to, item));
        }
        arrows.retain(|_, items| !items.is_empty());
        arrows
    }

    fn is_below(&self, module: usize, ancestor: usize) -> bool {
        std::iter::successors(Some(module), |m| self.all[*m].parent).any(|m| m == ancestor)
    }

    fn is_part_of_type(&self, from: &str, to: &str, item: &str) -> bool {
        let of = |file: &str| {
            self.all
                .iter()
                .filter(move |module| module.file == file)
                .collect::<Vec<_>>()
        };
        of(from)
            .iter()
            .any(|module| module.methods_of.contains(item))
            && of(to).iter().any(|module| module.types.contains_key(item))
    }

    /// A macro without a path is in scope by the order of the text.
    fn textual_macro(&self, name: &str) -> BTreeSet<Target> {
        let defining = (0..self.all.len()).filter(|id| self.all[*id].macros.contains(name));
        defining
            .map(|module| Target::Item {
                module,
                name: name.to_owned(),
            })
            .collect()
    }

    /// What `path` means in `module`; nothing for what other crates define.
    fn resolve(
        &self,
        module: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, String)>,
    ) -> BTreeSet<Target> {
        let Some((first, mut rest)) = path.split_first() else {
            return BTreeSet::new();
        };
        let mut targets = match first.as_str() {
            "crate" => BTreeSet::from([Target::Module(0)]),
            "self" if !rest.is_empty() => BTreeSet::from([Target::Module(module)]),
            "super" => self.all[module]
                .parent
                .map(Target::Module)
                .into_iter()
                .collect(),
            name => self.lookup(module, name, seen),
        };
        while let Some((name, after)) = rest.split_first() {
            if targets
                .iter()
                .any(|target| matches!(target, Target::Module(_)))
            {
                targets.retain(|target| matches!(target, Target::Module(_)));
            }
            let below = targets.iter().flat_map(|target| match target {
                Target::Module(id) if name == "super" => self.all[*id]
                    .parent
                    .map(Target::Module)
                    .into_iter()
                    .collect(),
                Target::Module(id) => self.member(*id, name, seen),
                item @ Target::Item { .. } => BTreeSet::from([item.clone()]),
            });
            targets = below.collect();
            rest = after;
        }
        targets
    }

    /// A name of a module as its own code sees it.
    fn lookup(
        &self,
        id: usize,
        name: &str,
        seen: &mut BTreeSet<(usize, String)>,
    ) -> BTreeSet<Target> {
        let module = &self.all[id];
        let mut found = BTreeSet::new();
        if module.items.contains(name) {
            found.insert(Target::Item {
                module: id,
                name: name.to_owned(),
            });
        }
        found.extend(
            module
                .children
                .get(name)
                .map(|child| Target::Module(*child)),
        );
        if seen.insert((id, name.to_owned())) {
            for import in module
                .uses
                .iter()
                .filter(|import| import.name.as_deref() == Some(name))
            {
                found.extend(self.resolve(id, &import.path, seen));
            }
            for glob in module.uses.iter().filter(|import| import.name.is_none()) {
                for target in self.resolve(id, &glob.path, &mut seen.clone()) {
                    if let Target::Module(from) = target {
                        found.extend(self.lookup(from, name, seen));
                    }
                }
            }
            seen.remove(&(id, name.to_owned()));
        }
        found
    }

    /// A name that a path finds in a module. If the text does not define it, a macro of that file does, unless the
    /// module imports the whole of another crate or includes generated code.
    fn member(
        &self,
        id: usize,
        name: &str,
        seen: &mut BTreeSet<(usize, String)>,
    ) -> BTreeSet<Target> {
        let found = self.lookup(id, name, seen);
        let imports = |import: &super::modules::Use| {
            import.name.is_none() || import.name.as_deref() == Some(name)
        };
        let module = &self.all[id];
        if found.is_empty() && !module.is_generated && !module.uses.iter().any(imports) {
            return BTreeSet::from([Target::Item {
                module: id,
                name: name.to_owned(),
            }]);
        }
        found
    }
}

/// The groups of files that reach each other.
pub(crate) fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        next.entry(from).or_default().push(to);
    }
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for start in next.keys() {
        let (mut found, mut open) = (BTreeSet::new(), vec![*start]);
        while let Some(file) = open.pop() {
            let more = next.get(file).into_iter().flatten();
            open.extend(more.filter(|to| found.insert(**to)));
        }
        reached.insert(start, found);
    }
    let meets = |a: &str, b: &str| reached.get(a).is_some_and(|found| found.contains(b));
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for file in reached.keys().filter(|file| meets(file, file)) {
        let is_of = |circle: &BTreeSet<String>| {
            circle
                .first()
                .is_some_and(|other| meets(file, other) && meets(other, file))
        };
        match circles.iter_mut().find(|circle| is_of(circle)) {
            Some(circle) => {
                circle.insert((*file).to_owned());
            }
            None => circles.push(BTreeSet::from([(*file).to_owned()])),
        }
    }
    circles
}
