//! Errors of the WAL, and when a caller may retry.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// In this time the writer stores a batch or an operator frees space. For a device it is still soon.
const FULL_RETRY: Duration = Duration::from_secs(30);
/// In this time a few groups are written.
const BUSY_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    Never,
    Backoff,
    After(Duration),
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum WalError {
    /// The store has been away too long.
    #[error("wal is full: {held} of {limit} bytes wait for the store")]
    Full { held: u64, limit: u64 },
    /// Appends arrive faster than the disk writes.
    #[error("wal is busy: {in_flight} of {limit} bytes wait for the disk")]
    Busy { in_flight: usize, limit: usize },
    /// The disk has too little space left.
    #[error("wal takes nothing more: {free} bytes are free on its disk, {least} are kept free")]
    DiskLow { free: u64, least: u64 },
    #[error("failed to write wal: disk is full")]
    DiskFull(#[source] Arc<io::Error>),
    /// If one report got a receive time in the future, all later reports would get it too.
    #[error(
        "wal takes nothing: this machine's clock jumped {ahead_seconds} s ahead; set it right, or restart the \
         collector if it is right now"
    )]
    ClockJumped { ahead_seconds: u64 },
    /// Any other failure of the disk.
    #[error("failed to {doing}")]
    Io {
        doing: &'static str,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("failed to lock wal directory {}: held by {}", dir.display(), holder(*process))]
    Locked {
        dir: PathBuf,
        /// The other process's id, as that process wrote it into the lock file.
        process: Option<u32>,
    },
    #[error("failed to read wal file {file}: its format is version {version}, this is {known}")]
    Format {
        file: String,
        version: u32,
        known: u32,
    },
    #[error("failed to read wal file {file}: it belongs to another collector's WAL")]
    Foreign { file: String },
    /// The payload is empty, or too long for a record.
    #[error("failed to append to wal: payload has {len} bytes, 1 to 33554432 fit")]
    PayloadSize { len: usize },
    /// Closed, or closing.
    #[error("wal is closed")]
    Closed,
}

fn holder(process: Option<u32>) -> String {
    process.map_or_else(
        || "another process".to_owned(),
        |id| format!("process {id}"),
    )
}

impl WalError {
    pub(crate) fn io(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull(Arc::new(source))
            }
            _ => Self::Io {
                doing,
                source: Arc::new(source),
            },
        }
    }

    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Full { .. }
            | Self::DiskLow { .. }
            | Self::DiskFull(_)
            | Self::ClockJumped { .. } => Retry::After(FULL_RETRY),
            Self::Busy { .. } => Retry::After(BUSY_RETRY),
            Self::Io { .. } | Self::Closed => Retry::Backoff,
            Self::Locked { .. }
            | Self::Format { .. }
            | Self::Foreign { .. }
            | Self::PayloadSize { .. } => Retry::Never,
        }
    }
}
