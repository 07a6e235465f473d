//! Waits and engines that tests of several crates share.

mod engine;
mod until;

pub use engine::{chdb_library, engine_config};
pub use until::{DEADLINE, Finding, until, wait_for};
