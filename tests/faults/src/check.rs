//! Compares the store with the devices' acknowledged reports. The store must have each of them once, and no others.

use std::collections::HashSet;
use std::time::Duration;

use clickhouse::Client;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::load::Account;
use crate::views::{self, ViewCount};

/// The differences found, if any.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Findings {
    /// Reports that the store should have.
    pub expected: u64,
    /// Number of these reports that no view shows.
    pub lost: u64,
    /// Reports that count more than once.
    pub counted_twice: u64,
    /// Reports that count although they were never acknowledged, or although they were deleted.
    pub unexpected: u64,
    /// Rows that a batch wrote twice. Views would hide them, but they use disk space.
    pub rows_twice: u64,
    /// Reports outside closed buckets, although a collector runs that should close these.
    pub open: u64,
    /// Views whose numbers do not follow from the reports.
    pub wrong_views: Vec<ViewCount>,
}

impl Findings {
    /// Whether no difference was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.distance() == 0
    }

    /// Distance from the expected state. While it shrinks, the servers are still at work.
    pub(crate) fn distance(&self) -> u64 {
        let wrong = self.lost + self.counted_twice + self.unexpected + self.rows_twice + self.open;
        let off = |count: &ViewCount| count.expected.abs_diff(count.found);
        wrong + self.wrong_views.iter().map(off).sum::<u64>()
    }
}

/// Whether a collector runs that closes buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buckets {
    /// All buckets must become closed.
    Close,
    /// The collectors have ended, so the last buckets stay open, and the views read their raw rows.
    StayOpen,
}

/// Checks until the store is as expected, and once more after that. If time is up first, returns the differences.
pub(crate) async fn settled(
    store: &Client,
    account: &Account,
    buckets: Buckets,
    max_wait: Duration,
) -> anyhow::Result<Findings> {
    let deadline = Instant::now() + max_wait;
    loop {
        let found = look(store, account, buckets).await;
        match found {
            Ok(findings) if findings.is_clean() => return Ok(findings),
            Ok(findings) if Instant::now() > deadline => return Ok(findings),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            // The engine may be starting again.
            Ok(_) | Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn look(
    store: &Client,
    account: &Account,
    buckets: Buckets,
) -> clickhouse::error::Result<Findings> {
    let keys = views::keys(store).await?;
    let is_sure = |installation: &[u8; 16]| !account.maybe_deleted.contains(installation);
    let mut findings = Findings::default();
    let mut found = HashSet::with_capacity(keys.len());
    for (key, n) in keys {
        findings.counted_twice += u64::from(n > 1);
        if is_sure(&key.0) && !account.acked.contains(&key) && account.given_up == 0 {
            findings.unexpected += 1;
        }
        found.insert(key);
    }
    let acked = account.acked.iter().filter(|key| is_sure(&key.0));
    findings.lost = acked.filter(|key| !found.contains(*key)).count() as u64;
    findings.expected = account.acked.len() as u64;
    findings.rows_twice = views::rows_twice(store).await?;
    if buckets == Buckets::Close {
        findings.open = views::open_reports(store).await?;
    }
    let counts = views::ask(store, findings.expected).await?;
    let is_wrong = |count: &ViewCount| count.expected != count.found;
    findings.wrong_views = counts.into_iter().filter(is_wrong).collect();
    Ok(findings)
}
