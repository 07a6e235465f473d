//! Finds the items of other files that a file uses, and the circles of these arrows.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Module, Use};

/// For each pair of files, the names that the first uses of the second, with the line of their first use.
pub(crate) type Arrows = BTreeMap<(String, String), BTreeMap<String, usize>>;

/// A module, or an item of it.
type Target = (usize, Option<String>);
type Targets = BTreeSet<Target>;

/// Returns the arrows between files.
///
/// A `mod` line makes no arrow, nor does a module's re-export of items below it. A file with methods of another file's
/// type (`impl Type`) that uses only this type makes none either, because it is a part of that type.
pub(crate) fn arrows(modules: &[Module]) -> Arrows {
    let resolver = Resolver { modules };
    let mut arrows = Arrows::new();
    for (id, module) in modules.iter().enumerate() {
        let mut add = |targets: Targets, line: usize| {
            for (to, name) in targets {
                let to = &modules[to];
                let is_part_of_type = |name: &String| {
                    let mut same_file = modules.iter().filter(|other| other.file == module.file);
                    to.types.contains_key(name) && same_file.any(|m| m.methods_of.contains(name))
                };
                if let Some(name) = name.filter(|name| !is_part_of_type(name))
                    && module.file != to.file
                {
                    let arrow = (module.file.clone(), to.file.clone());
                    arrows.entry(arrow).or_default().entry(name).or_insert(line);
                }
            }
        };
        for import in module.uses.iter().filter(|import| import.name.is_some()) {
            let targets = resolver.resolve(id, &import.path, &mut Vec::new());
            // A function with the same name as its module counts where it is called, not where it is imported.
            let is_of_module = targets.iter().any(|(_, name)| name.is_none());
            let is_reexport = |to: usize| import.is_public && resolver.is_below(to, id);
            if !is_of_module {
                let used = targets.into_iter().filter(|(to, _)| !is_reexport(*to));
                add(used.collect(), import.line);
            }
        }
        for path in &module.paths {
            let last = path.names.last().expect("a path has a name");
            let is_variable = path.names.len() == 1 && last.starts_with(char::is_lowercase);
            if is_variable && !matches!(path.next.as_str(), "(" | "!") {
                continue;
            }
            let mut targets = resolver.resolve(id, &path.names, &mut Vec::new());
            if targets.is_empty() && path.next == "!" {
                // A macro without a path is in scope after its definition in the text.
                let defining = (0..modules.len()).filter(|id| modules[*id].macros.contains(last));
                targets = defining.map(|id| (id, Some(last.clone()))).collect();
            }
            add(targets, path.line);
        }
    }
    arrows
}

struct Resolver<'a> {
    modules: &'a [Module],
}

impl Resolver<'_> {
    fn is_below(&self, module: usize, ancestor: usize) -> bool {
        std::iter::successors(Some(module), |m| self.modules[*m].parent).any(|m| m == ancestor)
    }

    /// Returns the meanings of a path in a module; none for items of other crates.
    ///
    /// `open` holds the imported names that are being resolved.
    fn resolve(&self, id: usize, path: &[String], open: &mut Vec<(usize, String)>) -> Targets {
        let mut targets = Targets::from([(id, None)]);
        for (n_before, name) in path.iter().enumerate() {
            if targets.iter().any(|(_, item)| item.is_none()) {
                targets.retain(|(_, item)| item.is_none());
            }
            let mut below = Targets::new();
            for target in targets {
                let id = target.0;
                match name.as_str() {
                    _ if target.1.is_some() => drop(below.insert(target)),
                    "crate" if n_before == 0 => drop(below.insert((0, None))),
                    "self" if n_before == 0 && path.len() > 1 => drop(below.insert((id, None))),
                    "super" => below.extend(self.modules[id].parent.map(|parent| (parent, None))),
                    _ if n_before == 0 => below.extend(self.lookup(id, name, open)),
                    _ => below.extend(self.member(id, name, open)),
                }
            }
            targets = below;
        }
        targets
    }

    /// Returns the meanings of a name in the module's own code.
    fn lookup(&self, id: usize, name: &str, open: &mut Vec<(usize, String)>) -> Targets {
        let module = &self.modules[id];
        let item = module.items.get(name).map(|item| (id, Some(item.clone())));
        let child = module.children.get(name).map(|child| (*child, None));
        let mut found: Targets = item.into_iter().chain(child).collect();
        let key = (id, name.to_owned());
        if open.contains(&key) {
            return found;
        }
        open.push(key);
        for import in &module.uses {
            if import.name.as_deref() == Some(name) {
                found.extend(self.resolve(id, &import.path, open));
            } else if import.name.is_none() {
                for (from, item) in self.resolve(id, &import.path, open) {
                    if item.is_none() {
                        found.extend(self.lookup(from, name, open));
                    }
                }
            }
        }
        open.pop();
        found
    }

    /// Returns the meanings of a name after a module's path. If the text does not define the name, it comes from a
    /// macro of that file. An exception is a module that imports from another crate or includes generated code.
    fn member(&self, id: usize, name: &str, open: &mut Vec<(usize, String)>) -> Targets {
        let found = self.lookup(id, name, open);
        let module = &self.modules[id];
        let may_bring =
            |import: &Use| import.name.is_none() || import.name.as_deref() == Some(name);
        if found.is_empty() && !module.is_generated && !module.uses.iter().any(may_bring) {
            return Targets::from([(id, Some(name.to_owned()))]);
        }
        found
    }
}

/// Returns the groups of files that reach each other.
pub(crate) fn circles(arrows: &Arrows) -> BTreeSet<BTreeSet<String>> {
    let reached_from = |start: &String| {
        let (mut found, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(file) = open.pop() {
            let next = arrows.keys().filter(|(from, _)| from == file);
            open.extend(
                next.map(|(_, to)| to)
                    .filter(|to| found.insert((*to).clone())),
            );
        }
        found
    };
    let files: BTreeSet<&String> = arrows.keys().map(|(from, _)| from).collect();
    let reached: BTreeMap<&String, BTreeSet<String>> = files
        .into_iter()
        .map(|file| (file, reached_from(file)))
        .collect();
    let meets = |a: &String, b: &String| reached.get(a).is_some_and(|found| found.contains(b));
    let of = |file: &&String| {
        let all = reached[*file].iter().filter(|other| meets(other, file));
        all.cloned().collect()
    };
    let in_circles = reached.keys().filter(|file| meets(file, file));
    in_circles.map(of).collect()
}
