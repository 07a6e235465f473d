//! The count of a load's reports by their end.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epwatch_proto::{Outcome, UploadResponse};
use hdrhistogram::Histogram;

use super::requests::Pending;

/// Longest latency that is resolved, in microseconds: ten minutes.
const HIGHEST_US: u64 = 600_000_000;

/// Latency from the moment that a request was due to the ack of the last of its reports, in
/// milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct AckLatency {
    pub p50: f64,
    /// 99 %.
    pub p99: f64,
    pub max: f64,
}

/// Counts at one instant, for a progress line.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadProgress {
    /// Reports sent at least once.
    pub sent: u64,
    pub acked: u64,
}

/// The end of a load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadResult {
    /// Reports sent at least once.
    pub sent: u64,
    /// Reports acknowledged: stored or duplicate.
    pub acked: u64,
    /// Acknowledged reports that the collector had already, since an ack was lost.
    pub duplicates: u64,
    /// Reports refused for good, by outcome.
    pub refused: BTreeMap<String, u64>,
    /// Reports sent again, counted each time.
    pub retried: u64,
    /// Reports that were neither acknowledged nor refused when time was up.
    pub given_up: u64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// `None` where nothing was acknowledged.
    pub ack: Option<AckLatency>,
}

#[derive(Debug)]
struct Counts {
    sent: u64,
    acked: u64,
    duplicates: u64,
    refused: BTreeMap<String, u64>,
    retried: u64,
    given_up: u64,
    ack_us: Histogram<u64>,
}

/// Counts while the load runs.
#[derive(Debug)]
pub(super) struct Tally(Mutex<Counts>);

impl Default for Tally {
    fn default() -> Self {
        Self(Mutex::new(Counts {
            sent: 0,
            acked: 0,
            duplicates: 0,
            refused: BTreeMap::new(),
            retried: 0,
            given_up: 0,
            ack_us: Histogram::new_with_max(HIGHEST_US, 3).expect("the settings are valid"),
        }))
    }
}

impl Tally {
    pub(super) fn sent(&self, reports: usize) {
        self.lock().sent += reports as u64;
    }

    pub(super) fn retried(&self, reports: usize) {
        self.lock().retried += reports as u64;
    }

    pub(super) fn gave_up(&self, reports: usize) {
        self.lock().given_up += reports as u64;
    }

    /// Counts the reports that ended, and leaves in `pending` those that are to be sent again.
    pub(super) fn settle(&self, pending: &mut Pending, response: &UploadResponse, took: Duration) {
        let mut counts = self.lock();
        let mut kept = Vec::new();
        for (index, report) in pending.request.reports.drain(..).enumerate() {
            let result = response
                .results
                .iter()
                .find(|result| usize::try_from(result.index) == Ok(index));
            let outcome = result.map_or(Some(Outcome::Stored), |result| result.outcome);
            match outcome {
                _ if result.is_some_and(|result| result.keep()) => kept.push(report),
                Some(outcome) if outcome.is_ack() => {
                    counts.acked += 1;
                    counts.duplicates += u64::from(outcome == Outcome::Duplicate);
                }
                outcome => {
                    let reason = outcome.map_or("unknown", Outcome::label);
                    *counts.refused.entry(reason.to_owned()).or_default() += 1;
                }
            }
        }
        pending.request.reports = kept;
        if pending.is_empty() {
            let us = u64::try_from(took.as_micros()).unwrap_or(HIGHEST_US);
            counts.ack_us.saturating_record(us);
        }
    }

    pub(super) fn progress(&self) -> LoadProgress {
        let counts = self.lock();
        LoadProgress {
            sent: counts.sent,
            acked: counts.acked,
        }
    }

    pub(super) fn result(&self, elapsed: Duration) -> LoadResult {
        let counts = self.lock();
        #[expect(clippy::cast_precision_loss, reason = "at most ten minutes")]
        let ms = |us: u64| us as f64 / 1e3;
        let ack = (!counts.ack_us.is_empty()).then(|| AckLatency {
            p50: ms(counts.ack_us.value_at_quantile(0.5)),
            p99: ms(counts.ack_us.value_at_quantile(0.99)),
            max: ms(counts.ack_us.max()),
        });
        LoadResult {
            sent: counts.sent,
            acked: counts.acked,
            duplicates: counts.duplicates,
            refused: counts.refused.clone(),
            retried: counts.retried,
            given_up: counts.given_up,
            elapsed,
            ack,
        }
    }

    /// Nothing panics while it counts.
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
