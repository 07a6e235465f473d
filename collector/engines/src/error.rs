//! The reasons for which an engine is not available, each with the way out.

use std::{io, path::PathBuf, time::Duration};

use crate::Engine;

/// The reason why an engine is not installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine does not exist for this platform; nothing the user installs changes that.
    #[error("{engine} is not available here: {reason}")]
    Unavailable {
        /// The requested engine.
        engine: Engine,
        /// The publisher and its platforms.
        reason: String,
    },

    /// Neither `EPWATCH_CACHE`, `XDG_CACHE_HOME` nor `HOME` names a folder.
    #[error("failed to find a cache folder: set EPWATCH_CACHE to a folder epwatch may write to")]
    NoCacheFolder,

    /// The cache folder does not exist and cannot be made.
    #[error("failed to create cache folder {}: set EPWATCH_CACHE to a folder epwatch may write to", path.display())]
    NoCache {
        /// The cache folder that is set, or the default.
        path: PathBuf,
        /// Why it cannot be made.
        #[source]
        source: io::Error,
    },

    /// A command that fetches or unpacks is not installed.
    #[error("failed to fetch {name}: `{tool}` is not installed; {way_out}")]
    ToolMissing {
        /// The entry that was being fetched.
        name: String,
        /// The program that could not be started.
        tool: String,
        /// Way out for the user.
        way_out: String,
    },

    /// Programs that fetch engines are not installed. Nothing was downloaded.
    #[error(
        "failed to fetch {names}: {programs} {verb} not installed; install {} (Debian, Ubuntu: `apt-get install {apt}`; \
         macOS: `brew install {brew}`), or bring the engines from a machine where `epwatch engines fetch` works: \
         `epwatch engines export FILE` there, `epwatch engines import FILE` here",
        if *verb == "is" { "it" } else { "them" }
    )]
    ProgramsMissing {
        /// The entries that they fetch.
        names: String,
        /// The programs, each in backticks.
        programs: String,
        /// `is` or `are`.
        verb: &'static str,
        /// Packages of Debian and Ubuntu.
        apt: String,
        /// Formulas of Homebrew.
        brew: String,
    },

    /// A signal ended the fetch.
    #[error("failed to fetch {name}: interrupted")]
    Interrupted {
        /// The entry that was being fetched.
        name: String,
    },

    /// A command failed (offline, unknown version, no disk space), or was killed because it did not end in time.
    #[error("failed to fetch {name}: `{command}` {status}\n{stderr_tail}\n{way_out}")]
    CommandFailed {
        /// The entry that was being fetched.
        name: String,
        /// The command line.
        command: String,
        /// The way it ended, as text: `ended with exit status: 1`.
        status: String,
        /// The last lines it wrote to standard error, indented.
        stderr_tail: String,
        /// Way out for the user.
        way_out: String,
    },

    /// An engine that was to be exported is not in the cache.
    #[error("failed to export {name}: it is not in the cache; `epwatch engines fetch` gets it")]
    NotFetched {
        /// The entry that is missing.
        name: String,
    },

    /// The archive has no engine of this version and platform.
    #[error("failed to import {}: it holds none of {expected}; export it with this version of epwatch", file.display())]
    NothingToImport {
        /// The archive, as named.
        file: PathBuf,
        /// The entries that this program uses, as text.
        expected: String,
    },

    /// No hash is pinned for the engine's build for this platform.
    #[error(
        "failed to fetch {name}: no hash is pinned for its build for this platform; `epwatch engines fetch --unpinned` \
         takes it on its source's word, and `epwatch status` says so from then on; or use a ClickHouse server \
         (`store.clickhouse`)"
    )]
    NotPinned {
        /// The entry that was asked for.
        name: String,
    },

    /// A fetched package has a library that this version does not know.
    #[error(
        "failed to verify {name}: {file} is a library without a pinned hash; remove {} and fetch again, and if it \
         happens again do not use this source",
        dir.display()
    )]
    UnknownLibrary {
        /// The entry that was checked.
        name: String,
        /// The file, relative to the entry.
        file: String,
        /// The folder that holds it.
        dir: PathBuf,
    },

    /// A fetched file is not the one that this version of epwatch was tested with.
    #[error(
        "failed to verify {name}: {file} has sha256 {found}, expected {expected}; \
         remove {} and fetch again, and if it happens again do not use this source",
        dir.display()
    )]
    HashMismatch {
        /// The entry that was checked.
        name: String,
        /// The file, relative to the entry.
        file: String,
        /// The pinned or recorded hash, lower-case hex.
        expected: String,
        /// The hash of the file in the cache.
        found: String,
        /// The folder that holds the file.
        dir: PathBuf,
    },

    /// The package lacks a file that epwatch needs.
    #[error("failed to verify {name}: {file} is missing in {}", dir.display())]
    FileMissing {
        /// The entry that was checked.
        name: String,
        /// The file, relative to the entry.
        file: String,
        /// The folder that was searched.
        dir: PathBuf,
    },

    /// Another process held the entry's lock for too long.
    #[error(
        "failed to lock {}: another process has been fetching {name} for {} s; \
         end it, or set EPWATCH_CACHE to another folder",
        lock.display(), after.as_secs()
    )]
    LockTimeout {
        /// The entry that is locked.
        name: String,
        /// The lock file.
        lock: PathBuf,
        /// How long this process waited.
        after: Duration,
    },

    /// The cache folder could not be read or written.
    #[error("failed to {doing} {}{}", path.display(), disk_hint(source))]
    Io {
        /// The action, `create`.
        doing: &'static str,
        /// The file or folder of the action.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl EngineError {
    /// True if the engine does not exist for this platform, so that a caller goes on without it.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Returns an adapter for `map_err`.
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }
}

/// Returns the way out of an I/O error; only a full disk has one.
fn disk_hint(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::StorageFull {
        ": free about 2 GB, or set EPWATCH_CACHE to a folder on a larger disk"
    } else {
        ""
    }
}
