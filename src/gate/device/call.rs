//! The runner's command line, independent of the machine that its files are on.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The runner's arguments. On this machine files stay at their own paths; for another machine they are pushed first.
#[derive(Debug, Default)]
pub(super) struct RunnerCall {
    words: Vec<Word>,
    /// Files that the runner needs although no argument names them, each with its folder.
    beside: Vec<Pushed>,
    /// Whether the model runs on the NPU or on its emulator.
    pub(super) is_on_npu: bool,
    /// Options that the command line does not give. Their default files fit only this kind of machine.
    pub(super) of_this_machine: Vec<&'static str>,
}

#[derive(Debug)]
enum Word {
    Text(String),
    File { path: PathBuf, folder: &'static str },
    Folder { path: PathBuf, name: &'static str },
}

/// A file, and its path below the session's folder.
pub(super) type Pushed = (PathBuf, String);

/// Folder of the runtime's libraries, where the loader and the DSP look.
pub(super) const LIBRARIES: &str = "lib";

impl RunnerCall {
    pub(super) fn text(&mut self, words: impl IntoIterator<Item = impl Into<String>>) {
        let words = words.into_iter().map(|word| Word::Text(word.into()));
        self.words.extend(words);
    }

    /// Adds a file as an argument; on another machine it goes into a folder of this name.
    pub(super) fn file(&mut self, path: impl Into<PathBuf>, folder: &'static str) {
        let path = path.into();
        self.words.push(Word::File { path, folder });
    }

    /// Adds a folder of files as an argument.
    pub(super) fn folder(&mut self, path: impl Into<PathBuf>, name: &'static str) {
        let path = path.into();
        self.words.push(Word::Folder { path, name });
    }

    /// Adds a file that another file needs in this folder, at this path.
    pub(super) fn needs(&mut self, path: PathBuf, to: String) {
        self.beside.push((path, to));
    }

    /// The arguments on this machine.
    pub(super) fn local(&self) -> impl Iterator<Item = OsString> {
        self.words.iter().map(|word| match word {
            Word::Text(text) => text.into(),
            // A name that begins with a dash would be taken for an option.
            Word::File { path, .. } | Word::Folder { path, .. } => {
                Path::new(".").join(path).into_os_string()
            }
        })
    }

    /// Returns the arguments for another machine, on which the files are below `at`.
    pub(super) fn remote(&self, at: &str) -> Vec<String> {
        let each = self.words.iter().map(|word| match word {
            Word::Text(text) => text.clone(),
            Word::File { path, folder } => format!("{at}/{folder}/{}", name_of(path)),
            Word::Folder { name, .. } => format!("{at}/{name}"),
        });
        each.collect()
    }

    /// All files, each once.
    pub(super) fn files(&self) -> std::io::Result<Vec<Pushed>> {
        let mut files: Vec<Pushed> = Vec::new();
        for word in &self.words {
            match word {
                Word::Text(_) => {}
                Word::File { path, folder } => {
                    files.push((path.clone(), format!("{folder}/{}", name_of(path))));
                }
                Word::Folder { path, name } => {
                    for entry in path.read_dir()? {
                        let path = entry?.path();
                        let to = format!("{name}/{}", name_of(&path));
                        files.extend(path.is_file().then_some((path, to)));
                    }
                }
            }
        }
        files.extend(self.beside.iter().cloned());
        files.sort_by(|(_, a), (_, b)| a.cmp(b));
        files.dedup_by(|(_, a), (_, b)| a == b);
        Ok(files)
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_move_and_words_stay() {
        let mut call = RunnerCall::default();
        call.file("/models/a b.onnx", "candidate");
        call.text(["--runs", "30"]);
        call.needs("/models/a.data".into(), "candidate/a.data".into());
        assert_eq!(
            call.remote("/tmp/x"),
            ["/tmp/x/candidate/a b.onnx", "--runs", "30"]
        );
        let local: Vec<OsString> = call.local().collect();
        assert_eq!(local, ["/models/a b.onnx", "--runs", "30"]);
        let files = call.files().unwrap();
        let to: Vec<&str> = files.iter().map(|(_, to)| to.as_str()).collect();
        assert_eq!(to, ["candidate/a b.onnx", "candidate/a.data"]);
    }
}
