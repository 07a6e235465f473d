//! Counts a load's reports by outcome.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epwatch_proto::{Outcome, UploadResponse};
use hdrhistogram::Histogram;

use super::requests::Pending;

/// Longest latency that is resolved, in microseconds: ten minutes.
const HIGHEST_US: u64 = 600_000_000;

/// Latency from the moment that a request was due to the ack of the last of its reports, in milliseconds.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct AckLatency {
    pub p50: f64,
    /// 99 %.
    pub p99: f64,
    pub max: f64,
}

/// The result of a load.
#[derive(Debug, Clone, Default)]
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
    /// Time from the first request to the last answer.
    pub elapsed: Duration,
    /// Latency of acks; `None` if nothing was acknowledged.
    pub ack: Option<AckLatency>,
}

/// Counts while the load runs.
#[derive(Debug)]
pub(super) struct Tally {
    result: Mutex<LoadResult>,
    ack_us: Mutex<Histogram<u64>>,
}

impl Default for Tally {
    fn default() -> Self {
        let histogram = Histogram::new_with_max(HIGHEST_US, 3).expect("the settings are valid");
        Self {
            result: Mutex::default(),
            ack_us: Mutex::new(histogram),
        }
    }
}

/// A poisoned lock is ignored, because no holder panics halfway through a count.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tally {
    /// The counts so far, without `elapsed` and `ack`.
    pub(super) fn counts(&self) -> MutexGuard<'_, LoadResult> {
        lock(&self.result)
    }

    /// Counts the settled reports, and leaves the reports to send again in `pending`.
    pub(super) fn settle(&self, pending: &mut Pending, response: &UploadResponse, took: Duration) {
        let mut counts = self.counts();
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
            lock(&self.ack_us).saturating_record(us);
        }
    }

    pub(super) fn result(&self, elapsed: Duration) -> LoadResult {
        let ack_us = lock(&self.ack_us);
        #[expect(clippy::cast_precision_loss, reason = "at most ten minutes")]
        let ms = |us: u64| us as f64 / 1e3;
        let ack = (!ack_us.is_empty()).then(|| AckLatency {
            p50: ms(ack_us.value_at_quantile(0.5)),
            p99: ms(ack_us.value_at_quantile(0.99)),
            max: ms(ack_us.max()),
        });
        LoadResult {
            elapsed,
            ack,
            ..self.counts().clone()
        }
    }
}
