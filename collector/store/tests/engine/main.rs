//! The embedded engine, real: libchdb in a child process behind its socket.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test panics like the test"
)]

mod durability;
mod guard;
mod lifecycle;
mod migrations;
mod protocol;
mod readers;
mod support;

epwatch_store::engine_child_entry!();
