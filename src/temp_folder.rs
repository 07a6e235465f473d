//! A temporary folder in which other processes write.

use std::{fs, io, path::Path, thread, time::Duration};

use tempfile::TempDir;

/// A removal is tried this often, with pauses, because killed processes may still write for a moment.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// A temporary folder that is removed on drop, with all files that ended processes left in it.
#[derive(Debug)]
pub(crate) struct TempFolder(TempDir);

impl TempFolder {
    pub(crate) fn new(prefix: &str) -> io::Result<Self> {
        tempfile::Builder::new().prefix(prefix).tempdir().map(Self)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            match fs::remove_dir_all(self.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
                _ => return,
            }
        }
    }
}
