//! Watches ONNX Runtime sessions from inside the app: which nodes run on the NPU, and how long a run takes.
//!
//! ```no_run
//! # #[cfg(feature = "ort")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! # use epwatch_sdk::{ModelInfo, SdkConfig, Watch};
//! # use ort::{inputs, session::Session, value::Tensor};
//! let config = SdkConfig::builder("com.example.camera", "http://127.0.0.1:4717", "demo-key", "/tmp/epwatch");
//! // Nothing is recorded, written or sent before the user has said yes.
//! let watch = Watch::start(config.with_consent(true).build()?)?;
//! let environment = ort::init_from("libonnxruntime.so")?.build()?;
//! let mut session = watch
//!     .session(ModelInfo::new("segmenter", "3")?, Session::builder(&environment)?)
//!     .commit_from_file("segmenter.onnx")?;
//! # let input = Tensor::from_array(([1_usize], vec![0.0_f32]))?;
//! let outputs = session.run(inputs![input])?;
//! # drop(outputs);
//! println!("{}", watch.explain());
//! watch.stop(Duration::from_secs(5))?;
//! # Ok(()) }
//! # #[cfg(not(feature = "ort"))]
//! # fn main() {}
//! ```
//!
//! The SDK is the first stages of the path `run -> histogram -> report -> spool -> upload`. The app's sessions and runs
//! come in; their outputs go out unchanged, and reports go to the collector. The parts:
//!
//! - [`Watch`] is the handle of one process. It makes sessions, and owns a thread that seals, stores and uploads
//!   reports.
//! - [`ObservedSession`] wraps an `ort` session, and records its [`placement`] once and one latency sample per run.
//! - [`AttachedSession`] does the same for a session that a host in another language has made.
//! - [`SessionPlan`] is the operator's directives applied to the next session.
//! - [`self_test`] compares NPU and CPU on a reference input.
//! - [`preflight`] finds what keeps the NPU from starting, before a session is made.
//! - [`types`] has the types of reports that calls take or return.
//! - [`policy`] holds every default and limit with its reason.
//!
//! The SDK records, writes and sends nothing without consent ([`Watch::set_consent`]). Uploads stay within a byte
//! budget per day and kind of network ([`ByteBudget`]). Except where a function says so, no call touches disk or
//! network on the caller's thread. A run never waits, and no tensor, user identifier or text of a user leaves the device.
//! No panic reaches the app, as long as panics unwind: with `panic = "abort"` in the app's profile a panic of the SDK ends
//! it. Dropped data is counted and reported.
//!
//! Items that this documentation does not show are for the programs of epwatch's own repository. They return the wire's
//! types (`epwatch-proto`), and change without notice.

#![cfg_attr(
    not(feature = "simulation"),
    expect(unreachable_pub, reason = "only the simulation reaches these items")
)]

pub mod placement;
pub mod policy;
pub mod self_test;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod types;

mod baselines;
mod client;
mod config;
mod core;
mod directives;
mod driver;
mod explain;
mod folder;
#[cfg_attr(
    all(unix, not(target_os = "android")),
    expect(unsafe_code, reason = "the C library counts forks by a handler")
)]
mod fork;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod host;
mod installation;
mod lock;
mod moments;
mod queue;
mod random;
mod recorder;
mod session;
mod shared;
mod side_car;
mod spool;
mod time;
mod upload;

/// Reads a device's description and thermal status, for programs that measure on it. Needs no [`Watch`], and nothing is
/// recorded or sent.
#[doc(hidden)]
pub mod desk {
    pub use crate::host::{device::read_linux as device, thermal_zones::read as thermal};
}

#[cfg(feature = "qnn")]
pub use crate::host::qnn;
pub use crate::host::{preflight, runtime};

pub use crate::client::{StartError, Watch};
pub use crate::config::{ConfigError, ModelInfo, SdkConfig, SdkConfigBuilder, TrustedRoots};
pub use crate::directives::SessionPlan;
pub use crate::explain::{
    ExplainedEp, ExplainedLoss, ExplainedNode, ExplainedReason, ExplainedSession,
    ExplainedStartFailure, ExplainedUpload, Explanation, FailedCheck,
};
#[doc(hidden)]
pub use crate::fork::n_forks;
pub use crate::placement::{HostRuntime, HostSession, LoggingFunction, PrepareError};
pub use crate::recorder::conditions::Conditions;
pub use crate::session::{
    AttachRequest, AttachedSession, HostAssignment, HostPlacement, SessionRequest,
};
#[cfg(feature = "ort")]
pub use crate::session::{ObservedRun, ObservedSession};
pub use crate::side_car::{SideCarError, read_side_car};
pub use crate::upload::budget::{ByteBudget, NetworkKind};
pub use crate::upload::{FlushError, Refusal, RequestKind, Retry, UploadBatch, UploadError};

#[cfg(any(test, feature = "fuzzing"))]
use crate::host::device::simulated_device;
use crate::random::{random_session_uid, random_stream, random_u64};

/// Compiles the program of the README.
#[cfg(all(doctest, feature = "ort"))]
#[doc = include_str!("../README.md")]
struct ReadmeTests;

/// Compiles the programs of the guide, and runs those without a device.
#[cfg(all(doctest, feature = "qnn"))]
#[doc = include_str!("../../docs/sdk.md")]
struct GuideTests;
