//! The writer's checkpoint: one small file, replaced as a whole. It has two records of 56 bytes: the checkpoint, then
//! the checkpoint before it. If the first record is damaged, the other is a lower bound: WAL records above it may be in
//! the store already.
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 8 | `EPWCKPT` and the version, 1 |
//! | 8 | 16 | WAL id |
//! | 24 | 8 | checkpoint: everything below is in the store |
//! | 32 | 8 | no record at or after the checkpoint was received before this time, us since 1970 |
//! | 40 | 8 | end of the batch that is being written; the checkpoint itself without one |
//! | 48 | 4 | reserved, zero |
//! | 52 | 4 | CRC-32C of bytes 0..52 |
//!
//! The batch's end is written before the batch is inserted. The store identifies a batch by its range of offsets, so after a
//! crash exactly the same range must be inserted again.

use std::io;

use super::frame::WalOffset;
use super::segment;
use super::storage::{self, Storage};

pub(super) const FILE: &str = "checkpoint";
const MAGIC: &[u8; 8] = b"EPWCKPT\x01";
const LEN: usize = 56;

/// Progress of the writer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// All records below this offset are in the store.
    pub offset: WalOffset,
    /// No record at or after `offset` was received before this time, in microseconds since 1970.
    pub time_us: u64,
    /// End of the batch that begins at `offset`, if one was begun.
    pub batch_end: Option<WalOffset>,
}

impl Checkpoint {
    /// The higher one of both offsets.
    pub(crate) fn highest(&self) -> u64 {
        self.batch_end
            .map_or(self.offset.0, |end| end.0.max(self.offset.0))
    }

    fn encode(&self, wal_id: &[u8; 16]) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(wal_id);
        bytes[24..32].copy_from_slice(&self.offset.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.time_us.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.batch_end.unwrap_or(self.offset).0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..52]);
        bytes[52..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(wal_id: &[u8; 16], bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<LEN>()?;
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let crc = u32::from_le_bytes(bytes[52..].try_into().expect("four bytes"));
        if &bytes[..8] != MAGIC || &bytes[8..24] != wal_id || crc != crc32c::crc32c(&bytes[..52]) {
            return None;
        }
        let (offset, batch_end) = (WalOffset(u64_at(24)), WalOffset(u64_at(40)));
        Some(Self {
            offset,
            time_us: u64_at(32),
            batch_end: (batch_end > offset).then_some(batch_end),
        })
    }
}

/// Content of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SavedCheckpoint {
    /// The latest checkpoint; `None` if it is damaged or missing.
    pub(crate) latest: Option<Checkpoint>,
    /// The checkpoint before the latest. Also `None` after the first save.
    pub(crate) before: Option<Checkpoint>,
    pub(crate) is_there: bool,
}

impl SavedCheckpoint {
    /// The highest undamaged checkpoint.
    pub(crate) fn known(&self) -> Option<Checkpoint> {
        self.latest.or(self.before)
    }
}

/// Reads the file. Neither damage nor a file that the disk cannot read is an error.
pub(crate) fn load(storage: &dyn Storage, wal_id: &[u8; 16]) -> io::Result<SavedCheckpoint> {
    let Some(bytes) = read(storage)? else {
        return Ok(SavedCheckpoint::default());
    };
    let records = bytes.as_chunks::<LEN>().0;
    let decoded = |at: usize| Checkpoint::decode(wal_id, records.get(at)?);
    Ok(SavedCheckpoint {
        latest: decoded(0),
        before: decoded(1),
        is_there: true,
    })
}

/// Reads the file, or makes it in a WAL without segments. So a file that is missing later must have been lost.
pub(crate) fn load_or_make(
    storage: &dyn Storage,
    wal_id: &[u8; 16],
) -> io::Result<SavedCheckpoint> {
    let found = load(storage, wal_id)?;
    let is_segment = |name: &String| segment::base_of(name).is_some();
    if found.is_there || storage.list()?.iter().any(is_segment) {
        return Ok(found);
    }
    save(storage, wal_id, &Checkpoint::default())?;
    load(storage, wal_id)
}

/// Reads the file's bytes; `None` if there is none.
fn read(storage: &dyn Storage) -> io::Result<Option<Vec<u8>>> {
    let file = match storage.open(FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; 2 * LEN];
    let n_read = file.read_at(0, &mut bytes).unwrap_or_else(|error| {
        let error = &error as &(dyn std::error::Error + 'static);
        tracing::error!(error, "the WAL's checkpoint cannot be read");
        0
    });
    bytes.truncate(n_read);
    Ok(Some(bytes))
}

/// Returns the id of the WAL to which the checkpoint belongs, if one of its records is undamaged.
pub(crate) fn wal_id(storage: &dyn Storage) -> io::Result<Option<[u8; 16]>> {
    let bytes = read(storage)?.unwrap_or_default();
    let records = bytes.as_chunks::<LEN>().0;
    let mut ids = records.iter().filter_map(|record| {
        let id = record[8..].first_chunk::<16>()?;
        Checkpoint::decode(id, record).map(|_| *id)
    });
    Ok(ids.next_back())
}

/// Replaces the checkpoint, durably. After an error the file has either the old checkpoint or the new one.
pub(crate) fn save(
    storage: &dyn Storage,
    wal_id: &[u8; 16],
    checkpoint: &Checkpoint,
) -> io::Result<()> {
    let before = load(storage, wal_id)?.known();
    let mut bytes = checkpoint.encode(wal_id).to_vec();
    if let Some(before) = before {
        bytes.extend(before.encode(wal_id));
    }
    storage::replace(storage, FILE, &bytes)
}

#[cfg(test)]
mod tests {
    use super::super::faulty_storage::FaultyStorage;
    use super::*;

    #[test]
    fn checkpoint_round_trips_and_a_changed_byte_is_noticed() {
        let wal_id = [3; 16];
        let checkpoint = Checkpoint {
            offset: WalOffset(640),
            time_us: 1_700_000_000_000_000,
            batch_end: Some(WalOffset(960)),
        };
        let bytes = checkpoint.encode(&wal_id);
        assert_eq!(Checkpoint::decode(&wal_id, &bytes), Some(checkpoint));
        assert_eq!(Checkpoint::decode(&[4; 16], &bytes), None, "of another WAL");
        for at in 0..LEN {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(Checkpoint::decode(&wal_id, &changed), None, "byte {at}");
        }
    }

    /// Whichever byte of the file is damaged, one of the two checkpoints is still readable.
    #[test]
    fn the_checkpoint_before_stays_when_the_latest_is_damaged() {
        let (storage, id) = (FaultyStorage::default(), [3; 16]);
        let at = |offset| Checkpoint {
            offset: WalOffset(offset),
            ..Checkpoint::default()
        };
        for offset in [64, 128, 192] {
            save(&storage, &id, &at(offset)).unwrap();
        }
        for byte in 0..2 * LEN {
            storage.corrupt(FILE, byte);
            let found = load(&storage, &id).unwrap();
            let (latest, before) = if byte < LEN {
                (None, Some(at(128)))
            } else {
                (Some(at(192)), None)
            };
            assert_eq!(
                (found.latest, found.before),
                (latest, before),
                "byte {byte}"
            );
            assert_eq!(super::wal_id(&storage).unwrap(), Some(id), "byte {byte}");
            storage.corrupt(FILE, byte);
        }
        storage.corrupt(FILE, 30);
        save(&storage, &id, &at(256)).unwrap();
        let found = load(&storage, &id).unwrap();
        assert_eq!((found.latest, found.before), (Some(at(256)), Some(at(128))));
        storage.disk().files[FILE].lock().unreadable_at = Some(5);
        let found = load(&storage, &id).unwrap();
        assert_eq!((found.known(), found.is_there), (None, true));
    }
}
