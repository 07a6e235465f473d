//! Watches ONNX Runtime sessions from inside the app: where nodes run, and how long a run takes.
//!
//! The first stages of the path `run -> histogram -> report -> spool -> upload`. In come the app's
//! sessions and runs; out go their outputs, unchanged, and reports to the collector. A host starts
//! a [`Watch`] and makes its sessions through it:
//!
//! - [`ObservedSession`] wraps an `ort` session: a [`placement`] once, a latency sample a run;
//! - [`SessionPlan`] is what the operator's directives want of the next session;
//! - [`self_test`] compares NPU and CPU on a reference input;
//! - [`Core`] is all that decides (recording, baselines, sealing) with time passed in: [`Watch`]
//!   drives one on the real clock, with a spool on disk and an uploader on a thread of its own;
//!   simulations drive many;
//! - [`policy`] holds every number with its reason.
//!
//! Without the user's consent nothing is recorded, written or sent ([`Watch::set_consent`]); what
//! is sent stays within a byte budget per day and kind of network ([`ByteBudget`]).
//!
//! It never touches disk or network on a caller's thread (but where a function says so), never
//! waits on the inference path, never panics into the app, and never sends tensors, identifiers or
//! text of a user. What it has to give up it counts, and reports.

pub mod placement;
pub mod policy;
pub mod self_test;

mod baselines;
mod client;
mod config;
mod core;
mod directives;
mod driver;
mod error_text;
mod explain;
mod folder;
mod host;
mod installation;
mod lock;
mod moments;
mod random;
mod recorder;
mod session;
mod shared;
mod spool;
mod time;
mod upload;

#[cfg(feature = "qnn")]
pub use crate::host::qnn;
pub use crate::host::{preflight, runtime};

pub use crate::client::{StartError, Watch};
pub use crate::config::{
    ConfigError, CoreConfig, ModelInfo, SdkConfig, SdkConfigBuilder, TrustedRoots,
};
pub use crate::core::{Core, SealedReport, SessionInfo};
pub use crate::directives::SessionPlan;
pub use crate::explain::{
    ExplainedEp, ExplainedNode, ExplainedReason, ExplainedSession, Explanation, FailedCheck,
};
pub use crate::host::device::DeviceFacts;
pub use crate::random::{random_session_uid, random_stream, random_u64};
pub use crate::recorder::SessionRecorder;
pub use crate::recorder::conditions::Conditions;
pub use crate::session::simulated::SimulatedSession;
pub use crate::session::{ObservedSession, SessionRequest};
pub use crate::spool::Limits;
pub use crate::time::Now;
pub use crate::upload::budget::{ByteBudget, NetworkKind};
pub use crate::upload::{FlushError, RequestKind, Retry, UploadBatch, UploadError};
