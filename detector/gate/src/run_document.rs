//! The document of a launch, `epwatch.run/1`: the runner writes it, the gate reads it, docs/gate.md lists its fields.
//!
//! Any runner may write it, so only the schema and the run times are required. `P` is the placement: the runner writes
//! more of it than the gate reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    profile::RunProfile,
    run::{Arm, RunOutputs},
    throttle::DeviceState,
};

/// Name and version of the document.
pub const SCHEMA: &str = "epwatch.run/1";

/// One launch. Times are in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunDocument<P> {
    /// [`SCHEMA`].
    pub schema: String,
    /// Run times in order, with the warm-up first.
    pub runs_us: Vec<u64>,
    /// First runs that do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<usize>,
    /// The file that was run.
    #[serde(default)]
    pub model: MeasuredModel,
    /// Where it was run.
    #[serde(default)]
    pub target: MeasuredOn,
    /// ONNX Runtime and the EP, with their versions and options.
    #[serde(default)]
    pub runtime: MeasuredRuntime,
    /// The program that measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Options of the command that made the launch. A command with other options refuses it.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Number of the launch, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch: Option<u64>,
    /// Side that the launch was measured for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arm: Option<Arm>,
    /// Start of the launch, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_unix_ms: Option<i64>,
    /// Time until the session was made, with nothing cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_us: Option<f64>,
    /// The same from a compiled graph, in a launch that is not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_warm_us: Option<f64>,
    /// Android's thermal status before the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thermal_before: Option<u8>,
    /// Android's thermal status after the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thermal_after: Option<u8>,
    /// Temperature of the battery before the runs, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub battery_c: Option<f64>,
    /// Temperature of the battery after the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub battery_after_c: Option<f64>,
    /// Clock of the fastest core before the runs, in kHz. Not judged, because it changes within a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_khz: Option<u64>,
    /// Clock of the fastest core after the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_after_khz: Option<u64>,
    /// Time of a fixed piece of work on the CPU before the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_us: Option<f64>,
    /// Time of the same work after the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_after_us: Option<f64>,
    /// For each earlier try of this launch, why it does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made_again: Vec<String>,
    /// In the form of an element of `chipsets` of `epwatch inspect --json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<P>,
    /// Every node that ran, if there is no placement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_op: Vec<MeasuredOp>,
    /// Outputs of the fixed input, compared with the outputs of the same device's CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<RunOutputs>,
    /// A profile of a few runs, in a launch that is not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<RunProfile>,
}

/// Where a launch was made, as the device or the command line names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeasuredOn {
    /// For example `SM8650`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chipset: Option<String>,
    /// Kind of device, for example `Galaxy S24`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Tells this device apart from others of the same kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phone: Option<String>,
    /// Build of the system, as the device names it. Each has a row of its own in a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Name and version of the system, for example `Android 15`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
}

/// The file that was run, and the name that both versions of the model share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeasuredModel {
    /// SHA-256 of the file, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// SHA-256 of each file next to it that holds its tensors, by its path as the model names it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// The name that both versions of the model have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The runtime. Launches of two runtimes are not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeasuredRuntime {
    /// Version of ONNX Runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ort: Option<String>,
    /// The EP that the session asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ep: Option<String>,
    /// The selection policy that the session asked for, by ONNX Runtime's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Version of the EP's plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ep_version: Option<String>,
    /// Version of QNN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qnn_sdk: Option<String>,
    /// Options of the EP and sizes of dimensions.
    pub options: BTreeMap<String, String>,
}

/// An op that ran, on whichever EP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredOp {
    /// Name of the node.
    pub name: String,
    /// For example `Conv`.
    #[serde(default)]
    pub op_type: String,
    /// Where it ran.
    pub ep: String,
    /// MACs of one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macs: Option<u64>,
    /// Not judged, because times of ops need not add up to a run's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// Not judged either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles: Option<f64>,
}

impl<P> RunDocument<P> {
    /// The state of the device around the runs.
    pub fn device_state(&self) -> DeviceState {
        DeviceState {
            thermal_before: self.thermal_before,
            thermal_after: self.thermal_after,
            battery_c: self.battery_c,
            battery_after_c: self.battery_after_c,
            probe_us: self.probe_us,
            probe_after_us: self.probe_after_us,
        }
    }
}
