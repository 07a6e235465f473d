//! A folder of an option that one gate uses at a time.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
};

use anyhow::Context;

use crate::output::WrongUse;

/// Makes the folder, and holds it while the file is open. The system gives it back, however the process ends.
pub(super) fn locked(folder: &Path, option: &str) -> anyhow::Result<File> {
    let shown = format!("{option} {}", folder.display());
    fs::create_dir_all(folder).with_context(|| format!("failed to make {shown}"))?;
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
