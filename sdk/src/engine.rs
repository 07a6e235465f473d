//! One process's SDK at work: the core, its spool and its upload schedule, step by step.
//!
//! All I/O of the SDK is here and in what it calls; it runs on the SDK's own thread (`worker.rs`),
//! or on one of the host's that asks for the next upload. The core is locked for computing only,
//! never across I/O: sessions are opened under the same lock.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use epwatch_proto::{DropReason, SendClock, UploadFailureKind, v1};

use crate::{
    baseline::BaselineBook,
    config::SdkConfig,
    core::{Core, SealedReport},
    device::{self, DeviceFacts},
    directives::{self, DirectiveFile, Opened},
    files::{self, FileLock},
    folder, identity, policy, random_u64, self_test,
    spool::{Loss, Spool},
    time::{Clock, Now},
    upload::{Schedule, Settled, UploadBatch, UploadError, settle},
};

/// Locks the core. It never panics on purpose; should it, its numbers are still numbers.
pub(crate) fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Engine {
    config: SdkConfig,
    clock: Clock,
    core: Arc<Mutex<Core>>,
    spool: Option<Spool>,
    schedule: Schedule,
    next_seal: Duration,
    boot_id: String,
    last_error: Option<String>,
    directives: DirectiveFile,
    opened: Arc<Opened>,
}

impl Engine {
    pub(crate) fn new(
        config: SdkConfig,
        clock: Clock,
        core: Arc<Mutex<Core>>,
        opened: Arc<Opened>,
    ) -> Self {
        let now = clock.now_on_caller().mono;
        Self {
            schedule: Schedule::new(config.upload_interval, now),
            next_seal: now + config.report_interval,
            directives: DirectiveFile::new(config.dir.clone()),
            opened,
            config,
            clock,
            core,
            spool: None,
            boot_id: String::new(),
            last_error: None,
        }
    }

    /// Reads what is on disk. Where that fails the SDK records on, and tries again at the next
    /// seal: a full disk may have room then.
    pub(crate) fn open(&mut self) {
        if self.spool.is_some() {
            return;
        }
        if let Err(error) = self.try_open() {
            tracing::warn!(error, "the SDK's folder cannot be used");
            self.last_error = Some(error);
        }
        self.opened.set();
    }

    fn try_open(&mut self) -> Result<(), String> {
        self.boot_id = device::boot_id();
        let facts = match self.config.is_device_given {
            true => self.config.core.device.clone(),
            false => DeviceFacts::read_linux(),
        };
        lock(&self.core).set_device(facts, &self.boot_id);
        self.directives.read(&self.core, self.clock.now());

        let dir = self.config.dir.clone();
        let secret = identity::load_or_create(&dir).map_err(|e| text_of(&e))?;
        let stream = lock(&self.core).stream();
        let opened = Spool::open(&dir, stream, self.config.limits);
        let (spool, found) = opened.map_err(|e| text_of(&e))?;
        let book = self.read_book();
        let mut core = lock(&self.core);
        core.set_book(book);
        core.add_ended_streams(found.ended);
        for loss in &found.losses {
            core.dropped(loss.reason, loss.reports, loss.runs);
        }
        core.set_installation(secret.installation());
        self.spool = Some(spool);
        self.last_error = None;
        Ok(())
    }

    fn baselines_path(&self) -> PathBuf {
        self.config.dir.join(folder::BASELINES)
    }

    fn read_book(&self) -> BaselineBook {
        let settled_runs = self.config.core.settled_runs;
        match files::read_at_most(&self.baselines_path(), policy::MAX_BASELINES_BYTES) {
            Ok(json) => BaselineBook::from_json(&json, settled_runs),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => BaselineBook::new(settled_runs),
            Err(_) => BaselineBook::from_json(b"", settled_runs),
        }
    }

    pub(crate) fn is_seal_due(&self) -> bool {
        self.clock.now().mono >= self.next_seal
    }

    /// Time until something is due; `None`: it is.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let due = self.next_seal.min(self.schedule.next_at());
        due.checked_sub(self.clock.now().mono)
            .filter(|wait| !wait.is_zero())
    }

    /// Seals what was recorded, keeps it on disk, and drops what is too much.
    pub(crate) fn seal(&mut self) {
        self.open();
        let now = self.clock.now();
        self.pass_directives(now);
        self.next_seal = now.mono + self.report_interval(now);
        let Some(spool) = &mut self.spool else {
            return;
        };
        let (bytes, oldest) = spool.usage(now.wall_unix_ms);
        let (sealed, lessons, tests) = {
            let mut core = lock(&self.core);
            core.set_spool(bytes, oldest);
            let sealed = core.seal(now);
            (sealed, core.take_lessons(), core.self_tests.take_unsaved())
        };
        let mut losses = keep(spool, &sealed, &mut self.last_error);
        losses.extend(spool.enforce(now.wall_unix_ms));
        self.count(&losses);
        if !lessons.is_empty()
            && let Err(error) = self.teach(&lessons)
        {
            self.last_error = Some(format!("failed to keep baselines: {error}"));
            lock(&self.core).return_lessons(lessons);
        }
        if !tests.is_empty()
            && let Err(error) = self_test::save_finished(&self.config.dir, &tests)
        {
            self.last_error = Some(format!("failed to keep self-tests: {error}"));
        }
    }

    /// Lets directives begin and end.
    fn pass_directives(&mut self, now: Now) {
        if let Err(error) = self.directives.pass(&self.core, now) {
            self.last_error = Some(format!("failed to keep directives: {error}"));
        }
    }

    fn report_interval(&self, now: Now) -> Duration {
        let asked = lock(&self.core).report_interval(now);
        asked.unwrap_or(self.config.report_interval)
    }

    /// Takes in the directives of an answer; to report more often again begins at once.
    fn receive_directives(&mut self, received: directives::Received, now: Now) {
        if let Err(error) = self.directives.receive(&self.core, received, now) {
            self.last_error = Some(format!("failed to keep directives: {error}"));
        }
        self.next_seal = self.next_seal.min(now.mono + self.report_interval(now));
    }

    fn count(&self, losses: &[Loss]) {
        let mut core = lock(&self.core);
        for loss in losses {
            core.dropped(loss.reason, loss.reports, loss.runs);
        }
    }

    /// Adds lessons to the file that all processes of the app share.
    fn teach(&self, lessons: &[crate::baseline::Lesson]) -> std::io::Result<()> {
        let _lock = FileLock::wait(&self.config.dir.join(folder::LOCK))?;
        let mut book = self.read_book();
        for lesson in lessons {
            book.absorb(lesson);
        }
        files::replace(&self.baselines_path(), &book.to_json())
    }

    /// The next request, if one is due (or `now` is asked for) and there is something to send.
    pub(crate) fn next_upload(&mut self, is_asked_for: bool) -> Option<UploadBatch> {
        let now = self.clock.now();
        if !is_asked_for && !self.schedule.is_due(now.mono) {
            return None;
        }
        let Some(spool) = &mut self.spool else {
            self.schedule.idle(now.mono);
            return None;
        };
        let (reports, losses) = spool.pending(self.schedule.max_request_bytes());
        self.count(&losses);
        if reports.is_empty() {
            self.schedule.idle(now.mono);
            return None;
        }
        let clock = SendClock {
            wall_unix_ms: Some(now.wall_unix_ms),
            uptime_ms: now.uptime_ms,
            boot_id: epwatch_proto::clipped(&self.boot_id, 64),
        };
        let sdk = self.config.core.sdk.clone();
        let held = lock(&self.core).directives.held_ids();
        Some(UploadBatch::new(reports, clock, sdk, held))
    }

    /// What an answer, or its absence, means.
    ///
    /// # Errors
    /// The failure that was given or found, for who waits for it.
    pub(crate) fn upload_result(
        &mut self,
        batch: &UploadBatch,
        result: Result<v1::UploadResponse, UploadError>,
    ) -> Result<(), UploadError> {
        let now = self.clock.now();
        let mut received = directives::Received::default();
        let settled = result.and_then(|mut response| {
            received = directives::take_from(&mut response);
            settle(batch, response).map_err(|error| {
                UploadError::new(UploadFailureKind::Server, format!("bad answer: {error}"))
            })
        });
        let (settled, advice) = match settled {
            Ok(settled) => settled,
            Err(error) => {
                let asked = match error.retry() {
                    crate::upload::Retry::After(delay) => Some(delay),
                    crate::upload::Retry::Backoff => None,
                };
                self.schedule.failed(now.mono, asked, random_u64());
                lock(&self.core).upload_failed(error.kind());
                self.last_error = Some(error.to_string());
                return Err(error);
            }
        };
        let made_progress = settled.iter().any(|(_, how)| *how != Settled::Kept);
        self.schedule
            .answered(now.mono, advice, made_progress, random_u64());
        self.last_error = None;
        self.receive_directives(received, now);
        let Some(spool) = &mut self.spool else {
            return Ok(());
        };
        let mut core = lock(&self.core);
        for (key, how) in settled {
            match how {
                Settled::Kept => {}
                Settled::Acked => {
                    core.acked(&key);
                    spool.finish(&key);
                }
                Settled::Refused => {
                    let runs = spool.finish(&key);
                    core.dropped(DropReason::Refused, 1, runs);
                }
            }
        }
        // Which streams still need naming is decided now; folders are removed without the lock.
        let named: Vec<_> = core.streams_to_name().collect();
        drop(core);
        spool.retire_ended(|stream| named.contains(&stream));
        Ok(())
    }

    /// Reports that wait on disk.
    pub(crate) fn n_pending(&self) -> usize {
        self.spool.as_ref().map_or(0, Spool::n_pending)
    }

    /// What went wrong last, if nothing went well since.
    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Nothing will be sent for an interval.
    pub(crate) fn idle(&mut self) {
        self.schedule.idle(self.clock.now().mono);
    }

    #[cfg(feature = "grpc")]
    pub(crate) fn set_last_error(&mut self, error: String) {
        self.last_error = Some(error);
    }

    /// Time until the next upload, and bytes that wait.
    pub(crate) fn outlook(&self) -> (Duration, u64) {
        let now = self.clock.now_on_caller();
        let usage = self.spool.as_ref().map(|s| s.usage(now.wall_unix_ms));
        let wait = self.schedule.next_at().saturating_sub(now.mono);
        (wait, usage.map_or(0, |(bytes, _)| bytes))
    }

    /// Seals the rest and leaves the folder to the next process.
    pub(crate) fn end(&mut self) {
        self.seal();
        let last = lock(&self.core).last_sequence();
        if let Some(spool) = self.spool.take() {
            spool.end(last);
        }
    }
}

/// Writes reports down; those that cannot be are lost, and counted.
fn keep(spool: &mut Spool, sealed: &[SealedReport], last_error: &mut Option<String>) -> Vec<Loss> {
    let mut losses = Vec::new();
    for report in sealed {
        // The number is taken whether or not it can be written down.
        let noted = spool.note_sealed(report.key.sequence.get());
        if let Err(error) = noted {
            *last_error = Some(format!("failed to note a report's number: {error}"));
        }
        if let Err(error) = spool.append(report) {
            *last_error = Some(text_of(&error));
            losses.push(Loss {
                reason: DropReason::SpoolIo,
                reports: 1,
                runs: report.runs,
            });
        }
    }
    losses
}

fn text_of(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
