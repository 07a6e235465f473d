//! The log target of a report's path through a collector: received, validated, on disk, acknowledged, stored.
//!
//! Its spans and lines are of level debug. They name app keys and ranges of the WAL, never a device. The table
//! `reports` has each report's `wal_offset`, which leads to the group and the batch that contained it.

/// `EPWATCH_LOG=info,epwatch_collector::report_path=debug` shows these lines alone.
pub(crate) const REPORT_PATH: &str = "epwatch_collector::report_path";
