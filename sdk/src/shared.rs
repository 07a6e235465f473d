//! One running SDK, which its public handles share: the core, the driver behind its lock, and the command queue.
//!
//! `Watch` and the session types use the driver only through this file.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use crate::{
    config::SdkConfig,
    core::{Core, SessionInfo},
    directives::EffectiveRequest,
    driver::{
        Driver,
        consent::ConsentSwitch,
        directive_file::OpenedSignal,
        worker::{Command, Faults, REST, Worker},
    },
    fork::{InChildren, watch_forks},
    host::{preflight::Check, thermal_zones::ThermalReader},
    lock::lock,
    queue::{QueueReceiver, QueueSender, SendRefusal, queue},
    random_stream,
    recorder::{SessionRecorder, conditions::CurrentConditions},
    time::Clock,
};

/// Maximum number of commands that wait in the queue. Further commands are refused, because the thread is busy with the
/// same work.
const MAX_COMMANDS: usize = 64;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    core: Arc<Mutex<Core>>,
    driver: Arc<Mutex<Driver>>,
    pub(crate) conditions: Arc<CurrentConditions>,
    /// Whether the SDK reads the thermal status itself and ignores the status from the host.
    pub(crate) is_thermal_read: bool,
    pub(crate) consent: Arc<ConsentSwitch>,
    /// The queue of commands; `None` only while this value is dropped.
    commands: Option<QueueSender<Command>>,
    pub(crate) faults: Arc<Faults>,
    is_stopping: Arc<AtomicBool>,
    opened: Arc<OpenedSignal>,
    /// The process that has the SDK's thread; 0 if there is none.
    pid: u32,
    checks: Mutex<Vec<Check>>,
    /// The settings; a child of a fork starts with them too.
    pub(crate) config: SdkConfig,
    /// ORT's version once it is known, for a child that must not lock this core.
    ort_version: OnceLock<String>,
    in_children: InChildren<Arc<Shared>>,
}

impl Shared {
    /// Starts the SDK's thread.
    pub(crate) fn start(config: SdkConfig) -> io::Result<Self> {
        watch_forks();
        let (shared, worker, inbox) = Self::prepared(config.clone());
        thread::Builder::new()
            .name("epwatch".to_owned())
            .spawn(move || {
                #[cfg(feature = "grpc")]
                let worker = Worker {
                    transport: config
                        .sends_itself
                        .then(|| crate::upload::grpc::transport(config)),
                    ..worker
                };
                worker.run(&inbox);
            })?;
        Ok(shared)
    }

    /// Does the same as [`Self::start`] without a thread, so recorded data is never stored or sent.
    fn without_thread(config: SdkConfig) -> Self {
        let (mut shared, _, _) = Self::prepared(config);
        shared.pid = 0;
        shared
    }

    fn prepared(config: SdkConfig) -> (Self, Worker, QueueReceiver<Command>) {
        let clock = Clock::start();
        let core = Core::new(config.core.clone(), random_stream(), clock.now());
        let conditions = Arc::clone(&core.conditions);
        let zones = config.thermal_zones.clone();
        let is_thermal_read = zones.is_some();
        let thermal = zones.map(|zones| ThermalReader::new(Arc::clone(&conditions), zones));
        core.set_recording(config.has_consent);
        let consent = Arc::new(ConsentSwitch::new(config.has_consent));
        let core = Arc::new(Mutex::new(core));
        let opened = Arc::new(OpenedSignal::default());
        if !config.has_consent {
            // Without consent nothing is read, so no caller should wait for it.
            opened.set();
        }
        let (ours, opens) = (Arc::clone(&core), Arc::clone(&opened));
        let driver = Driver::new(config.clone(), clock, ours, opens, Arc::clone(&consent));
        let driver = Arc::new(Mutex::new(driver));
        let faults = Arc::new(Faults::new(REST));
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (commands, inbox) = queue(MAX_COMMANDS);
        let worker = Worker {
            transport: None,
            listener: config.health_listener.clone(),
            told_problem: None,
            driver: Arc::clone(&driver),
            core: Arc::clone(&core),
            faults: Arc::clone(&faults),
            is_stopping: Arc::clone(&is_stopping),
            consent: Arc::clone(&consent),
            unread: Vec::new(),
            thermal,
        };
        let shared = Self {
            clock,
            core,
            driver,
            conditions,
            is_thermal_read,
            consent,
            commands: Some(commands),
            faults,
            is_stopping,
            opened,
            pid: std::process::id(),
            checks: Mutex::default(),
            config,
            ort_version: OnceLock::new(),
            in_children: InChildren::new(),
        };
        (shared, worker, inbox)
    }

    /// Returns the SDK of this process. A child of a fork starts its own at the first call, with the parent's settings
    /// and folder, in a stream of its own.
    pub(crate) fn here(self: &Arc<Self>) -> Arc<Self> {
        if self.in_children.is_here() {
            return Arc::clone(self);
        }
        let own = self.in_children.get(|| Arc::new(self.begun_again()));
        own.cloned()
            .unwrap_or_else(|| Arc::new(Self::without_thread(self.config.clone())))
    }

    /// Returns what [`Self::here`] returns, or `None` in a child that has not started its own SDK.
    pub(crate) fn here_if_started(self: &Arc<Self>) -> Option<Arc<Self>> {
        match self.in_children.is_here() {
            true => Some(Arc::clone(self)),
            false => self.in_children.made().cloned(),
        }
    }

    /// Starts again in a child. Takes no lock of the parent's SDK, because a thread that does not exist in the child
    /// may hold it.
    fn begun_again(&self) -> Self {
        let mut config = self.config.clone();
        let (has_consent, network) = self.consent.at_fork();
        config.has_consent = has_consent;
        let started = Self::start(config.clone());
        let shared = started.unwrap_or_else(|_| Self::without_thread(config));
        shared.consent.set_network(network);
        let conditions = self.conditions.conditions();
        shared.conditions.set(&conditions, shared.is_thermal_read);
        shared.note_ort_version(|| self.ort_version.get().cloned());
        shared
    }

    /// Whether this process has no thread of this SDK. Either the thread could not be started again after a fork, or a
    /// direct system call made the fork, which is not counted.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// Locks the core. The lock is held for computing only, never across I/O.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Locks the driver. Waits while the SDK's thread works on its files.
    pub(crate) fn driver(&self) -> MutexGuard<'_, Driver> {
        lock(&self.driver)
    }

    /// Starts or ends recording at once; the SDK's thread does the rest.
    pub(crate) fn set_consent(&self, is_given: bool) {
        self.consent
            .set_and_record(is_given, &self.core, self.clock.now());
        self.send_command(Command::Wake);
    }

    pub(crate) fn reset_installation(&self) {
        self.consent.reset(&self.core, self.clock.now());
        self.send_command(Command::Wake);
    }

    /// Waits at most `timeout` until the folder is read or turns out to be unusable; returns whether it happened.
    pub(crate) fn wait_until_opened(&self, timeout: Duration) -> bool {
        self.opened.wait(timeout)
    }

    /// Ends a call to the collector that is under way.
    pub(crate) fn break_off(&self) {
        self.is_stopping.store(true, Relaxed);
    }

    /// Opens a session in the core, and asks for a seal if many sessions were closed.
    pub(crate) fn open(
        &self,
        info: SessionInfo,
        in_effect: &EffectiveRequest,
    ) -> Arc<SessionRecorder> {
        let (recorder, wants_seal) = {
            let mut core = self.core();
            core.directives.mark_applied(in_effect.directive_ids());
            let recorder = core.open_session(info, self.clock.now());
            (recorder, core.wants_seal())
        };
        if wants_seal {
            self.send_command(Command::Seal);
        }
        recorder
    }

    /// Findings of the latest pre-flight run.
    pub(crate) fn checks(&self) -> MutexGuard<'_, Vec<Check>> {
        lock(&self.checks)
    }

    /// Takes ORT's version, once.
    pub(crate) fn note_ort_version(&self, version: impl FnOnce() -> Option<String>) {
        let is_known = !self.core().runtime.ort_version.is_empty();
        if is_known {
            return;
        }
        if let Some(version) = version() {
            let _ = self.ort_version.set(version.clone());
            let mut core = self.core();
            let mut runtime = core.runtime.clone();
            runtime.ort_version = version;
            core.set_runtime(runtime);
        }
    }

    /// Queues a command; a full queue drops it.
    pub(crate) fn send_command(&self, command: Command) {
        let _ = self.try_send_command(command);
    }

    /// Queues a command.
    ///
    /// # Errors
    /// Fails if the queue is full or the thread has ended.
    pub(crate) fn try_send_command(&self, command: Command) -> Result<(), SendRefusal> {
        match &self.commands {
            Some(commands) => commands.try_send(command),
            None => Err(SendRefusal::Closed),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // In a child, the queue's lock may be held for ever by a thread of the parent.
        if !self.in_children.is_here() || self.pid != 0 && self.is_forked() {
            std::mem::forget(self.commands.take());
        }
    }
}
