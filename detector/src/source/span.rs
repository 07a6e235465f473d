//! The time that is judged, and which earlier windows speak for the past.

use std::time::Duration;

use clickhouse::query::Query;
use jiff::Timestamp;

/// The span of time a window is judged in, by receive time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where the window ends (exclusive).
    pub end: Timestamp,
    /// Its length.
    pub window: Duration,
    /// How far back before its end earlier runs and placements are looked for.
    pub lookback: Duration,
}

/// Latest windows, the judged one among them, whose counts do not speak for the past yet. A fault that
/// grows a little from window to window would be its own past.
const SETTLING_WINDOWS: u64 = 3;

impl Span {
    pub(super) fn end_s(&self) -> i64 {
        self.end.as_second()
    }

    pub(super) fn start_s(&self) -> i64 {
        self.end_s().saturating_sub_unsigned(self.window.as_secs())
    }

    pub(crate) fn start(&self) -> Timestamp {
        Timestamp::from_second(self.start_s()).unwrap_or(Timestamp::MIN)
    }

    /// Returns the look-back before the window and before `until`, in seconds.
    pub(super) fn before(&self, until: Timestamp) -> (i64, i64) {
        (self.earliest_s(), self.start_s().min(until.as_second()))
    }

    /// Of windows that overlap, an eighth speaks for the past: those that end so close to a whole
    /// number of lengths before this one.
    pub(super) fn history_phase_s(&self) -> i64 {
        i64::try_from(self.window.as_secs() / 8).unwrap_or(i64::MAX)
    }

    /// Returns the end of the latest window whose counts speak for the past.
    pub(super) fn settled_until_s(&self) -> i64 {
        let back = self.window.as_secs().saturating_mul(SETTLING_WINDOWS);
        self.end_s().saturating_sub_unsigned(back)
    }

    pub(super) fn speaks_for_the_past(&self, end_s: i64) -> bool {
        let window = i64::try_from(self.window.as_secs()).unwrap_or(i64::MAX);
        (self.end_s() - end_s) % window.max(1) <= self.history_phase_s()
    }

    /// Binds length, end, length and phase: which windows speak for the past, as
    /// [`Self::speaks_for_the_past`].
    pub(super) fn bind_past(&self, query: Query) -> Query {
        query
            .bind(self.window.as_secs_f64())
            .bind(self.end_s())
            .bind(self.window.as_secs().max(1))
            .bind(self.history_phase_s())
    }

    pub(super) fn earliest_s(&self) -> i64 {
        let back = self.lookback.max(self.window).as_secs();
        self.end_s().saturating_sub_unsigned(back).max(0)
    }
}
