//! Shared parts of one collector: config, clock, metrics, store, WAL and counts of refusals. `collector.rs` makes them
//! for all modules of the crate; nothing here decides or waits.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use epwatch_server::{Clock, TaskSet};
use tokio::sync::Notify;

use crate::config::CollectorConfig;
use crate::ingest::shares::AppShares;
use crate::metrics::Metrics;
use crate::refusal_counts::RefusalCounts;
use crate::store::Sink;
use crate::wal::Wal;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: CollectorConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sink: Sink,
    pub(crate) wal: Wal,
    pub(crate) refusals: RefusalCounts,
    pub(crate) shares: AppShares,
    /// The supervised tasks of the process.
    pub(crate) tasks: TaskSet,
    /// Time of the last build of a summary that was compared with its reports: by the store's clock, in milliseconds
    /// since 1970.
    pub(crate) rechecked_ms: AtomicI64,
    /// Wakes the worker of rebuilds after a request.
    pub(crate) rebuild_bell: Notify,
}

impl Context {
    /// The collector's id in the store.
    pub(crate) fn collector_id(&self) -> u64 {
        self.wal.collector_id().short()
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        i64::try_from(self.clock.now_us() / 1000).unwrap_or(i64::MAX)
    }

    /// Length of a bucket.
    pub(crate) fn bucket(&self) -> Duration {
        self.config.rollup.bucket.0
    }
}
