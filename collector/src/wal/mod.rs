//! The write-ahead log: what was acknowledged is on disk here until it is in the store.
//!
//! A directory of segment files (a header, then frames), a checkpoint, the
//! collector's random id, and a lock file so that two collectors never share it. Offsets count the
//! bytes of frames since the WAL began; they grow for ever and are never given out twice, so
//! (collector id, offset) names a record.
//!
//! [`Wal::append`] hands records to one writer thread. Whatever has gathered while the last group
//! was being synced, and for a moment longer, is the next group: one write, one `fdatasync`, one
//! wake-up. Segments
//! have their space set aside beforehand, and are used again after the checkpoint has passed them,
//! so that a sync then changes no metadata of the file system. When bytes in flight or bytes held pass their
//! limits, appending is refused with a delay; a full disk refuses too, and the WAL goes on by
//! itself once there is space.
//!
//! Why not a crate: looked at in 2026-11, `wal-db` syncs on the caller's thread and stops at the
//! first damaged record, `mrecordlog` holds all records in memory, `okaywal` calls itself
//! unfinished and is not kept; none preallocates. The formats are described in `frame.rs`,
//! `segment.rs` and `checkpoint.rs`; how bytes get to the disk in `direct_io.rs`.

mod api;
mod checkpoint;
mod dir;
mod direct_io;
mod error;
mod fill_level;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod group_commit;
mod log;
mod offline_reader;
mod reader;
mod segment;
mod storage;
#[cfg(test)]
mod tests;

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
pub(crate) use self::log::Recovery;
pub(crate) use self::offline_reader::WalRecords;
pub(crate) use self::offline_reader::{LogFiles, forget_begun_batch, log_files};
pub(crate) use self::reader::{Chunk, Record};

/// An open WAL. Cheap to clone; the last clone that goes closes it, as [`Wal::close`] does.
#[derive(Debug, Clone)]
pub struct Wal {
    shared: Arc<group_commit::Shared>,
    durable: watch::Receiver<WalOffset>,
    _threads: Arc<group_commit::Threads>,
}

/// A WAL that may be closed meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct WeakWal(std::sync::Weak<group_commit::Shared>);

impl WeakWal {
    /// What the WAL holds, and whether it takes writes; `None` once it is closed.
    pub(crate) fn stats(&self) -> Option<(WalStats, bool)> {
        let shared = self.0.upgrade()?;
        Some((shared.stats(), shared.is_writable()))
    }
}

/// A WAL as it was found.
#[derive(Debug)]
pub struct Opened {
    /// The WAL.
    pub wal: Wal,
    /// Where the writer had come; the WAL's start if it was never written down.
    pub checkpoint: Checkpoint,
    /// What was found.
    pub recovery: Recovery,
}

impl Wal {
    /// Opens the WAL, repairs its tail, and starts its threads. Blocks on the disk; called within
    /// a tokio runtime, which completes the appends.
    ///
    /// # Errors
    /// [`WalError::Locked`] if another process has it open, [`WalError::Format`] and
    /// [`WalError::Foreign`] for files that are not to be touched, [`WalError::Io`].
    pub fn open(options: &WalOptions) -> Result<Opened, WalError> {
        Self::open_in(dir::WalDir::open(&options.dir)?, options)
    }

    fn open_in(dir: dir::WalDir, options: &WalOptions) -> Result<Opened, WalError> {
        let started = group_commit::start(options, dir)?;
        Ok(Opened {
            wal: Wal {
                shared: started.shared,
                durable: started.durable,
                _threads: started.threads,
            },
            checkpoint: started.checkpoint,
            recovery: started.recovery,
        })
    }

    /// Makes the batch durable and returns the end of the group it went with.
    ///
    /// # Errors
    /// [`WalError::Full`] and [`WalError::Busy`] before anything was written. After any other error
    /// the batch is not acknowledged, though it may turn up after a crash: the key decides what
    /// counts.
    pub async fn append(&self, batch: Batch) -> Result<WalOffset, WalError> {
        if batch.is_empty() {
            return Ok(WalOffset(self.shared.log.end()));
        }
        let (done, outcome) = oneshot::channel();
        // Who went away meanwhile will send the report again.
        self.submit(batch, move |end| drop(done.send(end)))?;
        outcome.await.unwrap_or(Err(WalError::Closed))
    }

    /// Like [`Wal::append`], but calls `done` with the outcome, whether or not someone still waits
    /// for it. `done` runs on the runtime, between other groups' completions: it must be quick.
    ///
    /// # Errors
    /// As [`Wal::append`], before anything was written; `done` is not called then.
    pub fn submit(
        &self,
        batch: Batch,
        done: impl FnOnce(Result<WalOffset, WalError>) + Send + 'static,
    ) -> Result<(), WalError> {
        self.shared.enqueue(batch, Box::new(done))
    }

    /// Reads durable records from `from` up to `end` or the durable end, until their payloads come
    /// to `max_bytes` or there are `max_records`; at least one if there is one. Blocks on the disk.
    ///
    /// # Errors
    /// [`WalError::Io`]; damage is no error, it is passed over and counted.
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

    /// Writes the checkpoint down and lets go of the segments below it. Blocks on the disk.
    ///
    /// # Errors
    /// [`WalError::Io`]; the old checkpoint or the new one is there then.
    pub fn save_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), WalError> {
        self.shared.save_checkpoint(checkpoint)
    }

    /// Returns a time and an offset: every record received before that time, and none received
    /// after it, lies below the offset; what comes later is received at that time or later.
    ///
    /// So once the store has everything below the offset, the time before it is complete.
    #[must_use]
    pub fn watermark(&self) -> (u64, WalOffset) {
        self.shared.watermark()
    }

    /// The durable end as it moves, one change a group.
    #[must_use]
    pub fn durable(&self) -> watch::Receiver<WalOffset> {
        self.durable.clone()
    }

    /// The random id that names this WAL's records for ever.
    #[must_use]
    pub fn collector_id(&self) -> CollectorId {
        self.shared.collector_id
    }

    /// True while appending works, as far as the last try or probe knows.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.shared.is_writable()
    }

    /// Returns a handle that does not keep the WAL open.
    pub(crate) fn downgrade(&self) -> WeakWal {
        WeakWal(Arc::downgrade(&self.shared))
    }

    /// What the WAL holds and has done.
    #[must_use]
    pub fn stats(&self) -> WalStats {
        self.shared.stats()
    }

    /// Refuses further appends, and returns once those under way have ended: the durable end stays where it
    /// is then. The WAL can be read until it is closed.
    pub(crate) async fn finish_appends(&self) {
        const PAUSE: Duration = Duration::from_millis(1);
        self.shared.refuse_appends();
        while self.stats().in_flight_bytes > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let end = WalOffset(self.stats().end);
        let _ = self.durable().wait_for(|durable| *durable >= end).await;
    }

    /// Refuses further appends, finishes those under way, and stops the threads. Blocks.
    pub fn close(&self) {
        self.shared.close();
        self._threads.join();
    }
}
