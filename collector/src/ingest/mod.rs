//! Takes upload calls: each report is parsed, kept as it came in, and acknowledged once it is
//! durable. Every report of a call that is taken up ends in exactly one outcome.
//!
//! A device that goes away while its reports are being synced changes nothing: outcomes are
//! counted where the WAL completes them, not where someone waits for the answer.

pub(crate) mod auth;
pub(crate) mod dedup;
pub(crate) mod limits;
pub(crate) mod validate;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use epwatch_proto::v1::{self, collector_service_server::CollectorService};
use epwatch_proto::{FastValidator, Outcome, SendClock, UploadRequest};
use tokio::sync::oneshot;
use tonic::{Code, Request, Response, Status};

use self::validate::{Refusal, ValidReport};
use crate::admission::{Admission, Network};
use crate::deletions::Deletions;
use crate::directives::DirectiveBook;
use crate::ingest::auth::{Caller, Scope};
use crate::ingest::dedup::{CallMarks, Mark, Seen, SeenKeys};
use crate::ingest::limits::ReportLimits;
use crate::metrics::Metrics;
use crate::refusal_counts::RefusalCounts;
use crate::rpc::Calls;
use crate::server::reject_reason::RejectReason;
use crate::server::retry;
use crate::wal::{Batch, Retry, Wal, WalError, WalOffset};
use crate::wal_record;
use epwatch_server::Clock;

/// For errors that name no delay of their own.
const RETRY: Duration = Duration::from_secs(5);

/// For a device with more reports than its installation may send: at the default rate, a request's
/// worth has come back by then.
const QUOTA_RETRY: Duration = Duration::from_secs(15);

/// The service.
#[derive(Debug)]
pub(crate) struct Ingest {
    pub(crate) wal: Wal,
    pub(crate) seen: Arc<SeenKeys>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ledger: Arc<RefusalCounts>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) max_request_bytes: u64,
    pub(crate) deletions: Arc<Deletions>,
    pub(crate) directives: Arc<DirectiveBook>,
    pub(crate) calls: Calls,
    pub(crate) limits: ReportLimits,
    pub(crate) admission: Arc<Admission>,
}

/// Reports that go into the WAL.
type Accepted = Vec<Mark>;

/// A report that is sound, or why it is refused.
type Checked<'a> = Result<(Mark, ValidReport<'a>), Refusal>;

/// The reports of one call, sorted.
struct TakenUp {
    batch: Batch,
    accepted: Accepted,
    /// With their places in the call. Not counted yet: if the WAL does not take the others, all of
    /// them come again.
    refused: Vec<(usize, Refusal)>,
}

/// What is counted of a call that is refused as a whole: all of its reports, and under what its key
/// proves, for whose they are was not read or is not all the same.
struct OfCall {
    metrics: Arc<Metrics>,
    ledger: Arc<RefusalCounts>,
    scope: Arc<Scope>,
    n_reports: u64,
    now_us: u64,
}

impl OfCall {
    fn count(&self, outcome: Outcome) {
        self.metrics.count_many(outcome, self.n_reports);
        self.ledger
            .count(self.now_us, self.scope.proven(), outcome, self.n_reports);
    }
}

impl Ingest {
    /// Sorts the reports of one call into those for the WAL and those that are answered. All of them
    /// take one step, then the next: the tables of keys and installations are large, so that each look is
    /// a wait for memory, and those of one step overlap.
    fn take_up(
        &self,
        scope: &Scope,
        network: Option<Network>,
        clock: &SendClock,
        reports: &[Bytes],
    ) -> TakenUp {
        let now_us = self.clock.now_us();
        let decided = self.decide_all(scope, self.check_all(reports), now_us);
        let mut accepted = Accepted::with_capacity(reports.len());
        let mut kept = Vec::with_capacity(reports.len());
        let mut refused = Vec::new();
        for (index, (decided, bytes)) in decided.into_iter().zip(reports).enumerate() {
            match decided {
                Ok((mark, facts)) => {
                    accepted.push(mark);
                    kept.push((facts, bytes));
                }
                Err(refusal) => refused.push((index, refusal)),
            }
        }
        let is_unproven = |(facts, _): &(ValidReport<'_>, _)| {
            let installation = facts.key.installation;
            self.admission
                .is_unproven(facts.app(), installation, network, now_us)
        };
        let unproven: Vec<bool> = kept.iter().map(is_unproven).collect();
        let n_bytes = kept.iter().map(|(_, bytes)| bytes.len() + 160).sum();
        let mut batch = Batch::with_capacity(n_bytes);
        let mut header = Vec::with_capacity(160);
        for ((facts, bytes), is_unproven) in kept.iter().zip(unproven) {
            wal_record::write_header(&mut header, clock, facts.app(), is_unproven);
            batch
                .push(&[&header, bytes])
                .expect("reports are bounded, headers too");
        }
        TakenUp {
            batch,
            accepted,
            refused,
        }
    }

    /// Checks reports by themselves.
    fn check_all<'a>(&self, reports: &'a [Bytes]) -> Vec<Checked<'a>> {
        let mut validator = FastValidator::default();
        let check = |bytes: &'a Bytes| {
            let facts = validate::check(bytes, &mut validator)?;
            Ok((self.seen.mark(facts.key, bytes), facts))
        };
        reports.iter().map(check).collect()
    }

    /// Refuses what is sound and not for the WAL all the same; a duplicate is refused too, but that is
    /// an ack.
    fn decide_all<'a>(
        &self,
        scope: &Scope,
        mut checked: Vec<Checked<'a>>,
        now_us: u64,
    ) -> Vec<Checked<'a>> {
        let marks = checked.iter().flatten().map(|(mark, _)| mark);
        let mut seen = self.seen.look_up_all(marks).into_iter();
        for checked in &mut checked {
            let Ok((_, facts)) = checked else { continue };
            let seen = seen.next().expect("looked up for each that is sound");
            if let Err(refusal) = self.decide(scope, facts, seen) {
                *checked = Err(refusal);
            }
        }
        let mut taken = self.take_all(&checked, now_us).into_iter();
        for checked in &mut checked {
            let Ok((_, facts)) = checked else { continue };
            let refusal = match taken.next().expect("asked for each that is left") {
                Ok(Seen::New) => continue,
                Ok(known) => refused_as(known, facts),
                Err(wait) => refused_for(wait, facts),
            };
            *checked = Err(refusal);
        }
        checked
    }

    /// Takes those that are left from their installations' quotas, unless the call had them before. All calls
    /// take from one table, which is held meanwhile: nothing else is done here.
    fn take_all(&self, checked: &[Checked<'_>], now_us: u64) -> Vec<Result<Seen, Duration>> {
        let has_others = checked.len() > 1;
        let mut within_call = CallMarks::default();
        if has_others {
            within_call = CallMarks::with_capacity(checked.len());
        }
        let mut quota = self.limits.of_installations();
        let take = |(mark, facts): &(Mark, ValidReport<'_>)| {
            let seen = within_call.look_up(mark);
            if seen == Seen::New {
                quota.take(facts.key.installation, now_us)?;
                if has_others {
                    within_call.insert(*mark);
                }
            }
            Ok(seen)
        };
        checked.iter().flatten().map(take).collect()
    }

    /// Refuses what is not for the WAL, whatever else is in the call.
    fn decide(&self, scope: &Scope, facts: &ValidReport<'_>, seen: Seen) -> Result<(), Refusal> {
        if !scope.admits(&facts.app_id, &facts.environment) {
            let proved = scope.describe();
            let detail = format!("report.app: the app key is for {proved}");
            return Err(refused(Outcome::RefusedWrongApp, detail, facts));
        }
        if self.deletions.contains(&facts.key.installation) {
            let detail = "report.key: the installation was deleted".to_owned();
            return Err(refused(Outcome::RefusedDeleted, detail, facts));
        }
        match seen {
            Seen::New => Ok(()),
            known => Err(refused_as(known, facts)),
        }
    }

    /// Counts a report that does not go into the WAL, and says so to the device.
    fn answer(&self, index: usize, refusal: Refusal) -> v1::ReportResult {
        let Refusal {
            outcome,
            detail,
            key,
            app,
        } = refusal;
        self.metrics.count(outcome);
        // What a stranger claims is not proven; its label would be of his choosing.
        let named = app.as_ref().filter(|_| outcome != Outcome::RefusedWrongApp);
        let named = named.map_or(("", ""), |(app, env)| (app, env));
        self.ledger.count(self.clock.now_us(), named, outcome, 1);
        v1::ReportResult {
            index: u32::try_from(index).expect("at most 1,000 reports"),
            key: key.as_ref().map(Into::into),
            outcome: outcome.to_wire(),
            retryable: outcome.retryable(),
            detail,
        }
    }

    fn of_call(&self, scope: &Arc<Scope>, n_reports: usize) -> OfCall {
        OfCall {
            metrics: self.metrics.clone(),
            ledger: self.ledger.clone(),
            scope: scope.clone(),
            n_reports: n_reports as u64,
            now_us: self.clock.now_us(),
        }
    }

    /// Makes the accepted reports of a call durable. If the WAL does not take them, all that the call has
    /// are refused.
    async fn keep(
        &self,
        batch: Batch,
        accepted: Accepted,
        scope: &Arc<Scope>,
        n_reports: usize,
    ) -> Result<(), WalError> {
        let (answer, answered) = oneshot::channel();
        let (seen, of_call) = (self.seen.clone(), self.of_call(scope, n_reports));
        let done = move |end: Result<WalOffset, WalError>| {
            match &end {
                Ok(_) => {
                    let n_stored = accepted.len() as u64;
                    seen.remember(accepted);
                    of_call.metrics.count_many(Outcome::Stored, n_stored);
                }
                Err(error) => of_call.count(outcome_of(error)),
            }
            // Who no longer waits sends again, and hears `duplicate`.
            let _ = answer.send(end.map(|_| ()));
        };
        if let Err(error) = self.wal.submit(batch, done) {
            let of_call = self.of_call(scope, n_reports);
            of_call.count(outcome_of(&error));
            return Err(error);
        }
        answered.await.unwrap_or(Err(WalError::Closed))
    }
}

fn refused(outcome: Outcome, detail: String, facts: &ValidReport<'_>) -> Refusal {
    let app = (facts.app_id.to_string(), facts.environment.to_string());
    Refusal {
        outcome,
        detail,
        key: Some(facts.key),
        app: Some(app),
    }
}

/// What is said of a report whose key is known.
fn refused_as(known: Seen, facts: &ValidReport<'_>) -> Refusal {
    if known == Seen::Duplicate {
        return refused(Outcome::Duplicate, String::new(), facts);
    }
    let detail = "report.key: another report is known by this key".to_owned();
    refused(Outcome::RefusedConflict, detail, facts)
}

fn refused_for(wait: Duration, facts: &ValidReport<'_>) -> Refusal {
    let seconds = wait.as_secs_f64();
    let detail =
        format!("report.key: too many reports of this installation, come again in {seconds:.1} s");
    refused(Outcome::RefusedQuota, detail, facts)
}

/// How a report ends that the WAL did not take.
fn outcome_of(error: &WalError) -> Outcome {
    match error {
        WalError::Full { .. } | WalError::Busy { .. } | WalError::Closed => {
            Outcome::RefusedOverloaded
        }
        _ => Outcome::RefusedStorage,
    }
}

/// Tells a device when to come again; what the WAL's error means for a call as a whole.
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
    // The calls of a reason hold the reports of an outcome.
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
        let Caller { scope, network } = Caller::of(&mut request);
        let call = UploadRequest::try_from(request.into_inner())
            .map_err(|error| Status::invalid_argument(error.detail()))?;
        let n_reports = call.reports.len();
        let key = || scope.describe();
        if let Err(wait) = self.limits.take_call(key, n_reports, self.clock.now_us()) {
            let of_call = self.of_call(&scope, n_reports);
            of_call.count(Outcome::RefusedQuota);
            let text = "refused_quota: too many reports with this app key";
            let status = retry::later(Code::ResourceExhausted, text, wait);
            return Err(RejectReason::Quota.mark(status));
        }
        let TakenUp {
            batch,
            accepted,
            refused,
        } = self.take_up(&scope, network, &call.clock, &call.reports);
        if !batch.is_empty()
            && let Err(error) = self.keep(batch, accepted, &scope, n_reports).await
        {
            // A device sends all of them again, and hears `duplicate` or the same refusals then.
            return Err(pushback(&error));
        }
        let refused = refused.into_iter();
        let results: Vec<v1::ReportResult> = refused
            .map(|(index, refusal)| self.answer(index, refusal))
            .collect();
        self.metrics
            .ack_seconds
            .observe(started.elapsed().as_secs_f64());
        let server_time_unix_ms = i64::try_from(self.clock.now_us() / 1000).unwrap_or(i64::MAX);
        let held = &call.held_directive_ids;
        let directives =
            self.directives
                .for_reporter(&scope, &call.reports, held, server_time_unix_ms);
        self.metrics.directives_sent.inc_by(directives.len() as u64);
        let is_over_quota =
            |result: &v1::ReportResult| result.outcome() == v1::Outcome::RefusedQuota;
        let retry_after = results.iter().any(is_over_quota).then_some(QUOTA_RETRY);
        Ok(Response::new(v1::UploadResponse {
            results,
            retry_after_ms: retry_after
                .map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
            server_time_unix_ms,
            max_request_bytes: Some(self.max_request_bytes),
            directives,
            ..v1::UploadResponse::default()
        }))
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
