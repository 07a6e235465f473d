//! Runs a detector: config, lease, timetable, the loop over windows, the tables that it writes, and replay.
//!
//! Only this folder and `read` wait for the store.

pub(crate) mod cohort_metrics;
pub(crate) mod config;
pub(crate) mod detector;
pub(crate) mod judging;
pub(crate) mod lease;
pub(crate) mod metrics;
pub mod replay;
pub(crate) mod run_loop;
pub(crate) mod timetable;
pub(crate) mod unwritten;
pub(crate) mod verdict_store;
pub(crate) mod window_schedule;
