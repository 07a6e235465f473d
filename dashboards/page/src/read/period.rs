//! The period that a page's charts cover, in equal slots.

use jiff::Timestamp;
use serde::Serialize;

use crate::text::time::clock;

/// Longest period of charts.
const DAY_SECONDS: i64 = 86_400;

/// A period, divided into slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct PlottedPeriod {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) slots: i64,
}

impl PlottedPeriod {
    /// Returns the period from the first judged window, at most a day back, to the last one.
    pub(crate) fn of(first: Timestamp, last: Timestamp, slots: i64) -> Self {
        let earliest = last.as_second() - DAY_SECONDS;
        let from = first.as_second().max(earliest).min(last.as_second() - 1);
        Self {
            from: Timestamp::from_second(from).unwrap_or(last),
            to: last,
            slots,
        }
    }

    pub(crate) fn seconds(self) -> i64 {
        (self.to.as_second() - self.from.as_second()).max(1)
    }

    /// Returns the position of a time, 0 at the start and 1 at the end.
    pub(crate) fn at(self, time: Timestamp) -> f64 {
        (time.as_second() - self.from.as_second()) as f64 / self.seconds() as f64
    }

    /// Returns labels for an axis, each text once, because times within a second have equal texts.
    pub(crate) fn labels(self, now: Timestamp) -> Vec<(f64, String)> {
        const N: i64 = 4;
        let label = |step: i64| {
            let second = self.from.as_second() + self.seconds() * step / N;
            let time = Timestamp::from_second(second).unwrap_or(self.to);
            let text = clock(time, now);
            // Seconds say nothing on an axis of hours.
            let is_long = self.seconds() > 6 * 3_600;
            let text = if is_long {
                text[..text.len() - 3].to_owned()
            } else {
                text
            };
            (step as f64 / N as f64, text)
        };
        let mut labels: Vec<(f64, String)> = (0..=N).map(label).collect();
        labels.dedup_by(|a, b| a.1 == b.1);
        labels
    }
}
