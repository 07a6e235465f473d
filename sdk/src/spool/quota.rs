//! Limits of the spool, and which segments they drop. Pure.

use std::time::Duration;

use epwatch_proto::DropReason;

use crate::policy;

/// Limits of the spool. See [`policy`](crate::policy) for the defaults and their reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of reports that one process keeps, including ended streams that it has taken over.
    pub(crate) max_spool_bytes: u64,
    /// Reports older than this are dropped.
    pub(crate) max_spool_age: Duration,
    /// Size at which a segment is closed.
    pub(crate) segment_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_spool_bytes: policy::MAX_SPOOL_BYTES,
            max_spool_age: policy::MAX_SPOOL_AGE,
            segment_bytes: policy::SEGMENT_BYTES,
        }
    }
}

/// Dropped reports, for the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) reason: DropReason,
    pub(crate) reports: u64,
    pub(crate) runs: u64,
}

/// A segment in the list that the limits apply to, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentUse {
    pub(crate) bytes: u64,
    /// Time since its youngest report was sealed.
    pub(crate) age: Duration,
}

/// Returns the reason for each segment that is dropped, from the first segment on.
///
/// Drops the oldest segments first and without gaps, so that the rest always covers the most recent time. A segment is
/// never split. A report larger than the whole spool is dropped too.
pub(crate) fn to_drop(
    segments: &[SegmentUse],
    max_bytes: u64,
    max_age: Duration,
) -> Vec<DropReason> {
    let mut total: u64 = segments.iter().map(|s| s.bytes).sum();
    let mut reasons = Vec::new();
    for segment in segments {
        let reason = match (segment.age > max_age, total > max_bytes) {
            (true, _) => DropReason::SpoolAge,
            (_, true) => DropReason::SpoolFull,
            _ => break,
        };
        reasons.push(reason);
        total -= segment.bytes;
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn segment(bytes: u64, days: u32) -> SegmentUse {
        SegmentUse {
            bytes,
            age: DAY * days,
        }
    }

    #[test]
    fn the_oldest_goes_first() {
        use DropReason::{SpoolAge, SpoolFull};
        let segments = [segment(10, 40), segment(10, 9), segment(10, 1)];
        let check = |max_bytes, days, expected: &[DropReason]| {
            assert_eq!(to_drop(&segments, max_bytes, DAY * days), expected);
        };
        check(30, 50, &[]);
        check(30, 28, &[SpoolAge]);
        check(29, 50, &[SpoolFull]);
        check(10, 28, &[SpoolAge, SpoolFull]);
        check(9, 50, &[SpoolFull, SpoolFull, SpoolFull]);
    }

    proptest! {
        #[test]
        fn what_is_left_fits_and_nothing_goes_without_need(
            segments in prop::collection::vec((1_u64..100, 0_u32..40), 0..20),
            max_bytes in 0_u64..500,
            max_days in 1_u32..40,
        ) {
            let mut segments: Vec<_> = segments.iter().map(|(b, d)| segment(*b, *d)).collect();
            segments.sort_by_key(|s| std::cmp::Reverse(s.age));
            let dropped = to_drop(&segments, max_bytes, DAY * max_days).len();
            let left = &segments[dropped..];
            let bytes = |s: &[SegmentUse]| s.iter().map(|s| s.bytes).sum::<u64>();
            prop_assert!(bytes(left) <= max_bytes);
            prop_assert!(left.iter().all(|s| s.age <= DAY * max_days));
            if let Some(last) = dropped.checked_sub(1) {
                let one_more = &segments[last..];
                let was_needed = bytes(one_more) > max_bytes || segments[last].age > DAY * max_days;
                prop_assert!(was_needed);
            }
        }
    }
}
