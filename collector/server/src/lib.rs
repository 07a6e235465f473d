//! Parts that collector and detector need alike, each once.
//!
//! Holds the admin endpoint, the table of metrics, the units and problems of a config, the clock, retry pauses and the
//! atomic replacement of a file. It holds nothing that one of the two alone needs, and never talks
//! to the store or to a device.

mod admin;
mod backoff;
mod clock;
mod files;
mod metrics;
mod problems;
mod units;

pub use crate::admin::{AdminPages, AdminServer, BindError, bind};
pub use crate::backoff::Backoff;
pub use crate::clock::{Clock, ManualClock, SystemClock};
pub use crate::files::replace_file;
pub use crate::metrics::{Label, MetricTable, open_metrics};
pub use crate::problems::{Problem, Problems};
pub use crate::units::{ByteSize, Period, UnitError};
