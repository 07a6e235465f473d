//! Windows that are missing between judged ones, by `missing_windows_v1`. A chart has a gap there, and a sentence says so.

use clickhouse::Row;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::period::PlottedPeriod;
use super::progress::time_of_ms;
use super::store::{ReadError, StoreReader};
use crate::text::number;

/// A time between two judged windows in which windows are missing.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct WindowGap {
    /// End of the last judged window before it.
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) judged_before: Option<Timestamp>,
    /// End of the first judged window after it.
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) judged_after: Option<Timestamp>,
    /// Windows that are missing.
    pub(crate) windows: u64,
}

const GAPS: &str = "
SELECT m.gap_from AS judged_before, m.gap_until AS judged_after, m.windows AS windows
FROM missing_windows_v1 AS m
WHERE m.window_seconds = ?
  AND m.gap_until > fromUnixTimestamp64Milli(?) AND m.gap_from < fromUnixTimestamp64Milli(?)
ORDER BY judged_after DESC
LIMIT 1000";

/// Returns the gaps of a period between windows of this length, in order of time. Windows of another length are of an earlier
/// configuration.
pub(crate) async fn read(
    store: &StoreReader,
    window_seconds: f64,
    period: PlottedPeriod,
) -> Result<Vec<WindowGap>, ReadError> {
    let (from, to) = (period.from.as_millisecond(), period.to.as_millisecond());
    let bind = |query: clickhouse::query::Query| query.bind(window_seconds).bind(from).bind(to);
    let mut gaps: Vec<WindowGap> = store.rows(GAPS, bind).await?;
    gaps.reverse();
    Ok(gaps)
}

/// Returns where gaps begin and end, as shares of the period in [0, 1].
pub(crate) fn places(gaps: &[WindowGap], period: PlottedPeriod) -> Vec<(f64, f64)> {
    let gaps = gaps.iter();
    let places = gaps.filter_map(|gap| {
        let at = |time: Timestamp| period.at(time).clamp(0.0, 1.0);
        Some((at(gap.judged_before?), at(gap.judged_after?)))
    });
    places.collect()
}

/// Returns a sentence on the gaps, with times as `clock` writes them; `None` without any.
pub(crate) fn words(gaps: &[WindowGap], clock: impl Fn(Timestamp) -> String) -> Option<String> {
    let last = gaps.last()?;
    let missing: u64 = gaps.iter().map(|gap| gap.windows).sum();
    let (before, after) = (clock(last.judged_before?), clock(last.judged_after?));
    let windows = number::of_them(missing, "window");
    let (are, they) = if missing == 1 {
        ("is", "it was")
    } else {
        ("are", "they were")
    };
    let place = match gaps.len() {
        1 => format!("between {before} and {after} UTC"),
        n => format!(
            "in {} places, the last between {before} and {after} UTC",
            number::count(n as u64)
        ),
    };
    Some(format!(
        "{windows} {are} missing {place}: {they} not judged, or could not be stored. That time is grey; \
         whether the fleet was healthy then is not known."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(from: i64, to: i64, windows: u64) -> WindowGap {
        WindowGap {
            judged_before: Timestamp::from_second(from).ok(),
            judged_after: Timestamp::from_second(to).ok(),
            windows,
        }
    }

    #[test]
    fn a_gap_says_how_many_windows_are_missing_and_when() {
        let words = |gaps: &[WindowGap]| words(gaps, |at| at.as_second().to_string());
        assert_eq!(words(&[]), None);
        let one = words(&[gap(100, 120, 1)]).unwrap();
        let begin = "1 window is missing between 100 and 120 UTC: it was not judged";
        assert!(one.starts_with(begin), "{one}");
        let two = words(&[gap(100, 120, 1), gap(200, 240, 3)]).unwrap();
        let begin =
            "4 windows are missing in 2 places, the last between 200 and 240 UTC: they were";
        assert!(two.starts_with(begin), "{two}");
    }

    #[test]
    fn a_gap_is_cut_to_the_period() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let period = PlottedPeriod::of(at(100), at(200), 10);
        let gaps = [gap(50, 110, 5), gap(150, 300, 9)];
        assert_eq!(places(&gaps, period), [(0.0, 0.1), (0.5, 1.0)]);
    }
}
