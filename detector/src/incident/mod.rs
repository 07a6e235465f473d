//! Life of an incident: Inactive -> Pending -> Firing -> Resolved; Mitigated while a directive keeps its
//! devices off the NPU.
//!
//! Pure: takes the incidents so far, the verdicts of one window and the time; returns the incidents that
//! changed. One incident covers a model version and a cause, with its cohorts (chipsets, firmwares) inside.
//! Each cohort is confirmed and cleared on its own; a shorter window ends an incident sooner. Incidents with one cause are united: one of them is sent. Two windows
//! count as two only if they share no data. People's orders change an incident too: `apply_order`.

mod advance;
mod apply_orders;
mod cohort;
mod hold;
mod merge;
mod mitigation;
mod recovery;
pub(crate) mod set;
pub(crate) mod settled_orders;
mod succession;

pub(crate) use advance::advance;
pub(crate) use apply_orders::{apply_order, expire_mute, pins_references};
pub(crate) use hold::quieted;
pub(crate) use recovery::{RecoveryWindow, end_quiet, end_recovered, recovers_in, to_recover};

#[cfg(test)]
mod monotone;
#[cfg(test)]
mod tests;
