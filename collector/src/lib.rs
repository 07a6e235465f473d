//! Takes reports from devices, keeps them durably, and writes them to ClickHouse once.
//!
//! `ingest -> wal -> writer -> roll-up`, each a module of its own:
//! - ingest parses every report of a call, and acknowledges those that the WAL has on
//!   disk; the bytes are kept as they came in.
//! - [`wal`] is that log: group commit, replay after a crash, refusal when it is full.
//! - the writer takes the WAL to the store in batches that a crash does not change, and moves the
//!   checkpoint when they are there.
//! - the roll-up closes buckets of time that every collector has passed.
//!
//! It never drops what it has acknowledged, never waits for the store to acknowledge, and never
//! decides which copy of a report counts: the store's key table does.

mod admission;
pub mod backup;
mod buffer_pool;
mod collector;
pub mod config;
mod deletions;
pub mod directives;
mod encode;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod ingest;
mod loss_ledger_gauges;
pub mod metrics;
mod refusal_counts;
mod rollup;
mod rpc;
pub mod schema;
mod server;
mod store;
pub mod wal;
mod wal_dump;
mod wal_record;
mod writer;

pub use clickhouse::Client;

pub use crate::collector::{Collector, StartError};
pub use crate::wal_dump::{DumpError, Dumped, dump_wal};

#[cfg(test)]
epwatch_store::engine_child_entry!();
