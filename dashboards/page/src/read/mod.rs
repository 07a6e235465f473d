//! The read model: one struct for each page, read from versioned views with bound parameters. HTML and JSON are made
//! from the same struct, so they cannot differ.
//!
//! It writes nothing. A part that cannot be read, or not in time, is left out and named in `left_out`. A page whose
//! first query fails is an error.

mod budget;
pub(crate) mod certificates;
pub(crate) mod changes;
pub(crate) mod choices;
pub(crate) mod cohort;
pub(crate) mod document;
pub(crate) mod evidence;
mod first_judged;
pub(crate) mod fleet;
pub(crate) mod gaps;
pub(crate) mod golden;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod incident;
pub(crate) mod incident_list;
pub(crate) mod incidents;
pub(crate) mod installations;
mod last_seen;
pub(crate) mod ledger;
pub(crate) mod orders;
pub(crate) mod period;
pub(crate) mod progress;
pub(crate) mod rollout;
pub(crate) mod scope;
pub(crate) mod sessions;
pub(crate) mod store;
pub(crate) mod windows;
