//! Judges cohorts of devices from the reports in the store, and notifies people of incidents.
//!
//! Input: ClickHouse's versioned views, or a recording. Output: rows of `cohort_windows` and `incidents`, and
//! notifications. The path: [`read`] selects and adds, [`window`] holds one vote for each device, [`signals`] count
//! devices. [`verdict`] names the fault, [`incident`] decides when it becomes a page, and [`notify`] delivers the page.
//! Everything between `read` and `notify` is pure: no I/O, no clock. It never judges merged runs, because devices are
//! the sample.

mod alert_reconciler;
mod base_rates;
mod baseline;
mod certified;
mod cohort_evidence;
mod cohort_metrics;
mod config;
mod cpu_alone;
mod cv_rules;
mod deadline;
mod describe;
mod detector;
mod device_events;
mod evaluate;
mod hash;
pub mod incident;
mod incident_set;
mod interner;
mod judging;
mod lease;
mod metrics;
mod next_step;
pub mod notify;
mod past_version;
mod pinned_references;
mod placement;
pub mod read;
mod reason;
pub mod replay;
mod run_loop;
mod settled_orders;
pub mod signals;
mod sybil_resistance;
mod tally;
#[cfg(test)]
mod testing;
mod timetable;
mod unwritten;
mod varint;
pub mod verdict;
mod verdict_store;
pub mod window;
mod window_schedule;

pub use base_rates::BaseRates;
pub use baseline::Baseline;
pub use certified::{Certified, CertifiedError, CertifiedPlacement};
pub use cohort_evidence::evidence_of;
pub use config::{DetectorConfig, ExpectsNpu};
pub use cv_rules::CvRule;
pub use deadline::Deadline;
pub use describe::describe;
pub use detector::{Detector, StartError};
pub use device_events::DeviceEvents;
pub use evaluate::{Evaluation, Evaluator};
pub use metrics::Metrics;
pub use pinned_references::PinnedReferences;
pub use sybil_resistance::{NetworkHash, Sender};
pub use verdict_store::VerdictStore;
