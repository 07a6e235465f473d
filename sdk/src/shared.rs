//! What the public handles of one SDK have in common, and their only door to the driver.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, SyncSender, TrySendError},
    },
    thread,
    time::Duration,
};

use crate::{
    config::SdkConfig,
    core::{Core, SessionInfo},
    directives::InEffect,
    driver::{
        Engine,
        consent::Consent,
        directive_file::Opened,
        worker::{Command, Worker},
    },
    host::{preflight::Check, thermal_zones::ThermalReader},
    lock::lock,
    placement, random_stream,
    recorder::{SessionRecorder, conditions::ConditionsSetter},
    time::Clock,
};

/// Commands that wait at most; more are refused, not queued.
const MAX_COMMANDS: usize = 64;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    core: Arc<Mutex<Core>>,
    engine: Arc<Mutex<Engine>>,
    pub(crate) conditions: ConditionsSetter,
    consent: Arc<Consent>,
    commands: SyncSender<Command>,
    panics: Arc<AtomicU64>,
    opened: Arc<Opened>,
    /// The SDK's folder.
    dir: PathBuf,
    checks: Mutex<Vec<Check>>,
}

impl Shared {
    /// Starts the SDK's thread.
    pub(crate) fn start(config: SdkConfig) -> io::Result<Self> {
        let clock = Clock::start();
        let core = Core::new(config.core.clone(), random_stream(), clock.now());
        let conditions = core
            .conditions()
            .with_thermal_read(config.thermal_zones.is_some());
        let zones = config.thermal_zones.clone();
        let thermal = zones.map(|zones| ThermalReader::new(conditions.clone(), zones));
        core.set_recording(config.has_consent);
        let consent = Arc::new(Consent::new(config.has_consent));
        let core = Arc::new(Mutex::new(core));
        let opened = Arc::new(Opened::default());
        if !config.has_consent {
            // Nothing is on disk to wait for.
            opened.set();
        }
        let dir = config.dir.clone();
        let worker_consent = Arc::clone(&consent);
        let engine = Engine::new(
            config.clone(),
            clock,
            Arc::clone(&core),
            Arc::clone(&opened),
            Arc::clone(&consent),
        );
        let engine = Arc::new(Mutex::new(engine));
        let panics = Arc::new(AtomicU64::new(0));
        let (commands, inbox) = mpsc::sync_channel(MAX_COMMANDS);
        let (worker_engine, worker_core) = (Arc::clone(&engine), Arc::clone(&core));
        let worker_panics = Arc::clone(&panics);
        thread::Builder::new()
            .name("epwatch".to_owned())
            .spawn(move || {
                let worker = Worker {
                    #[cfg(feature = "grpc")]
                    transport: config
                        .sends_itself
                        .then(|| crate::upload::grpc::LazyTransport::new(config)),
                    engine: worker_engine,
                    core: worker_core,
                    panics: worker_panics,
                    consent: worker_consent,
                    unread: Vec::new(),
                    thermal,
                };
                worker.run(&inbox);
            })?;
        Ok(Self {
            clock,
            core,
            engine,
            conditions,
            consent,
            commands,
            panics,
            opened,
            dir,
            checks: Mutex::default(),
        })
    }

    /// The core, which is only ever held for computing.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// The driver. Waits while the SDK's thread is at its files.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        lock(&self.engine)
    }

    pub(crate) fn consent(&self) -> &Consent {
        &self.consent
    }

    /// Tells the core and the SDK's thread whether consent is given.
    pub(crate) fn set_consent(&self, is_given: bool) {
        self.consent.tell(is_given, &self.core, self.clock.now());
        self.ask(Command::Wake);
    }

    pub(crate) fn reset_installation(&self) {
        self.consent.reset(&self.core, self.clock.now());
        self.ask(Command::Wake);
    }

    /// Waits until the folder was read, or cannot be; at most `timeout`.
    pub(crate) fn wait_until_opened(&self, timeout: Duration) -> bool {
        self.opened.wait(timeout)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Panics of the SDK's own that were caught.
    pub(crate) fn n_panics(&self) -> u64 {
        self.panics.load(Relaxed)
    }
    /// Begins a session now.
    pub(crate) fn open(&self, info: SessionInfo, in_effect: &InEffect) -> Arc<SessionRecorder> {
        let (recorder, wants_seal) = {
            let mut core = self.core();
            core.directives.followed(in_effect.directive_ids());
            let recorder = core.open_session(info, self.clock.now());
            (recorder, core.wants_seal())
        };
        if wants_seal {
            self.ask(Command::Seal);
        }
        recorder
    }

    /// What pre-flight checks found last.
    pub(crate) fn checks(&self) -> MutexGuard<'_, Vec<Check>> {
        lock(&self.checks)
    }

    /// ORT's version, once a session builder shows that it is loaded.
    pub(crate) fn learn_ort_version(&self) {
        let is_known = !self.core().runtime().ort_version.is_empty();
        if is_known {
            return;
        }
        if let Some(version) = placement::ort_version() {
            let mut core = self.core();
            let mut runtime = core.runtime().clone();
            runtime.ort_version = version;
            core.set_runtime(runtime);
        }
    }

    /// Hands work to the SDK's thread; what does not fit is left undone.
    pub(crate) fn ask(&self, command: Command) {
        let _ = self.try_ask(command);
    }

    /// Hands work to the SDK's thread.
    ///
    /// # Errors
    /// If too much waits, or the thread has ended.
    pub(crate) fn try_ask(&self, command: Command) -> Result<(), TrySendError<Command>> {
        self.commands.try_send(command)
    }
}
