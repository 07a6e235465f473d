//! One interval as reports: distribution over reports, and encoding.
//!
//! A report holds a limited number of sessions, series and bytes; further ones go into another report of the same
//! interval. Sessions of another runtime go into another report too, because a report names one runtime. Every report
//! describes each session that it refers to, because it is judged alone.

use bytes::Bytes;
use epwatch_proto::{
    LatencySeries, Report, ReportKey, RunErrors, Runtime, SelfTest, Session, StartFailure,
    report::{MAX_INTERVAL_MS, MAX_RUN_ERRORS, MAX_SELF_TESTS, MAX_SERIES, MAX_SESSIONS},
    v1,
};
use prost::Message;

use super::Core;
use crate::{policy::MAX_SEALED_BYTES, time::Now};

/// One encoded and numbered report. Its bytes never change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedReport {
    /// Installation, stream and sequence.
    pub key: ReportKey,
    /// The encoded `epwatch.v1.Report`.
    pub bytes: Bytes,
    /// Runs in its histograms.
    pub runs: u64,
}

/// One session's interval.
#[derive(Debug, Clone)]
pub(crate) struct SessionPart {
    pub(crate) session: Session,
    /// Runtime of this session; `None` if it is the process's ONNX Runtime.
    pub(crate) runtime: Option<Runtime>,
    pub(crate) series: Vec<LatencySeries>,
    /// Failed runs by ORT status code.
    pub(crate) errors: Vec<(i32, u64)>,
    pub(crate) self_tests: Vec<SelfTest>,
}

impl SessionPart {
    pub(crate) fn is_empty(&self) -> bool {
        self.series.is_empty() && self.errors.is_empty() && self.self_tests.is_empty()
    }

    /// The same session without its interval.
    fn head(&self) -> Self {
        Self {
            session: self.session.clone(),
            runtime: self.runtime.clone(),
            series: Vec::new(),
            errors: Vec::new(),
            self_tests: Vec::new(),
        }
    }
}

impl Core {
    /// Returns the report of these sessions. The fields about the device and the interval are the same in each report
    /// of an interval.
    pub(super) fn report(
        &mut self,
        key: ReportKey,
        until: Now,
        start_failures: Vec<StartFailure>,
        parts: Vec<SessionPart>,
    ) -> Report {
        let from = self.interval_start;
        let length = until.mono.saturating_sub(from.mono);
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let runtime = parts.first().and_then(|part| part.runtime.clone());
        let mut report = Report {
            key,
            ended_streams: self.ended.named_in(key.sequence.get()),
            interval_start_unix_ms: from.wall_unix_ms,
            interval_end_unix_ms: until.wall_unix_ms,
            interval_length_ms: length_ms.min(MAX_INTERVAL_MS),
            boot_id: self.boot_id.clone(),
            uptime_at_end_ms: until.uptime_ms,
            app: self.app.clone(),
            device: self.device.clone(),
            runtime: runtime.unwrap_or_else(|| self.runtime.clone()),
            sdk: self.sdk.clone(),
            sessions: Vec::new(),
            series: Vec::new(),
            self_tests: Vec::new(),
            start_failures,
            run_errors: Vec::new(),
            health: self.health.clone(),
        };
        for part in parts {
            let session_uid = part.session.uid;
            report.sessions.push(part.session);
            report.series.extend(part.series);
            report.self_tests.extend(part.self_tests);
            let errors = part.errors.into_iter();
            let errors = errors.map(|(ort_status_code, count)| RunErrors {
                session_uid,
                ort_status_code,
                count,
            });
            report.run_errors.extend(errors);
        }
        report
    }
}

/// One report while it fills up.
#[derive(Debug, Default)]
struct ReportGroup {
    parts: Vec<SessionPart>,
    n_series: usize,
    n_errors: usize,
    n_tests: usize,
    bytes: usize,
}

impl ReportGroup {
    fn has_room(&self, sessions: usize, series: usize, errors: usize, bytes: usize) -> bool {
        self.parts.len() + sessions <= MAX_SESSIONS
            && self.n_series + series <= MAX_SERIES
            && self.n_errors + errors <= MAX_RUN_ERRORS
            && self.bytes + bytes <= MAX_SEALED_BYTES
    }
}

/// Distributes sessions over reports in order, and keeps the sessions of a runtime together. Returns at least one
/// report.
pub(crate) fn pack(
    mut parts: Vec<SessionPart>,
    start_failures: &[StartFailure],
) -> Vec<Vec<SessionPart>> {
    let failures = start_failures.iter().map(v1::StartFailure::from);
    let mut open = ReportGroup {
        bytes: failures.map(|f| f.encoded_len()).sum(),
        ..ReportGroup::default()
    };
    let mut full = Vec::new();
    parts.sort_by_cached_key(|part| part.runtime.as_ref().map(Runtime::name));
    for part in parts {
        // An error takes at most 64 bytes, a self-test 256: ids and hashes are bounded.
        let head = v1::Session::from(&part.session).encoded_len()
            + 64 * part.errors.len()
            + 256 * part.self_tests.len();
        let has_room = open.has_room(1, 0, part.errors.len(), head)
            && open.n_tests + part.self_tests.len() <= MAX_SELF_TESTS
            && open
                .parts
                .last()
                .is_none_or(|last| last.runtime == part.runtime);
        if !has_room && !open.parts.is_empty() {
            full.push(std::mem::take(&mut open).parts);
        }
        let mut filling = part.head();
        open.bytes += head;
        open.n_errors += part.errors.len();
        filling.errors = part.errors;
        open.n_tests += part.self_tests.len();
        filling.self_tests = part.self_tests;
        for series in part.series {
            let bytes = v1::LatencySeries::from(&series).encoded_len() + 8;
            if !open.has_room(1, 1, 0, bytes) {
                let next = filling.head();
                open.parts.push(std::mem::replace(&mut filling, next));
                full.push(std::mem::take(&mut open).parts);
                open.bytes = head;
            }
            open.bytes += bytes;
            open.n_series += 1;
            filling.series.push(series);
        }
        open.parts.push(filling);
    }
    full.push(open.parts);
    full
}
