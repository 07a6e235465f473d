//! Kills collectors and their store under load, cuts the store off for long spells, and counts at the
//! end the reports that were lost or counted twice.
//!
//! Devices of a light client send reports to real `epwatch` processes and remember every one until it is
//! acknowledged; a reaper kills the processes with SIGKILL at random moments, also while they start. At
//! the end every report that was acknowledged must count once in every view, none may be there that was
//! never sent, and the loss ledger must close.
//!
//! Nothing here looks into the processes: it has a device's view and the answers of the store's views.
#![expect(missing_docs, reason = "only this workspace uses it")]

mod check;
mod device;
mod fault;
mod load;
mod options;
mod process;
mod report;
mod run;
mod servers;
mod views;

pub use check::Findings;
pub use options::{FaultOptions, Servers};
pub use run::{Document, Kills, command_beside, run};
pub use views::ViewCount;
