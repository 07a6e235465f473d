//! Errors of a delivery, each with its retry.

use std::path::PathBuf;
use std::time::Duration;

/// The reason why a notification was not delivered.
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
    /// A key, an address, a proxy on the way or the payload is wrong. `detail` is the beginning of its answer.
    #[error("failed to notify {channel}: it refused with {status}: {detail}")]
    Refused {
        channel: String,
        status: u16,
        detail: String,
    },
    /// A status of success that did not come from the receiver, such as the block page of a proxy.
    #[error("failed to notify {channel}: it answered {status} {lack}: {detail}")]
    Unexpected {
        channel: String,
        status: u16,
        lack: String,
        detail: String,
    },
    /// The alert arrived, but its silence at the same receiver could not be set.
    #[error("failed to keep a silence at {channel}; its alert was taken")]
    Silence {
        channel: String,
        #[source]
        source: Box<NotifyError>,
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
    /// Another attempt, with a longer pause each time, up to a minute.
    WithBackoff,
    /// Another attempt after this pause.
    After(Duration),
    /// Another attempt, with pauses that grow to a quarter of an hour, because a person has to correct something first.
    Slowly,
}

impl NotifyError {
    /// Returns when to try again.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            NotifyError::Unreachable { .. }
            | NotifyError::Write { .. }
            | NotifyError::Silence { .. } => Retry::WithBackoff,
            NotifyError::Busy { after, .. } => after.map_or(Retry::WithBackoff, Retry::After),
            NotifyError::Refused { .. }
            | NotifyError::Unexpected { .. }
            | NotifyError::Secret { .. }
            | NotifyError::Address { .. } => Retry::Slowly,
        }
    }

    /// Returns the receiver's answer in a few words, the same for each attempt that fails alike.
    #[must_use]
    pub fn answer(&self) -> String {
        match self {
            NotifyError::Unreachable { .. } => "unreachable".to_owned(),
            NotifyError::Write { .. } => "not writable".to_owned(),
            NotifyError::Busy { status, .. } | NotifyError::Refused { status, .. } => {
                status.to_string()
            }
            NotifyError::Unexpected { status, lack, .. } => format!("{status} {lack}"),
            NotifyError::Silence { source, .. } => format!("no silence, {}", source.answer()),
            NotifyError::Secret { .. } => "no secret".to_owned(),
            NotifyError::Address { .. } => "no address".to_owned(),
        }
    }
}
