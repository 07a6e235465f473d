//! Life of an incident: Inactive -> Pending -> Firing -> Resolved; Mitigated while a directive keeps
//! its devices off the NPU.
//!
//! Pure: incidents so far, one window's verdicts and the time in; incidents as they are now out. One
//! incident covers an app's model version and cause, with the cohorts (chipsets, firmwares) inside;
//! each cohort is confirmed and cleared on its own. Only windows that share no data count as two.

mod advance;
mod cohort;
mod mitigation;
mod model;

pub(crate) use advance::advance;
pub(crate) use cohort::CLEAN_WINDOWS;
pub use model::State;
pub(crate) use model::{Cause, Headline, Incident, IncidentKey};

#[cfg(test)]
mod tests;
