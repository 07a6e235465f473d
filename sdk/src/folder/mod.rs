//! The folder that the host gives the SDK: the name of every file in it, in one list, so that a wipe forgets none.
//!
//! Several processes of an app share the folder.

pub(crate) mod crc32c;
pub(crate) mod files;
pub(crate) mod message_file;

/// Error of the folder. Callers print it and go on; no other difference matters to them.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action}")]
pub(crate) struct FolderError {
    action: String,
    #[source]
    source: std::io::Error,
}

impl FolderError {
    pub(crate) fn new(action: String, source: std::io::Error) -> Self {
        Self { action, source }
    }
}

/// The lock file. Its lock is held while one of these files is written, a stream begins or ends, or the secret is made.
pub(crate) const LOCK: &str = "lock";

/// The installation's secret.
pub(crate) const SECRET: &str = "secret";

/// A damaged secret, renamed out of the way.
pub(crate) const UNREADABLE_SECRET: &str = "secret.unreadable";

/// The folder of secrets whose installations are to be deleted.
pub(crate) const DELETIONS: &str = "deletions";

/// The folder of the spool's streams.
pub(crate) const STREAMS: &str = "streams";

/// Bytes sent today.
pub(crate) const BUDGET: &str = "budget";

/// Earlier latency of this device.
pub(crate) const BASELINES: &str = "baselines";

/// Directives that the device holds, and the server's time when they arrived.
pub(crate) const DIRECTIVES: &str = "directives";

/// Records of self-tests that have begun and ended.
pub(crate) const SELF_TESTS: &str = "self-tests";

/// Everything that belongs to one installation. [`LOCK`] and [`DELETIONS`] outlive it.
pub(crate) const OF_INSTALLATION: [&str; 7] = [
    SECRET,
    UNREADABLE_SECRET,
    STREAMS,
    BUDGET,
    BASELINES,
    DIRECTIVES,
    SELF_TESTS,
];
