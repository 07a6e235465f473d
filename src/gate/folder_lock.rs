//! The folder of an option, which only one gate may use at a time.

use std::{
    fs::{self, File, TryLockError},
    io::ErrorKind,
    path::Path,
};

use anyhow::Context;

use crate::output::WrongUse;

/// Makes the folder that an option names.
///
/// # Errors
/// The folder cannot be made. This is wrong use, unless the disk is full.
pub(super) fn made(folder: &Path, option: &str) -> anyhow::Result<()> {
    fs::create_dir_all(folder).map_err(|error| {
        let shown = folder.display();
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                anyhow::Error::new(error).context(format!("failed to make {option} {shown}"))
            }
            _ => WrongUse(format!(
                "{option} {shown}: {error}; give a folder that may be made"
            ))
            .into(),
        }
    })
}

/// Makes the folder, and locks it while the file is open. The system releases the lock, however the process ends.
pub(super) fn locked(folder: &Path, option: &str) -> anyhow::Result<File> {
    let shown = format!("{option} {}", folder.display());
    made(folder, option)?;
    let lock = File::open(folder).with_context(|| format!("failed to open {shown}"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            Err(WrongUse(format!("{shown} is in use by another gate")).into())
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("failed to lock {shown}"))
        }
    }
}
