//! Log lines about first reports that are in the store: a bounded number of lines a minute, then a count of the rest.
//! The writer calls it.

use std::time::Duration;

use tokio::time::Instant;

use crate::encode::FirstReport;

const PERIOD: Duration = Duration::from_secs(60);
const MAX_LINES: usize = 20;

#[derive(Debug, Default)]
pub(super) struct ArrivalLog {
    began: Option<Instant>,
    n_lines: usize,
    n_left_out: usize,
}

impl ArrivalLog {
    /// Logs the first reports of a stored batch, and how many the last minute left out. Called each round.
    pub(super) fn write(&mut self, first: &[FirstReport]) {
        let n_left_out = self.begin_period(Instant::now());
        if n_left_out > 0 {
            tracing::info!(
                n_left_out,
                "more first reports of models on chipsets in the last minute"
            );
        }
        for report in first {
            if self.has_room() {
                tracing::info!(
                    app = report.app_id,
                    environment = report.environment,
                    model = report.model_id,
                    version = report.model_version,
                    chipset = report.chipset,
                    "first report since the start"
                );
            }
        }
    }

    /// Returns the number of lines that the last period left out, once it is over.
    fn begin_period(&mut self, now: Instant) -> usize {
        if self.began.is_some_and(|began| now - began < PERIOD) {
            return 0;
        }
        self.began = Some(now);
        self.n_lines = 0;
        std::mem::take(&mut self.n_left_out)
    }

    /// Takes one line from this period's limit; returns whether one was left.
    fn has_room(&mut self) -> bool {
        let has_room = self.n_lines < MAX_LINES;
        self.n_lines += usize::from(has_room);
        self.n_left_out += usize::from(!has_room);
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_makes_twenty_lines_a_minute_and_a_count() {
        let mut log = ArrivalLog::default();
        let start = Instant::now();
        assert_eq!(log.begin_period(start), 0);
        assert_eq!((0..500).filter(|_| log.has_room()).count(), MAX_LINES);
        assert_eq!(log.begin_period(start + PERIOD / 2), 0);
        assert!(!log.has_room());
        assert_eq!(log.begin_period(start + PERIOD), 481);
        assert!(log.has_room());
        assert_eq!(log.begin_period(start + 3 * PERIOD), 0);
    }
}
