//! The file of directives, which only the SDK's own thread uses. It is read at start and when another process has
//! changed it. It is written when a directive was added or has ended.

use std::{
    io,
    path::PathBuf,
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use crate::{
    core::Core,
    directives::{ReceivedDirectives, StoredDirectives},
    folder::{
        self,
        files::{self, FileLock},
    },
    installation,
    lock::lock,
    time::Now,
};

/// Longest span of the server's time that a kill may lose while directives are held.
const KEEP_CLOCK_EVERY_MS: i64 = 3_600_000;

/// The file, and the version of it that this process has read or written.
#[derive(Debug)]
pub(crate) struct DirectiveFile {
    dir: PathBuf,
    seen: Option<Stamp>,
    written: StoredDirectives,
}

/// Identifies a version of the file: after a replacement, time or length differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
}

impl DirectiveFile {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            seen: None,
            written: StoredDirectives::default(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(folder::DIRECTIVES)
    }

    /// `Ok(None)` if there is no file.
    fn stamp(&self) -> io::Result<Option<Stamp>> {
        match std::fs::metadata(self.path()) {
            Ok(metadata) => Ok(Some(Stamp {
                modified: metadata.modified().ok(),
                len: metadata.len(),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the file unless this version was read before.
    ///
    /// # Errors
    /// Fails if the file cannot be read now. Known directives stay in force, and the next call tries again.
    pub(crate) fn read(&mut self, core: &Mutex<Core>, now: Now) -> io::Result<()> {
        let (is_first, is_enabled) = {
            let core = lock(core);
            (!core.directives.is_loaded(), core.directives.is_enabled())
        };
        if !is_first && !is_enabled {
            return Ok(());
        }
        let stamp = self.stamp()?;
        if !is_first && stamp == self.seen {
            return Ok(());
        }
        let stored = StoredDirectives::read(&self.path())?;
        self.seen = stamp;
        self.written = stored.clone().ok().flatten().unwrap_or_default();
        lock(core).directives.load(stored, now);
        Ok(())
    }

    /// Takes the directives of an answer, and stores them.
    ///
    /// # Errors
    /// Fails if they cannot be stored. They are in force in this process anyway.
    pub(crate) fn receive(
        &mut self,
        core: &Mutex<Core>,
        received: ReceivedDirectives,
        now: Now,
    ) -> io::Result<()> {
        let is_enabled = lock(core).directives.is_enabled();
        if received.signed.is_empty() || !is_enabled {
            // Only the clock has changed. The next `refresh` stores it, if any directive is held.
            lock(core).directives.receive(received, now);
            return Ok(());
        }
        // Another process may have written the file since the last read. Its directives must not be lost.
        let folder_lock = FileLock::wait(&self.dir.join(folder::LOCK));
        let read = self.read(core, now);
        lock(core).directives.receive(received, now);
        let _lock = folder_lock?;
        read?;
        self.write(core, now)
    }

    /// Advances the time, and reads changes by other processes.
    ///
    /// # Errors
    /// Fails if a change cannot be stored, or the file cannot be read now.
    pub(crate) fn refresh(&mut self, core: &Mutex<Core>, now: Now) -> io::Result<()> {
        let read = self.read(core, now);
        let stored = stored_at(core, now);
        let is_same = stored.held == self.written.held;
        let lost_ms = stored.server_unix_ms - self.written.server_unix_ms;
        if is_same && (stored.held.is_empty() || lost_ms.abs() < KEEP_CLOCK_EVERY_MS) {
            return read;
        }
        read?;
        let _lock = FileLock::wait(&self.dir.join(folder::LOCK))?;
        self.read(core, now)?;
        self.write(core, now)
    }

    /// The caller holds the folder's lock.
    fn write(&mut self, core: &Mutex<Core>, now: Now) -> io::Result<()> {
        let stored = stored_at(core, now);
        if stored.held == self.written.held && stored.held.is_empty() {
            return Ok(());
        }
        if !installation::exists(&self.dir) {
            // Another process has wiped the folder meanwhile. Nothing may be written after that.
            return Ok(());
        }
        files::replace(&self.path(), &stored.to_bytes())?;
        self.written = stored;
        self.seen = self.stamp()?;
        Ok(())
    }
}

/// Advances the time, and returns the content of the file at that time.
fn stored_at(core: &Mutex<Core>, now: Now) -> StoredDirectives {
    let mut core = lock(core);
    core.directives.advance(now);
    core.directives.to_store(now)
}

/// Signals that the folder was read, or that waiting for it is pointless.
#[derive(Debug, Default)]
pub(crate) struct OpenedSignal {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl OpenedSignal {
    pub(crate) fn set(&self) {
        *lock(&self.is_open) = true;
        self.changed.notify_all();
    }

    /// Waits at most `timeout`; returns whether the signal was set.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let is_open = lock(&self.is_open);
        let waited = self
            .changed
            .wait_timeout_while(is_open, timeout, |is_open| !*is_open);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
