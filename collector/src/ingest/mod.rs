//! Upload calls: each report is validated, appended to the WAL as it came in, and acknowledged once it is durable. Every
//! report of an accepted call ends in exactly one outcome. The device port calls this; it never waits for the store.
//!
//! Outcomes are counted where the WAL completes an append, so a device that disconnects during the sync changes
//! nothing.

pub(crate) mod auth;
pub(crate) mod dedup;
pub(crate) mod limits;
mod refusal_warnings;
pub(crate) mod shares;
pub(crate) mod validate;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use epwatch_proto::v1::{self, collector_service_server::CollectorService};
use epwatch_proto::{FastValidator, InstallationId, Outcome, SendClock, UploadRequest};
use tokio::sync::oneshot;
use tonic::{Code, Request, Response, Status};
use tracing::Instrument as _;

use self::refusal_warnings::RefusalWarnings;
use self::validate::{CheckedReport, RefusedReport, validate_report};
use crate::admission::{Admission, Network};
use crate::context::Context;
use crate::deletions::Deletions;
use crate::directives::DirectiveBook;
use crate::ingest::auth::{Caller, Scope};
use crate::ingest::dedup::{CallHashes, KeyLookup, ReportHashes, SeenKeys};
use crate::ingest::limits::ReportLimits;
use crate::ingest::shares::ShareError;
use crate::proxy_watch::ProxyWatch;
use crate::report_path::REPORT_PATH;
use crate::rpc::Calls;
use crate::server::reject_reason::RejectReason;
use crate::server::retry;
use crate::wal::{Batch, Retry, WalError, WalOffset};
use crate::wal_record::{self, SenderMark};

/// Retry delay of errors that have no delay of their own.
const RETRY: Duration = Duration::from_secs(5);

/// Retry delay for a device over its installation's quota: at the default rate, the quota of one request is
/// back by then.
const QUOTA_RETRY_MS: u64 = 15_000;

/// Retry delay of an app that has used up its share of the WAL; the same as for a full WAL.
const SHARE_RETRY: Duration = Duration::from_secs(30);

/// From this many reports without a network on, a warning is logged; fewer may come from the operator's own devices.
const MANY_UNWEIGHED: u64 = 100;

#[derive(Debug)]
pub(crate) struct Ingest {
    pub(crate) context: Arc<Context>,
    pub(crate) seen: Arc<SeenKeys>,
    pub(crate) warnings: Arc<RefusalWarnings>,
    pub(crate) deletions: Arc<Deletions>,
    pub(crate) directives: Arc<DirectiveBook>,
    pub(crate) calls: Calls,
    pub(crate) limits: Arc<ReportLimits>,
    pub(crate) admission: Arc<Admission>,
    /// True if the warning about unknown networks was not written yet.
    pub(crate) may_warn_unweighed: AtomicBool,
    pub(crate) proxy_watch: ProxyWatch,
}

/// A valid report, or a refused one.
type Validated<'a> = Result<(ReportHashes, CheckedReport<'a>), RefusedReport>;

/// The reports of one call that go into the WAL.
struct AcceptedReports {
    marks: Vec<ReportHashes>,
    /// The installation of each report, from whose quota it took.
    installations: Vec<InstallationId>,
    /// Latency series that the writer leaves out.
    n_dropped_series: u64,
}

/// The reports of one call, sorted into those for the WAL and those refused.
struct SortedReports {
    batch: Batch,
    accepted: AcceptedReports,
    /// Refused reports with their index in the call. They are not counted yet, because the device sends all of them
    /// again if the append fails.
    refused: Vec<(usize, RefusedReport)>,
}

/// The part of the quotas that the reports of a call took. Gives it back on drop, unless they were stored.
struct TakenQuota {
    limits: Arc<ReportLimits>,
    scope: Arc<Scope>,
    n_reports: usize,
    installations: Vec<InstallationId>,
    is_used: bool,
}

impl Drop for TakenQuota {
    fn drop(&mut self) {
        if !self.is_used {
            let key = || self.scope.describe();
            self.limits.give_back_call(key, self.n_reports);
            self.limits.give_back_reports(&self.installations);
        }
    }
}

/// Counts all reports of a call that is refused as a whole. They count under the scope of its key, because the reports'
/// own apps were not read or differ.
struct CallCounts {
    context: Arc<Context>,
    warnings: Arc<RefusalWarnings>,
    scope: Arc<Scope>,
    n_reports: u64,
    now_us: u64,
}

impl CallCounts {
    fn count(&self, outcome: Outcome) {
        let Context {
            metrics, refusals, ..
        } = &*self.context;
        let (scope, n) = (&self.scope, self.n_reports);
        metrics.count_refused(scope.key_name(), outcome, n);
        refusals.count(self.now_us, scope.proven(), outcome, n);
        let (key, app) = (scope.key_name(), scope.proven().0);
        self.warnings
            .reports(key, || scope.describe(), outcome.label(), (app, n));
    }
}

impl Ingest {
    /// Sorts the reports of one call into accepted ones, for the WAL, and refused ones. All reports take one step
    /// before the next begins. Each look-up in the large tables of keys and installations waits for memory, and the
    /// waits of one step overlap.
    fn sort_reports(
        &self,
        scope: &Scope,
        network: Option<Network>,
        clock: &SendClock,
        reports: &[Bytes],
    ) -> SortedReports {
        let now_us = self.context.clock.now_us();
        let decided = self.admit_all(scope, self.validate_all(reports), now_us);
        let mut accepted = AcceptedReports {
            marks: Vec::with_capacity(reports.len()),
            installations: Vec::with_capacity(reports.len()),
            n_dropped_series: 0,
        };
        let mut kept = Vec::with_capacity(reports.len());
        let mut refused = Vec::new();
        for (index, (decided, bytes)) in decided.into_iter().zip(reports).enumerate() {
            match decided {
                Ok((mark, report)) => {
                    accepted.marks.push(mark);
                    accepted.installations.push(report.key.installation);
                    accepted.n_dropped_series += report.n_dropped_series as u64;
                    kept.push((report, bytes));
                }
                Err(refusal) => refused.push((index, refusal)),
            }
        }
        // All reports of a call came from one network.
        let sender = self.admission.sender(scope.is_own(), network);
        self.count_unweighed(sender, network, kept.len());
        let is_unproven = |(report, _): &(CheckedReport<'_>, _)| {
            let installation = report.key.installation;
            !sender.is_own
                && self
                    .admission
                    .is_unproven(report.app().0, installation, sender.network, now_us)
        };
        let unproven: Vec<bool> = kept.iter().map(is_unproven).collect();
        let n_bytes = kept.iter().map(|(_, bytes)| bytes.len() + 160).sum();
        let mut batch = Batch::with_capacity(n_bytes);
        let mut header = Vec::with_capacity(160);
        for ((report, bytes), is_unproven) in kept.iter().zip(unproven) {
            let mark = SenderMark {
                is_unproven,
                ..sender
            };
            wal_record::write_header(&mut header, clock, report.app(), mark);
            batch
                .push(&[&header, bytes])
                .expect("reports are bounded, headers too");
        }
        SortedReports {
            batch,
            accepted,
            refused,
        }
    }

    /// Counts reports of public keys whose network is unknown, and warns once if they are most of the reports.
    fn count_unweighed(&self, sender: SenderMark, network: Option<Network>, n_reports: usize) {
        if sender.is_own || n_reports == 0 {
            return;
        }
        let metrics = &self.context.metrics;
        let by_network = [&metrics.reports_weighed, &metrics.reports_unweighed];
        by_network[usize::from(network.is_none())].inc_by(n_reports as u64);
        let [weighed, unweighed] = by_network.map(|counter| counter.get());
        if unweighed >= MANY_UNWEIGHED
            && unweighed > weighed
            && self.may_warn_unweighed.swap(false, Relaxed)
        {
            tracing::warn!(
                reports = unweighed,
                of = weighed + unweighed,
                "most reports come from private addresses, so networks do not weigh devices; if that is a proxy, name it \
                 in new_installations.trusted_proxies"
            );
        }
    }

    /// Validates each report by itself.
    fn validate_all<'a>(&self, reports: &'a [Bytes]) -> Vec<Validated<'a>> {
        let mut validator = FastValidator::default();
        let check = |bytes: &'a Bytes| {
            let report = validate_report(bytes, &mut validator)?;
            Ok((self.seen.mark(&report.app_id, report.key, bytes), report))
        };
        reports.iter().map(check).collect()
    }

    /// Refuses valid reports that the key, a deletion, dedup or a quota rules out.
    fn admit_all<'a>(
        &self,
        scope: &Scope,
        mut checked: Vec<Validated<'a>>,
        now_us: u64,
    ) -> Vec<Validated<'a>> {
        let marks = checked.iter().flatten().map(|(mark, _)| mark);
        let mut seen = self.seen.look_up_all(marks).into_iter();
        for checked in &mut checked {
            let Ok((_, report)) = checked else { continue };
            let seen = seen.next().expect("one look-up for each valid report");
            if let Err(refusal) = self.admit(scope, report, seen) {
                *checked = Err(refusal);
            }
        }
        let mut taken = self.take_quota(&checked, now_us).into_iter();
        for checked in &mut checked {
            let Ok((_, report)) = checked else { continue };
            let refusal = match taken
                .next()
                .expect("one answer for each report that is left")
            {
                Ok(KeyLookup::New) => continue,
                Ok(known) => refused_as(known, report),
                Err(wait) => refused_for(wait, report),
            };
            *checked = Err(refusal);
        }
        checked
    }

    /// Takes the remaining reports from their installations' quotas, except repetitions within the call. All calls
    /// share this table's lock, so nothing else is done here.
    fn take_quota(
        &self,
        checked: &[Validated<'_>],
        now_us: u64,
    ) -> Vec<Result<KeyLookup, Duration>> {
        let has_others = checked.len() > 1;
        let mut within_call = CallHashes::default();
        if has_others {
            within_call = CallHashes::with_capacity(checked.len());
        }
        let mut quota = self.limits.of_installations();
        let take = |(mark, report): &(ReportHashes, CheckedReport<'_>)| {
            let seen = within_call.look_up(mark);
            if seen == KeyLookup::New {
                quota.take(report.key.installation, 1, now_us)?;
                if has_others {
                    within_call.insert(*mark);
                }
            }
            Ok(seen)
        };
        checked.iter().flatten().map(take).collect()
    }

    /// Refuses a report that its key's scope, its installation's deletion or dedup rules out.
    fn admit(
        &self,
        scope: &Scope,
        report: &CheckedReport<'_>,
        seen: KeyLookup,
    ) -> Result<(), RefusedReport> {
        if !scope.admits(&report.app_id, &report.environment) {
            let proved = scope.describe();
            let detail = format!("report.app: the app key is for {proved}");
            return Err(refused(Outcome::RefusedWrongApp, detail, report));
        }
        if self.deletions.contains(&report.key.installation) {
            let detail = "report.key: the installation was deleted".to_owned();
            return Err(refused(Outcome::RefusedDeleted, detail, report));
        }
        match seen {
            KeyLookup::New => Ok(()),
            known => Err(refused_as(known, report)),
        }
    }

    /// Counts a refused report and returns its result for the device.
    fn answer(&self, scope: &Scope, index: usize, refusal: RefusedReport) -> v1::ReportResult {
        let RefusedReport {
            outcome,
            detail,
            key,
            app,
        } = refusal;
        let context = &self.context;
        if outcome == Outcome::Duplicate {
            context.metrics.count(outcome);
        } else {
            let app = app.as_ref().map_or("", |(app, _)| app);
            let key = scope.key_name();
            context.metrics.count_refused(key, outcome, 1);
            self.warnings
                .reports(key, || scope.describe(), outcome.label(), (app, 1));
        }
        // In this case the app is not proven, so the label would be the sender's choice.
        let named = app.as_ref().filter(|_| outcome != Outcome::RefusedWrongApp);
        let named = named.map_or(("", ""), |(app, env)| (app, env));
        context
            .refusals
            .count(context.clock.now_us(), named, outcome, 1);
        v1::ReportResult {
            index: u32::try_from(index).expect("at most 1,000 reports"),
            key: key.as_ref().map(Into::into),
            outcome: outcome.to_wire(),
            retryable: outcome.retryable(),
            detail,
        }
    }

    /// Checks that the key's app uses less than its share of the WAL and of the store, if the collector serves other
    /// apps too.
    fn check_share(&self, scope: &Scope, n_bytes: u64) -> Result<(), ShareError> {
        if !scope.is_one_of_several() {
            return Ok(());
        }
        let context = &self.context;
        let stored = context.metrics.progress.checkpoint.load(Relaxed);
        let max_bytes = context.config.wal.max_bytes.0;
        let wal = (&context.wal.stats(), max_bytes, stored);
        context.shares.check(scope.app(), n_bytes, wal)
    }

    fn call_counts(&self, scope: &Arc<Scope>, n_reports: usize) -> CallCounts {
        CallCounts {
            context: self.context.clone(),
            warnings: self.warnings.clone(),
            scope: scope.clone(),
            n_reports: n_reports as u64,
            now_us: self.context.clock.now_us(),
        }
    }

    /// Makes the accepted reports of a call durable, and returns the end of their group in the WAL. If the append
    /// fails, all reports of the call are refused and their quota is given back, because the device sends them again.
    async fn keep(
        &self,
        batch: Batch,
        accepted: AcceptedReports,
        scope: &Arc<Scope>,
        n_reports: usize,
    ) -> Result<WalOffset, WalError> {
        let (answer, answered) = oneshot::channel();
        let (seen, call_counts) = (self.seen.clone(), self.call_counts(scope, n_reports));
        let n_bytes = batch.n_bytes() as u64;
        let AcceptedReports {
            marks,
            installations,
            n_dropped_series,
        } = accepted;
        // If the WAL does not take the batch, it drops `done`, and the quota is given back.
        let mut taken = TakenQuota {
            limits: self.limits.clone(),
            scope: scope.clone(),
            n_reports,
            installations,
            is_used: false,
        };
        let done = move |end: Result<WalOffset, WalError>| {
            match &end {
                Ok(end) => {
                    taken.is_used = true;
                    let (context, scope) = (&call_counts.context, &call_counts.scope);
                    if scope.is_one_of_several() {
                        let max_bytes = context.config.wal.max_bytes.0;
                        context.shares.add(scope.app(), n_bytes, end.0, max_bytes);
                    }
                    let n_stored = marks.len() as u64;
                    seen.remember(marks);
                    let metrics = &call_counts.context.metrics;
                    metrics.count_many(Outcome::Stored, n_stored);
                    if n_dropped_series > 0 {
                        metrics.series_dropped.inc_by(n_dropped_series);
                    }
                }
                Err(error) => call_counts.count(outcome_of(error)),
            }
            // The quota is given back before the answer, because the device may come again right after it.
            drop(taken);
            // If the device disconnected, it sends the reports again and gets `duplicate`.
            let _ = answer.send(end);
        };
        if let Err(error) = self.context.wal.submit(batch, done) {
            let call_counts = self.call_counts(scope, n_reports);
            call_counts.count(outcome_of(&error));
            return Err(error);
        }
        answered.await.unwrap_or(Err(WalError::Closed))
    }

    /// Takes the reports of a call whose key was checked, and answers once they are on disk.
    async fn take_call(
        &self,
        caller: Caller,
        call: UploadRequest,
        started: Instant,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        let Caller {
            scope,
            network,
            private_peer,
        } = caller;
        let (n_reports, metrics) = (call.reports.len(), &self.context.metrics);
        let key = || scope.describe();
        let now_us = self.context.clock.now_us();
        if let Err(wait) = self.limits.take_call(key, n_reports, now_us) {
            let call_counts = self.call_counts(&scope, n_reports);
            call_counts.count(Outcome::RefusedQuota);
            let text = "refused_quota: too many reports with this app key";
            let status = retry::later(Code::ResourceExhausted, text, wait);
            return Err(RejectReason::Quota.mark(status));
        }
        let n_bytes = call.reports.iter().map(|report| report.len() as u64).sum();
        if let Err(error) = self.check_share(&scope, n_bytes) {
            let of = [("of", error.space.label())];
            let refused = metrics.share_refused_reports.get_or_create(&of);
            refused.inc_by(n_reports as u64);
            let call_counts = self.call_counts(&scope, n_reports);
            call_counts.count(Outcome::RefusedOverloaded);
            self.limits.give_back_call(|| scope.describe(), n_reports);
            let text = format!("refused_overloaded: {error}");
            let status = retry::later(Code::ResourceExhausted, text, SHARE_RETRY);
            return Err(RejectReason::Overloaded.mark(status));
        }
        let SortedReports {
            batch,
            accepted,
            refused,
        } = self.sort_reports(&scope, network, &call.clock, &call.reports);
        if scope.is_public() {
            self.proxy_watch.note(private_peer, accepted.marks.len());
        }
        tracing::debug!(
            target: REPORT_PATH,
            accepted = accepted.marks.len(),
            refused = refused.len(),
            "reports are validated"
        );
        if !batch.is_empty() {
            let kept = self.keep(batch, accepted, &scope, n_reports).await;
            // The device sends all of them again, and gets `duplicate` or the same refusals then.
            let group_end = kept.map_err(|error| pushback(&error))?;
            tracing::debug!(target: REPORT_PATH, %group_end, "reports are on disk");
        }
        let refused = refused.into_iter();
        let results: Vec<v1::ReportResult> = refused
            .map(|(index, refusal)| self.answer(&scope, index, refusal))
            .collect();
        metrics.ack_seconds.observe(started.elapsed().as_secs_f64());
        let server_time_unix_ms = self.context.now_ms();
        let held = &call.held_directive_ids;
        let directives =
            self.directives
                .for_reporter(&scope, &call.reports, held, server_time_unix_ms);
        metrics.directives_sent.inc_by(directives.len() as u64);
        let is_over_quota =
            |result: &v1::ReportResult| result.outcome() == v1::Outcome::RefusedQuota;
        let is_any_over_quota = results.iter().any(is_over_quota);
        Ok(Response::new(v1::UploadResponse {
            results,
            retry_after_ms: is_any_over_quota.then_some(QUOTA_RETRY_MS),
            server_time_unix_ms,
            max_request_bytes: Some(self.context.config.max_request_bytes.0),
            directives,
            n_reports: u32::try_from(n_reports).unwrap_or(u32::MAX),
            request_id: call.request_id,
            ..v1::UploadResponse::default()
        }))
    }
}

fn refused(outcome: Outcome, detail: String, report: &CheckedReport<'_>) -> RefusedReport {
    let app = (report.app_id.to_string(), report.environment.to_string());
    RefusedReport {
        outcome,
        detail,
        key: Some(report.key),
        app: Some(app),
    }
}

/// Returns the refusal of a report whose key is known: a duplicate, or a conflict.
fn refused_as(known: KeyLookup, report: &CheckedReport<'_>) -> RefusedReport {
    if known == KeyLookup::Duplicate {
        return refused(Outcome::Duplicate, String::new(), report);
    }
    let detail = "report.key: another report is known by this key".to_owned();
    refused(Outcome::RefusedConflict, detail, report)
}

fn refused_for(wait: Duration, report: &CheckedReport<'_>) -> RefusedReport {
    let seconds = wait.as_secs_f64();
    let detail =
        format!("report.key: too many reports of this installation, come again in {seconds:.1} s");
    refused(Outcome::RefusedQuota, detail, report)
}

/// The outcome of reports that the WAL did not take.
fn outcome_of(error: &WalError) -> Outcome {
    match error {
        WalError::Full { .. } | WalError::Busy { .. } | WalError::Closed => {
            Outcome::RefusedOverloaded
        }
        _ => Outcome::RefusedStorage,
    }
}

/// The status of a call that failed with the WAL's error, with the delay until the next try.
fn pushback(error: &WalError) -> Status {
    let outcome = outcome_of(error);
    let text = format!("{}: {error}", outcome.label());
    let code = match error {
        WalError::Full { .. }
        | WalError::Busy { .. }
        | WalError::DiskLow { .. }
        | WalError::DiskFull(_) => Code::ResourceExhausted,
        _ => Code::Unavailable,
    };
    let delay = match error.retry() {
        Retry::After(delay) => delay,
        Retry::Backoff | Retry::Never => RETRY,
    };
    // The reason of the call follows from the outcome of its reports.
    let refusal = match outcome {
        Outcome::RefusedOverloaded => RejectReason::Overloaded,
        _ => RejectReason::Unavailable,
    };
    refusal.mark(retry::later(code, text, delay))
}

#[tonic::async_trait]
impl CollectorService for Ingest {
    async fn upload(
        &self,
        mut request: Request<v1::UploadRequest>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        let started = Instant::now();
        let caller = Caller::of(&mut request);
        let call = UploadRequest::try_from(request.into_inner())
            .map_err(|error| Status::invalid_argument(error.detail()))?;
        let span = tracing::debug_span!(
            target: REPORT_PATH,
            "upload",
            key = caller.scope.key_name(),
            reports = call.reports.len()
        );
        self.take_call(caller, call, started).instrument(span).await
    }

    async fn delete_installation(
        &self,
        request: Request<v1::DeleteInstallationRequest>,
    ) -> Result<Response<v1::DeleteInstallationResponse>, Status> {
        self.calls.delete_installation(request).await
    }

    async fn put_model_manifest(
        &self,
        request: Request<v1::PutModelManifestRequest>,
    ) -> Result<Response<v1::PutModelManifestResponse>, Status> {
        self.calls.put_model_manifest(request).await
    }

    async fn put_certified_placement(
        &self,
        request: Request<v1::PutCertifiedPlacementRequest>,
    ) -> Result<Response<v1::PutCertifiedPlacementResponse>, Status> {
        self.calls.put_certified_placement(request).await
    }
}
