//! The lock of a data folder: one process of epwatch at a time has the embedded store open.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};

const NAME: &str = "lock";

/// Held as long as the process uses the folder. The system releases it when the process ends in any way.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes the lock. Makes the folder if it does not exist, for this user alone whatever the umask.
    ///
    /// # Errors
    /// Another process holds it, which the text names; or the folder cannot be written.
    pub(crate) fn take(data_dir: &Path) -> anyhow::Result<Self> {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(data_dir);
        made.with_context(|| format!("failed to make {}", data_dir.display()))?;
        let path = data_dir.join(NAME);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(&path);
        let mut file = file.with_context(|| format!("failed to open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                bail!(
                    "the data folder {} is in use by process {}; stop that one, or choose another --data-dir",
                    data_dir.display(),
                    holder.trim()
                );
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("failed to lock {}", path.display()));
            }
        }
        // The text is only for people: a lock counts without it.
        let command = std::env::args().nth(1).unwrap_or_default();
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{} (epwatch {command})", std::process::id()));
        Ok(Self { _file: file })
    }
}
