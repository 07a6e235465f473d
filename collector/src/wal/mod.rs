//! The write-ahead log: keeps acknowledged records on disk until they are in the store.
//!
//! A directory holds segment files (a header, then frames), a checkpoint, the collector's random id, and a lock file
//! for one process. Offsets count the bytes of frames since the WAL's start and are never used twice, so (collector id,
//! offset) identifies a record.
//!
//! [`Wal::append`] hands records to one writer thread. All batches that gather during the last sync, and for a moment
//! longer, form the next group: one write, one `fdatasync`, one wake-up. Segments have their space allocated beforehand
//! and are recycled below the checkpoint, so that a sync changes no metadata of the file system. At the limits of bytes
//! in flight or kept, appends are refused with a delay. They are also refused while the disk is full.
//!
//! The WAL never reads a payload; `wal_record.rs` defines its format.
//!
//! No existing crate fits (as of 2026-11). `wal-db` syncs on the caller's thread and stops at the first damaged record.
//! `mrecordlog` holds all records in memory. `okaywal` is unfinished and unmaintained. None of them preallocates.
//! `frame.rs`, `segment.rs` and `checkpoint.rs` describe the formats, `direct_io.rs` the access to the disk.

mod api;
mod checkpoint;
mod clock_jump;
mod dir;
mod direct_io;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
mod faulty_storage;
mod fill_level;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod group_commit;
mod locked;
mod log;
mod offline_reader;
mod reader;
mod segment;
mod storage;
#[cfg(test)]
pub(crate) mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

pub(crate) use self::api::WalStats;
pub use self::api::{Batch, WalOptions};
pub(crate) use self::checkpoint::Checkpoint;
pub(crate) use self::dir::CollectorId;
pub(crate) use self::error::{Retry, WalError};
pub(crate) use self::frame::MAX_PAYLOAD_BYTES;
pub use self::frame::WalOffset;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::fuzz::WalSegmentFuzz;
pub(crate) use self::locked::{LockedWal, Rewound};
pub(crate) use self::log::WalRecovery;
pub(crate) use self::offline_reader::WalRecords;
pub(crate) use self::offline_reader::{WalFiles, forget_begun_batch, wal_files};
pub(crate) use self::reader::{Chunk, Record};

/// An open WAL. Cheap to clone; dropping the last clone closes it, like [`Wal::close`].
#[derive(Debug, Clone)]
pub struct Wal {
    shared: Arc<group_commit::Shared>,
    threads: Arc<group_commit::Threads>,
}

/// A handle that does not keep the WAL open.
#[derive(Debug, Clone)]
pub(crate) struct WeakWal(std::sync::Weak<group_commit::Shared>);

impl WeakWal {
    /// Statistics, and why appends are refused if they are; `None` once the WAL is closed.
    pub(crate) fn stats(&self) -> Option<(WalStats, Option<String>)> {
        let shared = self.0.upgrade()?;
        Some((shared.stats(), shared.refusal()))
    }
}

/// A WAL with its state when it was opened.
#[derive(Debug)]
pub struct Opened {
    pub wal: Wal,
    /// The writer's checkpoint; the WAL's start if there is none.
    pub checkpoint: Checkpoint,
    pub recovery: WalRecovery,
}

impl Wal {
    /// Opens the WAL, repairs its tail, and starts its threads. Blocks on the disk; called within
    /// a tokio runtime, which completes the appends.
    ///
    /// # Errors
    /// `WalError::Locked` if another process has the WAL open, `WalError::Format` and `WalError::Foreign` for files
    /// that must not be changed, `WalError::Io`.
    pub fn open(options: &WalOptions) -> Result<Opened, WalError> {
        Self::open_in(dir::WalDir::open(&options.dir)?, options)
    }

    fn open_in(dir: dir::WalDir, options: &WalOptions) -> Result<Opened, WalError> {
        let (threads, checkpoint, recovery) = group_commit::start(options, dir)?;
        let shared = threads.shared.clone();
        Ok(Opened {
            wal: Wal { shared, threads },
            checkpoint,
            recovery,
        })
    }

    /// Makes the batch durable and returns the end of its group.
    ///
    /// # Errors
    /// `WalError::Full` and `WalError::Busy` come before any write. After any other error the batch is not
    /// acknowledged, but its records may be read after a crash. Dedup by key then decides.
    pub async fn append(&self, batch: Batch) -> Result<WalOffset, WalError> {
        if batch.is_empty() {
            return Ok(WalOffset(self.shared.log.end()));
        }
        let (done, outcome) = oneshot::channel();
        // A device that disconnected sends the report again.
        self.submit(batch, move |end| drop(done.send(end)))?;
        outcome.await.unwrap_or(Err(WalError::Closed))
    }

    /// Like [`Wal::append`], with a callback that runs even if the caller is gone. `done` runs on the runtime between
    /// other completions, so it must be quick.
    ///
    /// # Errors
    /// The errors of [`Wal::append`] before a write; then `done` is not called.
    pub fn submit(
        &self,
        batch: Batch,
        done: impl FnOnce(Result<WalOffset, WalError>) + Send + 'static,
    ) -> Result<(), WalError> {
        self.shared.enqueue(batch, Box::new(done))
    }

    /// Reads durable records from `from` to `end` or the durable end, until their payloads reach `max_bytes` or
    /// `max_records`. Returns at least one record if there is one. Blocks on the disk.
    ///
    /// # Errors
    /// `WalError::Io`; damage is skipped and counted, not an error.
    pub fn read(
        &self,
        from: WalOffset,
        end: WalOffset,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Chunk, WalError> {
        let log = &self.shared.log;
        log.read(from, end, max_records, max_bytes)
            .map_err(WalError::io("read wal"))
    }

    /// Saves the checkpoint and frees the segments below it. Blocks on the disk.
    ///
    /// # Errors
    /// `WalError::Io`; the file then holds the old or the new checkpoint.
    pub fn save_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), WalError> {
        self.shared.save_checkpoint(checkpoint)
    }

    /// Returns a time and an offset: exactly the records received before the time are below the offset. Once the store
    /// has all records below the offset, it is complete up to that time.
    #[must_use]
    pub fn watermark(&self) -> (u64, WalOffset) {
        self.shared.watermark()
    }

    /// Offset up to which records are synced to disk. It changes once for each group.
    #[must_use]
    pub fn durable(&self) -> watch::Receiver<WalOffset> {
        self.threads.durable.clone()
    }

    /// The random id that identifies this WAL's records.
    #[must_use]
    pub fn collector_id(&self) -> CollectorId {
        self.shared.dir.collector_id
    }

    /// Moves the WAL's files into a folder of its directory and closes it. Nothing may have been appended since the
    /// open. Blocks.
    pub(crate) fn set_aside(self) -> Result<PathBuf, WalError> {
        let shared = &self.shared;
        let moved = shared.dir.set_aside(&shared.options.dir);
        self.close();
        moved.map_err(WalError::io("set the wal aside"))
    }

    pub(crate) fn downgrade(&self) -> WeakWal {
        WeakWal(Arc::downgrade(&self.shared))
    }

    /// State and counts of the WAL.
    #[must_use]
    pub fn stats(&self) -> WalStats {
        self.shared.stats()
    }

    /// Refuses further appends, and returns once those under way have ended. After that the durable end does not
    /// change; reads work until [`Wal::close`].
    pub(crate) async fn finish_appends(&self) {
        const PAUSE: Duration = Duration::from_millis(1);
        self.shared.refuse_appends();
        while self.stats().in_flight_bytes > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let end = WalOffset(self.stats().end);
        let _ = self.durable().wait_for(|durable| *durable >= end).await;
    }

    /// Refuses further appends, finishes appends under way, stops the threads, and releases the directory's lock, even
    /// if handles are left. Blocks.
    pub fn close(&self) {
        self.shared.close();
        self.threads.join();
    }
}
