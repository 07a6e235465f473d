//! Files shared by several processes: locks, and atomic replacement.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
};

/// Prefix of unfinished files, which a kill may leave.
pub(crate) const UNFINISHED: &str = ".epwatch-";

/// A lock on a file, released when it is dropped or its process dies.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: File,
}

impl FileLock {
    /// Waits for the lock. Threads that must not wait for files must not call it.
    pub(crate) fn wait(path: &Path) -> io::Result<Self> {
        let file = open_private(path)?;
        flock::wait(&file)?;
        Ok(Self { file })
    }

    /// Takes the lock unless a living process holds it.
    pub(crate) fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = open_private(path)?;
        let is_ours = flock::try_take(&file)?;
        Ok(is_ours.then(|| Self { file }))
    }
}

impl Drop for FileLock {
    /// Closing the file is not enough: a child that the host forks at this moment has the file open too.
    fn drop(&mut self) {
        let _ = flock::release(&self.file);
    }
}

/// Replaces std's locks, because on Android they are stubs that fail in Rust before 1.98.
#[cfg(unix)]
mod flock {
    use std::{fs::File, io};

    use rustix::{
        fs::{FlockOperation, flock},
        io::{Errno, retry_on_intr},
    };

    pub(super) fn wait(file: &File) -> io::Result<()> {
        Ok(retry_on_intr(|| {
            flock(file, FlockOperation::LockExclusive)
        })?)
    }

    /// `false` if another process or handle holds it.
    pub(super) fn try_take(file: &File) -> io::Result<bool> {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn release(file: &File) -> io::Result<()> {
        Ok(flock(file, FlockOperation::Unlock)?)
    }
}

#[cfg(not(unix))]
#[expect(
    clippy::disallowed_methods,
    reason = "std's locks work there, and rustix has none"
)]
mod flock {
    use std::{
        fs::{File, TryLockError},
        io,
    };

    pub(super) fn wait(file: &File) -> io::Result<()> {
        file.lock()
    }

    pub(super) fn try_take(file: &File) -> io::Result<bool> {
        match file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    pub(super) fn release(file: &File) -> io::Result<()> {
        file.unlock()
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

/// Opens a file for reading and writing, or creates it for this user only.
pub(crate) fn open_private(path: &Path) -> io::Result<File> {
    options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
}

/// Creates a folder and its parents for this user only.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(path)
}

/// Reads a file of the SDK; `None` if there is none. A file that is too large for the SDK to have written it counts as
/// empty.
pub(crate) fn read_ours(path: &Path, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    match read_at_most(path, max_bytes) {
        Ok(content) => Ok(Some(content)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::FileTooLarge => Ok(Some(Vec::new())),
            _ => Err(error),
        },
    }
}

/// Reads a file, unless it is larger than the SDK writes it.
pub(crate) fn read_at_most(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?
        .take(max_bytes + 1)
        .read_to_end(&mut content)?;
    if content.len() as u64 > max_bytes {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(content)
}

/// Replaces a file atomically: readers see the old content or the new one, also after a power cut.
///
/// The caller holds the lock that protects the file.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut name = OsString::from(UNFINISHED);
    name.push(path.file_name().unwrap_or_default());
    let unfinished = dir.join(name);
    let written = write(&unfinished, content).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    sync_dir(dir)
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = options()
        .create(true)
        .truncate(true)
        .write(true)
        .open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Syncs a folder, so that the names of its files are durable too.
#[cfg(unix)]
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(not(unix))]
pub(crate) fn sync_dir(_dir: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = FileLock::try_take(&path).unwrap();
        assert!(first.is_some());
        assert!(FileLock::try_take(&path).unwrap().is_none());
        drop(first);
        let second = FileLock::wait(&path).unwrap();
        assert!(FileLock::try_take(&path).unwrap().is_none());
        drop(second);
        assert!(FileLock::try_take(&path).unwrap().is_some());
    }
}
