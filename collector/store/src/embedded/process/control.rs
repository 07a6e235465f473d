//! Messages between supervisor and engine child: one JSON line in each direction.
//!
//! The channel is a socket pair, and the child's standard input. The child reads its orders and writes one
//! [`StartReport`]. Then it waits for the end of the channel, which means that the parent stopped it or died.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::embedded::protocol::reader::ReaderAccess;

/// Longest line that is read.
pub(super) const MAX_LINE_BYTES: u64 = 64 << 10;

/// Orders of the supervisor to the child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Orders {
    /// The parent's process id, by which a child that starts after its parent's death notices the death.
    pub(super) parent_pid: u32,
    pub(super) library: PathBuf,
    /// The folder that the engine owns.
    pub(super) data: PathBuf,
    pub(super) config_file: PathBuf,
    pub(super) socket: PathBuf,
    /// Further arguments of the engine, in addition to path and configuration.
    pub(super) engine_args: Vec<String>,
    /// Settings for requests that do not set them.
    pub(super) default_settings: Vec<(String, String)>,
    pub(super) max_concurrent_queries: usize,
    /// Memory that the engine may take.
    pub(super) memory_bytes: u64,
    /// The port for readers, if one is configured.
    pub(super) readers: Option<ReaderAccess>,
    pub(super) drain_ms: u64,
}

/// Result of the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StartReport {
    Ready {
        version: String,
        /// Where readers connect.
        readers: Option<SocketAddr>,
    },
    Failed {
        stage: Stage,
        reason: String,
    },
}

/// The step in which a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// The library is missing, damaged or too old.
    Library,
    /// The engine did not open its folder; its standard error has the reason.
    Engine,
    /// The socket cannot be bound.
    Socket,
}
