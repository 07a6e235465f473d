//! Judged windows whose rows are not stored yet. While the store is away for a moment, the rows wait here, so that the
//! history has no hole. A window that does not fit is named in the log, and appears in `missing_windows_v1`.

use std::collections::VecDeque;

use crate::run::verdict_store::{JudgedWindow, StoreError, VerdictStore};

/// Number of verdicts that may wait, some kB each.
const MAX_VERDICTS: usize = 50_000;

/// Number of windows that may wait: a day and a half of hourly steps.
const MAX_WINDOWS: usize = 36;

/// The windows that wait, in the order of judging.
#[derive(Debug, Default)]
pub(crate) struct UnwrittenWindows(VecDeque<JudgedWindow>);

impl UnwrittenWindows {
    /// Adds a window, and drops the oldest ones beyond the limits.
    pub(crate) fn push(&mut self, window: JudgedWindow) {
        self.0.push_back(window);
        let n_verdicts =
            |all: &VecDeque<JudgedWindow>| all.iter().map(|one| one.verdicts.len()).sum::<usize>();
        while self.0.len() > 1 && (self.0.len() > MAX_WINDOWS || n_verdicts(&self.0) > MAX_VERDICTS)
        {
            if let Some(dropped) = self.0.pop_front() {
                tracing::error!(
                    window_end = %dropped.end,
                    "the store was away for too long: a judged window is missing in the history"
                );
            }
        }
    }

    /// Writes the windows in order, up to the first one that the store refuses.
    pub(crate) async fn write(&mut self, store: &VerdictStore) -> Result<(), StoreError> {
        while let Some(window) = self.0.front() {
            // Pages are read again when a window is stored, so its evidence is written before. The mark comes last,
            // because it means that all of the window is stored.
            store
                .add_evidence(&window.evidence, window.judged_at)
                .await?;
            store
                .add_windows(&window.verdicts, window.judged_at)
                .await?;
            store.add_judged_window(window).await?;
            self.0.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn window(second: i64) -> JudgedWindow {
        JudgedWindow {
            end: Timestamp::from_second(second).unwrap(),
            window_seconds: 60.0,
            step_seconds: 1.0,
            verdicts: Vec::new(),
            evidence: Vec::new(),
            judged_at: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn the_oldest_windows_go_first() {
        let mut unwritten = UnwrittenWindows::default();
        for second in 0..100 {
            unwritten.push(window(second));
        }
        assert_eq!(unwritten.0.len(), MAX_WINDOWS);
        assert_eq!(unwritten.0.back().unwrap().end.as_second(), 99);
    }
}
