//! Requests to build summaries of closed buckets again: rows of `rebuild_requests`. The roll-up and the writer make them, and
//! [`crate::rebuilds`] carries them out.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use clickhouse::Row;
use serde::Serialize;

use crate::context::Context;
use crate::store::SinkError;

/// A row of `rebuild_requests`. Times in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Row, Serialize)]
pub(crate) struct RequestRow {
    pub(crate) bucket: u32,
    pub(crate) collector_id: u64,
    pub(crate) asked_at: i64,
    pub(crate) is_done: bool,
    pub(crate) written_at: i64,
}

/// Records that closed buckets (start times in seconds) have to be built again.
///
/// # Errors
/// The store did not answer; perhaps nothing was recorded.
pub(crate) async fn request(context: &Context, buckets: &BTreeSet<u32>) -> Result<(), SinkError> {
    let now_ms = context.now_ms();
    let row = |bucket: &u32| RequestRow {
        bucket: *bucket,
        collector_id: context.collector_id(),
        asked_at: now_ms,
        is_done: false,
        written_at: now_ms,
    };
    insert(context, &buckets.iter().map(row).collect::<Vec<_>>()).await?;
    show_oldest(context, Some(now_ms), true);
    context.rebuild_bell.notify_one();
    Ok(())
}

pub(crate) async fn insert(context: &Context, rows: &[RequestRow]) -> Result<(), SinkError> {
    let sink = &context.sink;
    sink.insert::<RequestRow>("rebuild_requests", rows, None)
        .await
}

/// Shows when the oldest open request was made. `is_one_more` means that other requests may be older.
pub(crate) fn show_oldest(context: &Context, asked_at_ms: Option<i64>, is_one_more: bool) {
    let since_us = asked_at_ms.map_or(0, |ms| u64::try_from(ms).unwrap_or(0).max(1) * 1_000);
    let shown = &context.metrics.progress.rebuild_since_us;
    if !is_one_more || shown.load(Relaxed) == 0 {
        shown.store(since_us, Relaxed);
    }
}
