//! What can go wrong with the WAL, and what to do then.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Long enough for the writer to store a batch or for someone to free space, short enough that a
/// device's next try is soon.
const FULL_RETRY: Duration = Duration::from_secs(30);
/// A few groups.
const BUSY_RETRY: Duration = Duration::from_secs(1);

/// When to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// It will fail again.
    Never,
    /// After a growing delay.
    Backoff,
    /// After this delay.
    After(Duration),
}

/// The WAL could not do it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WalError {
    /// The store has been away too long.
    #[error("wal is full: {held} of {limit} bytes wait for the store")]
    Full {
        /// Bytes held.
        held: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// More comes than the disk takes.
    #[error("wal is busy: {in_flight} of {limit} bytes wait for the disk")]
    Busy {
        /// Bytes waiting.
        in_flight: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The disk has too little space left.
    #[error("wal takes nothing more: {free} bytes are free on its disk, {least} are kept free")]
    DiskLow {
        /// Bytes free.
        free: u64,
        /// Bytes kept free.
        least: u64,
    },
    /// The disk has no space left.
    #[error("failed to write wal: disk is full")]
    DiskFull(#[source] Arc<io::Error>),
    /// The disk failed otherwise.
    #[error("failed to {doing}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// What the disk said.
        #[source]
        source: Arc<io::Error>,
    },
    /// Another process has the directory.
    #[error("failed to lock wal directory {}: another collector uses it", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// A file of another format version.
    #[error("failed to read wal file {file}: its format is version {version}, this is {known}")]
    Format {
        /// The file's name.
        file: String,
        /// Its version.
        version: u32,
        /// Ours.
        known: u32,
    },
    /// A file of another WAL.
    #[error("failed to read wal file {file}: it belongs to another collector's WAL")]
    Foreign {
        /// The file's name.
        file: String,
    },
    /// A payload that no record can hold.
    #[error("failed to append to wal: payload has {len} bytes, 1 to 33554432 fit")]
    PayloadSize {
        /// Its length.
        len: usize,
    },
    /// The WAL is closed or closing.
    #[error("wal is closed")]
    Closed,
}

impl WalError {
    /// Wraps what the disk said.
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

    /// Says when to try again.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Full { .. } | Self::DiskLow { .. } | Self::DiskFull(_) => {
                Retry::After(FULL_RETRY)
            }
            Self::Busy { .. } => Retry::After(BUSY_RETRY),
            Self::Io { .. } | Self::Closed => Retry::Backoff,
            Self::Locked { .. }
            | Self::Format { .. }
            | Self::Foreign { .. }
            | Self::PayloadSize { .. } => Retry::Never,
        }
    }
}
