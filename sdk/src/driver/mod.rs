//! Drives the core: all I/O of the SDK, step by step.
//!
//! Runs on the SDK's own thread (`worker.rs`), or on a host's thread that asks for the next upload. The core is
//! locked for computing only, never across I/O, because callers open sessions under the same lock.

use std::{
    collections::VecDeque,
    panic::catch_unwind,
    sync::{Arc, Mutex},
    time::Duration,
};

use epwatch_proto::{ContextKind, DropReason, StreamId, error_chain};

use crate::{
    baselines::BaselineSet,
    config::SdkConfig,
    core::{Core, SealedReport},
    directives,
    driver::consent::ConsentSwitch,
    host::{device, thermal_zones},
    installation::{self, Secret},
    lock::lock,
    spool::{Found, Limits, Loss, Spool},
    time::{Clock, Now},
    upload::{FlushError, Refusal},
};

mod baseline_file;
pub(crate) mod consent;
pub(crate) mod directive_file;
pub(crate) mod events;
mod privacy;
mod send;
pub(crate) mod worker;

use baseline_file::BaselineFile;
use directive_file::{DirectiveFile, OpenedSignal};
use events::{DriverEvent, Events};
use privacy::Privacy;
use send::Sender;
pub(crate) use send::UploadTrigger;

/// Longest wait of the thread. Work may be due without a timer in this process, for example reports that another
/// process left.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
pub(crate) struct Driver {
    config: SdkConfig,
    clock: Clock,
    core: Arc<Mutex<Core>>,
    spool: Option<Spool>,
    /// The folder was released for the next process. The stream must not begin again.
    has_ended: bool,
    /// Secret of the installation while the spool is open.
    secret: Option<Secret>,
    baselines: BaselineFile,
    /// Whether the core has the baselines of the file.
    has_baselines: bool,
    sender: Sender,
    privacy: Privacy,
    next_seal: Duration,
    boot_id: String,
    last_error: Option<String>,
    /// A refusal of reports since the last flush.
    refused: Option<Refusal>,
    /// Why reports could not be stored, unless the host was already told.
    not_kept: Option<String>,
    directives: DirectiveFile,
    opened: Arc<OpenedSignal>,
    events: Events,
}

impl Driver {
    pub(crate) fn new(
        config: SdkConfig,
        clock: Clock,
        core: Arc<Mutex<Core>>,
        opened: Arc<OpenedSignal>,
        consent: Arc<ConsentSwitch>,
    ) -> Self {
        let now = clock.now().mono;
        Self {
            sender: Sender::new(config.upload_interval, now),
            privacy: Privacy::new(consent),
            next_seal: now + config.report_interval,
            directives: DirectiveFile::new(config.dir.clone()),
            baselines: BaselineFile::new(config.dir.clone(), config.core.settled_runs),
            opened,
            config,
            clock,
            core,
            spool: None,
            has_ended: false,
            secret: None,
            has_baselines: false,
            boot_id: String::new(),
            last_error: None,
            refused: None,
            not_kept: None,
            events: Events::default(),
        }
    }

    /// Opens the folder. If that fails the SDK continues to record, and tries again at the next seal: a full disk may
    /// have free space then.
    fn open(&mut self) {
        if self.spool.is_some() || self.has_ended || !self.may_keep() {
            return;
        }
        if let Err(error) = self.try_open() {
            if self.last_error.as_ref() != Some(&error) {
                log_unusable(&error);
            }
            self.last_error = Some(error);
        }
        self.opened.set();
    }

    fn try_open(&mut self) -> Result<(), String> {
        self.boot_id = device::boot_id();
        let mut device = match self.config.is_device_given {
            true => self.config.core.device.clone(),
            false => device::read_linux(),
        };
        let zones = self.config.thermal_zones.as_ref();
        if zones.is_some_and(|zones| thermal_zones::has_passive_trips(zones)) {
            device.reportable_contexts.push(ContextKind::Thermal);
        }
        lock(&self.core).set_device(device, &self.boot_id);
        // The seal that follows reads the file again, and reports the error.
        let now = self.clock.now();
        let _ = self.directives.read(&self.core, now);
        lock(&self.core).refresh_recording(now);

        let dir = self.config.dir.clone();
        let secret = installation::load_or_create(&dir).map_err(|e| error_chain(&e))?;
        let stream = lock(&self.core).stream();
        let opened = Spool::open(&dir, stream, Limits::default());
        let (spool, found) = opened.map_err(|e| error_chain(&e))?;
        let baselines = self.baselines.read();
        self.has_baselines = baselines.is_ok();
        let Some(mut core) = Core::lock_in(&self.core, stream) else {
            spool.end(0);
            return Err("the installation was forgotten while it was opened".to_owned());
        };
        // Missing baselines are read again at each seal, and their file is not written before.
        let settled_runs = self.config.core.settled_runs;
        core.load_baselines(baselines.unwrap_or_else(|_| BaselineSet::lost(settled_runs)));
        take_in(&mut core, found);
        core.set_installation(secret.installation());
        drop(core);
        self.spool = Some(spool);
        self.secret = Some(secret);
        self.last_error = None;
        Ok(())
    }

    /// Reads the baselines if that failed when the folder was opened.
    fn read_missing_baselines(&mut self, stream: StreamId) {
        if !self.has_baselines
            && let Ok(baselines) = self.baselines.read()
            && let Some(mut core) = Core::lock_in(&self.core, stream)
        {
            core.load_baselines(baselines);
            self.has_baselines = true;
        }
    }

    pub(crate) fn is_seal_due(&self) -> bool {
        self.may_keep() && self.clock.now().mono >= self.next_seal
    }

    /// Time until the next seal.
    pub(crate) fn until_seal(&self) -> Duration {
        match self.may_keep() {
            true => self.next_seal.saturating_sub(self.clock.now().mono),
            false => LONGEST_WAIT,
        }
    }

    /// Time until work is due; `None` if it is due now.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let now = self.clock.now().mono;
        let mut due = now + LONGEST_WAIT;
        if self.may_keep() {
            due = due.min(self.next_seal).min(self.sender.reports.next_at);
        }
        if let Some(at) = self.sender.deletion_at() {
            due = due.min(at);
        }
        if let Some(at) = self.privacy.wipe_at {
            due = due.min(at);
        }
        due.checked_sub(now).filter(|wait| !wait.is_zero())
    }

    /// Seals the interval, stores the reports, and drops what exceeds the limits.
    pub(crate) fn seal(&mut self) {
        self.apply_consent();
        self.open();
        let now = self.clock.now();
        self.update_directives(now);
        self.next_seal = now.mono + self.report_interval(now);
        let Some(stream) = self.spool.as_ref().map(Spool::stream) else {
            return;
        };
        self.read_missing_baselines(stream);
        let Some(spool) = &mut self.spool else {
            return;
        };
        let adopted = spool.adopt();
        let (bytes, oldest) = spool.usage(now.wall_unix_ms);
        let (sealed, updates, tests) = {
            let Some(mut core) = Core::lock_in(&self.core, stream) else {
                return;
            };
            match adopted {
                Ok(found) => take_in(&mut core, found),
                Err(error) => {
                    self.last_error = Some(format!("failed to look for ended streams: {error}"));
                }
            }
            core.health.spool_bytes = bytes;
            let oldest_ms = oldest.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            core.health.spool_oldest_ms = oldest_ms;
            let sealed = core.seal(now);
            let tests = core.self_tests.take_unsaved();
            (sealed, std::mem::take(&mut core.baseline_updates), tests)
        };
        let mut losses = keep(spool, &sealed, now, &mut self.last_error);
        if !losses.is_empty() {
            self.not_kept.clone_from(&self.last_error);
        }
        if !sealed.is_empty() {
            self.events.add(DriverEvent::Sealed {
                reports: sealed.len(),
                runs: sealed.iter().map(|report| report.runs).sum(),
            });
        }
        losses.extend(spool.enforce(now));
        self.count(stream, &losses);
        if !updates.is_empty()
            && let Err(error) = self.baselines.add(&updates, self.secret.as_ref())
        {
            self.last_error = Some(format!("failed to keep baselines: {error}"));
            if let Some(mut core) = Core::lock_in(&self.core, stream) {
                core.return_baseline_updates(updates);
            }
        }
        if !tests.is_empty()
            && let Err(error) = crate::self_test::save_finished(&self.config.dir, &tests)
        {
            self.last_error = Some(format!("failed to keep self-tests: {error}"));
        }
    }

    /// Applies the directives that begin or end now.
    fn update_directives(&mut self, now: Now) {
        if let Err(error) = self.directives.refresh(&self.core, now) {
            self.last_error = Some(format!("failed to keep directives: {error}"));
        }
        lock(&self.core).refresh_recording(now);
    }

    fn report_interval(&self, now: Now) -> Duration {
        let by_directive = lock(&self.core).report_interval(now);
        by_directive.unwrap_or(self.config.report_interval)
    }

    /// Takes the directives of an answer. A shorter report interval applies at once, and so does recording off.
    fn receive_directives(&mut self, received: directives::ReceivedDirectives, now: Now) {
        if let Err(error) = self.directives.receive(&self.core, received, now) {
            self.last_error = Some(format!("failed to keep directives: {error}"));
        }
        lock(&self.core).refresh_recording(now);
        self.next_seal = self.next_seal.min(now.mono + self.report_interval(now));
    }

    fn count(&self, stream: StreamId, losses: &[Loss]) {
        let Some(mut core) = Core::lock_in(&self.core, stream) else {
            return;
        };
        for loss in losses {
            core.dropped(loss.reason, loss.reports, loss.runs);
        }
    }

    /// Reports waiting on disk.
    pub(crate) fn n_pending(&self) -> usize {
        self.spool.as_ref().map_or(0, Spool::n_pending)
    }

    /// The latest problem, cleared by the next success.
    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Returns whether everything that was recorded and sealed since the last call is in the folder.
    ///
    /// # Errors
    /// The cause if something was not stored.
    pub(crate) fn take_kept(&mut self) -> Result<(), FlushError> {
        if self.has_ended {
            return Err(FlushError::Stopped);
        }
        if let Some(cause) = self.not_kept.take() {
            return Err(FlushError::Spool(cause));
        }
        if self.spool.is_none() && self.has_consent() {
            let cause = self.last_error.clone();
            return Err(FlushError::Spool(cause.unwrap_or_default()));
        }
        Ok(())
    }

    /// Takes the events since the last call.
    pub(crate) fn take_events(&mut self) -> VecDeque<DriverEvent> {
        self.events.take()
    }

    /// Seals the rest and releases the folder for the next process.
    ///
    /// # Errors
    /// Fails as [`Self::take_kept`] does.
    pub(crate) fn end(&mut self) -> Result<(), FlushError> {
        self.seal();
        let kept = self.take_kept();
        self.has_ended = true;
        self.secret = None;
        let last = lock(&self.core).next_sequence - 1;
        if let Some(spool) = self.spool.take() {
            spool.end(last);
        }
        kept
    }
}

/// Logs each error once. The host's subscriber may panic, which must not end this thread.
fn log_unusable(error: &str) {
    let _ = catch_unwind(|| tracing::warn!(error, "the SDK's folder cannot be used"));
}

/// Adds ended streams and their losses to the core.
fn take_in(core: &mut Core, found: Found) {
    core.add_ended_streams(found.ended);
    for loss in &found.losses {
        core.dropped(loss.reason, loss.reports, loss.runs);
    }
}

/// Stores reports. A report that cannot be stored is lost and counted.
fn keep(
    spool: &mut Spool,
    sealed: &[SealedReport],
    now: Now,
    last_error: &mut Option<String>,
) -> Vec<Loss> {
    let mut losses = Vec::new();
    for report in sealed {
        // The sequence number is used up even if the report cannot be stored.
        let noted = spool.note_sealed(report.key.sequence.get());
        if let Err(error) = noted {
            *last_error = Some(format!("failed to note a report's number: {error}"));
        }
        if let Err(error) = spool.append(report, now) {
            *last_error = Some(error_chain(&error));
            losses.push(Loss {
                reason: DropReason::SpoolIo,
                reports: 1,
                runs: report.runs,
            });
        }
    }
    losses
}
