//! Takes reports from devices, keeps them durably, and writes them to ClickHouse once.

pub mod clock;
pub mod config;
mod http;
pub mod metrics;
pub mod units;
pub mod wal;
