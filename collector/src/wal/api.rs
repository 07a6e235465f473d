//! Options, batches and statistics of the WAL: the types that its callers use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use epwatch_server::{Clock, TaskSet};

use super::error::WalError;
use super::frame::{MAX_PAYLOAD_BYTES, push_unsealed};

/// Options to open a WAL with.
#[derive(Debug, Clone)]
pub struct WalOptions {
    /// The WAL's directory; created if it does not exist.
    pub dir: PathBuf,
    /// Size of a segment file.
    pub segment_bytes: u64,
    /// Bytes that may wait for the store before appends are refused. The files take up to three segments more.
    pub max_bytes: u64,
    /// Bytes that may wait for the disk before appends are refused.
    pub max_in_flight_bytes: usize,
    /// Appends are refused below this much free space on the disk. 0 turns the limit off.
    pub min_free_bytes: u64,
    /// Time for which a group gathers before it is written. Under load a group then has many batches, which share the
    /// cost of one sync. With zero each group is written at once.
    pub gather: Duration,
    /// Stamps receive times.
    pub clock: Arc<dyn Clock>,
    /// The set that watches the WAL's threads and its task.
    pub tasks: TaskSet,
}

/// Records that become durable together, in this order.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) frames: Vec<u8>,
    pub(super) n_records: usize,
}

impl Batch {
    /// Returns an empty batch with capacity for `n_bytes` of payloads and headers.
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
    /// `WalError::PayloadSize` if the payload is empty or longer than `MAX_PAYLOAD_BYTES`.
    pub fn push(&mut self, parts: &[&[u8]]) -> Result<(), WalError> {
        let len = parts.iter().map(|part| part.len()).sum();
        if len == 0 || len > MAX_PAYLOAD_BYTES {
            return Err(WalError::PayloadSize { len });
        }
        push_unsealed(&mut self.frames, parts);
        self.n_records += 1;
        Ok(())
    }

    /// Bytes that the batch takes in the WAL.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.frames.len()
    }

    /// True if the batch has no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n_records == 0
    }
}

/// State and counts of the WAL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalStats {
    /// Offset up to which records are synced to disk.
    pub end: u64,
    /// Bytes from the oldest segment to the end.
    pub held_bytes: u64,
    /// Bytes that are submitted and not yet durable.
    pub in_flight_bytes: u64,
    pub groups: u64,
    pub records: u64,
    /// Groups that failed; none of their records was acknowledged.
    pub failed_groups: u64,
    /// Microseconds spent writing and syncing.
    pub sync_us: u64,
    /// How far receive times are ahead of the clock, in microseconds. They are ahead after the clock was set back,
    /// because they never fall.
    pub ahead_us: u64,
    /// Free bytes on the WAL's volume; `u64::MAX` if unknown.
    pub free_bytes: u64,
}
