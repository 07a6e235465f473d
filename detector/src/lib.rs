//! Judges cohorts of devices from what the store holds, and tells people.
//!
//! In comes ClickHouse's versioned views; out go rows of `cohort_windows` and `incidents`, and
//! notifications. The path: [`read`] selects and adds, [`window`] holds one vote a device,
//! [`signals`] count devices, [`verdict`] names what is the matter, [`incident`] decides when that
//! becomes a page, [`notify`] carries it. Everything between source and notifier is pure: no I/O, no
//! clock. It never judges merged runs: devices are the sample.

pub mod baseline;
mod book;
pub mod clock;
pub mod cohort;
pub mod config;
mod detector;
mod evaluate;
pub mod explain;
mod frozen;
mod hash;
pub mod http;
pub mod incident;
mod judged;
mod lease;
pub mod metrics;
mod next_step;
pub mod notify;
pub mod period;
pub mod placement;
pub mod rates;
pub mod read;
pub mod reason;
pub mod replay;
pub mod reported;
pub mod rules;
pub mod signals;

pub mod store;
pub mod summary;
#[cfg(test)]
mod testing;
pub mod verdict;
pub mod window;

pub use config::DetectorConfig;
pub use detector::{Detector, StartError};
pub use evaluate::{Evaluation, Evaluator};
pub use frozen::Frozen;
