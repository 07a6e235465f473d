//! Chooses the next request to the collector, and handles its answer.

use std::time::Duration;

use epwatch_proto::{DropReason, InstallationId, ReportKey, SendClock, error_chain, v1};

use super::{Driver, events::DriverEvent};
use crate::{
    core::Core,
    directives,
    explain::{ExplainedUpload, Explanation},
    installation::{Secret, deletion},
    lock::lock,
    policy, random_u64,
    spool::{Pending, Spool},
    time::Now,
    types::{Outcome, UploadFailureKind},
    upload::{
        CollectorAnswer, Disposition, Payload, Refusal, Retry, Schedule, UploadBatch, UploadError,
        budget::{BudgetRefusal, DayClock, NetworkKind, UploadBudget},
        check_deleted, not_an_answer, settle,
    },
};

/// Cause of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadTrigger {
    /// The schedule, which sends only when a request is due.
    Schedule,
    /// A host that sends by itself: at its own pace, but not while a failure or the collector requires a pause.
    Host,
    /// A flush: now.
    Flush,
}

/// Schedules, budget and waiting deletions.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) reports: Schedule,
    deletion: Schedule,
    deletions: Vec<Secret>,
    budget: UploadBudget,
    network: NetworkKind,
    /// When the latest request ended, and how.
    last: Option<(Duration, String)>,
}

impl Sender {
    pub(super) fn new(interval: Duration, now: Duration) -> Self {
        Self {
            reports: Schedule::new(interval, now),
            deletion: Schedule::new(interval, now),
            deletions: Vec::new(),
            budget: UploadBudget::default(),
            network: NetworkKind::default(),
            last: None,
        }
    }

    pub(super) fn deletion_at(&self) -> Option<Duration> {
        let is_waiting = !self.deletions.is_empty() && self.network != NetworkKind::Offline;
        is_waiting.then_some(self.deletion.next_at)
    }

    pub(super) fn set_deletions(&mut self, secrets: Vec<Secret>, now: Duration) {
        self.deletions = secrets;
        self.deletion.hurry(now);
    }
}

impl Driver {
    /// Returns the next request, if one is due.
    ///
    /// # Errors
    /// Fails if reports wait that must not be sent now, because network or budget is missing.
    pub(crate) fn next_upload(
        &mut self,
        trigger: UploadTrigger,
    ) -> Result<Option<UploadBatch>, UploadError> {
        self.apply_consent();
        let now = self.clock.now();
        if let Some(batch) = self.next_deletion(trigger, now) {
            return Ok(Some(batch));
        }
        let is_due = match trigger {
            UploadTrigger::Schedule => self.sender.reports.is_due(now.mono),
            UploadTrigger::Host => !self.sender.reports.is_held(now.mono),
            UploadTrigger::Flush => true,
        };
        if !is_due || !self.may_keep() {
            return Ok(None);
        }
        if self.n_pending() == 0 {
            self.sender.reports.idle(now.mono);
            return Ok(None);
        }
        match self.next_reports(now) {
            Ok(batch) => Ok(batch),
            Err(refusal) => {
                // Hosts may ask often, so only one failure per interval is counted.
                let counts =
                    trigger == UploadTrigger::Flush || self.sender.reports.is_due(now.mono);
                self.sender.reports.idle(now.mono);
                let kind = match refusal {
                    BudgetRefusal::Offline => UploadFailureKind::Unreachable,
                    BudgetRefusal::Metered | BudgetRefusal::UsedUp { .. } => {
                        UploadFailureKind::Budget
                    }
                };
                // Being offline is not a failure.
                if counts && kind == UploadFailureKind::Budget {
                    lock(&self.core).upload_failed(kind.into());
                }
                self.last_error = Some(refusal.to_string());
                Err(UploadError::new(kind, refusal.to_string()))
            }
        }
    }

    /// Deletions go first, over any network and outside the budget: they are small, and users have a right to them.
    pub(super) fn next_deletion(
        &mut self,
        trigger: UploadTrigger,
        now: Now,
    ) -> Option<UploadBatch> {
        let sender = &self.sender;
        let is_due = match trigger {
            UploadTrigger::Schedule | UploadTrigger::Flush => sender.deletion.is_due(now.mono),
            UploadTrigger::Host => !sender.deletion.is_held(now.mono),
        };
        if !is_due || sender.network == NetworkKind::Offline {
            return None;
        }
        let secret = sender.deletions.first()?;
        Some(UploadBatch::deletion(secret.clone()))
    }

    fn next_reports(&mut self, now: Now) -> Result<Option<UploadBatch>, BudgetRefusal> {
        let server_unix_ms = lock(&self.core).directives.least_server_time(now);
        let clock = DayClock {
            now,
            boot_id: &self.boot_id,
            server_unix_ms,
        };
        let sender = &mut self.sender;
        let (dir, limits, network) = (&self.config.dir, &self.config.budget, sender.network);
        let left = sender.budget.left(dir, limits, network, clock)?;
        let used_up = BudgetRefusal::UsedUp {
            limit: limits.of(network),
            network,
        };
        let Some(room) = left.checked_sub(policy::REQUEST_OVERHEAD_BYTES) else {
            return Err(used_up);
        };
        let most = sender.reports.max_request_bytes.min(room);
        let Some(spool) = &mut self.spool else {
            return Ok(None);
        };
        let Pending {
            reports,
            losses,
            error,
        } = spool.pending(most);
        let stream = spool.stream();
        self.count(stream, &losses);
        if let Some(error) = error {
            self.last_error = Some(error_chain(&error));
        }
        if reports.is_empty() {
            self.sender.reports.idle(now.mono);
            return Ok(None);
        }
        let clock = SendClock {
            wall_unix_ms: Some(now.wall_unix_ms),
            uptime_ms: now.uptime_ms,
            boot_id: epwatch_proto::clipped(&self.boot_id, 64),
        };
        let held = lock(&self.core).directives.held_ids();
        let mut batch = UploadBatch::new(reports, clock, self.config.core.sdk.clone(), held);
        let needed = batch.encoded_len() + policy::REQUEST_OVERHEAD_BYTES;
        if needed > left {
            return Err(used_up);
        }
        (batch.reserved, batch.network) = (needed, network);
        let reserved = self
            .sender
            .budget
            .reserve(&self.config.dir, network, needed);
        if let Err(error) = reserved {
            self.last_error = Some(format!("failed to keep the byte budget: {error}"));
        }
        Ok(Some(batch))
    }

    /// Takes an answer, or the reason why there is none. `sent` is the number of bytes that the request took, if they
    /// were counted.
    ///
    /// # Errors
    /// Returns the failure that was given, or that was found in the answer.
    pub(crate) fn upload_result(
        &mut self,
        batch: &UploadBatch,
        result: Result<CollectorAnswer, UploadError>,
        sent: Option<u64>,
    ) -> Result<(), UploadError> {
        self.charge(batch, result.as_ref().err().map(UploadError::kind), sent);
        let now = self.clock.now();
        let settled = match (batch.payload(), result) {
            (Payload::Reports { keys, request }, Ok(CollectorAnswer::Upload(response))) => {
                self.take_answer(request.request_id, keys, response, now)
            }
            (Payload::Deletion(secret), Ok(CollectorAnswer::Deletion(response))) => {
                self.take_deletion(secret, &response, now)
            }
            (_, Ok(_)) => Err(UploadError::new(
                UploadFailureKind::Server,
                "the answer is for another kind of request",
            )),
            (_, Err(error)) => Err(error),
        };
        let answer = match &settled {
            Ok(answer) => {
                self.events.add(DriverEvent::Answered(answer.clone()));
                answer.clone()
            }
            Err(error) => {
                self.upload_failed(batch, error, now);
                self.events.add(DriverEvent::Failed(error.to_string()));
                error.to_string()
            }
        };
        self.sender.last = Some((now.mono, answer));
        settled.map(|_| ())
    }

    fn charge(
        &mut self,
        batch: &UploadBatch,
        failed: Option<UploadFailureKind>,
        sent: Option<u64>,
    ) {
        use UploadFailureKind::{Budget, Tls, Unreachable};
        if batch.reserved == 0 || !self.may_keep() {
            return;
        }
        let sent = match (sent, failed) {
            (Some(sent), _) => sent,
            // Nothing was sent without a connection.
            (None, Some(Budget | Tls | Unreachable)) => 0,
            (None, _) => batch.reserved,
        };
        let (dir, network) = (&self.config.dir, batch.network);
        let budget = &mut self.sender.budget;
        if let Err(error) = budget.correct(dir, network, batch.reserved, sent) {
            self.last_error = Some(format!("failed to keep the byte budget: {error}"));
        }
    }

    fn upload_failed(&mut self, batch: &UploadBatch, error: &UploadError, now: Now) {
        let mut wait = match error.retry() {
            Retry::After(delay) => Some(delay),
            Retry::Backoff => None,
        };
        let mut note = error.to_string();
        if error.kind() == UploadFailureKind::Unauthenticated {
            let least = policy::KEY_REFUSED_WAIT;
            let jitter = Duration::from_secs(random_u64() % least.as_secs());
            wait = wait.max(Some(least + jitter));
            note.push_str(
                "; the collector does not admit this app key: register it there, or give the right \
                 one in the configuration",
            );
        }
        if let Some(wait) = wait {
            let minutes = wait.as_secs().div_ceil(60);
            let again = format!("; it is tried again in {minutes} min, or at once by a flush");
            note.push_str(&again);
        }
        let schedule = match batch.payload() {
            Payload::Reports { .. } => &mut self.sender.reports,
            Payload::Deletion(_) => &mut self.sender.deletion,
        };
        schedule.failed(now.mono, wait, random_u64());
        lock(&self.core).upload_failed(error.kind().into());
        self.last_error = Some(note);
    }

    fn take_deletion(
        &mut self,
        secret: &Secret,
        response: &v1::DeleteInstallationResponse,
        now: Now,
    ) -> Result<String, UploadError> {
        check_deleted(secret, response).map_err(|error| not_an_answer(&error))?;
        self.last_error = None;
        self.deleted(&secret.installation(), now);
        Ok("deletion confirmed".to_owned())
    }

    fn deleted(&mut self, installation: &InstallationId, now: Now) {
        let sender = &mut self.sender;
        sender
            .deletions
            .retain(|s| s.installation() != *installation);
        sender
            .deletion
            .answered(now.mono, crate::upload::Advice::default(), true, 0);
        if self.privacy.wipe_at.is_some() {
            // The file stays until the wipe is done, so that the next start finishes it after a kill.
            return;
        }
        // If the file stays, the next start requests the deletion again, which is harmless.
        let settled = deletion::settle(&self.config.dir, installation);
        if settled.is_ok() && self.sender.deletions.is_empty() {
            // There were more deletions than one pass reads.
            self.sender.deletions = deletion::pending(&self.config.dir);
        }
    }

    fn take_answer(
        &mut self,
        request_id: u64,
        keys: &[ReportKey],
        mut response: v1::UploadResponse,
        now: Now,
    ) -> Result<String, UploadError> {
        let received = directives::take_from(&mut response);
        let ours = lock(&self.core).installation;
        let (settled, advice) =
            settle(request_id, keys, response).map_err(|error| not_an_answer(&error))?;
        let is_deleted = settled.iter().any(|(key, how)| {
            let says_so = matches!(how, Disposition::Refused(r) if r.outcome == Some(Outcome::RefusedDeleted));
            says_so && Some(key.installation) == ours
        });
        let refusals = settled.iter().filter_map(|(_, how)| match how {
            Disposition::Refused(refusal) => Some(refusal),
            _ => None,
        });
        let answer = format!(
            "{} {}, {} of them refused and {} to be sent again",
            settled.len(),
            if settled.len() == 1 {
                "report"
            } else {
                "reports"
            },
            refusals.clone().count(),
            settled
                .iter()
                .filter(|(_, how)| *how == Disposition::Kept)
                .count(),
        );
        let refused = refusals.clone().next().map(|first| Refusal {
            reports: refusals.count(),
            ..first.clone()
        });
        let made_progress = settled.iter().any(|(_, how)| *how != Disposition::Kept);
        let schedule = &mut self.sender.reports;
        schedule.answered(now.mono, advice, made_progress, random_u64());
        self.last_error = None;
        if self.spool.is_some() {
            self.receive_directives(received, now);
        }
        let Some(spool) = &mut self.spool else {
            return Ok(answer);
        };
        // Files are deleted without the core's lock, because sessions wait for it.
        let mut finished = Vec::new();
        for (key, how) in settled {
            // Otherwise the report was forgotten during the upload, and already counted as such.
            let is_known = ours == Some(key.installation) || spool.has(&key);
            if is_known && how != Disposition::Kept {
                finished.push((key, how, spool.finish(&key)));
            }
        }
        let Some(mut core) = Core::lock_in(&self.core, spool.stream()) else {
            return Ok(answer);
        };
        for (key, how, runs) in finished {
            match how {
                Disposition::Refused(_) => core.dropped(DropReason::Refused, 1, runs),
                _ => core.acked(&key),
            }
        }
        // The streams are chosen under the core's lock; their folders are removed without it.
        let named: Vec<_> = core.ended.ids().collect();
        drop(core);
        spool.retire_ended(|stream| named.contains(&stream));
        let has_begun_anew = is_deleted && self.begin_after_deletion();
        if let Some(refusal) = refused.filter(|_| !has_begun_anew) {
            self.last_error = Some(refusal.to_string());
            match &mut self.refused {
                Some(earlier) => earlier.reports += refusal.reports,
                none => *none = Some(refusal),
            }
        }
        Ok(answer)
    }

    /// Takes the refusal since the last call.
    pub(crate) fn take_refused(&mut self) -> Option<Refusal> {
        self.refused.take()
    }

    /// Sets the network that uploads would take.
    pub(super) fn set_network(&mut self, network: NetworkKind) {
        if self.sender.network == network {
            return;
        }
        self.sender.network = network;
        let now = self.clock.now().mono;
        self.sender.reports.hurry(now);
        self.sender.deletion.hurry(now);
    }

    /// Sends nothing for an interval, not even deletions. If the host sends, deletions wait for the host as reports do.
    pub(crate) fn idle(&mut self) {
        let now = self.clock.now().mono;
        self.sender.reports.idle(now);
        self.sender.deletion.idle(now);
    }

    /// Lets a flush repeat deletions that failed before.
    pub(crate) fn hurry_deletions(&mut self) {
        let now = self.clock.now().mono;
        let interval = self.config.upload_interval;
        if self.sender.deletion.is_held(now) {
            self.sender.deletion = Schedule::new(interval, now);
        }
    }

    /// Completes the core's explanation with the driver's state.
    pub(crate) fn explain(&self, explanation: &mut Explanation) {
        let now = self.clock.now();
        let usage = self
            .spool
            .as_ref()
            .map(|s: &Spool| s.usage(now.wall_unix_ms));
        let (unmetered, metered) = self.sender.budget.spent();
        let last = self.sender.last.as_ref();
        explanation.endpoint.clone_from(&self.config.endpoint);
        explanation.last_upload = last.map(|(at, answer)| ExplainedUpload {
            seconds_ago: now.mono.saturating_sub(*at).as_secs_f64(),
            answer: answer.clone(),
        });
        explanation.spool_reports = self.n_pending();
        explanation.spool_bytes = usage.map_or(0, |(bytes, _)| bytes);
        let wait = self.sender.reports.next_at.saturating_sub(now.mono);
        explanation.next_upload_seconds = wait.as_secs_f64();
        self.sender
            .network
            .as_str()
            .clone_into(&mut explanation.network);
        explanation.sent_unmetered_bytes = unmetered;
        explanation.sent_metered_bytes = metered;
        self.consent_note().clone_into(&mut explanation.consent);
        explanation.deletions_waiting = self.sender.deletions.len();
        explanation.last_problem.clone_from(&self.last_error);
    }
}
