//! The findings of a check, one for each invariant.

use std::collections::BTreeSet;

use serde::Serialize;

use super::invariants::Invariant;

/// The reason why a check did not finish.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The store did not answer.
    #[error("failed to check {what}")]
    Store {
        /// The invariant that was checked, or the data that is read before the invariants.
        what: &'static str,
        /// Of the client.
        #[source]
        source: clickhouse::error::Error,
    },
    /// The log cannot be read.
    #[error("failed to read the log")]
    Log(#[from] crate::wal::WalError),
    /// The store did not take a repair.
    #[error("failed to repair {check}")]
    Repair {
        /// The [`Checked::name`] of the broken invariant.
        check: &'static str,
        /// Of the client.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// One invariant after the check.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// Stable, for programs.
    pub name: &'static str,
    /// The property that holds, or should hold.
    pub holds: &'static str,
    /// Noun for the rows that violate it.
    pub broken_by: &'static str,
    /// Number of rows that violate it, 1,000 at most; `None` if it was not checked.
    pub found: Option<usize>,
    /// Up to ten of these rows. Names in them are as devices sent them.
    pub examples: Vec<String>,
    /// The reason why it was not checked.
    pub not_checked: Option<String>,
}

impl Checked {
    pub(super) fn of(invariant: &Invariant, found: &BTreeSet<String>) -> Self {
        Self {
            name: invariant.name,
            holds: invariant.holds,
            broken_by: invariant.broken_by,
            found: Some(found.len()),
            examples: found.iter().take(10).cloned().collect(),
            not_checked: None,
        }
    }
}

/// The findings of one check of a store and a log.
#[derive(Debug, Serialize)]
pub struct CheckReport {
    /// Days with reports.
    pub days: usize,
    /// Copies of reports on these days.
    pub copies: u64,
    /// The invariants of the store, then the invariants of the WAL.
    pub checks: Vec<Checked>,
}

impl CheckReport {
    /// Whether every invariant that was checked holds.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.found.is_none_or(|n| n == 0))
    }
}
