//! One launch, or one row of a table of launches, as a reader found it in a file.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use epwatch_proto::{Accelerator, DeviceType};
use serde::{Deserialize, Serialize};

use crate::{
    layers::Layers,
    mistakes::Mistake,
    placement::{Inspected, InspectedChipset},
    profile::RunProfile,
};

/// A file's content, as far as it is judged. Fields that the kind of file does not have are empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// Kind of the file, for example `ort_profile`.
    pub source: &'static str,
    /// Where it was measured.
    pub target: RunTarget,
    /// Run times in the order of the runs; from a histogram, in ascending order.
    pub runs_us: Vec<u64>,
    /// First runs that are warm-up; `None` if the file does not say.
    pub warmup: Option<usize>,
    /// Start of the launch, in milliseconds since 1970.
    pub started_unix_ms: Option<i64>,
    /// Side that the launch was measured for.
    pub arm: Option<Arm>,
    /// Time until the session was made, with nothing cached, in microseconds.
    pub load_us: Option<f64>,
    /// The same from a compiled graph.
    pub load_warm_us: Option<f64>,
    /// A fixed piece of work on the CPU, in microseconds: it shows the clock.
    pub probe_us: Option<f64>,
    /// The outputs of a fixed input.
    pub outputs: Option<RunOutputs>,
    /// The only time in a file without single runs.
    pub time_us: Option<f64>,
    /// EPs that ran a node; `None` if the kind of file does not name EPs.
    pub eps: Option<BTreeSet<String>>,
    /// Nodes or ops by unit.
    pub nodes: Vec<RunNode>,
    /// Time of nodes, of a launch that was profiled or has one next to it.
    pub profile: Option<RunProfile>,
    /// Partitions on the NPU.
    pub partitions: Option<u32>,
    /// Layers by unit.
    pub layers: Option<Layers>,
    /// The document of `epwatch inspect --json`.
    pub inspected: Option<Inspected>,
    /// The placement of this launch, as the SDK reported it.
    pub placed: Option<Arc<InspectedChipset>>,
    /// The parts of the runtime, if the file has them.
    pub runtime: RuntimeParts,
    /// Runs that ended with an error.
    pub failed_runs: u64,
    /// Misreadings that the file invites.
    pub mistakes: Vec<Mistake>,
}

/// Parts of a runtime that a certificate names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct RuntimeParts {
    pub ort_version: Option<String>,
    pub ep: Option<String>,
    pub ep_version: Option<String>,
    pub qnn_sdk_version: Option<String>,
}

/// Where a launch was measured; as much as the file says.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunTarget {
    /// The row of a table, for example precision, component and device; empty for a file of one launch.
    pub row: String,
    /// For example `Samsung Galaxy S24`.
    pub device: Option<String>,
    /// The single device, where the file tells devices of one kind apart.
    pub phone: Option<String>,
    /// For example `SM8650`.
    pub chipset: Option<String>,
    /// Build of the system, as the device names it.
    pub firmware: Option<String>,
    /// Name and version of the system, for example `Android 15`.
    pub os: Option<String>,
    /// The runtime with its version.
    pub runtime: Option<String>,
    /// Id and version of the model, as the app gives them.
    pub model: Option<String>,
    /// Id of the model, without the version.
    pub model_id: Option<String>,
    /// SHA-256 of the model, hexadecimal.
    pub model_sha256: Option<String>,
    /// SHA-256 of the files that hold its tensors, by their paths from the model's folder; empty if the file does not say.
    pub model_data: BTreeMap<String, String>,
    /// EPs or selection policy that the session asked for.
    pub asked_for: Option<String>,
}

/// A side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Arm {
    Candidate,
    Baseline,
}

impl Arm {
    /// The name in a document.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Candidate => "candidate",
            Self::Baseline => "baseline",
        }
    }
}

/// Outputs of a fixed input, compared with the expected outputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunOutputs {
    /// Hash of all bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Largest difference of an element.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_abs: Option<f64>,
    /// Minimum cosine similarity of an output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
    /// Share of inputs with the same largest element.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top1: Option<f64>,
    /// The first wrong output of a model with several outputs, for example one that exposes inner outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_off: Option<String>,
    /// The first output with a NaN or an infinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_finite: Option<NotFinite>,
    /// The reason why the outputs are wrong under any policy, if the file gives one.
    #[serde(skip)]
    pub wrong: Option<String>,
}

/// An output that is not finite everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotFinite {
    /// Its name in the model.
    pub output: String,
    /// Number of its elements that are a NaN or an infinity.
    pub elements: u64,
    /// The same of the expected output.
    pub expected: u64,
    /// Number of all its elements.
    pub of: u64,
    /// Whether they are at other places than expected. Outputs have no distances then.
    pub differs: bool,
}

impl NotFinite {
    /// Whether some of them are where a number is expected. The launch is wrong then under any policy.
    pub(crate) fn is_wrong(&self) -> bool {
        self.differs && self.elements >= self.expected
    }

    /// Both outputs, in words.
    pub(crate) fn shown(&self) -> String {
        let Self {
            output,
            elements,
            expected,
            of,
            differs,
        } = self;
        let there = match differs {
            false => "as on the CPU".to_owned(),
            true if elements == expected => "and as many on the CPU at other places".to_owned(),
            true => format!("and {expected} on the CPU"),
        };
        format!("the output {output} has {elements} NaNs or infinities in {of} elements, {there}")
    }
}

/// A node of a launch.
#[derive(Debug, Clone, PartialEq)]
pub struct RunNode {
    /// Name in the model, without what the runtime adds.
    pub name: String,
    /// For example `Conv`; empty if the file has none.
    pub op_type: String,
    /// Where it ran.
    pub unit: Unit,
    /// Events in the file.
    pub events: u64,
    /// MACs by the shapes in the file, where they suffice.
    pub macs_by_shapes: Option<u64>,
}

/// A unit that computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Unit {
    Npu,
    Gpu,
    Cpu,
    Unknown,
}

impl Unit {
    /// Reads the names that tools give to units.
    pub fn parse(name: &str) -> Self {
        match name.to_ascii_uppercase().as_str() {
            "NPU" | "ANE" | "HTP" | "DSP" => Self::Npu,
            "GPU" => Self::Gpu,
            "CPU" => Self::Cpu,
            _ => Self::Unknown,
        }
    }

    /// The unit of an EP, by the name that it is registered with.
    pub fn of_ep(ep: &str) -> Self {
        match Accelerator::of_ep(ep).device() {
            DeviceType::Npu => Self::Npu,
            DeviceType::Gpu => Self::Gpu,
            DeviceType::Cpu => Self::Cpu,
            DeviceType::Unknown => Self::Unknown,
        }
    }
}

impl Run {
    /// Whether times were measured where no NPU is, for example on QNN's emulator: they say nothing of one.
    pub fn is_off_npu(&self) -> bool {
        self.mistakes.iter().any(|one| one.id == "cpu_latency")
    }
}

impl RunTarget {
    /// Parts that must be the same for two launches to compare, as far as the file names them.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let parts = [
            ("device", &self.device),
            ("phone", &self.phone),
            ("chipset", &self.chipset),
            ("firmware", &self.firmware),
            ("os", &self.os),
            ("runtime", &self.runtime),
        ];
        let named = parts.into_iter();
        named.filter_map(|(what, part)| Some((what, part.as_ref()?)))
    }
}
