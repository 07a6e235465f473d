//! Reads a WAL without its lock and without repair, whether or not a collector has it open: for `replay` and backups. If
//! a segment is recycled during the read, its new records have other offsets and are skipped.

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
    /// Segments that remain to be read, the next one last.
    bases: Vec<u64>,
    reading: Option<Reader>,
    skipped_bytes: u64,
}

impl WalRecords {
    /// Lists the segments.
    ///
    /// # Errors
    /// [`WalError::Io`] if the directory holds no WAL or cannot be read.
    pub(crate) fn open(dir: &Path) -> Result<Self, WalError> {
        let (storage, id) = open_dir(dir)?;
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

    /// Returns the next whole record; `None` at the end of the segments that [`Self::open`] found.
    ///
    /// # Errors
    /// [`WalError::Io`]; damage is skipped and counted, not an error.
    pub(crate) fn next_record(&mut self) -> Result<Option<Record>, WalError> {
        let failed = WalError::io("read wal segment");
        loop {
            if let Some(reader) = &mut self.reading {
                if let Some(record) = reader.next_record().map_err(&failed)? {
                    return Ok(Some(record));
                }
                self.skipped_bytes += reader.skipped_before_last;
            }
            let Some(base) = self.bases.pop() else {
                self.reading = None;
                return Ok(None);
            };
            // A segment that no longer exists was stored and freed.
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

    /// Bytes between records that belong to no record.
    #[must_use]
    pub(crate) fn skipped_bytes(&self) -> u64 {
        self.skipped_bytes
    }
}

fn open_dir(dir: &Path) -> Result<(DirStorage, CollectorId), WalError> {
    let storage = DirStorage::new(dir);
    let id = read_id(&storage).map_err(WalError::io("read collector id"))?;
    Ok((storage, id))
}

/// Files of a WAL's directory.
#[derive(Debug)]
pub(crate) struct WalFiles {
    pub(crate) collector_id: CollectorId,
    /// Offset of the checkpoint; 0 if the writer never saved one.
    pub(crate) checkpoint: u64,
    /// Every file, segments in order, then the rest.
    pub(crate) names: Vec<String>,
    /// Segments below the checkpoint.
    pub(crate) done_segments: Vec<String>,
}

/// Lists a WAL's directory without its lock.
pub(crate) fn wal_files(dir: &Path) -> Result<WalFiles, WalError> {
    let (storage, collector_id) = open_dir(dir)?;
    let checkpoint = checkpoint::load(&storage, &collector_id.0)
        .map_err(WalError::io("read checkpoint"))?
        .known()
        .map_or(0, |checkpoint| checkpoint.offset.0);
    let mut names = storage.list().map_err(WalError::io("list wal directory"))?;
    names.sort_unstable();
    let bases: Vec<u64> = names.iter().filter_map(|n| segment::base_of(n)).collect();
    let done = bases.iter().zip(bases.iter().skip(1));
    let done = done.filter(|(_, next)| **next <= checkpoint);
    Ok(WalFiles {
        collector_id,
        checkpoint,
        done_segments: done.map(|(base, _)| segment::file_name(*base)).collect(),
        names,
    })
}

/// Removes the begun batch from a copied WAL's checkpoint, because that batch may have records that the copy lacks.
pub(crate) fn forget_begun_batch(dir: &Path) -> Result<(), WalError> {
    let (storage, id) = open_dir(dir)?;
    let failed = WalError::io("write checkpoint");
    let saved = checkpoint::load(&storage, &id.0).map_err(&failed)?;
    if let Some(found) = saved.known() {
        let batch_end = None;
        checkpoint::save(&storage, &id.0, &Checkpoint { batch_end, ..found }).map_err(&failed)?;
    }
    Ok(())
}
