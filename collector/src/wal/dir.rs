//! The WAL's directory: locked for one process, with the random collector id that identifies its records.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epwatch_proto::{hex, unhex};
use epwatch_server::private_dir;
use parking_lot::Mutex;

use super::WalError;
use super::checkpoint;
use super::segment::SegmentHeader;
use super::storage::{self, DirStorage, Storage};

const LOCK_FILE: &str = "lock";
pub(super) const ID_FILE: &str = "collector-id";

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
    /// The lock, until the WAL is closed; the kernel releases it at the end of the process. `None` once the WAL is
    /// closed, and in tests without a directory.
    pub(crate) lock: Mutex<Option<File>>,
}

impl WalDir {
    pub(crate) fn open(dir: &Path) -> Result<Self, WalError> {
        private_dir(dir).map_err(WalError::io("make wal directory"))?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join(LOCK_FILE))
            .map_err(WalError::io("open wal lock file"))?;
        match lock.try_lock() {
            // Writes the process id for a process that finds the directory locked. A full disk does not prevent a
            // start.
            Ok(()) => {
                let id = format!("{}\n", std::process::id());
                let _ = lock.set_len(0).and_then(|()| lock.write_all(id.as_bytes()));
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let _ = lock.take(16).read_to_string(&mut text);
                return Err(WalError::Locked {
                    dir: dir.to_owned(),
                    process: text.trim_end().parse().ok(),
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
            lock: Mutex::new(Some(lock)),
        })
    }
}

impl WalDir {
    /// Gives the directory to the next process. Handles of this WAL may live on; nothing may be written after this.
    pub(crate) fn release(&self) {
        if let Some(lock) = self.lock.lock().take() {
            // A child process that is about to start may have a copy of the descriptor, and a drop alone would leave it
            // locked.
            let _ = lock.unlock();
        }
    }

    /// Moves the WAL's files into a folder of its directory. The next open then makes a new WAL with a new id. The
    /// lock, spares, deletions and names stay.
    pub(crate) fn set_aside(&self, dir: &Path) -> io::Result<PathBuf> {
        let aside = dir.join(format!("set-aside-{}", self.collector_id));
        private_dir(&aside)?;
        let mut names = self.storage.list()?;
        names.retain(|name| super::segment::base_of(name).is_some());
        // The id moves last, because the remaining files without it would be a WAL that cannot be opened.
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

/// Reads the collector id, or makes one. Without segments and an undamaged checkpoint the used offsets are unknown. The
/// store would take a batch with used offsets for a repetition, so the WAL starts over with a new id.
pub(crate) fn load_or_make_id(storage: &dyn Storage) -> io::Result<CollectorId> {
    let is_segment = |name: &String| super::segment::base_of(name).is_some();
    let has_segments = storage.list()?.iter().any(is_segment);
    let stored = stored_id(storage)?;
    let known = match stored {
        Some(id) => Some(id),
        // The id is part of every record's checksum, so another id would lose all records.
        None => id_of_its_files(storage)?,
    };
    if let Some(id) = known
        && (has_segments || checkpoint::load(storage, &id.0)?.latest.is_some())
    {
        if stored.is_none() {
            tracing::error!(%id, "file collector-id was damaged or missing: written again as the WAL's files have it");
            write_id(storage, id)?;
        }
        return Ok(id);
    }
    if has_segments {
        return Err(no_id());
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let id = CollectorId(id);
    write_id(storage, id)?;
    Ok(id)
}

/// Reads the id of an existing WAL.
pub(crate) fn read_id(storage: &dyn Storage) -> io::Result<CollectorId> {
    if let Some(id) = stored_id(storage)? {
        return Ok(id);
    }
    id_of_its_files(storage)?.ok_or_else(no_id)
}

fn no_id() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "file collector-id is damaged or missing, and no other file of the WAL has the id; put it back, or move the \
         wal directory away",
    )
}

/// Writes the id and the CRC-32C of its text, both as hex.
fn write_id(storage: &dyn Storage, id: CollectorId) -> io::Result<()> {
    let id = id.to_string();
    let text = format!("{id} {:08x}\n", crc32c::crc32c(id.as_bytes()));
    storage::replace(storage, ID_FILE, text.as_bytes())
}

/// Returns the id in the file; `None` if the file is missing or damaged.
fn stored_id(storage: &dyn Storage) -> io::Result<Option<CollectorId>> {
    let file = match storage.open(ID_FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = [0; 64];
    // A page that cannot be read counts as damaged.
    let n_read = file.read_at(0, &mut text).unwrap_or(0);
    Ok(parse_id(&text[..n_read]))
}

fn parse_id(text: &[u8]) -> Option<CollectorId> {
    let (id, crc) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    let is_whole = crc == format!("{:08x}\n", crc32c::crc32c(id.as_bytes()));
    let id = unhex(id).and_then(|id| id.try_into().ok());
    id.filter(|_| is_whole).map(CollectorId)
}

/// Returns the id in the checkpoint or in a segment's header. Returns `None` if they have several ids, because then
/// none is certain.
fn id_of_its_files(storage: &dyn Storage) -> io::Result<Option<CollectorId>> {
    let mut found = checkpoint::wal_id(storage)?.map(CollectorId);
    for name in storage.list()? {
        let Some(base) = super::segment::base_of(&name) else {
            continue;
        };
        let mut bytes = [0; 64];
        let n_read = storage.open(&name)?.read_at(0, &mut bytes).unwrap_or(0);
        if let Ok(Some(header)) = SegmentHeader::decode(&name, &bytes[..n_read])
            && header.base == base
        {
            let id = CollectorId(header.wal_id);
            if *found.get_or_insert(id) != id {
                return Ok(None);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::faulty_storage::FaultyStorage;
    use super::super::segment;
    use super::*;

    /// The WAL has only a checkpoint, only a segment, or both.
    #[test]
    fn a_damaged_or_lost_id_is_found_in_the_wal_s_other_files() {
        for (has_checkpoint, has_segment) in [(true, false), (false, true), (true, true)] {
            let storage = FaultyStorage::default();
            let id = load_or_make_id(&storage).unwrap();
            if has_checkpoint {
                checkpoint::save(&storage, &id.0, &checkpoint::Checkpoint::default()).unwrap();
            }
            if has_segment {
                let header = SegmentHeader {
                    wal_id: id.0,
                    base: 0,
                    not_before_us: 1,
                };
                let file = storage.create(&segment::file_name(0)).unwrap();
                file.write_at(0, &header.encode()).unwrap();
            }
            let whole = storage.disk().files[ID_FILE].lock().cached.clone();
            for at in 0..whole.len() {
                storage.corrupt(ID_FILE, at);
                assert_eq!(read_id(&storage).unwrap(), id, "byte {at}");
                assert_eq!(load_or_make_id(&storage).unwrap(), id, "byte {at}");
                assert_eq!(storage.disk().files[ID_FILE].lock().cached, whole);
                storage.open(ID_FILE).unwrap().set_len(at as u64).unwrap();
                assert_eq!(load_or_make_id(&storage).unwrap(), id, "cut at {at}");
            }
            storage.remove(ID_FILE).unwrap();
            assert_eq!(load_or_make_id(&storage).unwrap(), id);
        }
    }
}
