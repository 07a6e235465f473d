//! State of the embedded engine, and reasons why it cannot be used.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The reason why the embedded engine cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// The data folder cannot be made or written.
    #[error("failed to prepare {path}")]
    DataDir {
        /// The folder or file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// No socket path fits the operating system's limit.
    #[error(
        "socket path {path} is longer than {max} bytes; choose a shorter data folder or socket \
         path, or set XDG_RUNTIME_DIR"
    )]
    SocketPathTooLong {
        /// The path that is too long.
        path: PathBuf,
        /// Longest path that a socket can have, in bytes.
        max: usize,
    },
    /// The supervisor's thread cannot start.
    #[error("failed to start the engine's supervisor")]
    Supervisor(#[source] io::Error),
    /// The engine gave up.
    #[error(transparent)]
    Failed(EngineFailure),
    /// The engine was stopped.
    #[error("the embedded engine is stopped")]
    Stopped,
}

/// The reason why the engine's child did not start.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EngineFailure {
    /// Another process has the folder open (ClickHouse code 76): another server, or the engine of a killed server,
    /// which needs a moment to end.
    #[error(
        "the data folder {data_dir} is in use by another process; stop that one, or choose \
         another folder"
    )]
    Locked {
        /// The folder, as configured.
        data_dir: PathBuf,
    },
    /// libchdb is missing, damaged or too old.
    #[error("{reason}; `epwatch engines` fetches the library")]
    Library {
        /// Error of the loader.
        reason: String,
    },
    /// The engine's program cannot be started at all.
    #[error("failed to start the engine's program: {reason}")]
    Program {
        /// Error of the operating system.
        reason: String,
    },
    /// The engine, or its socket, did not open.
    #[error("failed to start the embedded engine: {reason}; it said: {stderr}")]
    Start {
        /// Report of the child, or the way it ended.
        reason: String,
        /// The end of its standard error.
        stderr: String,
    },
}

impl EngineFailure {
    /// Returns whether any further attempt would fail too.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self, EngineFailure::Start { .. })
    }
}

/// State of the engine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EngineState {
    /// A child is starting, or the next start waits for its backoff.
    Starting {
        /// Children that died so far.
        n_restarts: u64,
    },
    /// The socket answers.
    Ready {
        /// The child's process id.
        pid: u32,
        /// ClickHouse's version.
        version: String,
        /// Children that died so far.
        n_restarts: u64,
        /// Where readers connect, if they were asked for.
        readers: Option<SocketAddr>,
    },
    /// The supervisor gave up. The engine will not come back.
    Failed {
        /// The failure of the last start.
        reason: EngineFailure,
    },
    /// It was stopped.
    Stopped,
}
