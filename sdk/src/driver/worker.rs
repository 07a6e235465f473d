//! The SDK's own thread: seals on time, uploads when due, does what callers ask for.
//!
//! Everything that touches disk or network happens here. A panic ends the step it happened in and
//! is counted; after a few of them the thread ends and recording goes on without reports.

use std::{
    fs::File,
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use epwatch_proto::{ModelHash, SessionUid};
use sha2::{Digest, Sha256};

#[cfg(feature = "grpc")]
use crate::upload::grpc::LazyTransport;
use crate::{
    core::Core,
    driver::{Engine, consent::Consent},
    host::thermal_zones::ThermalReader,
    lock::lock,
    upload::{FlushError, UploadError},
};
#[cfg(feature = "grpc")]
use crate::{driver::Asked, upload::RequestKind};

/// Panics after which the thread ends: something is wrong for good then.
const MAX_PANICS: u64 = 3;

/// What a caller asks the thread to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Seal and send everything now, and answer.
    Flush(SyncSender<Result<(), FlushError>>),
    /// Seal before it is time: much waits.
    Seal,
    /// Look again: something was switched.
    Wake,
    /// Take the hash of a model's file.
    HashModel(SessionUid, PathBuf),
    /// Seal, leave the folder to the next process, and end.
    Stop(SyncSender<()>),
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) engine: Arc<Mutex<Engine>>,
    pub(crate) core: Arc<Mutex<Core>>,
    pub(crate) panics: Arc<AtomicU64>,
    pub(crate) consent: Arc<Consent>,
    /// Models whose files must not be read yet.
    pub(crate) unread: Vec<(SessionUid, PathBuf)>,
    /// Where the SDK reads heat by itself.
    pub(crate) thermal: Option<ThermalReader>,
    #[cfg(feature = "grpc")]
    pub(crate) transport: Option<LazyTransport>,
}

/// Files that wait for consent at most; the hash of a model is a convenience.
const MAX_UNREAD: usize = 64;

impl Worker {
    /// Runs until it is told to stop, or nobody is left who could.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        let stopped = loop {
            if self.panics.load(Relaxed) >= MAX_PANICS {
                return;
            }
            self.guarded(Self::due);
            let wait = self.wait();
            match commands.recv_timeout(wait) {
                Ok(Command::Flush(answer)) => {
                    let mut result = Err(FlushError::Stopped);
                    self.guarded(|worker| result = worker.flush());
                    // Who asked may have given up waiting.
                    let _ = answer.try_send(result);
                }
                Ok(Command::Seal) => self.guarded(|worker| {
                    // A seal may have come between.
                    let has_many_gone = lock(&worker.core).has_many_gone();
                    if has_many_gone {
                        lock(&worker.engine).seal();
                    }
                }),
                Ok(Command::Wake) => {}
                Ok(Command::HashModel(uid, path)) => {
                    if self.unread.len() < MAX_UNREAD {
                        self.unread.push((uid, path));
                    }
                }
                Ok(Command::Stop(answer)) => break Some(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        self.guarded(|worker| lock(&worker.engine).end());
        if let Some(answer) = stopped {
            let _ = answer.try_send(());
        }
    }

    fn wait(&self) -> Duration {
        let wait = lock(&self.engine).wait().unwrap_or(Duration::ZERO);
        let reading = self.thermal.as_ref().and_then(|t| t.wait(Instant::now()));
        reading.map_or(wait, |reading| wait.min(reading))
    }

    fn guarded(&mut self, step: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_err() {
            self.panics.fetch_add(1, Relaxed);
        }
    }

    /// What time has brought.
    fn due(&mut self) {
        let has_consent = self.consent.wish().is_given;
        if let Some(thermal) = &mut self.thermal {
            thermal.pass(Instant::now(), has_consent);
        }
        if has_consent {
            for (uid, path) in std::mem::take(&mut self.unread) {
                self.hash_model(uid, &path);
            }
        }
        {
            let mut engine = lock(&self.engine);
            engine.follow_consent();
            if engine.is_seal_due() {
                engine.seal();
            }
        }
        // What goes wrong is counted and comes again by schedule.
        let _ = self.upload(false);
    }

    fn flush(&mut self) -> Result<(), FlushError> {
        lock(&self.engine).seal();
        self.upload(true).map_err(FlushError::Upload)?;
        let engine = lock(&self.engine);
        match (engine.n_pending(), engine.last_error()) {
            (0, None) => Ok(()),
            (0, Some(error)) => Err(FlushError::Spool(error.to_owned())),
            (reports, _) => Err(FlushError::Kept { reports }),
        }
    }

    /// Sends what is due, or everything if it is asked for.
    #[cfg(feature = "grpc")]
    fn upload(&mut self, is_asked_for: bool) -> Result<(), UploadError> {
        let asked = if is_asked_for {
            Asked::Now
        } else {
            Asked::OnTime
        };
        let Some(transport) = &mut self.transport else {
            // Without a transport nothing would ever be due again.
            lock(&self.engine).idle();
            return Ok(());
        };
        if is_asked_for {
            lock(&self.engine).hurry_deletions();
        }
        let mut failed_deletion = Ok(());
        loop {
            let mut engine = lock(&self.engine);
            let before = engine.n_pending();
            let Some(batch) = engine.next_upload(asked)? else {
                return failed_deletion;
            };
            // Nobody waits for the network while it holds the engine.
            drop(engine);
            let (result, sent) = transport.send(&batch);
            let mut engine = lock(&self.engine);
            let settled = engine.upload_result(&batch, result, Some(sent));
            if batch.kind() == RequestKind::DeleteInstallation {
                // Reports do not wait for it.
                failed_deletion = failed_deletion.and(settled);
                continue;
            }
            settled?;
            if is_asked_for && engine.n_pending() >= before {
                return failed_deletion;
            }
        }
    }

    /// The host sends, through `next_upload`.
    #[cfg(not(feature = "grpc"))]
    #[expect(
        clippy::unnecessary_wraps,
        reason = "the same signature with the feature"
    )]
    fn upload(&mut self, _is_asked_for: bool) -> Result<(), UploadError> {
        lock(&self.engine).idle();
        Ok(())
    }

    fn hash_model(&mut self, uid: SessionUid, path: &Path) {
        if let Some(hash) = hash_of_file(path) {
            lock(&self.core).set_model_hash(uid, hash);
        }
    }
}

/// SHA-256 of a file, read in pieces: models are large. `None` if it cannot be read.
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
