//! The command line of the runner.

use std::path::PathBuf;

use epwatch_gate::policy::{MOST_LAUNCHES, MOST_RUNS};
use epwatch_manifest::FreeDim;

use crate::{inputs::InputKind, job::KeyValue, launch_timeout::LaunchTimeout};

/// The models to measure, and the runtime.
#[derive(Debug, Clone, clap::Args)]
pub struct Command {
    /// The ONNX model.
    #[arg(required_unless_present = "job")]
    pub(crate) model: Option<PathBuf>,
    /// The model that it is compared with. Its launches and the model's take turns.
    #[arg(long, value_name = "OLD_MODEL")]
    pub(crate) against: Option<PathBuf>,
    /// Path of libonnxruntime, the app's own.
    #[arg(long, value_name = "LIB", required_unless_present = "job")]
    pub(crate) ort: Option<PathBuf>,
    /// Path of the QNN plugin, libonnxruntime_providers_qnn.so. Without it the model runs on the CPU.
    #[arg(long, value_name = "LIB", requires = "qnn_backend")]
    pub(crate) qnn_provider: Option<PathBuf>,
    /// Path of libQnnHtp.so.
    #[arg(long, value_name = "LIB", requires = "qnn_provider")]
    pub(crate) qnn_backend: Option<PathBuf>,
    /// QNN's number of the chipset. Only its emulator needs one.
    #[arg(long, value_name = "NUMBER", requires = "qnn_provider")]
    pub(crate) soc_model: Option<String>,
    /// Option of the QNN EP, as the app gives it: htp_performance_mode=burst. Once for each.
    #[arg(long, value_name = "KEY=VALUE", requires = "qnn_provider")]
    pub(crate) ep_option: Vec<KeyValue>,
    /// Size of a dimension that the model leaves open: batch=1. Once for each.
    #[arg(long, value_name = "NAME=SIZE")]
    pub(crate) dim: Vec<FreeDim>,
    /// The app's library of custom ops, built for this device (RegisterCustomOpsLibrary). Once for each.
    #[arg(long, value_name = "LIB")]
    pub(crate) custom_ops: Vec<PathBuf>,
    /// MACs of the model's nodes (JSON), as `epwatch manifest` writes them, for the shares of the work.
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// MACs of the nodes of the model that it is compared with.
    #[arg(long, value_name = "FILE", requires = "against")]
    pub(crate) against_manifest: Option<PathBuf>,
    /// Inputs of the model: noise, zeros, ones, ramp, or a folder with input_0.pb, input_1.pb as ONNX's test data has.
    #[arg(long, value_name = "KIND|FOLDER", default_value = "noise")]
    pub(crate) inputs: InputKind,
    /// Launches of each model.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_LAUNCHES)))]
    pub(crate) launches: u32,
    /// Timed runs of a launch.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RUNS)))]
    pub(crate) runs: u32,
    /// Runs of a launch before those, which do not count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=i64::from(MOST_RUNS)))]
    pub(crate) warmup: u32,
    /// Longest pause before a launch, until two pieces of work on the CPU take as long, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub(crate) steady_seconds: u64,
    /// Longest time of one launch. A launch that takes longer is ended with its processes.
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) launch_timeout: LaunchTimeout,
    /// The chipset, for example SM8650 [default: as the device names it].
    #[arg(long, value_name = "NAME")]
    pub(crate) chipset: Option<String>,
    /// The device's name in reports [default: as the device names it].
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// The device's firmware in reports [default: what the device says].
    #[arg(long, value_name = "NAME")]
    pub(crate) firmware: Option<String>,
    /// Tells this device apart from others of its kind that are measured at the same time.
    #[arg(long, value_name = "NAME")]
    pub(crate) phone: Option<String>,
    /// The folder that gets a file a launch. Launches whose file is there are not made again.
    #[arg(long, value_name = "DIR", required_unless_present = "job")]
    pub(crate) out: Option<PathBuf>,
    /// For a program on another machine that started this: each file goes to standard output too, as a line with its name.
    /// Ends when standard input ends, or is silent for a minute.
    #[arg(long, hide = true)]
    pub(crate) attended: bool,
    /// For a program on this machine that started this: ends when standard input ends, however that program did.
    #[arg(long, hide = true, conflicts_with = "attended")]
    pub(crate) ends_with_stdin: bool,
    /// Writes what was seen here into one signed file, for the table in docs/device.md. It has no paths and no names of the model
    /// or its nodes. FILE.pub gets its public key.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// One launch, as the parent process describes it.
    #[arg(long, hide = true, exclusive = true)]
    pub(crate) job: Option<PathBuf>,
}
