//! Why an upload or a flush did not bring everything to the collector.

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
    /// A failed upload of this kind, in words.
    pub fn new(kind: UploadFailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
        }
    }

    /// The collector asked to come no earlier.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// What kind of failure it was: the label it is counted under.
    pub fn kind(&self) -> UploadFailureKind {
        self.kind
    }

    /// When to try again. Every failed upload is tried again: what is wrong may be put right, and
    /// the spool is bounded.
    pub fn retry(&self) -> Retry {
        match self.retry_after {
            Some(delay) => Retry::After(delay),
            None => Retry::Backoff,
        }
    }
}

/// When something may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// After a wait that grows.
    Backoff,
    /// Not before this wait.
    After(Duration),
}

/// A flush did not bring everything to the collector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// It takes longer; it goes on in the background.
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
    /// The collector did not take all, or the host sends by itself.
    #[error("failed to flush {reports} reports: they stay in the spool")]
    Kept {
        /// Reports that wait.
        reports: usize,
    },
}
