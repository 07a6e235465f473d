//! The environment and the files of a host, which the checks read.

use std::{
    fs::{self, OpenOptions},
    path::Path,
};

/// A host, or a test's imitation of one.
pub(crate) trait Host {
    /// Returns a variable of the environment, lossily if it is not UTF-8.
    fn variable(&self, name: &str) -> Option<String>;

    /// Whether a file or folder exists at this path.
    fn exists(&self, path: &Path) -> bool;

    /// Whether this process may open a path for reading and writing, as the DSP's driver requires.
    fn may_use(&self, path: &Path) -> bool;
}

/// The machine that this process runs on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SystemHost;

impl Host for SystemHost {
    fn variable(&self, name: &str) -> Option<String> {
        Some(std::env::var_os(name)?.to_string_lossy().into_owned())
    }

    fn exists(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok()
    }

    fn may_use(&self, path: &Path) -> bool {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.is_ok()
    }
}
