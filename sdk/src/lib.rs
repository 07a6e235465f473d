//! Watches ONNX Runtime sessions from inside the app: where nodes run, and how long a run takes.

pub mod placement;
pub mod policy;

mod baseline;
mod conditions;
mod config;
mod core;
mod device;
mod moments;
mod names;
mod random;
mod recorder;
mod report;
mod time;

pub use crate::conditions::Conditions;
pub use crate::config::{ConfigError, CoreConfig, Limits, ModelInfo, SdkConfig, SdkConfigBuilder};
pub use crate::core::{Core, SealedReport, SessionInfo};
pub use crate::device::DeviceFacts;
pub use crate::random::{random_session_uid, random_stream, random_u64};
pub use crate::recorder::SessionRecorder;
pub use crate::time::Now;
