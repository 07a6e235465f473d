//! Reports of one device that wait for their ack, oldest first. They are kept as sealed bytes, so a retry sends the
//! same bytes. It is pure: it takes the time and returns decisions.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use epwatch_proto::upload::{MAX_REPORTS, MAX_REQUEST_BYTES};
use epwatch_proto::{Outcome, ReportKey, UploadFailureKind, UploadResponse};
use epwatch_sdk::simulation::SealedReport;

use crate::chance::Chance;

/// First wait after a failed call; doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Longest wait. It is shorter than the wait of a phone, because a person waits for the simulated fleet.
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// Maximum number of bytes that a device keeps; above it, the oldest report is dropped first. This is enough for hours without
/// a collector at the demo's rate, and half a gigabyte for a fleet of 500.
const MAX_BYTES: usize = 1 << 20;

/// The reports of one call by outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CallResult {
    /// Reports that are stored, by this call or an earlier one.
    pub(crate) acked: Vec<ReportKey>,
    /// Runs in each report that was refused for good.
    pub(crate) refused_runs: Vec<u64>,
    /// The failure of a call without an answer.
    pub(crate) failure: Option<UploadFailureKind>,
    /// Whether some of them will be sent again.
    pub(crate) sends_again: bool,
}

/// Reports of one device that wait for their ack.
#[derive(Debug)]
pub(crate) struct Outbox {
    reports: VecDeque<SealedReport>,
    n_bytes: usize,
    max_bytes: usize,
    n_in_flight: usize,
    n_failures: u32,
    not_before: Duration,
    max_request_bytes: usize,
    jitter: Chance,
}

impl Outbox {
    pub(crate) fn new(jitter: Chance) -> Self {
        Self {
            reports: VecDeque::new(),
            n_bytes: 0,
            max_bytes: MAX_BYTES,
            n_in_flight: 0,
            n_failures: 0,
            not_before: Duration::ZERO,
            max_request_bytes: MAX_REQUEST_BYTES,
            jitter,
        }
    }

    /// Keeps a report, and returns the oldest reports that were dropped for it. Reports that are being sent stay,
    /// because their ack may arrive.
    pub(crate) fn push(&mut self, report: SealedReport) -> Vec<SealedReport> {
        self.n_bytes += report.bytes.len();
        self.reports.push_back(report);
        let mut lost = Vec::new();
        while self.n_bytes > self.max_bytes
            && let Some(oldest) = self.reports.remove(self.n_in_flight)
        {
            self.n_bytes -= oldest.bytes.len();
            lost.push(oldest);
        }
        lost
    }

    /// Returns the time of the next call; `None` without reports.
    pub(crate) fn due(&self) -> Option<Duration> {
        (!self.reports.is_empty()).then_some(self.not_before)
    }

    /// The oldest reports that fit into one call; at least one.
    pub(crate) fn next_call(&mut self) -> Vec<Bytes> {
        let mut reports: Vec<Bytes> = Vec::new();
        // Reserves space for the request's own fields; each report adds its tag and length.
        let mut n_bytes = 1_024;
        for report in self.reports.iter().take(MAX_REPORTS) {
            n_bytes += report.bytes.len() + 8;
            if n_bytes > self.max_request_bytes && !reports.is_empty() {
                break;
            }
            reports.push(report.bytes.clone());
        }
        self.n_in_flight = reports.len();
        reports
    }

    /// Removes the settled reports, and keeps the others for another call.
    pub(crate) fn settle(
        &mut self,
        answer: Result<UploadResponse, UploadFailureKind>,
        now: Duration,
    ) -> CallResult {
        let n_in_flight = std::mem::take(&mut self.n_in_flight);
        let response = match answer {
            Ok(response) => response,
            Err(kind) => {
                self.back_off(now, Duration::ZERO);
                return CallResult {
                    failure: Some(kind),
                    sends_again: true,
                    ..CallResult::default()
                };
            }
        };
        let mut ended = CallResult::default();
        let mut kept = VecDeque::new();
        for (index, report) in self.reports.drain(..n_in_flight).enumerate() {
            let result = response
                .results
                .iter()
                .find(|result| usize::try_from(result.index) == Ok(index));
            match result {
                Some(result) if result.keep() => {
                    kept.push_back(report);
                    continue;
                }
                Some(result) if !result.outcome.is_some_and(Outcome::is_ack) => {
                    ended.refused_runs.push(report.runs);
                    let (outcome, detail) = (result.outcome, &result.detail);
                    tracing::warn!(?outcome, detail, "report refused");
                }
                _ => ended.acked.push(report.key),
            }
            self.n_bytes -= report.bytes.len();
        }
        ended.sends_again = !kept.is_empty();
        kept.append(&mut self.reports);
        self.reports = kept;
        if let Some(limit) = response.max_request_bytes {
            self.max_request_bytes = usize::try_from(limit).unwrap_or(MAX_REQUEST_BYTES);
        }
        let hint = Duration::from_millis(response.retry_after_ms.unwrap_or(0));
        if ended.sends_again {
            self.back_off(now, hint);
        } else {
            self.n_failures = 0;
            self.not_before = now + hint;
        }
        ended
    }

    fn back_off(&mut self, now: Duration, at_least: Duration) {
        let wait = self
            .jitter
            .backoff((FIRST_WAIT, LONGEST_WAIT), self.n_failures);
        self.n_failures = self.n_failures.saturating_add(1);
        self.not_before = now + wait.max(at_least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epwatch_proto::{InstallationId, ReportResult, Sequence, StreamId};

    fn sealed(number: u8) -> SealedReport {
        SealedReport {
            key: ReportKey {
                installation: InstallationId::from_secret(b"device"),
                stream: StreamId(1),
                sequence: Sequence::new(u64::from(number) + 1).unwrap(),
            },
            bytes: Bytes::from(vec![number; 100]),
            runs: u64::from(number),
        }
    }

    fn outbox(n_reports: u8) -> Outbox {
        let mut outbox = Outbox::new(Chance::split(1, "jitter", 0));
        for report in 0..n_reports {
            assert!(outbox.push(sealed(report)).is_empty());
        }
        outbox
    }

    fn response(results: Vec<ReportResult>) -> Result<UploadResponse, UploadFailureKind> {
        Ok(UploadResponse {
            results,
            server_time_unix_ms: 1,
            retry_after_ms: None,
            next_interval_ms: None,
            max_request_bytes: None,
            directives: Vec::new(),
            n_reports: 0,
            request_id: 0,
        })
    }

    #[test]
    fn each_report_ends_as_its_result_says() {
        let mut outbox = outbox(4);
        let before = outbox.next_call();
        let results = vec![
            ReportResult::new(1, None, Outcome::Duplicate, ""),
            ReportResult::new(2, None, Outcome::RefusedOverloaded, ""),
            ReportResult::new(3, None, Outcome::RefusedMalformed, "series[0].n"),
        ];
        let ended = outbox.settle(response(results), Duration::ZERO);
        let expected = CallResult {
            acked: vec![sealed(0).key, sealed(1).key],
            refused_runs: vec![3],
            failure: None,
            sends_again: true,
        };
        assert_eq!(ended, expected);
        assert_eq!(outbox.next_call(), before[2..3]);
    }

    #[test]
    fn a_smaller_limit_makes_smaller_calls() {
        let mut outbox = outbox(50);
        outbox.max_request_bytes = 2_000;
        let reports = outbox.next_call();
        assert!((1..10).contains(&reports.len()));
        outbox.max_request_bytes = 1;
        assert_eq!(outbox.next_call().len(), 1);
    }

    #[test]
    fn a_full_outbox_loses_the_oldest_that_is_not_on_its_way() {
        let mut outbox = outbox(3);
        outbox.max_bytes = 300;
        outbox.max_request_bytes = 1;
        assert_eq!(outbox.next_call().len(), 1);
        assert_eq!(outbox.push(sealed(3)), [sealed(1)]);
        let ended = outbox.settle(response(Vec::new()), Duration::ZERO);
        assert_eq!(ended.acked, [sealed(0).key]);
        assert_eq!(outbox.push(sealed(4)), []);
        let waiting: Vec<u64> = outbox.reports.iter().map(|report| report.runs).collect();
        assert_eq!(waiting, [2, 3, 4]);
    }
}
