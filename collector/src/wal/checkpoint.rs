//! The writer's checkpoint: one small file, replaced as a whole.
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
use super::storage::{self, Storage};

pub(super) const FILE: &str = "checkpoint";
const MAGIC: &[u8; 8] = b"EPWCKPT\x01";
const LEN: usize = 56;

/// Progress of the writer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Everything below is in the store.
    pub offset: WalOffset,
    /// No record at or after `offset` was received before this time, microseconds since 1970.
    pub time_us: u64,
    /// End of the batch that begins at `offset`, if one was begun.
    pub batch_end: Option<WalOffset>,
}

impl Checkpoint {
    /// The higher of both offsets.
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

/// Reads the checkpoint; `Ok(None)` without one, or with a damaged one.
pub(crate) fn load(storage: &dyn Storage, wal_id: &[u8; 16]) -> io::Result<Option<Checkpoint>> {
    let file = match storage.open(FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = [0; LEN];
    let n_read = file.read_at(0, &mut bytes)?;
    Ok(Checkpoint::decode(wal_id, &bytes[..n_read]))
}

/// True if there is a checkpoint, damaged or not.
pub(crate) fn exists(storage: &dyn Storage) -> bool {
    storage.open(FILE).is_ok()
}

/// Replaces the checkpoint, durably. After an error the file holds the old or the new one.
pub(crate) fn save(
    storage: &dyn Storage,
    wal_id: &[u8; 16],
    checkpoint: &Checkpoint,
) -> io::Result<()> {
    storage::replace(storage, FILE, &checkpoint.encode(wal_id))
}

#[cfg(test)]
mod tests {
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
}
