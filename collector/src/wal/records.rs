//! Reads a log from outside: no lock, no repair, whether or not a collector has it open. A segment
//! that is used again while it is read holds records of other offsets, which are none here.

use std::path::Path;

use super::dir::read_id;
use super::frame::FrameKey;
use super::reader::Reader;
use super::segment::{self, SEGMENT_HEADER_BYTES};
use super::storage::{DirStorage, Storage};
use super::{Record, WalError};

/// The records of a log's directory, oldest first.
#[derive(Debug)]
pub struct WalRecords {
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
    pub fn open(dir: &Path) -> Result<Self, WalError> {
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
    pub fn next_record(&mut self) -> Result<Option<Record>, WalError> {
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
    pub fn skipped_bytes(&self) -> u64 {
        self.skipped_bytes
    }
}
