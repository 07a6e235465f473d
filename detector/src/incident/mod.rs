//! Life of an incident: Inactive -> Pending -> Firing -> Resolved; Mitigated while a directive keeps its
//! devices off the NPU.
//!
//! Pure: takes the incidents so far, the verdicts of one window and the time; returns the incidents that
//! changed. One incident covers a model version and a cause, with its cohorts (chipsets, firmwares) inside.
//! Each cohort is confirmed and cleared on its own; a shorter window ends an incident sooner. Incidents with one cause are united: one of them is sent. Two windows
//! count as two only if they share no data. People's orders change an incident too: `Incident::obey`.

mod advance;
mod cohort;
mod hold;
mod mitigation;
mod model;
mod obey;
mod order;
mod recovery;
mod succession;
mod unite;

pub(crate) use advance::advance;
pub(crate) use cohort::{CLEAN_WINDOWS, IncidentCohort};
pub(crate) use hold::quieted;
pub use model::State;
pub(crate) use model::{Cause, FailedAttempts, Headline, Incident, IncidentKey};
pub(crate) use order::{Order, OrderKind};
pub(crate) use recovery::{Recovery, end_quiet, end_recovered, to_recover};

#[cfg(test)]
mod monotone;
#[cfg(test)]
mod tests;
