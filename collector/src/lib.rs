//! Receives reports from devices, keeps them durably, and writes them to ClickHouse once.
//!
//! `server -> ingest -> wal -> writer -> rollup`, each a module of its own:
//! - `server` is the device port: connections, TLS, gRPC and Connect, limits of bodies.
//! - `ingest` validates every report of a call and acknowledges those that the WAL has on disk. It does not change a
//!   report's bytes.
//! - `wal` is the write-ahead log: group commit, replay after a crash, refusal when it is full.
//! - `writer` encodes the WAL's reports (`encode`) and inserts them in batches that a crash does not change. The
//!   checkpoint moves after the insert.
//! - `rollup` closes buckets of time that every collector has passed. `rebuilds` builds summaries of closed buckets
//!   again if a backlog changed them.
//!
//! The collector never drops an acknowledged report, and never waits for the store before it acknowledges. It never
//! decides which copy of a report counts: the store's table of copies does.

mod admission;
pub mod backup;
mod buffer_pool;
pub mod check;
mod collector;
pub mod config;
mod context;
mod deletions;
pub mod directives;
mod encode;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod ingest;
mod join_task;
mod ledger_readings;
mod loss_ledger_gauges;
mod metrics;
mod proxy_watch;
mod rebuild_requests;
mod rebuilds;
mod refusal_counts;
mod report_path;
mod rollup;
mod rpc;
#[cfg(feature = "samples")]
pub mod sample_rows;
pub mod schema;
mod server;
mod store;
mod store_size;
mod wal;
mod wal_dump;
mod wal_record;
mod writer;

pub use clickhouse::Client;

pub use crate::collector::{Collector, CollectorStartError};
pub use crate::wal::{Batch, Wal, WalOffset, WalOptions};
pub use crate::wal_dump::{DumpError, Dumped, dump_wal};

#[cfg(test)]
epwatch_store::engine_child_entry!();
