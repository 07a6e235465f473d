//! Errors of a delivery, each with its retry.

use std::path::PathBuf;
use std::time::Duration;

/// Why a notification was not delivered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "the texts say it; `channel` is the notifier's name"
)]
pub enum NotifyError {
    #[error("failed to read the secret of {channel} from {path}")]
    Secret {
        channel: String,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to use the address of {channel}: expected http:// or https:// and a host")]
    Address { channel: String },
    #[error("failed to reach {channel}")]
    Unreachable {
        channel: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The receiver wants another attempt, `after` a pause if it names one.
    #[error("failed to notify {channel}: it answered {status}")]
    Busy {
        channel: String,
        status: u16,
        after: Option<Duration>,
    },
    /// The receiver would reject another attempt too. `detail` is the beginning of its answer.
    #[error("failed to notify {channel}: it refused with {status}: {detail}")]
    Refused {
        channel: String,
        status: u16,
        detail: String,
    },
    #[error("failed to write to {channel}")]
    Write {
        channel: String,
        #[source]
        source: std::io::Error,
    },
}

/// The retry of a failed notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// No retry: it is a dead letter.
    Never,
    /// Another attempt, with a longer pause each time.
    WithBackoff,
    /// Another attempt after this pause.
    After(Duration),
}

impl NotifyError {
    /// Returns whether and when to try again.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            NotifyError::Unreachable { .. } | NotifyError::Write { .. } => Retry::WithBackoff,
            NotifyError::Busy { after, .. } => after.map_or(Retry::WithBackoff, Retry::After),
            NotifyError::Refused { .. }
            | NotifyError::Secret { .. }
            | NotifyError::Address { .. } => Retry::Never,
        }
    }
}
