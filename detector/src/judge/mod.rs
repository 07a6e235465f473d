//! Judges one window: votes, baselines, signals, and the verdict on each cohort.
//!
//! [`evaluate`] runs the steps. Everything else here is pure: no I/O, no clock.

pub(crate) mod base_rates;
pub(crate) mod baseline;
pub(crate) mod certified;
pub(crate) mod cohort_evidence;
pub(crate) mod cpu_alone;
pub(crate) mod cv_rules;
pub(crate) mod deadline;
pub(crate) mod describe;
pub(crate) mod device_events;
pub(crate) mod evaluate;
pub(crate) mod hash;
pub(crate) mod next_step;
pub(crate) mod past_version;
pub(crate) mod pasts;
pub(crate) mod pinned_references;
pub(crate) mod placement;
pub(crate) mod reason;
pub(crate) mod references;
pub mod signals;
pub(crate) mod sybil_resistance;
pub(crate) mod tally;
pub mod verdict;
pub mod window;
