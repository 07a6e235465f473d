//! The file `deletions` in the WAL's directory: this collector's tombstones, durable before the device gets its answer.
//!
//! Records of 32 bytes, nothing else:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | 1: a promise; 2: the store hides the installation; 3: forgotten, since nothing of it was ever received |
//! | 1 | 3 | zero |
//! | 4 | 4 | CRC-32C of the other 28 bytes, in order, little endian |
//! | 8 | 8 | milliseconds since 1970, little endian |
//! | 16 | 16 | installation |
//!
//! A promise is written twice: a record with a wrong checksum is skipped, and the other one
//! counts. A crash during a write leaves torn records at the end, which were not acknowledged. The file is rewritten when
//! it has grown: at start, and during operation once it is full.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use epwatch_proto::InstallationId;
use epwatch_server::replace_file;

const NAME: &str = "deletions";
pub(crate) const RECORD_BYTES: usize = 32;

/// Each promise has two records, so that one damaged record loses no deletion.
pub(crate) const PROMISE_BYTES: usize = 2 * RECORD_BYTES;
/// Half a million tombstones. A rewrite drops tombstones that the store has, because a start reads them from the store.
const MAX_BYTES: u64 = 32 << 20;
/// At this size a running collector rewrites the file without hidden tombstones. If this frees too little, it refuses
/// deletions.
const FULL_BYTES: u64 = 256 << 20;

const BURIED: u8 = 1;
const HIDDEN: u8 = 2;
const FORGOTTEN: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tombstone {
    pub(crate) installation: InstallationId,
    pub(crate) at_ms: i64,
}

#[derive(Debug)]
pub(super) struct DeletionLog {
    path: PathBuf,
    file: File,
    len: u64,
    full_bytes: u64,
    /// Tombstones that a rewritten file must hold.
    pending: HashMap<InstallationId, Tombstone>,
}

/// Content of the file.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) all: Vec<Tombstone>,
    /// Tombstones that may still be missing in the store.
    pub(super) pending: Vec<Tombstone>,
}

fn encode(kind: u8, tombstone: &Tombstone) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[0] = kind;
    record[8..16].copy_from_slice(&tombstone.at_ms.to_le_bytes());
    record[16..].copy_from_slice(tombstone.installation.as_bytes());
    let crc = checksum(&record);
    record[4..8].copy_from_slice(&crc.to_le_bytes());
    record
}

/// The two records of a tombstone.
fn promise(tombstone: &Tombstone) -> [[u8; RECORD_BYTES]; 2] {
    [encode(BURIED, tombstone); 2]
}

fn checksum(record: &[u8; RECORD_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..4]), &record[8..])
}

fn decode(record: &[u8; RECORD_BYTES]) -> Option<(u8, Tombstone)> {
    let crc = u32::from_le_bytes(record[4..8].try_into().expect("four bytes"));
    if crc != checksum(record) {
        return None;
    }
    let at_ms = i64::from_le_bytes(record[8..16].try_into().expect("eight bytes"));
    let installation = record[16..].try_into().expect("sixteen bytes");
    let tombstone = Tombstone {
        installation: InstallationId::from_bytes(installation),
        at_ms,
    };
    Some((record[0], tombstone))
}

impl DeletionLog {
    pub(super) fn open(dir: &Path) -> io::Result<(Self, Found)> {
        let path = dir.join(NAME);
        let mut file = open_file(&path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let found = read(&bytes);
        if bytes.len() as u64 > MAX_BYTES {
            rewrite(&path, &found.pending)?;
            file = open_file(&path)?;
        }
        let len = file.metadata()?.len();
        // A torn record is cut off, so that the next one is aligned.
        let len = len - len % RECORD_BYTES as u64;
        file.set_len(len)?;
        // The name of a new file must be durable too.
        File::open(dir)?.sync_all()?;
        let pending = found.pending.iter().map(|t| (t.installation, *t));
        let log = Self {
            path,
            file,
            len,
            full_bytes: FULL_BYTES,
            pending: pending.collect(),
        };
        Ok((log, found))
    }

    /// Makes the tombstone durable.
    pub(super) fn add_tombstone(&mut self, tombstone: &Tombstone) -> io::Result<()> {
        if self.len >= self.full_bytes {
            self.make_room()?;
        }
        self.append(&promise(tombstone).concat())?;
        self.pending.insert(tombstone.installation, *tombstone);
        Ok(())
    }

    /// Rewrites the file if that at least halves it.
    fn make_room(&mut self) -> io::Result<()> {
        let pending: Vec<Tombstone> = self.pending.values().copied().collect();
        let n_bytes = (pending.len() * 2 * RECORD_BYTES) as u64;
        if n_bytes > self.full_bytes / 2 {
            return Err(io::Error::other("the file of deletions is full"));
        }
        rewrite(&self.path, &pending)?;
        self.file = open_file(&self.path)?;
        self.len = n_bytes;
        tracing::info!(
            pending = pending.len(),
            "the file of deletions was written anew"
        );
        Ok(())
    }

    pub(super) fn note_hidden(&mut self, tombstones: &[Tombstone]) -> io::Result<()> {
        self.note_end(HIDDEN, tombstones)
    }

    pub(super) fn note_forgotten(&mut self, tombstones: &[Tombstone]) -> io::Result<()> {
        self.note_end(FORGOTTEN, tombstones)
    }

    fn note_end(&mut self, kind: u8, tombstones: &[Tombstone]) -> io::Result<()> {
        let records = tombstones.iter().flat_map(|t| encode(kind, t));
        self.append(&records.collect::<Vec<u8>>())?;
        for tombstone in tombstones {
            self.pending.remove(&tombstone.installation);
        }
        Ok(())
    }

    fn append(&mut self, records: &[u8]) -> io::Result<()> {
        // Writes at a known position, so that the rest of a failed write is overwritten.
        self.file.write_all_at(records, self.len)?;
        self.file.sync_data()?;
        self.len += records.len() as u64;
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}

fn read(bytes: &[u8]) -> Found {
    let mut all: Vec<Tombstone> = Vec::new();
    let mut seen = HashSet::new();
    let mut forgotten = HashSet::new();
    let mut pending = HashMap::new();
    let mut n_damaged = 0_u64;
    let (records, _torn) = bytes.as_chunks::<RECORD_BYTES>();
    for record in records {
        match decode(record) {
            Some((BURIED, tombstone)) => {
                if seen.insert(tombstone.installation) {
                    all.push(tombstone);
                }
                forgotten.remove(&tombstone.installation);
                pending.insert(tombstone.installation, tombstone);
            }
            Some((end @ (HIDDEN | FORGOTTEN), tombstone)) => {
                pending.remove(&tombstone.installation);
                if end == FORGOTTEN {
                    forgotten.insert(tombstone.installation);
                }
            }
            _ => n_damaged += 1,
        }
    }
    if n_damaged > 0 {
        tracing::error!(records = n_damaged, "the file of deletions is damaged");
    }
    all.retain(|tombstone| !forgotten.contains(&tombstone.installation));
    let mut pending: Vec<Tombstone> = pending.into_values().collect();
    pending.sort_by_key(|tombstone| (tombstone.at_ms, tombstone.installation));
    Found { all, pending }
}

/// Returns the tombstones of another copy of the file as records.
pub(crate) fn tombstones_of(bytes: &[u8]) -> Vec<u8> {
    let tombstones = read(bytes).all;
    tombstones.iter().flat_map(promise).flatten().collect()
}

/// Returns the records that promise these deletions.
pub(crate) fn records_of(tombstones: impl Iterator<Item = Tombstone>) -> Vec<u8> {
    let records = tombstones.map(|tombstone| promise(&tombstone));
    records.flatten().flatten().collect()
}

/// Adds the records of [`records_of`] to the file in `dir`, durably. A tombstone that the file has twice counts once.
pub(crate) fn add_tombstones(dir: &Path, records: &[u8]) -> io::Result<()> {
    let (mut log, _) = DeletionLog::open(dir)?;
    log.append(records)
}

/// Makes the content and the file's name durable: a tombstone of the new file must not be missing after a crash.
fn rewrite(path: &Path, pending: &[Tombstone]) -> io::Result<()> {
    let records = pending.iter().flat_map(promise).flatten();
    replace_file(path, &records.collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tombstone(n: u8) -> Tombstone {
        Tombstone {
            installation: InstallationId::from_bytes([n; 16]),
            at_ms: 1_000 + i64::from(n),
        }
    }

    #[test]
    fn a_torn_tombstone_takes_no_other_with_it_and_no_flipped_byte_takes_any() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = DeletionLog::open(dir.path()).unwrap();
        for n in 1..=3 {
            log.add_tombstone(&tombstone(n)).unwrap();
        }
        drop(log);
        let path = dir.path().join(NAME);
        let whole = fs::read(&path).unwrap();

        for torn in 4 * RECORD_BYTES + 1..5 * RECORD_BYTES {
            fs::write(&path, &whole[..torn]).unwrap();
            let (mut log, found) = DeletionLog::open(dir.path()).unwrap();
            assert_eq!(found.all, [tombstone(1), tombstone(2)]);
            log.add_tombstone(&tombstone(4)).unwrap();
            let (_, found) = DeletionLog::open(dir.path()).unwrap();
            assert_eq!(found.all, [tombstone(1), tombstone(2), tombstone(4)]);
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            let (_, found) = DeletionLog::open(dir.path()).unwrap();
            let all = [tombstone(1), tombstone(2), tombstone(3)];
            assert_eq!(
                (&found.all[..], &found.pending[..]),
                (&all[..], &all[..]),
                "byte {at}"
            );
        }
    }

    /// `store restore --deletions` adds the deletions of a later copy to an older WAL.
    #[test]
    fn tombstones_of_another_copy_are_added_once_more() {
        let (old, later) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut log, _) = DeletionLog::open(old.path()).unwrap();
        log.add_tombstone(&tombstone(1)).unwrap();
        let (mut log, _) = DeletionLog::open(later.path()).unwrap();
        log.add_tombstone(&tombstone(1)).unwrap();
        log.note_hidden(&[tombstone(1)]).unwrap();
        log.add_tombstone(&tombstone(2)).unwrap();
        let records = tombstones_of(&fs::read(later.path().join(NAME)).unwrap());
        add_tombstones(old.path(), &records).unwrap();
        let (_, found) = DeletionLog::open(old.path()).unwrap();
        assert_eq!(found.pending, [tombstone(1), tombstone(2)]);
        assert_eq!(tombstones_of(b"no deletions"), [0; 0]);
    }

    /// Each file call fails in each way, and a promise still stays until the store may have it.
    #[test]
    fn no_failing_call_loses_a_promise() {
        let n_faults = epwatch_io_faults::each_fault(
            1,
            || tempfile::tempdir().unwrap(),
            |dir| {
                let (mut promised, mut hidden) = (Vec::new(), Vec::new());
                for first in [1, 11] {
                    let Ok((mut log, _)) = DeletionLog::open(dir.path()) else {
                        break;
                    };
                    // So small that the file is also replaced between two promises.
                    log.full_bytes = 8 * RECORD_BYTES as u64;
                    for n in first..first + 7 {
                        if log.add_tombstone(&tombstone(n)).is_ok() {
                            promised.push(tombstone(n));
                        }
                        if n % 2 == 0 {
                            hidden.push(tombstone(n));
                            let _ = log.note_hidden(&[tombstone(n)]);
                        }
                    }
                }
                (dir, promised, hidden)
            },
            |(dir, promised, hidden), fault, nth| {
                let (mut log, found) = DeletionLog::open(dir.path()).unwrap();
                for promise in promised.iter().filter(|promise| !hidden.contains(promise)) {
                    let n = found
                        .pending
                        .iter()
                        .filter(|found| *found == promise)
                        .count();
                    assert_eq!(n, 1, "{promise:?} after {fault:?} at call {nth}");
                }
                log.add_tombstone(&tombstone(99)).unwrap();
                let (_, found) = DeletionLog::open(dir.path()).unwrap();
                assert!(found.pending.contains(&tombstone(99)));
            },
        );
        assert!(n_faults > 100, "{n_faults}");
    }

    #[test]
    fn what_was_forgotten_is_no_promise_until_it_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = DeletionLog::open(dir.path()).unwrap();
        for n in 1..=2 {
            log.add_tombstone(&tombstone(n)).unwrap();
        }
        log.note_forgotten(&[tombstone(1)]).unwrap();
        let (mut log, found) = DeletionLog::open(dir.path()).unwrap();
        assert_eq!(found.all, [tombstone(2)]);
        assert_eq!(found.pending, [tombstone(2)]);
        log.add_tombstone(&tombstone(1)).unwrap();
        let (_, found) = DeletionLog::open(dir.path()).unwrap();
        assert_eq!(found.pending, [tombstone(1), tombstone(2)]);
    }

    /// This is how `docs/backup.md` repeats deletions in a store that was restored from an older backup.
    #[test]
    fn a_promise_that_stands_again_behind_its_end_is_carried_out_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = DeletionLog::open(dir.path()).unwrap();
        log.add_tombstone(&tombstone(1)).unwrap();
        log.note_hidden(&[tombstone(1)]).unwrap();
        drop(log);
        let path = dir.path().join(NAME);
        let mut records = fs::read(&path).unwrap();
        records.extend_from_within(..RECORD_BYTES);
        fs::write(&path, records).unwrap();
        let (_, found) = DeletionLog::open(dir.path()).unwrap();
        assert_eq!(found.pending, [tombstone(1)]);
    }

    #[test]
    fn a_full_file_is_written_anew_while_it_is_used_unless_all_of_it_is_pending() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = DeletionLog::open(dir.path()).unwrap();
        log.full_bytes = 8 * RECORD_BYTES as u64;
        for n in 1..=4 {
            log.add_tombstone(&tombstone(n)).unwrap();
        }
        log.add_tombstone(&tombstone(5)).unwrap_err();
        log.note_hidden(&[tombstone(1), tombstone(3)]).unwrap();
        log.add_tombstone(&tombstone(5)).unwrap();
        assert_eq!(log.len, 6 * RECORD_BYTES as u64);
        log.note_hidden(&[tombstone(2)]).unwrap();
        drop(log);
        let (_, found) = DeletionLog::open(dir.path()).unwrap();
        assert_eq!(found.pending, [tombstone(4), tombstone(5)]);
    }

    #[test]
    fn writing_anew_keeps_what_the_store_may_not_have() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let pending = [tombstone(1), tombstone(2)];
        rewrite(&path, &pending).unwrap();
        let (_, found) = DeletionLog::open(dir.path()).unwrap();
        assert_eq!(found.pending, pending);
    }
}
