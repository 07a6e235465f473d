//! Errors of uploads and flushes.

use std::time::Duration;

use epwatch_proto::UploadFailureKind;

/// Why an upload brought no answer.
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

    /// Returns when to repeat the upload. Every failure is repeated: its cause may be fixed, and the spool is
    /// bounded.
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

/// Why a flush did not bring everything to the collector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// It takes longer than the timeout, and continues in the background.
    #[error("failed to flush in time; it goes on")]
    Timeout,
    /// The SDK was stopped.
    #[error("failed to flush: the SDK is stopped")]
    Stopped,
    /// The folder cannot be used.
    #[error("failed to flush: {0}")]
    Spool(String),
    /// The collector cannot be reached, or answers with an error.
    #[error("failed to flush")]
    Upload(#[source] UploadError),
    /// The collector did not accept all reports, or the host sends by itself.
    #[error("failed to flush {reports} reports: they stay in the spool")]
    Kept {
        /// Reports that stay in the spool.
        reports: usize,
    },
}
