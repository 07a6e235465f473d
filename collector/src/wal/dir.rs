//! The WAL's directory: locked for one process, with the random collector id that identifies its records.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epwatch_proto::{hex, unhex};
use epwatch_server::private_dir;

use super::WalError;
use super::checkpoint;
use super::storage::{self, DirStorage, Storage};

const LOCK_FILE: &str = "lock";
const ID_FILE: &str = "collector-id";

/// 128 random bits, made with a WAL directory. A new directory is a new collector.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CollectorId(pub [u8; 16]);

impl CollectorId {
    /// Returns the collector's id in the store.
    #[must_use]
    pub fn short(&self) -> u64 {
        u64::from_be_bytes(*self.0.first_chunk().expect("sixteen bytes"))
    }
}

impl fmt::Display for CollectorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for CollectorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CollectorId({self})")
    }
}

/// An open, locked directory.
#[derive(Debug)]
pub(crate) struct WalDir {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) collector_id: CollectorId,
    /// Held while the WAL is open; the kernel releases it at the end of the process. `None` in tests
    /// without a directory.
    pub(crate) _lock: Option<File>,
}

impl WalDir {
    pub(crate) fn open(dir: &Path) -> Result<Self, WalError> {
        private_dir(dir).map_err(WalError::io("make wal directory"))?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join(LOCK_FILE))
            .map_err(WalError::io("open wal lock file"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(WalError::Locked {
                    dir: dir.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => {
                return Err(WalError::io("lock wal directory")(error));
            }
        }
        let storage: Arc<dyn Storage> = Arc::new(DirStorage::new(dir));
        let collector_id =
            load_or_make_id(&*storage).map_err(WalError::io("read or make collector id"))?;
        Ok(Self {
            storage,
            collector_id,
            _lock: Some(lock),
        })
    }
}

impl WalDir {
    /// Moves the WAL's files into a folder of its directory: the next open makes a new WAL with a new id. The lock, spares,
    /// deletions and names stay.
    pub(crate) fn set_aside(&self, dir: &Path) -> io::Result<PathBuf> {
        let aside = dir.join(format!("set-aside-{}", self.collector_id));
        private_dir(&aside)?;
        let mut names = self.storage.list()?;
        names.retain(|name| super::segment::base_of(name).is_some());
        // The id last: without it the rest would be a WAL that cannot be opened.
        names.extend([checkpoint::FILE.to_owned(), ID_FILE.to_owned()]);
        for name in names {
            match fs::rename(dir.join(&name), aside.join(&name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                renamed => renamed?,
            }
        }
        File::open(dir)?.sync_all()?;
        Ok(aside)
    }
}

/// Reads the collector id, or makes one. Without segments and checkpoint the used offsets are unknown, and the store
/// would take a batch with used offsets for a repetition. The WAL then starts over with a new id.
pub(crate) fn load_or_make_id(storage: &dyn Storage) -> io::Result<CollectorId> {
    let names = storage.list()?;
    let has_segments = names
        .iter()
        .any(|name| super::segment::base_of(name).is_some());
    if names.iter().any(|name| name == ID_FILE) {
        match stored_id(storage)? {
            Some(id) if has_segments => return Ok(id),
            Some(id) if checkpoint::load(storage, &id.0)?.is_some() => return Ok(id),
            // The id is part of every record's checksum, so it cannot be replaced.
            None if has_segments => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "file collector-id is damaged; put it back, or move the wal directory away",
                ));
            }
            Some(_) | None => {}
        }
    } else if has_segments {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "file collector-id is missing; put it back, or move the wal directory away",
        ));
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let id = CollectorId(id);
    storage::replace(storage, ID_FILE, id.to_string().as_bytes())?;
    Ok(id)
}

/// Reads the id of an existing WAL.
pub(crate) fn read_id(storage: &dyn Storage) -> io::Result<CollectorId> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "file collector-id is damaged");
    stored_id(storage)?.ok_or_else(damaged)
}

/// `None` if the file is damaged.
fn stored_id(storage: &dyn Storage) -> io::Result<Option<CollectorId>> {
    let mut text = [0; 32];
    let n_read = storage.open(ID_FILE)?.read_at(0, &mut text)?;
    let id = std::str::from_utf8(&text[..n_read]).ok().and_then(unhex);
    Ok(id.and_then(|id| id.try_into().ok()).map(CollectorId))
}
