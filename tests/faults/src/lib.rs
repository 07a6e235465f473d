//! Kills collectors and their store under load, and cuts the store off for long spells. At the end it counts the
//! reports that were lost or counted twice.
//!
//! Devices of a light client send reports to real `epwatch` processes and remember each one until it is acknowledged.
//! Processes get SIGKILL at random moments, including during their start. At the end every acknowledged report must
//! count once in each view, no other report may count, and the loss ledger must close.
//!
//! The harness never inspects the processes: it only uses a device's view and the answers of the store's views.
//! End-to-end tests also start their engines with it.
#![expect(missing_docs, reason = "only this workspace uses it")]

mod check;
mod device;
mod fault;
mod load;
mod options;
mod process;
mod proxy;
mod report;
mod run;
mod servers;
mod two_shards;
mod views;

pub use check::Findings;
pub use load::Account;
pub use options::{FaultOptions, Servers};
pub use proxy::Proxy;
pub use run::{Document, Kills, run};
pub use servers::{READER_PASSWORD, migrate, start_store};
pub use two_shards::{migrate_two_shards, start_two_shards};
pub use views::ViewCount;
