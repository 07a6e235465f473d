//! The detector over a real engine: reports as the collector writes them, through the migrated
//! views, to verdicts, incidents and notifications.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test panics like the test"
)]

mod accelerators;
mod census;
mod incidents;
mod look_back;
mod orders;
mod outages;
mod replay;
mod schema;
mod several;
mod supervised;
mod support;
mod windows;
mod wire;

epwatch_store::engine_child_entry!();
