//! What callers of the WAL hand in and get back: options, batches, numbers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use epwatch_server::Clock;

use super::error::WalError;
use super::frame::{MAX_PAYLOAD_BYTES, push_unsealed};

/// How a WAL is opened.
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
    pub(super) frames: Vec<u8>,
    pub(super) n_records: usize,
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
        push_unsealed(&mut self.frames, parts);
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

/// What the WAL holds and has done.
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
