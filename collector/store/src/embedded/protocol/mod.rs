//! ClickHouse's HTTP protocol, as the engine's child serves it on a Unix socket and to readers on a TCP port.
//!
//! `http` answers requests with the other modules and the engine's jobs. No module here starts or ends a process.

pub(super) mod format;
pub(super) mod frame;
pub(super) mod http;
pub(super) mod reader;
pub(super) mod request;
pub(super) mod statement;
