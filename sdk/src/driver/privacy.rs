//! Making wishes about consent come true: begin, or wipe and ask for deletion.
//!
//! With consent withheld the folder is looked at once, for a deletion that an earlier process
//! could not bring to the collector; nothing is written. Where a wipe fails it is tried again until
//! it succeeds, and nothing is kept or sent but the deletion meanwhile.
//!
//! Several processes of an app share the folder: when the installation in it is another one than
//! ours, another process has forgotten ours. What we recorded for it is dropped then, and counted.
//! With a new one there we go on under that; with none, consent was withdrawn, and we keep
//! nothing until our host gives it again: a reset does not.
//!
//! The collector may know a deletion that we do not: somebody presented our secret elsewhere, or
//! the folder came back with a backup. A tombstone never goes, so nothing of this installation
//! will ever be taken again: with consent we go on as a new one, whose reports do not lead to the
//! old one, as [`Watch::reset_installation`](crate::Watch::reset_installation) does. Once a
//! process: a collector that refuses the next one, too, is not believed, or installations would
//! be made up one after the other.

use std::{sync::Arc, time::Duration};

use epwatch_proto::DropReason;

use super::Engine;
use crate::{
    driver::consent::Consent,
    error_text::chain,
    installation::{self, deletion},
    lock::lock,
    random_stream,
};

/// Between two attempts to wipe a folder that does not let itself be wiped.
const WIPE_RETRY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Privacy {
    consent: Arc<Consent>,
    is_given: bool,
    has_looked: bool,
    /// Wishes to forget that came true.
    n_forgotten: u64,
    /// Changes of consent that were looked at.
    n_changes: u64,
    /// When to try again what could not be wiped.
    wipe_at: Option<Duration>,
    /// The collector had deleted our installation, and we began a new one.
    began_after_deletion: bool,
    /// Another process withdrew consent; the number of times ours was told that it is there.
    orphaned_at: Option<u64>,
}

impl Privacy {
    pub(super) fn new(consent: Arc<Consent>) -> Self {
        let wish = consent.wish();
        Self {
            is_given: wish.is_given,
            n_changes: wish.n_changes,
            consent,
            has_looked: false,
            n_forgotten: 0,
            wipe_at: None,
            began_after_deletion: false,
            orphaned_at: None,
        }
    }

    pub(super) fn retry_at(&self) -> Option<Duration> {
        self.wipe_at
    }
}

impl Engine {
    /// Whether anything may be recorded, written and sent, but for deletions.
    pub(super) fn may_keep(&self) -> bool {
        let privacy = &self.privacy;
        privacy.is_given && privacy.wipe_at.is_none() && privacy.orphaned_at.is_none()
    }

    /// Makes it as the host wishes, and begins where it may.
    pub(crate) fn follow_consent(&mut self) {
        let wish = self.privacy.consent.wish();
        let now = self.clock.now().mono;
        self.set_network(wish.network);
        if wish.n_forget != self.privacy.n_forgotten {
            self.privacy.n_forgotten = wish.n_forget;
            // A reset is no consent: what another process withdrew it leaves withdrawn.
            let is_reset = wish.is_given && wish.n_changes == self.privacy.n_changes;
            if is_reset {
                self.notice_others();
            }
            if !(is_reset && self.privacy.orphaned_at == Some(wish.n_told)) {
                self.forget();
            }
        } else if self.privacy.wipe_at.is_some_and(|at| now >= at) {
            self.wipe();
        }
        self.privacy.n_changes = wish.n_changes;
        if !self.privacy.has_looked {
            self.privacy.has_looked = true;
            self.look_for_deletions();
        }
        self.notice_others();
        let mut core = lock(&self.core);
        // Asked again: the host may have said something else while we were at the files, and began
        // or ended recording with it, which holds. It has the core when it does.
        let wish = self.privacy.consent.wish();
        let privacy = &mut self.privacy;
        privacy.is_given = wish.is_given;
        if privacy.orphaned_at.is_some_and(|told| told != wish.n_told) {
            privacy.orphaned_at = None;
        }
        core.set_consent_changes(wish.n_changes);
        core.set_recording(wish.is_given && privacy.orphaned_at.is_none());
        drop(core);
        if self.spool.is_none() && self.last_error.is_none() {
            self.open();
        }
    }

    /// The collector says that our installation was deleted. The wipe that follows asks for the
    /// deletion once more, which the collector acknowledges, and nothing of the old one is kept.
    pub(super) fn begin_after_deletion(&mut self) {
        let privacy = &mut self.privacy;
        if privacy.began_after_deletion || !privacy.consent.wish().is_given {
            return;
        }
        privacy.began_after_deletion = true;
        privacy.consent.forget();
        self.follow_consent();
        // A host's subscriber may panic.
        let _ = std::panic::catch_unwind(|| {
            tracing::warn!("the collector had deleted this installation; a new one was begun");
        });
    }

    fn forget(&mut self) {
        let now = self.clock.now();
        self.spool = None;
        self.secret = None;
        self.next_seal = now.mono + self.config.report_interval;
        {
            let mut core = lock(&self.core);
            // The caller has done this already, unless we were just opening.
            if core.installation().is_some() {
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
        self.look_for_deletions();
    }

    fn look_for_deletions(&mut self) {
        if let Err(error) = deletion::finish_interrupted(&self.config.dir) {
            self.last_error = Some(format!("failed to finish a wipe: {}", chain(&error)));
        }
        let pending = deletion::pending(&self.config.dir);
        self.sender.set_deletions(pending, self.clock.now().mono);
    }

    /// Notices that the folder's installation is no longer ours.
    fn notice_others(&mut self) {
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
            if core.installation().is_some() {
                core.forget(random_stream(), lost_runs, now);
            } else if lost_runs > 0 {
                // The caller has done this already, and counted what was not sealed yet.
                core.dropped(DropReason::Consent, 0, lost_runs);
            }
        }
        if !installation::exists(&self.config.dir) {
            self.privacy.orphaned_at = Some(self.privacy.consent.wish().n_told);
            self.last_error = Some(
                "the folder was emptied, or another process withdrew consent: nothing is \
                 recorded until the host calls set_consent(true)"
                    .to_owned(),
            );
        }
    }

    /// Whether the host's users agree, for people.
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

    use epwatch_proto::{Placement, ReasonCode};

    use super::*;
    use crate::{
        config::{ModelInfo, SdkConfig},
        core::{Core, SessionInfo},
        driver::directive_file::Opened,
        folder::{self, files::FileLock},
        host::device::DeviceFacts,
        recorder::SessionRecorder,
        self_test,
        spool::Spool,
        time::Clock,
        upload::{Answer, UploadBatch},
    };

    /// An SDK whose steps are made by hand.
    struct Process {
        folder: tempfile::TempDir,
        clock: Clock,
        core: Arc<Mutex<Core>>,
        consent: Arc<Consent>,
        engine: Engine,
    }

    impl Process {
        /// With consent, and its folder open.
        fn start() -> Self {
            Self::start_in(tempfile::tempdir().unwrap())
        }

        fn start_in(folder: tempfile::TempDir) -> Self {
            let config = SdkConfig::builder("app", "http://127.0.0.1:1", "key", folder.path())
                .with_device(DeviceFacts::simulated("SM8650"))
                .build()
                .unwrap();
            let clock = Clock::start();
            let core = Core::new(config.core.clone(), random_stream(), clock.now());
            let core = Arc::new(Mutex::new(core));
            let consent = Arc::new(Consent::new(true));
            let opened = Arc::new(Opened::default());
            let (ours, its) = (Arc::clone(&core), Arc::clone(&consent));
            let mut engine = Engine::new(config, clock, ours, opened, its);
            engine.follow_consent();
            assert!(engine.spool.is_some(), "{:?}", engine.last_error());
            Self {
                folder,
                clock,
                core,
                consent,
                engine,
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
            engine,
            ..
        } = &mut process;
        thread::scope(|s| {
            s.spawn(|| engine.follow_consent());
            // It has read the wish by then, and waits for the folder.
            while lock(core).stream() == before {
                thread::yield_now();
            }
            consent.tell(false, core, clock.now());
            drop(at_files);
        });
        run(&session, 10);
        // What is recorded is counted as it is forgotten.
        lock(core).forget(random_stream(), 0, clock.now());
        let health = lock(core).health().clone();
        assert!(health.dropped.is_empty(), "{health:?}");
        assert_eq!(health.consent_changes, 1);
    }

    #[test]
    fn a_reset_does_not_undo_what_another_process_withdrew() {
        for has_noticed in [true, false] {
            let mut process = Process::start();
            let session = process.session();
            deletion::forget(process.folder.path()).unwrap();
            if has_noticed {
                process.engine.follow_consent();
            }
            process.consent.reset(&process.core, process.clock.now());
            process.engine.follow_consent();
            assert!(!process.path(folder::SECRET).exists());
            assert!(process.engine.spool.is_none() && !process.engine.may_keep());
            run(&session, 10);
            process.engine.seal();
            let now = process.clock.now();
            // What is recorded is counted as it is forgotten.
            lock(&process.core).forget(random_stream(), 0, now);
            assert!(lock(&process.core).health().dropped.is_empty());

            process.consent.tell(true, &process.core, now);
            process.engine.seal();
            assert!(process.engine.spool.is_some());
        }
    }

    /// Both before we looked again: the wipe is ours, too, and so is the new consent.
    #[test]
    fn consent_given_again_here_holds_although_another_process_had_withdrawn_it() {
        let mut process = Process::start();
        deletion::forget(process.folder.path()).unwrap();
        let now = process.clock.now();
        process.consent.tell(false, &process.core, now);
        process.consent.tell(true, &process.core, now);
        process.engine.follow_consent();
        assert!(process.engine.spool.is_some());
    }

    /// What an old installation's streams left says nothing of the new one.
    #[test]
    fn a_reset_during_a_seal_leads_from_no_installation_to_the_next() {
        let mut process = Process::start();
        let limits = process.engine.config.limits;
        let killed = Spool::open(process.folder.path(), random_stream(), limits).unwrap();
        drop(killed);
        let at_files = FileLock::wait(&process.path(folder::LOCK)).unwrap();
        // The seal that begins now sets it to what it is; then it comes to the folder.
        lock(&process.core).set_consent_changes(7);
        let Process {
            clock,
            core,
            consent,
            engine,
            ..
        } = &mut process;
        thread::scope(|s| {
            s.spawn(|| engine.seal());
            while lock(core).health().consent_changes == 7 {
                thread::yield_now();
            }
            consent.reset(core, clock.now());
            drop(at_files);
        });
        assert_eq!(lock(core).streams_to_name().count(), 0);
        engine.follow_consent();
        engine.seal();
        assert!(engine.spool.is_some());
        assert_eq!(lock(core).streams_to_name().count(), 0);
    }

    /// The collector answers before the folder lets itself be wiped, and the process is killed.
    #[test]
    fn a_deletion_is_not_settled_before_its_wipe() {
        let mut process = Process::start();
        let secret = process.engine.secret.clone().unwrap();
        let stuck = process.path(folder::BASELINES);
        std::fs::create_dir(&stuck).unwrap();
        let now = process.clock.now();
        process.consent.tell(false, &process.core, now);
        process.engine.follow_consent();
        assert!(process.engine.privacy.retry_at().is_some());
        let batch = UploadBatch::deletion(secret);
        let answer = Ok(Answer::Deleted);
        process.engine.upload_result(&batch, answer, None).unwrap();
        assert_eq!(process.engine.n_deletions(), 0);

        let dir = process.folder.path();
        std::fs::remove_dir(&stuck).unwrap();
        std::fs::write(&stuck, b"{}").unwrap();
        deletion::finish_interrupted(dir).unwrap();
        assert!(!stuck.exists());
        // The next process asks once more, which settles it.
        assert_eq!(deletion::pending(dir).len(), 1);
    }

    /// As where the app has too many files open: what was learnt is neither gone nor written over.
    #[cfg(unix)]
    #[test]
    fn baselines_that_cannot_be_read_now_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(folder::BASELINES);
        // Refers to itself, so nobody can open it.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let mut process = Process::start_in(folder);
        run(&process.session(), 10);
        process.engine.seal();
        assert!(path.is_symlink());
        let error = process.engine.last_error().unwrap_or_default();
        assert!(error.contains("baselines"), "{error}");
        assert!(!process.engine.has_book);

        std::fs::remove_file(&path).unwrap();
        process.engine.seal();
        assert!(process.engine.has_book);
        let book = process.engine.read_book().unwrap().to_json();
        let book = String::from_utf8(book).unwrap();
        assert!(
            book.contains("static") && book.contains("\"is_lost\":false"),
            "{book}"
        );
    }

    #[test]
    fn nothing_is_learnt_into_a_folder_that_another_process_wiped() {
        let process = Process::start();
        run(&process.session(), 10);
        let lessons = {
            let mut core = lock(&process.core);
            core.seal(process.clock.now());
            core.take_lessons()
        };
        assert!(!lessons.is_empty());
        let finished = || self_test::save_finished(process.folder.path(), &[[1; 16]]);
        deletion::forget(process.folder.path()).unwrap();
        process.engine.teach(&lessons).unwrap();
        finished().unwrap();
        for name in [folder::BASELINES, folder::DIRECTIVES, folder::SELF_TESTS] {
            assert!(!process.path(name).exists(), "{name}");
        }
        // Nor into one where it began a new installation.
        installation::load_or_create(process.folder.path()).unwrap();
        process.engine.teach(&lessons).unwrap();
        assert!(!process.path(folder::BASELINES).exists());
    }
}
