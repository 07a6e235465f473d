//! The runner: measures a model on the device that it runs on.
//!
//! Input: a model, perhaps an older model too, ONNX Runtime's library and the EP that the app asks for. Output: a
//! folder with a document `epwatch.run/1` for each launch, which `epwatch gate --runs` judges. A launch is a process of
//! its own with one session. The launches of two models take turns (A B B A), because a device gets warm. A launch that
//! the device throttled, or that a signal ended, is made again, and is kept under another name.
//!
//! Before the timed launches each model has one untimed launch. This launch logs why nodes are not on the NPU, and
//! compares the outputs with the CPU's. Then a few runs are profiled, and a session is made from a cache where the EP
//! has one.

mod args;
mod attended;
mod broken;
mod change;
mod conditions;
mod crash;
mod document;
mod inputs;
mod job;
mod kept;
mod launch;
mod launch_timeout;
mod measured;
mod parent;
mod path_bytes;
mod report;
mod report_file;
mod say;
mod schedule;
mod session;
mod settings;
mod side;
mod unchanged;
mod untimed;
mod wrong_use;

pub use args::Command;
pub use broken::broken_by;
pub use crash::crash_signal;
pub use job::PATH_OPTIONS;
pub use launch_timeout::LaunchTimeout;
pub use parent::{exit_code, run};
pub use report::write_report;
pub use report_file::{ReportKind, check_report, check_seen_report, key_of, replace_report};
pub use say::say;
pub use session::{lacks_custom_ops, needs_custom_ops, with_custom_ops};
pub use wrong_use::WrongUse;

/// The runner's file name on another machine. The command `epwatch` is the runner, too, where its file has this name.
pub const PROGRAM: &str = "epwatch-run";
