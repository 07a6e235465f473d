//! What the checks may ask of a host: its environment, and which files are there.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
};

/// A host, or one that a test made up.
pub trait Host {
    /// A variable of the environment; set, also where it is no UTF-8.
    fn variable(&self, name: &str) -> Option<String>;

    /// Whether something is at this path.
    fn exists(&self, path: &Path) -> bool;

    /// Whether this process may open it for reading and writing, as the DSP's driver must be.
    fn may_use(&self, path: &Path) -> bool;
}

/// The machine this runs on.
#[derive(Debug, Clone, Default)]
pub struct SystemHost {
    root: PathBuf,
}

impl SystemHost {
    /// The files below `root`, in place of the machine's own: for tests.
    pub fn with_root(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn at(&self, path: &Path) -> PathBuf {
        match self.root.as_os_str().is_empty() {
            true => path.to_owned(),
            false => self.root.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }
}

impl Host for SystemHost {
    fn variable(&self, name: &str) -> Option<String> {
        Some(std::env::var_os(name)?.to_string_lossy().into_owned())
    }

    fn exists(&self, path: &Path) -> bool {
        fs::metadata(self.at(path)).is_ok()
    }

    fn may_use(&self, path: &Path) -> bool {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.at(path));
        opened.is_ok()
    }
}
