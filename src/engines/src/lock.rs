//! One process fetches an entry, others wait for it and say so.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
    time::{Duration, Instant},
};

use crate::{EngineError, Progress, command};

/// Longer than the longest fetch another process may be doing.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(
    command::DOWNLOAD_TIMEOUT.as_secs() * 2 + command::UNPACK_TIMEOUT.as_secs(),
);
const POLL: Duration = Duration::from_millis(100);

/// The lock is the open file: it ends with the process, however that ends.
pub(crate) fn lock(
    cache: &Path,
    name: &str,
    timeout: Duration,
    progress: &mut dyn FnMut(Progress),
) -> Result<File, EngineError> {
    let path = cache.join(format!(".{name}.lock"));
    let file = File::create(&path).map_err(EngineError::io("create lock", &path))?;
    let started = Instant::now();
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(EngineError::io("lock", path)(error)),
            Err(TryLockError::WouldBlock) if started.elapsed() >= timeout => {
                return Err(EngineError::LockTimeout {
                    name: name.to_owned(),
                    lock: path,
                    after: timeout,
                });
            }
            Err(TryLockError::WouldBlock) => {
                if !told {
                    told = true;
                    progress(Progress::WaitingForLock {
                        name: name.to_owned(),
                        lock: path.clone(),
                    });
                }
                std::thread::sleep(POLL);
            }
        }
    }
}

pub(crate) fn staging_prefix(name: &str) -> String {
    format!(".{name}.staging-")
}

/// A killed fetch leaves its staging folder; whoever holds the lock next clears it.
pub(crate) fn remove_stale_staging(cache: &Path, name: &str) -> Result<(), EngineError> {
    let prefix = staging_prefix(name);
    for entry in fs::read_dir(cache).map_err(EngineError::io("list", cache))? {
        let entry = entry.map_err(EngineError::io("list", cache))?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            fs::remove_dir_all(entry.path())
                .map_err(EngineError::io("remove stale", entry.path()))?;
        }
    }
    Ok(())
}
