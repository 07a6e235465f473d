//! The state that all devices share: their orders, and the ends of their reports.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epwatch_proto::v1;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::report::{Key, Made};

/// The order to all devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Make reports and send them.
    Send,
    /// Bring open reports to their end, and wait.
    Rest,
    /// Bring open reports to their end, and leave.
    End,
}

/// Counts of all reports so far, by their end.
#[derive(Debug, Default, Clone)]
pub(crate) struct Account {
    /// Made and sent at least once.
    pub(crate) sent: u64,
    /// Acknowledged, and not deleted since.
    pub(crate) acked: HashSet<Key>,
    /// Acks with the outcome `duplicate`.
    pub(crate) duplicates: u64,
    /// Reports sent again, counted each time.
    pub(crate) retried: u64,
    /// Refused for good, by outcome: nothing here is wrong with any report, so there should be none.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Neither acknowledged nor refused when time was up.
    pub(crate) given_up: u64,
    /// The latest call that failed, for the report of a run.
    pub(crate) last_failure: Option<String>,
    /// Installations whose deletion was acknowledged, and how many reports went with them.
    pub(crate) deleted: HashSet<[u8; 16]>,
    /// See [`Account::deleted`].
    pub(crate) deleted_reports: u64,
    /// Installations whose deletion was requested and never answered.
    pub(crate) maybe_deleted: HashSet<[u8; 16]>,
}

/// The state that all devices share.
#[derive(Debug)]
pub(crate) struct Shared {
    told: watch::Sender<Told>,
    n_resting: Mutex<usize>,
    rested: Notify,
    give_up: Mutex<Instant>,
    account: Mutex<Account>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            told: watch::Sender::new(Told::Send),
            n_resting: Mutex::new(0),
            rested: Notify::new(),
            // No round takes that long without another order.
            give_up: Mutex::new(Instant::now() + Duration::from_secs(30 * 24 * 3600)),
            account: Mutex::default(),
        }
    }

    pub(crate) fn told(&self) -> Told {
        *self.told.borrow()
    }

    /// Gives all devices an order.
    pub(crate) fn tell(&self, told: Told) {
        self.told.send_replace(told);
    }

    /// Waits until a device has another order.
    pub(crate) async fn rest(&self) {
        let mut told = self.told.subscribe();
        *lock(&self.n_resting) += 1;
        self.rested.notify_one();
        // The sender lives as long as `self`.
        let _ = told.wait_for(|told| *told != Told::Rest).await;
        *lock(&self.n_resting) -= 1;
    }

    /// Waits until `n` devices rest.
    pub(crate) async fn all_rest(&self, n: usize) {
        while *lock(&self.n_resting) < n {
            self.rested.notified().await;
        }
    }

    /// After this nothing is sent again.
    pub(crate) fn give_up(&self) -> Instant {
        *lock(&self.give_up)
    }

    pub(crate) fn give_up_at(&self, at: Instant) {
        *lock(&self.give_up) = at;
    }

    pub(crate) fn account(&self) -> MutexGuard<'_, Account> {
        lock(&self.account)
    }

    pub(crate) fn sent(&self, made: &[Made]) {
        self.account().sent += made.len() as u64;
    }

    pub(crate) fn acked(&self, key: Key, as_duplicate: bool) {
        let mut account = self.account();
        account.acked.insert(key);
        account.duplicates += u64::from(as_duplicate);
    }

    pub(crate) fn retried(&self, n: usize) {
        self.account().retried += n as u64;
    }

    pub(crate) fn failed(&self, status: &tonic::Status) {
        self.account().last_failure = Some(format!("{:?}: {}", status.code(), status.message()));
    }

    pub(crate) fn refused(&self, result: Option<&v1::ReportResult>) {
        let Some(result) = result else { return };
        let mut account = self.account();
        let outcome = result.outcome().as_str_name().to_owned();
        account.last_failure = Some(format!("{outcome}: {}", result.detail));
        *account.refused.entry(outcome).or_default() += 1;
    }

    pub(crate) fn gave_up(&self, n: usize) {
        self.account().given_up += n as u64;
    }

    pub(crate) fn deleted(&self, installation: [u8; 16]) {
        let mut account = self.account();
        let before = account.acked.len();
        account.acked.retain(|key| key.0 != installation);
        account.deleted_reports += (before - account.acked.len()) as u64;
        account.deleted.insert(installation);
    }

    pub(crate) fn maybe_deleted(&self, installation: [u8; 16]) {
        self.account().maybe_deleted.insert(installation);
    }
}

/// Nothing panics while it counts.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
