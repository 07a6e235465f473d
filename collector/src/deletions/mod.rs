//! Deleted installations. A device's deletion is answered once the promise is on this collector's disk. If the store
//! has reports of the installation, the worker then inserts its tombstone, and no view shows it any more.
//!
//! An installation without received reports may be made up. Its promise waits here for as long as the store keeps
//! reports, in case another collector's WAL still has some of its reports. Then it is forgotten, so made-up deletions
//! leave nothing in the store. The number of waiting promises is bounded. At the bound only deletions of installations
//! that the store knows are accepted.
//!
//! The bounded set in memory refuses late reports at once. Correctness does not depend on it: the writer hides deleted
//! installations of each batch, and every view honours `hidden_installations`.

mod known;
mod log;
mod worker;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use epwatch_proto::InstallationId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::{Code, Status};

use self::known::KnownDeletions;
use self::log::DeletionLog;
pub(crate) use self::log::{PROMISE_BYTES, Tombstone, add_tombstones, records_of, tombstones_of};
pub(crate) use self::worker::Worker;
use crate::ingest::limits::Buckets;
use crate::metrics::Metrics;
use crate::server::retry;
use crate::store::{Sink, SinkError};
use crate::wal::WalOffset;
use epwatch_server::Clock;

/// The most promises whose installations the store does not hide: 64 MiB of the file.
const MAX_OPEN: usize = 1 << 20;
/// The limit of all callers' deletions a minute, because each costs a sync. Ten million devices that ask once in their
/// life make less than one deletion a second.
const PER_MINUTE: u32 = 50 * 60;
const BURST: u32 = 500;
const BUSY: Duration = Duration::from_secs(2);
/// Delay before the retry of a failed write.
const NO_DISK: Duration = Duration::from_secs(10);
/// When the writer inserts rows, its list of other collectors' tombstones is at most this old. This is far less than
/// the time for which an installation stays hidden.
const STALE: Duration = Duration::from_secs(600);

/// A deletion on disk that the store does not hide yet.
#[derive(Debug, Clone, Copy)]
struct Promise {
    tombstone: Tombstone,
    /// Reports that this collector received before the promise are below this offset.
    wal_end: WalOffset,
}

/// The reason why nothing was added to the file.
#[derive(Debug)]
enum NotWritten {
    Disk(io::Error),
    Stopping,
}

/// One collector's deletions, and other collectors' deletions as far as they are loaded.
#[derive(Debug)]
pub(crate) struct Deletions {
    known: KnownDeletions,
    /// `None` once the collector has stopped, because another process may then own the file.
    log: Arc<Mutex<Option<DeletionLog>>>,
    /// The rate limit of all deletions.
    rate: Buckets<()>,
    clock: Arc<dyn Clock>,
    /// Promises to be looked up in the store.
    pending: Mutex<HashMap<InstallationId, Promise>>,
    /// Promises for installations that the store did not have at the last look-up. The first of them is looked up next.
    waiting: Mutex<VecDeque<Tombstone>>,
    /// True if the warning about a full set was not written yet.
    may_warn_full: AtomicBool,
    asked: Notify,
}

impl Deletions {
    /// Opens the file of deletions in the WAL's directory, which is locked already. Blocks on the disk.
    pub(crate) fn open(dir: &Path, clock: Arc<dyn Clock>, wal_end: WalOffset) -> io::Result<Self> {
        let (log, found) = DeletionLog::open(dir)?;
        let promise =
            |tombstone: Tombstone| (tombstone.installation, Promise { tombstone, wal_end });
        let deletions = Self {
            known: KnownDeletions::default(),
            log: Arc::new(Mutex::new(Some(log))),
            rate: Buckets::new((PER_MINUTE, BURST), 1),
            clock,
            pending: Mutex::new(found.pending.into_iter().map(promise).collect()),
            waiting: Mutex::default(),
            may_warn_full: AtomicBool::new(true),
            asked: Notify::new(),
        };
        deletions.known.add(&found.all);
        Ok(deletions)
    }

    /// True if the installation is deleted, so that its reports are refused.
    pub(crate) fn contains(&self, installation: &InstallationId) -> bool {
        self.tombstoned_at(installation).is_some()
    }

    /// Time of the installation's tombstone, in milliseconds since 1970.
    pub(crate) fn tombstoned_at(&self, installation: &InstallationId) -> Option<i64> {
        self.known.tombstoned_at(installation)
    }

    /// Returns two numbers: promises to be looked up in the store, and promises for installations that the store does
    /// not know.
    pub(crate) fn n_open(&self) -> (usize, usize) {
        (self.pending.lock().len(), self.waiting.lock().len())
    }

    /// Shows these numbers.
    pub(crate) fn show_open(&self, metrics: &Metrics) {
        let (pending, waiting) = self.n_open();
        for (gauge, n) in [
            (&metrics.deletions_pending, pending),
            (&metrics.deletions_waiting, waiting),
        ] {
            gauge.set(i64::try_from(n).unwrap_or(i64::MAX));
        }
    }

    /// True if only deletions of installations that the store knows are accepted. It is logged once until the set has
    /// space again.
    pub(crate) fn is_full(&self) -> bool {
        let (pending, waiting) = self.n_open();
        let is_full = pending + waiting >= MAX_OPEN;
        if is_full && self.may_warn_full.swap(false, Relaxed) {
            tracing::warn!(
                pending,
                waiting,
                "deletions of unknown installations are refused for now: most of those that wait are made up; \
                 installations with reports in the store are deleted as usual"
            );
        } else if pending + waiting < MAX_OPEN / 10 * 9 {
            self.may_warn_full.store(true, Relaxed);
        }
        is_full
    }

    /// True if the store has reports of the installation.
    pub(crate) async fn is_received(
        &self,
        sink: &Sink,
        installation: InstallationId,
    ) -> Result<bool, SinkError> {
        let asked = Tombstone {
            installation,
            at_ms: 0,
        };
        Ok(!known::received(sink, &[asked]).await?.is_empty())
    }

    /// Makes a promise durable and returns its time, or the time of an existing tombstone. Reports that this collector
    /// received before are below `wal_end`.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` and `UNAVAILABLE`, both with a delay.
    pub(crate) async fn add_tombstone(
        &self,
        installation: InstallationId,
        wal_end: WalOffset,
    ) -> Result<i64, Status> {
        if let Some(at_ms) = self.tombstoned_at(&installation) {
            return Ok(at_ms);
        }
        let now_us = self.clock.now_us();
        if self.rate.open().take((), 1, now_us).is_err() {
            let text = "too many deletions at once";
            return Err(retry::later(Code::ResourceExhausted, text, BUSY));
        }
        let at_ms = i64::try_from(now_us / 1000).unwrap_or(i64::MAX);
        let tombstone = Tombstone {
            installation,
            at_ms,
        };
        match self.write(move |log| log.add_tombstone(&tombstone)).await {
            Ok(()) => {}
            Err(NotWritten::Disk(error)) => {
                tracing::error!(%error, "failed to write down a deletion");
                let text = "the deletion could not be written down";
                return Err(retry::later(Code::Unavailable, text, NO_DISK));
            }
            Err(NotWritten::Stopping) => {
                return Err(Status::unavailable("the collector is stopping"));
            }
        }
        self.known.add(&[tombstone]);
        let promise = Promise { tombstone, wal_end };
        self.pending.lock().insert(installation, promise);
        self.asked.notify_one();
        Ok(at_ms)
    }

    /// Of these installations, hides the deleted ones before their rows are inserted. The writer calls it.
    pub(crate) async fn hide_again(
        &self,
        sink: &Sink,
        installations: &[InstallationId],
    ) -> Result<(), SinkError> {
        self.known.catch_up(sink, STALE).await?;
        self.known.hide_again(sink, installations).await
    }

    /// The promises to be looked up, the oldest first.
    fn pending(&self) -> Vec<Promise> {
        let mut pending: Vec<Promise> = self.pending.lock().values().copied().collect();
        pending.sort_by_key(|promise| (promise.tombstone.at_ms, promise.tombstone.installation));
        pending
    }

    /// Moves promises to the waiting ones.
    fn wait_for(&self, unknown: &[Tombstone]) {
        self.remove_pending(unknown);
        self.waiting.lock().extend(unknown);
    }

    /// Takes the next waiting promises; the caller must give them back.
    fn take_waiting(&self, at_most: usize) -> Vec<Tombstone> {
        let mut waiting = self.waiting.lock();
        let n = at_most.min(waiting.len());
        waiting.drain(..n).collect()
    }

    fn give_back(&self, waiting: Vec<Tombstone>) {
        self.waiting.lock().extend(waiting);
    }

    /// Moves promises that waited to the front of the promises to carry out.
    fn found(&self, received: impl IntoIterator<Item = Tombstone>) {
        let wal_end = WalOffset(0);
        let promises = received
            .into_iter()
            .map(|tombstone| (tombstone.installation, Promise { tombstone, wal_end }));
        self.pending.lock().extend(promises);
    }

    /// Records that the store hides these installations.
    async fn note_hidden(&self, done: &[Tombstone]) {
        let some = done.to_vec();
        let written = self.write(move |log| log.note_hidden(&some)).await;
        if let Err(NotWritten::Disk(error)) = written {
            // The tombstones are inserted again after a restart, which is harmless.
            tracing::warn!(%error, "failed to write down that deletions are done");
        }
        self.remove_pending(done);
    }

    /// Ends promises for installations from which no collector had reports. The caller took them from the waiting
    /// promises.
    async fn forget(&self, unknown: Vec<Tombstone>) {
        let some = unknown.clone();
        match self.write(move |log| log.note_forgotten(&some)).await {
            Ok(()) => self.known.forget(&unknown),
            Err(NotWritten::Disk(error)) => {
                tracing::warn!(%error, "failed to write down that deletions are forgotten");
                self.give_back(unknown);
            }
            Err(NotWritten::Stopping) => self.give_back(unknown),
        }
    }

    async fn write(
        &self,
        write: impl FnOnce(&mut DeletionLog) -> io::Result<()> + Send + 'static,
    ) -> Result<(), NotWritten> {
        let log = self.log.clone();
        let written = tokio::task::spawn_blocking(move || log.lock().as_mut().map(write)).await;
        match written {
            Ok(Some(written)) => written.map_err(NotWritten::Disk),
            Ok(None) | Err(_) => Err(NotWritten::Stopping),
        }
    }

    /// Ends all writing. Calls that were cut get no promise from here on. Waits for a write under way, so it blocks.
    pub(crate) fn close(&self) {
        self.log.lock().take();
    }

    fn remove_pending(&self, done: &[Tombstone]) {
        let mut pending = self.pending.lock();
        for tombstone in done {
            pending.remove(&tombstone.installation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epwatch_server::SystemClock;

    const END: WalOffset = WalOffset(7);

    fn id(n: u8) -> InstallationId {
        InstallationId::from_bytes([n; 16])
    }

    fn open(dir: &Path) -> Deletions {
        Deletions::open(dir, Arc::new(SystemClock), END).unwrap()
    }

    fn tombstones(deletions: &Deletions) -> Vec<Tombstone> {
        let pending = deletions.pending();
        pending.iter().map(|promise| promise.tombstone).collect()
    }

    #[tokio::test]
    async fn a_deletion_is_known_after_a_restart_until_the_store_has_it_and_beyond() {
        let dir = tempfile::tempdir().unwrap();
        let deletions = open(dir.path());
        assert!(!deletions.contains(&id(1)));
        let at = deletions.add_tombstone(id(1), END).await.unwrap();
        deletions.add_tombstone(id(2), END).await.unwrap();
        assert!(deletions.contains(&id(1)) && !deletions.contains(&id(3)));
        drop(deletions);

        let again = open(dir.path());
        assert!(again.contains(&id(1)) && again.contains(&id(2)));
        assert_eq!(
            again.add_tombstone(id(1), END).await.unwrap(),
            at,
            "the first one counts"
        );
        let pending = tombstones(&again);
        assert_eq!(pending.len(), 2);
        again.note_hidden(&pending[..1]).await;
        assert_eq!(tombstones(&again), pending[1..]);
        drop(again);

        let last = open(dir.path());
        assert_eq!(tombstones(&last), pending[1..]);
        assert!(last.contains(&id(1)));
    }

    /// Once the collector has stopped, the folder belongs to the next process. A cut call of the stopped collector may
    /// go on.
    #[tokio::test]
    async fn nothing_is_promised_after_the_stop() {
        let dir = tempfile::tempdir().unwrap();
        let deletions = open(dir.path());
        deletions.add_tombstone(id(1), END).await.unwrap();
        deletions.close();
        let again = open(dir.path());
        let refused = deletions.add_tombstone(id(2), END).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        again.add_tombstone(id(3), END).await.unwrap();
        drop(again);

        let last = open(dir.path());
        let is_there = [1, 2, 3].map(|n| last.contains(&id(n)));
        assert_eq!(is_there, [true, false, true]);
    }

    #[tokio::test]
    async fn a_promise_that_waits_is_one_after_a_restart_and_none_once_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let deletions = open(dir.path());
        deletions.add_tombstone(id(1), END).await.unwrap();
        let unknown = tombstones(&deletions);
        deletions.wait_for(&unknown);
        assert_eq!(deletions.n_open(), (0, 1));
        drop(deletions);

        let again = open(dir.path());
        assert!(again.contains(&id(1)));
        assert_eq!(again.n_open(), (1, 0), "the store may have it by now");
        again.wait_for(&unknown);
        let taken = again.take_waiting(10);
        assert_eq!(taken, unknown);
        again.forget(taken).await;
        assert!(!again.contains(&id(1)));
        drop(again);

        let last = open(dir.path());
        assert!(!last.contains(&id(1)));
        assert_eq!(last.n_open(), (0, 0));
    }

    #[test]
    fn a_flood_of_deletions_is_slowed() {
        let dir = tempfile::tempdir().unwrap();
        let rate = open(dir.path()).rate;
        for (now_us, expected) in [(1_000_000, 500), (2_000_000, 50)] {
            let is_taken = |_: &u32| rate.open().take((), 1, now_us).is_ok();
            assert_eq!((0..10_000).filter(is_taken).count(), expected);
        }
    }
}
