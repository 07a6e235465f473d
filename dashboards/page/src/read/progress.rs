//! The store's progress: closed buckets and judged windows. When it moves on, pages are read again.

use clickhouse::Row;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

use super::store::{ReadError, StoreReader};

/// Ends of the closed buckets and of the judged windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Progress {
    /// Buckets that start before this are closed.
    pub(crate) closed_until: Option<Timestamp>,
    /// When the detector judged last.
    pub(crate) judged_at: Option<Timestamp>,
    /// End of the last window that was judged.
    pub(crate) judged_until: Option<Timestamp>,
    /// When an incident changed last, or a person ordered something.
    pub(crate) handled_at: Option<Timestamp>,
    /// Seconds from one judged window to the next; `None` if they are unknown.
    pub(crate) step_seconds: Option<i64>,
}

#[derive(Debug, Row, Deserialize)]
struct ProgressRow {
    /// The time in seconds; the others are in milliseconds.
    closed_until: u32,
    judged_at: i64,
    judged_until: i64,
    judged_before: i64,
    handled_at: i64,
}

const SQL: &str = "
SELECT p.closed_until AS closed_until, p.judged_at AS judged_at, p.judged_until AS judged_until,
    p.judged_before AS judged_before, p.handled_at AS handled_at
FROM store_progress_v1 AS p";

/// Returns a time from milliseconds; the store writes zero for none.
pub(crate) fn time(ms: i64) -> Option<Timestamp> {
    Some(ms)
        .filter(|ms| *ms > 0)
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
}

/// Reads a column of milliseconds as [`time`] does.
pub(super) fn time_of_ms<'de, D: Deserializer<'de>>(
    column: D,
) -> Result<Option<Timestamp>, D::Error> {
    i64::deserialize(column).map(time)
}

impl Progress {
    pub(crate) async fn read(store: &StoreReader) -> Result<Self, ReadError> {
        let rows: Vec<ProgressRow> = store.rows(SQL, |query| query).await?;
        let Some(row) = rows.first() else {
            return Ok(Self::default());
        };
        let step = time(row.judged_before).map(|_| (row.judged_until - row.judged_before) / 1000);
        Ok(Self {
            closed_until: time(i64::from(row.closed_until) * 1_000),
            judged_at: time(row.judged_at),
            judged_until: time(row.judged_until),
            handled_at: time(row.handled_at),
            step_seconds: step.filter(|seconds| *seconds > 0),
        })
    }
}
