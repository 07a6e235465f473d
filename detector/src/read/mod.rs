//! Reads windows from the store's versioned views, or from recorded reports by the same rules: one trait
//! (`ReportReader`) with two implementations. This module makes no decisions.

mod arrivals;
mod assemble;
mod batches;
mod census;
mod cpu_nodes;
mod device_baselines;
mod error;
mod evaluation_inputs;
mod event_log;
mod feedback;
mod history;
pub(crate) mod interner;
mod model_windows;
mod packed;
mod past;
mod reader;
pub mod recorded;
mod reporting;
mod source;
mod span;
mod store;
mod succession;
pub(crate) mod varint;

pub use arrivals::NewInstallations;
pub use batches::batches;
pub use device_baselines::{BaselineRequest, BaselineVersion, DeviceBaselines};
pub use error::SourceError;
pub use evaluation_inputs::EvaluationInputs;
pub use feedback::{FalseIncident, Feedback};
pub use history::{EarlierWindows, UsualCv, UsualDevices, VersionHistory};
pub use model_windows::{FoundModel, ModelWindows};
pub use past::PastWindows;
pub use reader::HeldLookBack;
pub use recorded::Recording;
pub use reporting::Reporting;
pub use source::Source;
pub use span::Span;
pub(crate) use succession::Succession;
