//! The collector with a real engine: reports from the device port, through the WAL, into every view.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, their children included"
)]

mod calls;
mod client_certificates;
mod cluster;
mod counting;
mod deletions;
mod disk_full;
mod faults;
mod floods;
mod gate;
mod hostile;
mod http;
mod identity;
mod interleaved;
mod ledger;
mod limits;
mod log_lines;
mod model;
mod names;
mod patient_forgery;
mod protocols;
mod rebuilds;
mod refusals;
mod repeated;
mod schema;
mod supervised;
mod support;
mod unproven;
mod wal_crash;
mod wal_files;
mod watch;
mod zookeeper;

epwatch_store::engine_child_entry!();
