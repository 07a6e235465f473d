//! The lock of an entry: one process fetches it, and others wait.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
    time::{Duration, Instant},
};

use crate::{EngineError, cache::Say, command};

/// Longest wait for the lock, longer than any fetch of another process.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(
    command::DOWNLOAD_TIMEOUT.as_secs() * 2 + command::UNPACK_TIMEOUT.as_secs(),
);
const POLL: Duration = Duration::from_millis(100);

/// The lock is the open file: the system releases it when the process ends.
pub(crate) fn lock(
    cache: &Path,
    name: &str,
    timeout: Duration,
    say: &mut Say<'_>,
) -> Result<File, EngineError> {
    let path = cache.join(format!(".{name}.lock"));
    let file = File::create(&path).map_err(EngineError::io("create lock", &path))?;
    let started = Instant::now();
    let mut is_announced = false;
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
                if !is_announced {
                    is_announced = true;
                    let lock = path.display();
                    say(&format!(
                        "{name}: another process is fetching it, waiting ({lock})"
                    ));
                }
                std::thread::sleep(POLL);
            }
        }
    }
}

pub(crate) fn staging_prefix(name: &str) -> String {
    format!(".{name}.staging-")
}

/// Removes the staging folder of a killed fetch. The next holder of the lock calls this.
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
