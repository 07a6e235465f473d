//! Events for the app's log and its health listener: each seal, each answer of the collector, and the latest problem.
//!
//! The driver adds events under its lock. The SDK's thread passes them on without a lock, so that a subscriber or a
//! listener may call the SDK.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Number of events that wait for the thread; the oldest are dropped first.
const MAX_EVENTS: usize = 64;

/// Something that happened to reports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DriverEvent {
    /// This many reports were sealed, with this many runs.
    Sealed { reports: usize, runs: u64 },
    /// A request has ended with this answer.
    Answered(String),
    /// A request has failed.
    Failed(String),
}

impl DriverEvent {
    /// Writes a line for `tracing`, at level DEBUG. The host's subscriber may panic, which does not affect the SDK.
    pub(super) fn log(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Sealed { reports, runs } => tracing::debug!(reports, runs, "sealed"),
            Self::Answered(answer) => tracing::debug!(answer, "the collector answered"),
            Self::Failed(error) => tracing::debug!(error, "a request failed"),
        }));
    }
}

#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<DriverEvent>);

impl Events {
    pub(super) fn add(&mut self, event: DriverEvent) {
        if self.0.len() >= MAX_EVENTS {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    pub(super) fn take(&mut self) -> VecDeque<DriverEvent> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_events_are_kept() {
        let mut events = Events::default();
        for runs in 0..100 {
            events.add(DriverEvent::Sealed { reports: 1, runs });
        }
        let kept = events.take();
        assert_eq!(kept.len(), MAX_EVENTS);
        assert_eq!(
            kept.back(),
            Some(&DriverEvent::Sealed {
                reports: 1,
                runs: 99
            })
        );
        assert!(events.take().is_empty());
    }
}
