//! Judges cohorts of devices from what the store holds, and tells people.
//!
//! In comes ClickHouse's versioned views; out go rows of `cohort_windows` and `incidents`, and
//! notifications. The path: [`source`] selects and adds, [`window`] holds one vote a device,
//! [`signals`] count devices, [`verdict`] names what is the matter, [`incident`] decides when that
//! becomes a page, [`notify`] carries it. Everything between source and notifier is pure: no I/O, no
//! clock. It never judges merged runs: devices are the sample.

pub mod baseline;
pub mod cohort;
pub mod explain;
pub mod incident;
mod next_step;
pub mod placement;
pub mod reason;
pub mod signals;
pub mod verdict;
pub mod window;

