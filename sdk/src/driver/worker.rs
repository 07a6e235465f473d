//! The SDK's own thread: seals on time, uploads when due, and handles commands.
//!
//! A panic ends its step and is counted. After a few panics within a day the thread rests for a day, because it would
//! most likely panic again. During the rest recording continues, and the thread handles only requests of the host
//! ([`Faults`]).

use std::{
    fs::File,
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use epwatch_proto::{ModelHash, SessionUid};
use sha2::{Digest, Sha256};

use crate::{
    config::HealthListener,
    core::Core,
    driver::{Driver, UploadTrigger, consent::ConsentSwitch},
    host::thermal_zones::ThermalReader,
    lock::lock,
    queue::{QueueReceiver, QueueSender, ReceiveEnd},
    recorder::shards,
    upload::{FlushError, RequestKind, Transport, UploadError},
};

/// Number of panics after which the thread rests.
const MAX_PANICS: u32 = 3;
/// Length of a rest. After the same time without a panic, earlier panics no longer count.
pub(crate) const REST: Duration = Duration::from_secs(24 * 3600);
/// How often a call to the collector checks whether the host is stopping the SDK.
const STOP_POLL: Duration = Duration::from_millis(200);

/// Caught panics, and the rest that follows them. The thread writes this state, `explain` reads it.
#[derive(Debug)]
pub(crate) struct Faults {
    rest: Duration,
    state: Mutex<FaultState>,
}

#[derive(Debug, Default)]
struct FaultState {
    n_panics: u64,
    /// Panics without a healthy day between them.
    n_recent: u32,
    last: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Faults {
    pub(crate) fn new(rest: Duration) -> Self {
        Self {
            rest,
            state: Mutex::default(),
        }
    }

    /// Panics in the life of the process.
    pub(crate) fn n_panics(&self) -> u64 {
        lock(&self.state).n_panics
    }

    /// Returns how long the thread still rests.
    pub(crate) fn rest(&self, now: Instant) -> Option<Duration> {
        let until = lock(&self.state).rests_until?;
        until
            .checked_duration_since(now)
            .filter(|rest| !rest.is_zero())
    }

    /// Returns the sentence about a rest.
    pub(crate) fn problem(&self, now: Instant) -> Option<String> {
        let hours = self.rest(now)?.as_secs().div_ceil(3600);
        Some(format!(
            "the SDK's thread rests for {hours} h after internal errors: runs are recorded, and sealed and sent by a \
             flush only"
        ))
    }

    /// Counts a panic.
    pub(crate) fn note(&self, now: Instant) {
        let mut state = lock(&self.state);
        let is_healthy = |last| now.saturating_duration_since(last) >= self.rest;
        if state.last.is_none_or(is_healthy) {
            state.n_recent = 0;
        }
        state.n_panics += 1;
        state.n_recent += 1;
        state.last = Some(now);
        if state.n_recent >= MAX_PANICS {
            state.rests_until = Some(now + self.rest);
        }
    }
}

/// A caller's command to the thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Seal and send everything now, and answer.
    Flush(QueueSender<Result<(), FlushError>>),
    /// Seal early, because many sessions were closed.
    Seal,
    /// Read consent and network again.
    Wake,
    /// Compute the hash of a model's file.
    HashModel(SessionUid, PathBuf),
    /// Seal, release the folder for the next process, and end.
    Stop(QueueSender<Result<(), FlushError>>),
}

pub(crate) struct Worker {
    pub(crate) driver: Arc<Mutex<Driver>>,
    pub(crate) core: Arc<Mutex<Core>>,
    pub(crate) faults: Arc<Faults>,
    /// The host has stopped the SDK; a call to the collector is broken off.
    pub(crate) is_stopping: Arc<AtomicBool>,
    pub(crate) consent: Arc<ConsentSwitch>,
    /// Model files that must not be read before consent.
    pub(crate) unread: Vec<(SessionUid, PathBuf)>,
    /// Reads temperatures, if the SDK is configured to.
    pub(crate) thermal: Option<ThermalReader>,
    /// `None` if the host sends, through `next_upload`.
    pub(crate) transport: Option<Transport>,
    pub(crate) listener: Option<HealthListener>,
    /// The problem that the listener got last.
    pub(crate) told_problem: Option<String>,
}

/// Model files that may wait for consent. Further files get no hash, which is only a convenience.
const MAX_UNREAD: usize = 64;

impl Worker {
    /// Runs until a command stops the thread, or no handle is left.
    pub(crate) fn run(mut self, commands: &QueueReceiver<Command>) {
        shards::count_processors();
        let stopped = loop {
            let rest = self.faults.rest(Instant::now());
            let wait = rest.unwrap_or_else(|| {
                self.guarded(Self::run_due);
                self.wait()
            });
            self.tell();
            match commands.recv_timeout(wait) {
                Ok(Command::Flush(answer)) => {
                    let mut result = Err(FlushError::Stopped);
                    self.guarded(|worker| result = worker.flush());
                    self.tell();
                    // The caller may have given up waiting.
                    let _ = answer.try_send(result);
                }
                Ok(Command::Seal) if rest.is_some() => {}
                Ok(Command::Seal) => self.guarded(|worker| {
                    // A seal may have happened in between.
                    let has_many_closed = lock(&worker.core).has_many_closed();
                    if has_many_closed {
                        lock(&worker.driver).seal();
                    }
                }),
                // A withdrawal of consent is handled even during a rest.
                Ok(Command::Wake) if rest.is_some() => {
                    self.guarded(|worker| lock(&worker.driver).apply_consent());
                }
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
        let mut ended = Err(FlushError::Spool("an internal error".to_owned()));
        self.guarded(|worker| ended = lock(&worker.driver).end());
        self.tell();
        if let Some(answer) = stopped {
            let _ = answer.try_send(ended);
        }
    }

    fn wait(&self) -> Duration {
        let wait = lock(&self.driver).wait().unwrap_or(Duration::ZERO);
        let reading = self.thermal.as_ref().and_then(|t| t.wait(Instant::now()));
        reading.map_or(wait, |reading| wait.min(reading))
    }

    /// Passes on the events since the last call, without holding a lock.
    fn tell(&mut self) {
        let mut driver = lock(&self.driver);
        let events = driver.take_events();
        let problem = driver.last_error().map(str::to_owned);
        drop(driver);
        for event in events {
            event.log();
        }
        let problem = self.faults.problem(Instant::now()).or(problem);
        if problem != self.told_problem {
            if let Some(listener) = &self.listener {
                listener.call(problem.as_deref());
            }
            self.told_problem = problem;
        }
    }

    fn guarded(&mut self, step: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_err() {
            self.faults.note(Instant::now());
            lock(&self.core).health.internal_errors += 1;
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
        let kept = {
            let mut driver = lock(&self.driver);
            driver.seal();
            driver.take_kept()
        };
        let sent = self.upload(UploadTrigger::Flush);
        kept?;
        sent.map_err(FlushError::Upload)?;
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

    /// Sends the requests that are due, or everything for a flush.
    fn upload(&mut self, trigger: UploadTrigger) -> Result<(), UploadError> {
        let is_flush = trigger == UploadTrigger::Flush;
        let (driver, is_stopping) = (Arc::clone(&self.driver), Arc::clone(&self.is_stopping));
        // Reports are sealed on time while a call waits for its answer.
        let mut meanwhile = move || {
            if is_stopping.load(Relaxed) {
                return None;
            }
            let mut driver = lock(&driver);
            if driver.is_seal_due() {
                driver.seal();
            }
            Some(driver.until_seal().min(STOP_POLL))
        };
        let Some(transport) = &mut self.transport else {
            // Without this call the work would stay due, because there is no transport to do it.
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
            let (result, sent) = transport(&batch, &mut meanwhile);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use epwatch_proto::{Placement, ReasonCode};

    use super::*;
    use crate::{
        config::{ModelInfo, SdkConfig},
        core::SessionInfo,
        driver::directive_file::OpenedSignal,
        queue::queue,
        random_stream, simulated_device,
        time::Clock,
        types::UploadFailureKind,
        upload::UploadBatch,
    };

    const TIMEOUT: Duration = Duration::from_secs(300);

    /// A running thread of the SDK that has runs to report over a given transport.
    struct Running {
        _dir: tempfile::TempDir,
        core: Arc<Mutex<Core>>,
        driver: Arc<Mutex<Driver>>,
        faults: Arc<Faults>,
        is_stopping: Arc<AtomicBool>,
        commands: QueueSender<Command>,
        lines: Arc<Mutex<Vec<String>>>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    fn start(rest: Duration, transport: Transport) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let config = SdkConfig::builder("app", "http://127.0.0.1:1", "key", dir.path())
            .with_consent(true)
            .with_device(simulated_device("SM8650").into())
            .with_report_interval(Duration::from_millis(20))
            .build()
            .unwrap();
        let clock = Clock::start();
        let core = Core::new(config.core.clone(), random_stream(), clock.now());
        let core = Arc::new(Mutex::new(core));
        let consent = Arc::new(ConsentSwitch::new(true));
        let (ours, opened) = (Arc::clone(&core), Arc::new(OpenedSignal::default()));
        let driver = Driver::new(config, clock, ours, opened, Arc::clone(&consent));
        let driver = Arc::new(Mutex::new(driver));
        let faults = Arc::new(Faults::new(rest));
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (commands, inbox) = queue(64);
        let worker = Worker {
            driver: Arc::clone(&driver),
            core: Arc::clone(&core),
            faults: Arc::clone(&faults),
            is_stopping: Arc::clone(&is_stopping),
            consent,
            unread: Vec::new(),
            thermal: None,
            transport: Some(transport),
            listener: None,
            told_problem: None,
        };
        let lines = Arc::default();
        let subscriber = Subscriber(Arc::clone(&lines));
        let run = move || tracing::subscriber::with_default(subscriber, || worker.run(&inbox));
        let thread = std::thread::spawn(run);
        Running {
            _dir: dir,
            core,
            driver,
            faults,
            is_stopping,
            commands,
            lines,
            thread: Some(thread),
        }
    }

    impl Running {
        fn record(&self, clock: Clock) {
            let placement = Placement::unavailable(vec![], ReasonCode::RuntimeNotKnown);
            let info = SessionInfo::new(ModelInfo::new("m", "1").unwrap(), placement);
            let session = lock(&self.core).open_session(info, clock.now());
            session.record(Duration::ZERO, Duration::from_millis(8), "static");
        }

        fn flush(&self) -> Result<(), FlushError> {
            let (answer, answered) = queue(1);
            assert!(self.commands.try_send(Command::Flush(answer)).is_ok());
            answered.recv_timeout(TIMEOUT).expect("an answer")
        }

        fn stop(mut self) {
            let (answer, _answered) = queue(1);
            self.is_stopping.store(true, Relaxed);
            assert!(self.commands.try_send(Command::Stop(answer)).is_ok());
            self.thread.take().unwrap().join().unwrap();
        }
    }

    /// Panics this many times, then refuses.
    fn panicking(n: usize) -> Transport {
        let left = AtomicUsize::new(n);
        Box::new(
            move |_: &UploadBatch, _: &mut dyn FnMut() -> Option<Duration>| {
                let is_sick = left
                    .fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1))
                    .is_ok();
                assert!(!is_sick, "a fault of the SDK");
                (
                    Err(UploadError::new(UploadFailureKind::Server, "well again")),
                    0,
                )
            },
        )
    }

    /// A host's subscriber, which keeps the fields of each event.
    struct Subscriber(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl tracing::field::Visit for Line {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            self.0 += &format!(" {field}={value:?}");
        }
    }

    impl tracing::Subscriber for Subscriber {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target().starts_with("epwatch_sdk")
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
            tracing::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            lock(&self.0).push(line.0);
        }
        fn enter(&self, _: &tracing::Id) {}
        fn exit(&self, _: &tracing::Id) {}
    }

    #[test]
    fn each_seal_and_each_answer_is_a_line_of_the_hosts_log() {
        let running = start(Duration::from_secs(3600), panicking(0));
        running.record(Clock::start());
        let _ = running.flush();
        let lines = lock(&running.lines).join("\n");
        let expected = [
            "DEBUG message=sealed reports=1 runs=1",
            "DEBUG message=a request failed error=\"failed to upload: well again\"",
        ];
        for line in expected {
            assert!(lines.contains(line), "{lines}");
        }
        running.stop();
    }

    /// Regression test: three panics ended the thread for the life of the process.
    #[test]
    fn panics_let_the_thread_rest_and_end_nothing() {
        let running = start(Duration::from_secs(3600), panicking(3));
        let until = Instant::now() + TIMEOUT;
        while running.faults.rest(Instant::now()).is_none() {
            running.record(Clock::start());
            // The schedule may already have run into the panic.
            let _ = running.flush();
            assert!(Instant::now() < until, "{:?}", running.faults);
        }
        assert_eq!(running.faults.n_panics(), 3);
        assert!(running.faults.rest(Instant::now()).is_some());
        assert_eq!(lock(&running.core).health().internal_errors, 3);
        // Calls of the host are tried even during a rest.
        let error = running.flush().unwrap_err();
        assert!(matches!(error, FlushError::Upload(_)), "{error}");
        running.stop();
    }

    #[test]
    fn a_healthy_day_begins_the_count_again() {
        let faults = Faults::new(REST);
        let began = Instant::now();
        let at = |hours: u64| began + Duration::from_secs(3600 * hours);
        for hours in [0, 1, 26, 27, 52] {
            faults.note(at(hours));
            assert_eq!(faults.rest(at(hours)), None, "{hours}");
        }
        faults.note(at(53));
        faults.note(at(54));
        assert_eq!(faults.rest(at(54)), Some(REST));
        assert_eq!(faults.rest(at(78)), None);
        assert_eq!(faults.n_panics(), 7);
    }

    /// Regression test: a call hung for its whole deadline, and meanwhile nothing was sealed.
    #[test]
    fn reports_are_sealed_while_a_call_hangs_and_a_stop_ends_it() {
        let hanging: Transport = Box::new(|_, meanwhile| {
            let until = Instant::now() + TIMEOUT;
            while let Some(wait) = meanwhile() {
                assert!(Instant::now() < until, "nothing ended the call");
                std::thread::sleep(wait.min(Duration::from_millis(5)));
            }
            let error = UploadError::new(UploadFailureKind::Timeout, "stopped");
            (Err(error), 0)
        });
        let running = start(REST, hanging);
        running.record(Clock::start());
        let (answer, _answered) = queue(1);
        assert!(running.commands.try_send(Command::Flush(answer)).is_ok());
        let until = Instant::now() + TIMEOUT;
        while lock(&running.driver).n_pending() < 4 {
            running.record(Clock::start());
            assert!(Instant::now() < until, "no report was sealed meanwhile");
            std::thread::sleep(Duration::from_millis(5));
        }
        running.stop();
    }
}
