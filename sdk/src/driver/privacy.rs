//! Consent and deletion: opens the folder, or wipes it and asks for deletion.
//!
//! Without consent the folder is read once, to find a deletion that an earlier process could not send to the collector.
//! Nothing is written. A failed wipe is repeated until it succeeds; until then nothing but the deletion is kept or
//! sent.
//!
//! Several processes of an app share the folder. If it holds another installation than ours, another process has
//! forgotten ours; our data is dropped and counted. If a new installation exists, we continue under it. If none exists,
//! consent was withdrawn, and we keep nothing until our host gives consent again; a reset is not enough.
//!
//! The collector may have deleted the installation without our knowledge: the secret was sent from elsewhere, or a
//! backup restored the folder. A tombstone is permanent, so the collector will never accept this installation again.
//! With consent we continue as a new installation that cannot be linked to the old one, as after
//! [`Watch::reset_installation`](crate::Watch::reset_installation). This happens once per process; otherwise a
//! collector that refuses everything would cause an endless series of installations.

use std::{sync::Arc, time::Duration};

use epwatch_proto::{DropReason, error_chain};

use super::Driver;
use crate::{
    driver::consent::ConsentSwitch,
    installation::{self, deletion},
    lock::lock,
    random_stream,
};

/// Time between two attempts to wipe a folder.
const WIPE_RETRY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Privacy {
    consent: Arc<ConsentSwitch>,
    is_given: bool,
    has_loaded_deletions: bool,
    /// Calls to forget that were carried out.
    n_forgotten: u64,
    /// Changes of consent that were applied.
    n_changes: u64,
    /// When to repeat a failed wipe.
    pub(super) wipe_at: Option<Duration>,
    /// Whether the collector had deleted the installation, and a new one was begun.
    began_after_deletion: bool,
    /// Another process withdrew consent; the value is `n_given_calls` at that moment.
    orphaned_at: Option<u64>,
}

impl Privacy {
    pub(super) fn new(consent: Arc<ConsentSwitch>) -> Self {
        let state = consent.state();
        Self {
            is_given: state.is_given,
            n_changes: state.n_changes,
            consent,
            has_loaded_deletions: false,
            n_forgotten: 0,
            wipe_at: None,
            began_after_deletion: false,
            orphaned_at: None,
        }
    }
}

impl Driver {
    /// Whether anything except deletions may be recorded, written and sent.
    pub(super) fn may_keep(&self) -> bool {
        let privacy = &self.privacy;
        privacy.is_given && privacy.wipe_at.is_none() && privacy.orphaned_at.is_none()
    }

    /// Whether the host has given consent, and it is already applied.
    pub(super) fn has_consent(&self) -> bool {
        self.privacy.is_given
    }

    /// Applies the host's settings, and opens the folder if that is allowed.
    pub(crate) fn apply_consent(&mut self) {
        let state = self.privacy.consent.state();
        let now = self.clock.now().mono;
        self.set_network(state.network);
        if state.n_forget_calls != self.privacy.n_forgotten {
            self.privacy.n_forgotten = state.n_forget_calls;
            // A reset does not give consent: if another process has withdrawn it, it stays withdrawn.
            let is_reset = state.is_given && state.n_changes == self.privacy.n_changes;
            if is_reset {
                self.check_installation();
            }
            if !(is_reset && self.privacy.orphaned_at == Some(state.n_given_calls)) {
                self.forget();
            }
        } else if self.privacy.wipe_at.is_some_and(|at| now >= at) {
            self.wipe();
        }
        self.privacy.n_changes = state.n_changes;
        if !self.privacy.has_loaded_deletions {
            self.privacy.has_loaded_deletions = true;
            self.load_deletions();
        }
        self.check_installation();
        let mut core = lock(&self.core);
        // Reads the state again. During the work on files the host may have changed its consent, and started or ended
        // recording under the core's lock. The latest value wins.
        let state = self.privacy.consent.state();
        let privacy = &mut self.privacy;
        privacy.is_given = state.is_given;
        if privacy
            .orphaned_at
            .is_some_and(|n_calls| n_calls != state.n_given_calls)
        {
            privacy.orphaned_at = None;
        }
        core.health.consent_changes = state.n_changes;
        core.set_recording(state.is_given && privacy.orphaned_at.is_none());
        drop(core);
        if self.spool.is_none() && self.last_error.is_none() {
            self.open();
        }
    }

    /// Begins a new installation because the collector has deleted this one. The wipe requests the deletion once more.
    /// After the collector's acknowledgement nothing of the old installation is left. Returns whether a new
    /// installation was begun.
    pub(super) fn begin_after_deletion(&mut self) -> bool {
        let privacy = &mut self.privacy;
        if privacy.began_after_deletion || !privacy.consent.state().is_given {
            return false;
        }
        privacy.began_after_deletion = true;
        privacy.consent.forget();
        self.apply_consent();
        // A host's subscriber may panic.
        let _ = std::panic::catch_unwind(|| {
            tracing::warn!("the collector had deleted this installation; a new one was begun");
        });
        true
    }

    fn forget(&mut self) {
        let now = self.clock.now();
        self.spool = None;
        self.secret = None;
        self.next_seal = now.mono + self.config.report_interval;
        {
            let mut core = lock(&self.core);
            // The caller has forgotten it already, unless the folder was just being opened.
            if core.installation.is_some() {
                core.forget(random_stream(), 0, now);
            }
        }
        self.last_error = None;
        self.wipe();
    }

    fn wipe(&mut self) {
        match deletion::forget(&self.config.dir) {
            Ok(lost_runs) => {
                self.privacy.wipe_at = None;
                if lost_runs > 0 {
                    lock(&self.core).dropped(DropReason::Consent, 0, lost_runs);
                }
            }
            Err(error) => {
                self.privacy.wipe_at = Some(self.clock.now().mono + WIPE_RETRY);
                self.last_error = Some(format!(
                    "failed to wipe {}: {error}",
                    self.config.dir.display()
                ));
            }
        }
        self.load_deletions();
    }

    fn load_deletions(&mut self) {
        if let Err(error) = deletion::finish_interrupted(&self.config.dir) {
            self.last_error = Some(format!("failed to finish a wipe: {}", error_chain(&error)));
        }
        let pending = deletion::pending(&self.config.dir);
        self.sender.set_deletions(pending, self.clock.now().mono);
    }

    /// Stops if the folder's installation is no longer ours.
    fn check_installation(&mut self) {
        let Some(secret) = &self.secret else {
            return;
        };
        if installation::is_still(&self.config.dir, secret) {
            return;
        }
        let lost_runs = self.spool.take().map_or(0, |spool| spool.n_runs_pending());
        self.secret = None;
        let now = self.clock.now();
        {
            let mut core = lock(&self.core);
            if core.installation.is_some() {
                core.forget(random_stream(), lost_runs, now);
            } else if lost_runs > 0 {
                // The caller has forgotten it already, and counted unsealed runs.
                core.dropped(DropReason::Consent, 0, lost_runs);
            }
        }
        if !installation::exists(&self.config.dir) {
            self.privacy.orphaned_at = Some(self.privacy.consent.state().n_given_calls);
            self.last_error = Some(
                "the folder was emptied, or another process withdrew consent: nothing is \
                 recorded until the host gives consent again"
                    .to_owned(),
            );
        }
    }

    /// Describes the state of consent for people.
    pub(crate) fn consent_note(&self) -> &'static str {
        let privacy = &self.privacy;
        match (privacy.is_given, privacy.orphaned_at.is_some()) {
            (true, false) => "given",
            (true, true) => "withdrawn by another process of the app",
            (false, _) => "withheld: nothing is recorded, written or sent",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, sync::Mutex, thread};

    use epwatch_proto::{Placement, ReasonCode, v1};

    use super::*;
    use crate::{
        config::{ModelInfo, SdkConfig},
        core::{Core, SessionInfo},
        driver::{UploadTrigger, directive_file::OpenedSignal},
        folder::{self, files::FileLock},
        host::device::simulated_device,
        installation::Secret,
        recorder::SessionRecorder,
        self_test,
        spool::{Limits, Spool},
        time::Clock,
        upload::{CollectorAnswer, UploadBatch},
    };

    /// An SDK without its thread; the test performs each step.
    struct Process {
        folder: tempfile::TempDir,
        clock: Clock,
        core: Arc<Mutex<Core>>,
        consent: Arc<ConsentSwitch>,
        driver: Driver,
    }

    impl Process {
        /// Starts with consent and an open folder.
        fn start() -> Self {
            Self::start_in(tempfile::tempdir().unwrap())
        }

        fn start_in(folder: tempfile::TempDir) -> Self {
            let config = SdkConfig::builder("app", "http://127.0.0.1:1", "key", folder.path())
                .with_consent(true)
                .with_device(simulated_device("SM8650").into())
                .build()
                .unwrap();
            let clock = Clock::start();
            let core = Core::new(config.core.clone(), random_stream(), clock.now());
            let core = Arc::new(Mutex::new(core));
            let consent = Arc::new(ConsentSwitch::new(true));
            let opened = Arc::new(OpenedSignal::default());
            let (ours, its) = (Arc::clone(&core), Arc::clone(&consent));
            let mut driver = Driver::new(config, clock, ours, opened, its);
            driver.apply_consent();
            assert!(driver.spool.is_some(), "{:?}", driver.last_error());
            Self {
                folder,
                clock,
                core,
                consent,
                driver,
            }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn session(&self) -> Arc<SessionRecorder> {
            let placement = Placement::unavailable(vec![], ReasonCode::AssignmentApiUnavailable);
            let info = SessionInfo::new(ModelInfo::new("m", "1").unwrap(), placement);
            lock(&self.core).open_session(info, self.clock.now())
        }
    }

    fn run(session: &SessionRecorder, runs: u64) {
        for n in 0..runs {
            let began = Duration::from_millis(10 * n);
            session.record(began, Duration::from_millis(8), "static");
        }
    }

    #[test]
    fn a_pass_that_began_before_a_withdrawal_does_not_record_on() {
        let mut process = Process::start();
        let session = process.session();
        let at_files = FileLock::wait(&process.path(folder::LOCK)).unwrap();
        let before = lock(&process.core).stream();
        process.consent.forget();
        let Process {
            clock,
            core,
            consent,
            driver,
            ..
        } = &mut process;
        thread::scope(|s| {
            s.spawn(|| driver.apply_consent());
            // When this loop ends, the thread has read the state, and waits for the folder's lock.
            while lock(core).stream() == before {
                thread::yield_now();
            }
            consent.set_and_record(false, core, clock.now());
            drop(at_files);
        });
        run(&session, 10);
        // Recorded runs would be counted when they are forgotten.
        lock(core).forget(random_stream(), 0, clock.now());
        let health = lock(core).health().clone();
        assert!(health.dropped.is_empty(), "{health:?}");
        assert_eq!(health.consent_changes, 1);
    }

    #[test]
    fn a_reset_does_not_undo_another_processs_withdrawal() {
        for has_noticed in [true, false] {
            let mut process = Process::start();
            let session = process.session();
            deletion::forget(process.folder.path()).unwrap();
            if has_noticed {
                process.driver.apply_consent();
            }
            process.consent.reset(&process.core, process.clock.now());
            process.driver.apply_consent();
            assert!(!process.path(folder::SECRET).exists());
            assert!(process.driver.spool.is_none() && !process.driver.may_keep());
            run(&session, 10);
            process.driver.seal();
            let now = process.clock.now();
            // Recorded runs would be counted when they are forgotten.
            lock(&process.core).forget(random_stream(), 0, now);
            assert!(lock(&process.core).health().dropped.is_empty());

            process.consent.set_and_record(true, &process.core, now);
            process.driver.seal();
            assert!(process.driver.spool.is_some());
        }
    }

    /// The withdrawal and the new consent both happen before the next check. The wipe counts as our own, and the new
    /// consent is ours.
    #[test]
    fn consent_given_again_here_holds_although_another_process_had_withdrawn_it() {
        let mut process = Process::start();
        deletion::forget(process.folder.path()).unwrap();
        let now = process.clock.now();
        process.consent.set_and_record(false, &process.core, now);
        process.consent.set_and_record(true, &process.core, now);
        process.driver.apply_consent();
        assert!(process.driver.spool.is_some());
    }

    /// Streams of the old installation do not belong to the new one.
    #[test]
    fn a_reset_during_a_seal_leads_from_no_installation_to_the_next() {
        let mut process = Process::start();
        let limits = Limits::default();
        let killed = Spool::open(process.folder.path(), random_stream(), limits).unwrap();
        drop(killed);
        let at_files = FileLock::wait(&process.path(folder::LOCK)).unwrap();
        // The seal sets the counter back to its real value just before it uses the folder.
        lock(&process.core).health.consent_changes = 7;
        let Process {
            clock,
            core,
            consent,
            driver,
            ..
        } = &mut process;
        thread::scope(|s| {
            s.spawn(|| driver.seal());
            while lock(core).health().consent_changes == 7 {
                thread::yield_now();
            }
            consent.reset(core, clock.now());
            drop(at_files);
        });
        assert_eq!(lock(core).ended.ids().count(), 0);
        driver.apply_consent();
        driver.seal();
        assert!(driver.spool.is_some());
        assert_eq!(lock(core).ended.ids().count(), 0);
    }

    /// The collector answers before the folder can be wiped, and the process is killed.
    #[test]
    fn a_deletion_is_not_settled_before_its_wipe() {
        let mut process = Process::start();
        let secret = process.driver.secret.clone().unwrap();
        let stuck = process.path(folder::BASELINES);
        std::fs::create_dir(&stuck).unwrap();
        let now = process.clock.now();
        process.consent.set_and_record(false, &process.core, now);
        process.driver.apply_consent();
        assert!(process.driver.privacy.wipe_at.is_some());
        let answer = Ok(CollectorAnswer::Deletion(v1::DeleteInstallationResponse {
            installation_id: secret.installation().as_bytes().to_vec().into(),
            ..Default::default()
        }));
        let batch = UploadBatch::deletion(secret);
        process.driver.upload_result(&batch, answer, None).unwrap();
        assert_eq!(process.driver.sender.deletion_at(), None);

        let dir = process.folder.path();
        std::fs::remove_dir(&stuck).unwrap();
        std::fs::write(&stuck, b"{}").unwrap();
        deletion::finish_interrupted(dir).unwrap();
        assert!(!stuck.exists());
        // The next process sends the deletion once more, which settles it.
        assert_eq!(deletion::pending(dir).len(), 1);
    }

    #[test]
    fn a_deletion_that_waits_for_the_host_keeps_no_thread_busy() {
        let mut driver = Process::start().driver;
        let now = driver.clock.now().mono;
        let secret = Secret::from_bytes(&[1; 32]).unwrap();
        driver.sender.set_deletions(vec![secret], now);
        assert_eq!(driver.wait(), None);
        driver.idle();
        let wait = driver.wait().unwrap();
        assert!(wait > driver.config.upload_interval / 2, "{wait:?}");
        // The host can get the deletion at any time.
        let now = driver.clock.now();
        assert!(driver.next_deletion(UploadTrigger::Host, now).is_some());
    }

    /// Acts as if the app had too many open files: the baselines are neither lost nor overwritten.
    #[cfg(unix)]
    #[test]
    fn baselines_that_cannot_be_read_now_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(folder::BASELINES);
        // A link to itself, which nobody can open.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let mut process = Process::start_in(folder);
        run(&process.session(), 10);
        process.driver.seal();
        assert!(path.is_symlink());
        let error = process.driver.last_error().unwrap_or_default();
        assert!(error.contains("baselines"), "{error}");
        assert!(!process.driver.has_baselines);

        std::fs::remove_file(&path).unwrap();
        process.driver.seal();
        assert!(process.driver.has_baselines);
        let baselines = process.driver.baselines.read().unwrap();
        let described = format!("{baselines:?}");
        assert!(
            described.contains("static") && described.contains("is_lost: false"),
            "{described}"
        );
    }

    #[test]
    fn a_folder_that_another_process_wiped_stays_empty() {
        let process = Process::start();
        run(&process.session(), 10);
        let updates = {
            let mut core = lock(&process.core);
            core.seal(process.clock.now());
            std::mem::take(&mut core.baseline_updates)
        };
        assert!(!updates.is_empty());
        let driver = &process.driver;
        let save = || driver.baselines.add(&updates, driver.secret.as_ref());
        let finished = || self_test::save_finished(process.folder.path(), &[[1; 16]]);
        deletion::forget(process.folder.path()).unwrap();
        save().unwrap();
        finished().unwrap();
        for name in [folder::BASELINES, folder::DIRECTIVES, folder::SELF_TESTS] {
            assert!(!process.path(name).exists(), "{name}");
        }
        // The same happens in a folder with a new installation.
        installation::load_or_create(process.folder.path()).unwrap();
        save().unwrap();
        assert!(!process.path(folder::BASELINES).exists());
    }
}
