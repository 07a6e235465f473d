//! Reads a WAL from outside: no lock, no repair, whether or not a collector has it open. A segment
//! that is used again while it is read holds records of other offsets, which are none here.

use std::path::Path;

use super::checkpoint::{self, Checkpoint};
use super::dir::{CollectorId, read_id};
use super::frame::FrameKey;
use super::reader::Reader;
use super::segment::{self, SEGMENT_HEADER_BYTES};
use super::storage::{DirStorage, Storage};
use super::{Record, WalError};

/// The records of a WAL's directory, oldest first.
#[derive(Debug)]
pub(crate) struct WalRecords {
    storage: DirStorage,
    key: FrameKey,
    /// Segments to come, the next one last.
    bases: Vec<u64>,
    reading: Option<Reader>,
    skipped_bytes: u64,
}

impl WalRecords {
    /// Lists what is there.
    ///
    /// # Errors
    /// [`WalError::Io`] if the directory holds no log or cannot be read.
    pub(crate) fn open(dir: &Path) -> Result<Self, WalError> {
        let storage = DirStorage::new(dir);
        let id = read_id(&storage).map_err(WalError::io("read collector id"))?;
        let names = storage.list().map_err(WalError::io("list wal directory"))?;
        let mut bases: Vec<u64> = names.iter().filter_map(|n| segment::base_of(n)).collect();
        bases.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self {
            storage,
            key: FrameKey::new(&id.0),
            bases,
            reading: None,
            skipped_bytes: 0,
        })
    }

    /// Returns the next whole record; `None` at the end of what was there when this was opened.
    ///
    /// # Errors
    /// [`WalError::Io`]; damage is no error, it is passed over and counted.
    pub(crate) fn next_record(&mut self) -> Result<Option<Record>, WalError> {
        let failed = WalError::io("read wal segment");
        loop {
            if let Some(reader) = &mut self.reading {
                if let Some(record) = reader.next_record().map_err(&failed)? {
                    return Ok(Some(record));
                }
                self.skipped_bytes += reader.skipped_before_last_record();
            }
            let Some(base) = self.bases.pop() else {
                self.reading = None;
                return Ok(None);
            };
            // One that is gone by now was stored and let go of.
            let Ok(file) = self.storage.open(&segment::file_name(base)) else {
                continue;
            };
            let len = file.len().map_err(&failed)?;
            let file_end = base + len.saturating_sub(SEGMENT_HEADER_BYTES);
            let end = self
                .bases
                .last()
                .map_or(file_end, |next| file_end.min(*next));
            self.reading = Some(Reader::over(file, self.key, base, end));
        }
    }

    /// Bytes between records that held none.
    #[must_use]
    pub(crate) fn skipped_bytes(&self) -> u64 {
        self.skipped_bytes
    }
}

/// What lies in a WAL's directory.
#[derive(Debug)]
pub(crate) struct LogFiles {
    pub(crate) collector_id: CollectorId,
    /// The WAL's start where the writer never wrote one down.
    pub(crate) checkpoint: u64,
    /// Every file, segments in order, then the rest.
    pub(crate) names: Vec<String>,
    /// Segments that lie below the checkpoint.
    pub(crate) done_segments: Vec<String>,
}

/// Lists a WAL's directory from outside, as [`WalRecords`] reads it.
pub(crate) fn log_files(dir: &Path) -> Result<LogFiles, WalError> {
    let storage = DirStorage::new(dir);
    let collector_id = read_id(&storage).map_err(WalError::io("read collector id"))?;
    let checkpoint = checkpoint::load(&storage, &collector_id.0)
        .map_err(WalError::io("read checkpoint"))?
        .map_or(0, |checkpoint| checkpoint.offset.0);
    let mut names = storage.list().map_err(WalError::io("list wal directory"))?;
    names.sort_unstable();
    let bases: Vec<u64> = names.iter().filter_map(|n| segment::base_of(n)).collect();
    let done = bases.iter().zip(bases.iter().skip(1));
    let done = done.filter(|(_, next)| **next <= checkpoint);
    Ok(LogFiles {
        collector_id,
        checkpoint,
        done_segments: done.map(|(base, _)| segment::file_name(*base)).collect(),
        names,
    })
}

/// Makes a copied WAL begin where its checkpoint is: the batch that was being written when it was
/// copied may hold records that the copy does not.
pub(crate) fn forget_begun_batch(dir: &Path) -> Result<(), WalError> {
    let storage = DirStorage::new(dir);
    let id = read_id(&storage).map_err(WalError::io("read collector id"))?;
    let failed = WalError::io("write checkpoint");
    if let Some(found) = checkpoint::load(&storage, &id.0).map_err(&failed)? {
        let batch_end = None;
        checkpoint::save(&storage, &id.0, &Checkpoint { batch_end, ..found }).map_err(&failed)?;
    }
    Ok(())
}
