//! A range of the WAL as encoded rows, and the read of the next batch while the previous one is stored.

use tokio::task::JoinHandle;

use crate::encode::EncodedBatch;
use crate::join_task::join_task;
use crate::wal::{Chunk, WalOffset};

/// The limits at which a batch ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLimits {
    pub(super) end: WalOffset,
    pub(super) max_records: usize,
    pub(super) max_bytes: usize,
}

impl BatchLimits {
    /// Limits of a batch that is the whole range up to `end`.
    pub(super) fn up_to(end: WalOffset) -> Self {
        Self {
            end,
            max_records: usize::MAX,
            max_bytes: usize::MAX,
        }
    }
}

/// A range of the WAL as encoded rows.
#[derive(Debug)]
pub(crate) struct RowBatch {
    pub(super) from: WalOffset,
    pub(super) next: WalOffset,
    pub(super) rows: EncodedBatch,
    /// Receive time of its last record; `None` if it has no records.
    pub(super) newest_us: Option<u64>,
    pub(super) skipped_bytes: u64,
    /// True if a limit ended the batch, not the end of the WAL.
    pub(super) is_full: bool,
}

impl RowBatch {
    pub(super) fn of(
        from: WalOffset,
        chunk: &Chunk,
        rows: EncodedBatch,
        limits: BatchLimits,
    ) -> Self {
        let records = &chunk.records;
        let n_bytes: usize = records.iter().map(|record| record.payload.len()).sum();
        Self {
            from,
            next: chunk.next,
            rows,
            newest_us: records.last().map(|record| record.received_at_us),
            skipped_bytes: chunk.skipped_bytes,
            is_full: records.len() >= limits.max_records || n_bytes >= limits.max_bytes,
        }
    }
}

/// The read of the next batch; dropping it aborts the read.
#[derive(Debug)]
pub(crate) struct ReadAhead(JoinHandle<RowBatch>);

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ReadAhead {
    pub(super) fn begin(reading: impl Future<Output = RowBatch> + Send + 'static) -> Self {
        Self(tokio::spawn(reading))
    }

    pub(super) async fn get(mut self) -> RowBatch {
        join_task(&mut self.0).await
    }
}
