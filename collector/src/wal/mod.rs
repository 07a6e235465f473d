//! The write-ahead log: what was acknowledged is on disk here until it is in the store.
//!
//! A directory of segment files (a header, then frames), a checkpoint, the
//! collector's random id, and a lock file so that two collectors never share it. Offsets count the
//! bytes of frames since the log began; they grow for ever and are never given out twice, so
//! (collector id, offset) names a record.
//!
//! [`Wal::append`] hands records to one writer thread. Whatever has gathered while the last group
//! was being synced, and for a moment longer, is the next group: one write, one `fdatasync`, one
//! wake-up. Segments
//! have their space set aside beforehand, and are used again after the checkpoint has passed them,
//! so that a sync then changes no metadata of the file system. When bytes in flight or bytes held pass their
//! limits, appending is refused with a delay; a full disk refuses too, and the log goes on by
//! itself once there is space.
//!
//! Why not a crate: looked at in 2026-11, `wal-db` syncs on the caller's thread and stops at the
//! first damaged record, `mrecordlog` holds all records in memory, `okaywal` calls itself
//! unfinished and is not kept; none preallocates. The formats are described in `frame.rs`,
//! `segment.rs` and `checkpoint.rs`; how bytes get to the disk in `direct.rs`.

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

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

pub use self::checkpoint::Checkpoint;
pub use self::dir::CollectorId;
pub use self::error::{Retry, WalError};
pub use self::frame::MAX_PAYLOAD_BYTES;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::fuzz::WalSegmentFuzz;
pub use self::log::Recovery;
pub use self::offline_reader::WalRecords;
pub(crate) use self::offline_reader::{LogFiles, forget_begun_batch, log_files};
pub use self::reader::{Chunk, Record};
use epwatch_server::Clock;

/// A place in the log: bytes of frames since the log began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalOffset(pub u64);

impl fmt::Display for WalOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a log is opened.
#[derive(Debug, Clone)]
pub struct WalOptions {
    /// The directory; made if it is not there.
    pub dir: PathBuf,
    /// Size of a segment file.
    pub segment_bytes: u64,
    /// Bytes that may wait for the store before appending is refused. The files take up to three
    /// segments more.
    pub max_bytes: u64,
    /// Bytes that may wait for the disk before appending is refused.
    pub max_in_flight_bytes: usize,
    /// Below this much free space on the disk appending is refused. 0 is no limit.
    pub min_free_bytes: u64,
    /// How long a group gathers before it is written: under load it then holds many batches, and a
    /// sync is by far the dearest thing that a batch pays for. Zero writes at once.
    pub gather: Duration,
    /// What stamps the receive time.
    pub clock: Arc<dyn Clock>,
}

/// Records that become durable together, in this order.
#[derive(Debug, Default)]
pub struct Batch {
    frames: Vec<u8>,
    n_records: usize,
}

impl Batch {
    /// Returns an empty batch with room for `n_bytes` of payload and headers.
    #[must_use]
    pub fn with_capacity(n_bytes: usize) -> Self {
        Self {
            frames: Vec::with_capacity(n_bytes),
            n_records: 0,
        }
    }

    /// Adds one record whose payload is `parts` joined.
    ///
    /// # Errors
    /// [`WalError::PayloadSize`] if that is empty or longer than [`MAX_PAYLOAD_BYTES`].
    pub fn push(&mut self, parts: &[&[u8]]) -> Result<(), WalError> {
        let len = parts.iter().map(|part| part.len()).sum();
        if len == 0 || len > MAX_PAYLOAD_BYTES {
            return Err(WalError::PayloadSize { len });
        }
        frame::push_unsealed(&mut self.frames, parts);
        self.n_records += 1;
        Ok(())
    }

    /// How many records it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.n_records
    }

    /// True if it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n_records == 0
    }
}

/// What the log holds and has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalStats {
    /// The end of what is durable.
    pub end: u64,
    /// Bytes from the oldest segment to the end.
    pub held_bytes: u64,
    /// Bytes handed over and not yet durable.
    pub in_flight_bytes: u64,
    /// Groups made durable.
    pub groups: u64,
    /// Records made durable.
    pub records: u64,
    /// Groups that failed; none of their records was acknowledged.
    pub failed_groups: u64,
    /// Microseconds spent writing and syncing.
    pub sync_us: u64,
    /// Microseconds that receive times are ahead of the clock, which was set back or had jumped ahead: they
    /// never fall.
    pub ahead_us: u64,
}

/// An open log. Cheap to clone; the last clone that goes closes it, as [`Wal::close`] does.
#[derive(Debug, Clone)]
pub struct Wal {
    shared: Arc<group_commit::Shared>,
    durable: watch::Receiver<WalOffset>,
    _threads: Arc<group_commit::Threads>,
}

/// A log that may be closed meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct WeakWal(std::sync::Weak<group_commit::Shared>);

impl WeakWal {
    /// What the log holds, and whether it takes writes; `None` once it is closed.
    pub(crate) fn stats(&self) -> Option<(WalStats, bool)> {
        let shared = self.0.upgrade()?;
        Some((shared.stats(), shared.is_writable()))
    }
}

/// A log as it was found.
#[derive(Debug)]
pub struct Opened {
    /// The log.
    pub wal: Wal,
    /// Where the writer had come; the log's start if it was never written down.
    pub checkpoint: Checkpoint,
    /// What was found.
    pub recovery: Recovery,
}

impl Wal {
    /// Opens the log, repairs its tail, and starts its threads. Blocks on the disk; called within
    /// a tokio runtime, which completes the appends.
    ///
    /// # Errors
    /// [`WalError::Locked`] if another process has it open, [`WalError::Format`] and
    /// [`WalError::Foreign`] for files that are not to be touched, [`WalError::Io`].
    pub fn open(options: &WalOptions) -> Result<Opened, WalError> {
        let dir = dir::WalDir::open(&options.dir)?;
        group_commit::open(options, dir)
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
        reader::read_chunk(&self.shared.log, from, end, max_records, max_bytes)
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

    /// The random id that names this log's records for ever.
    #[must_use]
    pub fn collector_id(&self) -> CollectorId {
        self.shared.collector_id
    }

    /// True while appending works, as far as the last try or probe knows.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.shared.is_writable()
    }

    /// Returns a handle that does not keep the log open.
    pub(crate) fn downgrade(&self) -> WeakWal {
        WeakWal(Arc::downgrade(&self.shared))
    }

    /// What the log holds and has done.
    #[must_use]
    pub fn stats(&self) -> WalStats {
        self.shared.stats()
    }

    /// Refuses further appends, and returns once those under way have ended: the durable end stays where it
    /// is then. The log can be read until it is closed.
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
