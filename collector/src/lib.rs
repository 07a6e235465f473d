//! Takes reports from devices, keeps them durably, and writes them to ClickHouse once.
