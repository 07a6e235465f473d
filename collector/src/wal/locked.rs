//! A WAL that is locked but not opened, for repairs: no collector has it open, and nothing is appended.

use std::path::{Path, PathBuf};

use super::WalError;
use super::checkpoint::{self, Checkpoint};
use super::dir::WalDir;
use super::frame::WalOffset;
use super::offline_reader::WalRecords;

/// Released when dropped.
#[derive(Debug)]
pub(crate) struct LockedWal {
    locked: WalDir,
    dir: PathBuf,
}

/// The outcome of [`LockedWal::rewind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rewound {
    /// The checkpoint was moved to the oldest record.
    To {
        offset: WalOffset,
        records: u64,
    },
    HoldsNothing,
    /// Records at the WAL's end, below the checkpoint, are missing. With a lower checkpoint their offsets could be used
    /// twice.
    EndIsLost,
}

impl LockedWal {
    /// Locks an existing WAL.
    pub(crate) fn open(dir: &Path) -> Result<Self, WalError> {
        // Fails without a WAL, because taking the lock would make a new one.
        super::wal_files(dir)?;
        Ok(Self {
            locked: WalDir::open(dir)?,
            dir: dir.to_owned(),
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Moves the checkpoint back to the oldest record.
    pub(crate) fn rewind(&self) -> Result<Rewound, WalError> {
        let (storage, id) = (&*self.locked.storage, &self.locked.collector_id.0);
        let saved = checkpoint::load(storage, id).map_err(WalError::io("read wal checkpoint"))?;
        let mut records = WalRecords::open(&self.dir)?;
        let mut oldest = None;
        let (mut n_records, mut end) = (0, 0);
        while let Some(record) = records.next_record()? {
            oldest.get_or_insert(record.offset);
            n_records += 1;
            end = record.end();
        }
        let Some(offset) = oldest else {
            return Ok(Rewound::HoldsNothing);
        };
        if saved.known().is_some_and(|saved| saved.highest() > end) {
            return Ok(Rewound::EndIsLost);
        }
        let oldest = Checkpoint {
            offset,
            ..Checkpoint::default()
        };
        checkpoint::save(storage, id, &oldest).map_err(WalError::io("save wal checkpoint"))?;
        Ok(Rewound::To {
            offset,
            records: n_records,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{batch, options};
    use super::super::{Batch, Wal};
    use super::*;

    async fn append(wal: &Wal, n: u8) {
        let batch: Batch = batch(&[n; 100]);
        wal.append(batch).await.unwrap();
    }

    #[tokio::test]
    async fn a_rewound_wal_is_read_from_its_oldest_record_and_goes_on_at_its_end() {
        let dir = tempfile::tempdir().unwrap();
        assert!(LockedWal::open(dir.path()).is_err(), "there is no WAL");
        let wal = Wal::open(&options(dir.path())).unwrap().wal;
        for n in 0..5 {
            append(&wal, n).await;
        }
        let end = wal.stats().end;
        let done = Checkpoint {
            offset: WalOffset(end),
            time_us: 9,
            batch_end: None,
        };
        wal.save_checkpoint(&done).unwrap();
        let held = LockedWal::open(dir.path()).unwrap_err();
        let text = format!("held by process {}", std::process::id());
        assert!(held.to_string().contains(&text), "{held}");
        wal.close();
        drop(wal);

        let locked = LockedWal::open(dir.path()).unwrap();
        let expected = Rewound::To {
            offset: WalOffset(0),
            records: 5,
        };
        assert_eq!(locked.rewind().unwrap(), expected);
        drop(locked);
        let opened = Wal::open(&options(dir.path())).unwrap();
        assert_eq!(
            (opened.checkpoint.offset.0, opened.wal.stats().end),
            (0, end)
        );
        opened.wal.close();
    }
}
