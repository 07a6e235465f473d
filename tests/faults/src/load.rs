//! The state that all devices share: their orders, and the outcomes of their reports.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epwatch_proto::v1;
use serde::{Serialize, Serializer};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::report::Key;

/// The order to all devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Devices make reports and send them.
    Send,
    /// Devices settle their open reports, and wait.
    Rest,
    /// Devices settle their open reports, and end.
    End,
}

/// Counts of all reports so far, by outcome.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Account {
    /// Reports that were made and sent at least once.
    pub sent: u64,
    /// Reports that were acknowledged, and not deleted since.
    #[serde(serialize_with = "number_of")]
    pub acked: HashSet<Key>,
    /// Acks with the outcome `duplicate`.
    pub duplicates: u64,
    /// Reports sent again, counted each time.
    pub retried: u64,
    /// Reports that were refused for good, by outcome. All reports are valid, so there should be none.
    pub refused: BTreeMap<String, u64>,
    /// Reports neither acknowledged nor refused when time was up.
    pub given_up: u64,
    /// The latest call that failed, for the report of a run.
    pub last_failure: Option<String>,
    /// Installations whose deletion was acknowledged; `deleted_reports` counts their reports.
    #[serde(rename = "deleted_installations", serialize_with = "number_of")]
    pub deleted: HashSet<[u8; 16]>,
    /// See [`Account::deleted`].
    pub deleted_reports: u64,
    /// Installations whose deletion was requested and never answered.
    #[serde(skip)]
    pub maybe_deleted: HashSet<[u8; 16]>,
}

fn number_of<T, S: Serializer>(found: &HashSet<T>, serializer: S) -> Result<S::Ok, S::Error> {
    found.len().serialize(serializer)
}

/// The state that all devices share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) order: watch::Sender<Order>,
    /// Number of devices that rest.
    pub(crate) resting: watch::Sender<usize>,
    /// After this time devices stop sending.
    pub(crate) give_up: watch::Sender<Instant>,
    account: Mutex<Account>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        // Far in the future: no round takes this long without a new order.
        let far = Instant::now() + Duration::from_secs(30 * 24 * 3600);
        Self {
            order: watch::Sender::new(Order::Send),
            resting: watch::Sender::new(0),
            give_up: watch::Sender::new(far),
            account: Mutex::default(),
        }
    }

    /// Waits until the devices get another order.
    pub(crate) async fn rest(&self) {
        self.resting.send_modify(|n| *n += 1);
        // This never fails, because the sender lives as long as `self`.
        let _ = self
            .order
            .subscribe()
            .wait_for(|order| *order != Order::Rest)
            .await;
        self.resting.send_modify(|n| *n -= 1);
    }

    pub(crate) fn is_time_up(&self) -> bool {
        Instant::now() >= *self.give_up.borrow()
    }

    /// Returns the counts. A poisoned lock is ignored, because no holder panics halfway through a count.
    pub(crate) fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn acked(&self, key: Key, as_duplicate: bool) {
        let mut account = self.account();
        account.acked.insert(key);
        account.duplicates += u64::from(as_duplicate);
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

    pub(crate) fn deleted(&self, installation: [u8; 16]) {
        let mut account = self.account();
        let before = account.acked.len();
        account.acked.retain(|key| key.0 != installation);
        account.deleted_reports += (before - account.acked.len()) as u64;
        account.deleted.insert(installation);
    }
}
