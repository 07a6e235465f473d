//! The SDK's own thread: seals on time, uploads when due, and handles commands.
//!
//! A panic ends its step and is counted. After a few panics the thread ends, and recording continues without reports.

use std::{
    fs::File,
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use epwatch_proto::{ModelHash, SessionUid};
use sha2::{Digest, Sha256};

use crate::{
    core::Core,
    driver::{Driver, UploadTrigger, consent::ConsentSwitch},
    host::thermal_zones::ThermalReader,
    lock::lock,
    queue::{QueueReceiver, QueueSender, ReceiveEnd},
    upload::{FlushError, RequestKind, Transport, UploadError},
};

/// Panics after which the thread ends, because the cause is permanent.
const MAX_PANICS: u64 = 3;

/// A caller's command to the thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Seal and send everything now, and answer.
    Flush(QueueSender<Result<(), FlushError>>),
    /// Seal before the time, because many sessions were closed.
    Seal,
    /// Read consent and network again.
    Wake,
    /// Compute the hash of a model's file.
    HashModel(SessionUid, PathBuf),
    /// Seal, leave the folder to the next process, and end.
    Stop(QueueSender<()>),
}

pub(crate) struct Worker {
    pub(crate) driver: Arc<Mutex<Driver>>,
    pub(crate) core: Arc<Mutex<Core>>,
    pub(crate) panics: Arc<AtomicU64>,
    pub(crate) consent: Arc<ConsentSwitch>,
    /// Model files that must not be read before consent.
    pub(crate) unread: Vec<(SessionUid, PathBuf)>,
    /// Reads temperatures, if the SDK is configured to.
    pub(crate) thermal: Option<ThermalReader>,
    /// `None` if the host sends, through `next_upload`.
    pub(crate) transport: Option<Transport>,
}

/// Model files that may wait for consent. Their hashes are a convenience.
const MAX_UNREAD: usize = 64;

impl Worker {
    /// Runs until a command stops it, or no handle is left.
    pub(crate) fn run(mut self, commands: &QueueReceiver<Command>) {
        let stopped = loop {
            if self.panics.load(Relaxed) >= MAX_PANICS {
                return;
            }
            self.guarded(Self::run_due);
            let wait = self.wait();
            match commands.recv_timeout(wait) {
                Ok(Command::Flush(answer)) => {
                    let mut result = Err(FlushError::Stopped);
                    self.guarded(|worker| result = worker.flush());
                    // The caller may have given up waiting.
                    let _ = answer.try_send(result);
                }
                Ok(Command::Seal) => self.guarded(|worker| {
                    // A seal may have happened in between.
                    let has_many_closed = lock(&worker.core).has_many_closed();
                    if has_many_closed {
                        lock(&worker.driver).seal();
                    }
                }),
                Ok(Command::Wake) => {}
                Ok(Command::HashModel(uid, path)) => {
                    if self.unread.len() < MAX_UNREAD {
                        self.unread.push((uid, path));
                    }
                }
                Ok(Command::Stop(answer)) => break Some(answer),
                Err(ReceiveEnd::Timeout) => {}
                Err(ReceiveEnd::Closed) => break None,
            }
        };
        self.guarded(|worker| lock(&worker.driver).end());
        if let Some(answer) = stopped {
            let _ = answer.try_send(());
        }
    }

    fn wait(&self) -> Duration {
        let wait = lock(&self.driver).wait().unwrap_or(Duration::ZERO);
        let reading = self.thermal.as_ref().and_then(|t| t.wait(Instant::now()));
        reading.map_or(wait, |reading| wait.min(reading))
    }

    fn guarded(&mut self, step: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_err() {
            self.panics.fetch_add(1, Relaxed);
        }
    }

    /// Does everything that is due by time.
    fn run_due(&mut self) {
        let has_consent = self.consent.state().is_given;
        if let Some(thermal) = &mut self.thermal {
            thermal.refresh(Instant::now(), has_consent);
        }
        if has_consent {
            for (uid, path) in std::mem::take(&mut self.unread) {
                if let Some(hash) = hash_of_file(&path) {
                    lock(&self.core).set_model_hash(uid, hash);
                }
            }
        }
        {
            let mut driver = lock(&self.driver);
            driver.apply_consent();
            if driver.is_seal_due() {
                driver.seal();
            }
        }
        // A failure is counted and repeated by schedule.
        let _ = self.upload(UploadTrigger::Schedule);
    }

    fn flush(&mut self) -> Result<(), FlushError> {
        lock(&self.driver).seal();
        self.upload(UploadTrigger::Flush)
            .map_err(FlushError::Upload)?;
        let mut driver = lock(&self.driver);
        if let Some(refusal) = driver.take_refused() {
            return Err(FlushError::Refused(refusal));
        }
        match (driver.n_pending(), driver.last_error()) {
            (0, None) => Ok(()),
            (0, Some(error)) => Err(FlushError::Spool(error.to_owned())),
            (reports, _) => Err(FlushError::Kept { reports }),
        }
    }

    /// Sends what is due, or everything for a flush.
    fn upload(&mut self, trigger: UploadTrigger) -> Result<(), UploadError> {
        let is_flush = trigger == UploadTrigger::Flush;
        let Some(transport) = &mut self.transport else {
            // Without a transport nothing would become due again.
            lock(&self.driver).idle();
            return Ok(());
        };
        if is_flush {
            lock(&self.driver).hurry_deletions();
        }
        let mut failed_deletion = Ok(());
        loop {
            let mut driver = lock(&self.driver);
            let before = driver.n_pending();
            let Some(batch) = driver.next_upload(trigger)? else {
                return failed_deletion;
            };
            // The driver is not locked during network I/O.
            drop(driver);
            let (result, sent) = transport(&batch);
            let mut driver = lock(&self.driver);
            let settled = driver.upload_result(&batch, result, Some(sent));
            if batch.kind() == RequestKind::DeleteInstallation {
                // Reports do not wait for deletions.
                failed_deletion = failed_deletion.and(settled);
                continue;
            }
            settled?;
            if is_flush && driver.n_pending() >= before {
                return failed_deletion;
            }
        }
    }
}

/// SHA-256 of a file, read in pieces because models are large. `None` if it cannot be read.
fn hash_of_file(path: &Path) -> Option<ModelHash> {
    let mut file = File::open(path).ok()?;
    let mut sha = Sha256::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Some(ModelHash::from_bytes(sha.finalize().into())),
            Ok(n) => sha.update(&piece[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
