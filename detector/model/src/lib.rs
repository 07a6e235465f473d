//! The detector's conclusions as types: the cohort and its window's signals, verdict and evidence, the incident with
//! people's orders, and the reasons as sentences.
//!
//! The detector makes these values, stores them and sends them. Pages and commands read the same types, so the compiler
//! reports a field that was renamed. The crate decides nothing: it has no I/O and no clock. [`rows`] has its values as
//! rows of the store's views.

mod class;
mod cohort;
mod document;
mod document_version;
mod evidence;
mod headings;
mod incident;
mod late_runs;
mod names;
pub mod numbers;
mod placement;
mod reason;
mod reference;
pub mod rows;
mod signal;
mod statistics;
pub mod summary;
mod verdict;

pub use class::{Severity, TOTAL_FALLBACK_BELOW, VerdictClass};
pub use cohort::{AppEnvironment, CohortKey, Installation, ModelKey, VersionOnChipset};
pub use document::{DocumentError, read_document, write_document};
pub use document_version::{DOCUMENT_VERSION, DocumentVersion};
pub use evidence::{CohortEvidence, LATENCY_BINS, LatencyBins, RATIO_BINS, RatioBins};
pub use incident::{
    CLEAN_WINDOWS, Cause, EvidenceStrength, FailedAttempts, Headline, HeldEffect, Hold, Incident,
    IncidentCohort, IncidentKey, MovedTo, Order, OrderKind, OrderNews, Orders, State, signed,
    start_of,
};
pub use late_runs::LateRuns;
pub use placement::{Placement, PlacementMethod, WorkUnit};
pub use reason::{CertifiedFirmware, DropPlace, OutputDrop, Reason, SlowLimit, many_are_new};
pub use reference::{Origin, PlacementReference, SpeedReference};
pub use signal::{BEYOND_TENTHS, Signal, SignalId, TAIL_PERCENTS};
pub use statistics::{Mixture, Modes, WindowStatistics};
pub use verdict::{CohortVerdict, TakenOver, VerdictNumbers};
