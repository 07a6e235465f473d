//! Judges cohorts of devices from the reports in the store, and notifies people of incidents.
//!
//! Input: ClickHouse's versioned views, or a recording. Output: rows of `cohort_windows` and `incidents`, and
//! notifications. The path: [`read`] selects and adds up rows, [`window`] holds one vote for each device, [`signals`]
//! count devices. [`verdict`] names the fault, [`incident`] decides when it becomes a page, and [`notify`] delivers the
//! page. Everything between `read` and `notify` is pure: no I/O, no clock. The crate never judges merged runs, because
//! the sample consists of devices.

pub mod incident;
mod judge;
pub mod notify;
pub mod read;
mod run;
#[cfg(test)]
mod testing;

pub use judge::base_rates::BaseRates;
pub use judge::baseline::Baseline;
pub use judge::certified::{Certified, CertifiedError, CertifiedPlacement};
pub use judge::cohort_evidence::evidence_of;
pub use judge::cv_rules::CvRule;
pub use judge::deadline::Deadline;
pub use judge::describe::describe;
pub use judge::device_events::DeviceEvents;
pub use judge::evaluate::{Evaluation, Evaluator};
pub use judge::pinned_references::PinnedReferences;
pub use judge::sybil_resistance::{NetworkHash, Sender};
pub use judge::{signals, verdict, window};
pub use run::config::{DetectorConfig, ExpectsNpu};
pub use run::detector::{Detector, DetectorStartError};
pub use run::metrics::Metrics;
pub use run::replay;
pub use run::verdict_store::VerdictStore;
