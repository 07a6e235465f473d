//! Deleted installations. A device's deletion is answered once its tombstone is on disk here; the worker then inserts it
//! into the store, and no view shows the installation.
//!
//! The bounded set in memory refuses late reports at once. Correctness does not depend on it: every view honours the
//! store's table of tombstones, which never loses a row.

mod log;
mod worker;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use epwatch_proto::InstallationId;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tonic::{Code, Status};

use self::log::DeletionLog;
pub(crate) use self::log::{RECORD_BYTES, Tombstone, add_tombstones, records_of, tombstones_of};
pub(crate) use self::worker::Worker;
use crate::ingest::limits::Buckets;
use crate::server::retry;
use epwatch_server::Clock;

/// About 60 MB. Beyond, late reports of further deleted installations are stored, and hidden by the views.
const MAX_IN_MEMORY: usize = 1 << 20;
/// Deletions a second of all callers: each costs a sync and a row for ever. Ten million devices that ask once in their
/// life make less than one a second.
const PER_MINUTE: u32 = 50 * 60;
const BURST: u32 = 500;
const BUSY: Duration = Duration::from_secs(2);
/// Retry delay after a failed write.
const NO_DISK: Duration = Duration::from_secs(10);

/// One collector's deletions, and those of others as far as they are loaded.
#[derive(Debug)]
pub(crate) struct Deletions {
    /// Time of each installation's tombstone, in milliseconds since 1970.
    buried: RwLock<HashMap<InstallationId, i64>>,
    /// Saves the lock while there are no deletions.
    has_any: AtomicBool,
    log: Arc<Mutex<DeletionLog>>,
    /// The rate limit of all deletions.
    rate: Buckets<()>,
    clock: Arc<dyn Clock>,
    /// This collector's tombstones that the store does not have yet.
    pending: Mutex<Vec<Tombstone>>,
    asked: Notify,
}

impl Deletions {
    /// Opens the file of deletions in the WAL's directory, which is locked already. Blocks on the disk.
    pub(crate) fn open(dir: &Path, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let (log, found) = DeletionLog::open(dir)?;
        let deletions = Self {
            buried: RwLock::default(),
            has_any: AtomicBool::new(false),
            log: Arc::new(Mutex::new(log)),
            rate: Buckets::new((PER_MINUTE, BURST), 1),
            clock,
            pending: Mutex::new(found.pending),
            asked: Notify::new(),
        };
        deletions.learn(&found.all);
        Ok(deletions)
    }

    /// True if the installation is deleted, so that its reports are refused.
    pub(crate) fn contains(&self, installation: &InstallationId) -> bool {
        self.has_any.load(Relaxed) && self.buried.read().contains_key(installation)
    }

    /// Adds tombstones, of this collector or others.
    pub(crate) fn learn(&self, tombstones: &[Tombstone]) {
        if tombstones.is_empty() {
            return;
        }
        let mut buried = self.buried.write();
        for tombstone in tombstones {
            if buried.len() < MAX_IN_MEMORY {
                buried
                    .entry(tombstone.installation)
                    .or_insert(tombstone.at_ms);
            }
        }
        self.has_any.store(true, Relaxed);
    }

    /// Time of the installation's tombstone, in milliseconds since 1970.
    pub(crate) fn buried_at(&self, installation: &InstallationId) -> Option<i64> {
        let buried = self.buried.read();
        buried.get(installation).copied()
    }

    /// Number of acknowledged deletions that the store does not hide yet.
    pub(crate) fn n_pending(&self) -> i64 {
        i64::try_from(self.pending.lock().len()).unwrap_or(i64::MAX)
    }

    /// Makes a tombstone durable and returns its time, or the time of an existing one.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` and `UNAVAILABLE`, both with a delay.
    pub(crate) async fn bury(&self, installation: InstallationId) -> Result<i64, Status> {
        if let Some(at_ms) = self.buried_at(&installation) {
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
        let log = self.log.clone();
        let written = tokio::task::spawn_blocking(move || log.lock().bury(&tombstone)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, "failed to write down a deletion");
                let text = "the deletion could not be written down";
                return Err(retry::later(Code::Unavailable, text, NO_DISK));
            }
            Err(_) => return Err(Status::unavailable("the collector is stopping")),
        }
        self.learn(&[tombstone]);
        self.pending.lock().push(tombstone);
        self.asked.notify_one();
        Ok(at_ms)
    }

    fn pending(&self) -> Vec<Tombstone> {
        self.pending.lock().clone()
    }

    /// Records that the store hides these installations.
    async fn note_hidden(&self, done: &[Tombstone]) {
        let (log, some) = (self.log.clone(), done.to_vec());
        let written = tokio::task::spawn_blocking(move || log.lock().note_hidden(&some)).await;
        if let Ok(Err(error)) = written {
            // They are inserted again after a restart, which is harmless.
            tracing::warn!(%error, "failed to write down that deletions are done");
        }
        self.pending
            .lock()
            .retain(|tombstone| !done.contains(tombstone));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epwatch_server::SystemClock;

    fn id(n: u8) -> InstallationId {
        InstallationId::from_bytes([n; 16])
    }

    fn open(dir: &Path) -> Deletions {
        Deletions::open(dir, Arc::new(SystemClock)).unwrap()
    }

    #[tokio::test]
    async fn a_deletion_is_known_after_a_restart_until_the_store_has_it_and_beyond() {
        let dir = tempfile::tempdir().unwrap();
        let deletions = open(dir.path());
        assert!(!deletions.contains(&id(1)));
        let at = deletions.bury(id(1)).await.unwrap();
        deletions.bury(id(2)).await.unwrap();
        assert!(deletions.contains(&id(1)) && !deletions.contains(&id(3)));
        drop(deletions);

        let again = open(dir.path());
        assert!(again.contains(&id(1)) && again.contains(&id(2)));
        assert_eq!(again.bury(id(1)).await.unwrap(), at, "the first one counts");
        let pending = again.pending();
        assert_eq!(pending.len(), 2);
        again.note_hidden(&pending[..1]).await;
        assert_eq!(again.pending(), pending[1..]);
        drop(again);

        let last = open(dir.path());
        assert_eq!(last.pending(), pending[1..]);
        assert!(last.contains(&id(1)));
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
