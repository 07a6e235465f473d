//! Errors of uploads and flushes.

use std::{fmt, time::Duration};

use crate::types::{Outcome, UploadFailureKind};

/// An upload without an answer.
#[derive(Debug, thiserror::Error)]
#[error("failed to upload: {message}")]
pub struct UploadError {
    kind: UploadFailureKind,
    message: String,
    retry_after: Option<Duration>,
}

impl UploadError {
    /// A failed upload of this kind, with a text for people.
    pub fn new(kind: UploadFailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
        }
    }

    /// Sets the wait that the collector asked for.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Returns the kind under which the failure is counted.
    pub fn kind(&self) -> UploadFailureKind {
        self.kind
    }

    /// Returns when to repeat the upload. Every failure is repeated: its cause may be fixed, and the spool is bounded.
    pub fn retry(&self) -> Retry {
        match self.retry_after {
            Some(delay) => Retry::After(delay),
            None => Retry::Backoff,
        }
    }
}

/// When to repeat a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// After a growing wait.
    Backoff,
    /// Not before this wait.
    After(Duration),
}

/// Reports that the collector refused for good.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Outcome of the first refused report; `None` if this version does not know the outcome.
    pub outcome: Option<Outcome>,
    /// Number of refused reports.
    pub reports: usize,
    /// The collector's sentence about the first refused report, for example the app that the key belongs to.
    pub detail: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.reports == 1 { "" } else { "s" };
        let outcome = self.outcome.map_or("unknown outcome", Outcome::as_str);
        let outcome = outcome.trim_start_matches("refused_");
        write!(f, "{} report{plural} refused: {outcome}", self.reports)?;
        match self.detail.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.detail),
        }
    }
}

/// A flush that did not deliver everything to the collector, or a seal or stop that did not store everything in the
/// folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// The work takes longer than the timeout, and continues in the background.
    #[error("failed to finish in time; it goes on")]
    Timeout,
    /// The SDK was stopped.
    #[error("the SDK is stopped")]
    Stopped,
    /// The SDK could not be started again in this process, which was forked.
    #[error("the SDK could not start again in this forked process; start one here")]
    Forked,
    /// The folder cannot be used, or is full. Runs that are not in it are lost when the process ends, or earlier.
    #[error("failed to keep recorded runs: {0}")]
    Spool(String),
    /// The collector refused reports for good. They are counted, and not sent again.
    #[error("failed to flush: {0}")]
    Refused(Refusal),
    /// The collector cannot be reached, or answers with an error.
    #[error("failed to flush")]
    Upload(#[source] UploadError),
    /// The collector did not accept all reports, or the host sends by itself.
    #[error("failed to flush; reports that stay in the spool: {reports}")]
    Kept {
        /// Reports that stay in the spool.
        reports: usize,
    },
}
