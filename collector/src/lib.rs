//! Takes reports from devices, keeps them durably, and writes them to ClickHouse once.

pub mod clock;
pub mod wal;
