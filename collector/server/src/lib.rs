//! Parts that the collector, the detector and the page share.
//!
//! Holds the admin endpoint, the HTTP port for few clients, the table of metrics, the units and problems of a config.
//! Holds the clock, retry pauses, the supervised tasks of a process, reading of a config's files and the atomic replacement of a
//! file. Holds blocks of addresses with the sender behind proxies, and the rule of admission of new installations. It holds
//! nothing that only one of them needs, and never connects to the store or a device.

mod address_block;
mod admin;
mod app_admission;
mod backoff;
mod clock;
mod files;
mod forwarded_for;
mod metrics;
pub mod new_installation_quota;
mod new_installations;
mod page;
mod port_holder;
mod problems;
mod process;
mod small_http_server;
mod tasks;
mod units;

pub use crate::address_block::{AddressBlock, AddressBlockError};
pub use crate::admin::{AdminPages, AdminServer, BindError, bind};
pub use crate::app_admission::AppAdmission;
pub use crate::backoff::Backoff;
pub use crate::clock::{Clock, ManualClock, SystemClock};
pub use crate::files::{
    irregular_kind, private_dir, read_config_file, read_config_text, read_secret, replace_file,
    replace_readable_file, warn_of_readers,
};
pub use crate::forwarded_for::{forwarded_for, is_trusted};
pub use crate::metrics::{Label, MetricReading, MetricTable, ReadValue, Scraped};
pub use crate::page::open_metrics;
pub use crate::problems::{MAX_LISTED, Problem, Problems};
pub use crate::small_http_server::serve_few_clients;
pub use crate::tasks::{ENDING, End, FaultPoints, TaskGuard, TaskSet};
pub use crate::units::{ByteSize, Period, UnitError};
