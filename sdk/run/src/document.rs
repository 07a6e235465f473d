//! The document of a launch, `epwatch.run/1`. docs/gate.md lists its fields; `epwatch gate` reads it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_gate::profile::NodeShare;
use epwatch_proto::{Placement, ReasonCode, placement::QNN_EP, v1};
use epwatch_sdk::{ExplainedEp, ExplainedNode, ExplainedReason, placement::PartitionSize};
use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::change::changed;

/// Name and version of the document.
pub(crate) const SCHEMA: &str = "epwatch.run/1";

/// A side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Arm {
    Candidate,
    Baseline,
}

impl Arm {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Candidate => "candidate",
            Self::Baseline => "baseline",
        }
    }
}

/// One launch. Times are in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunDocument {
    pub(crate) schema: String,
    /// Run times in order, with the warm-up first.
    pub(crate) runs_us: Vec<u64>,
    pub(crate) warmup: u32,
    pub(crate) model: MeasuredModel,
    pub(crate) target: MeasuredOn,
    pub(crate) runtime: MeasuredRuntime,
    pub(crate) source: String,
    /// Options of the command that made the launch. A command with other options refuses it.
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) launch: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) arm: Option<Arm>,
    pub(crate) started_unix_ms: i64,
    /// Time until the session was made, with nothing cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) load_us: Option<u64>,
    /// The same from a compiled graph, in a launch that is not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) load_warm_us: Option<u64>,
    /// Android's thermal status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thermal_before: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thermal_after: Option<u8>,
    /// Degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) battery_c: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) probe_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) probe_after_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) placement: Option<Placed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outputs: Option<Outputs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<Profile>,
}

/// Where the launch was made, as the device or the command line names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeasuredOn {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chipset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
    /// Tells this device apart from others of the same kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) firmware: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) os: Option<String>,
}

/// A profile of a few runs, in a launch that is not timed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Profile {
    /// Names of the profilers' own files, next to the launch.
    pub(crate) files: Vec<String>,
    /// Nodes that take longest, as ONNX Runtime lists them: a partition on the NPU is one.
    pub(crate) nodes: Vec<NodeShare>,
}

impl MeasuredOn {
    /// The first part in which two targets differ, in words: launches of two firmwares are not launches of one device.
    pub(crate) fn difference(&self, now: &Self) -> Option<String> {
        let parts = [
            ("chipset", &self.chipset, &now.chipset),
            ("device", &self.device, &now.device),
            ("firmware", &self.firmware, &now.firmware),
        ];
        let differing = parts.into_iter().find(|(_, was, is)| was != is);
        differing.map(|(what, was, is)| changed(what, was.as_ref(), is.as_ref()))
    }
}

/// The file that was run, and the name that both versions of the model share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeasuredModel {
    pub(crate) sha256: String,
    pub(crate) name: String,
}

/// The runtime. Launches of two runtimes are not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeasuredRuntime {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ort: Option<String>,
    pub(crate) ep: String,
    pub(crate) options: BTreeMap<String, String>,
}

/// Outputs of the fixed input, compared with the outputs of the same device's CPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outputs {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_abs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cosine: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top1: Option<f64>,
    /// First of several outputs that is off by more than rounding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_off: Option<String>,
}

/// The placement, in the form of an element of `chipsets` of `epwatch inspect --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Placed {
    chipset: String,
    soc_model: String,
    /// `ok`, `failed`, or `unproven` if the session shows nothing about the chipset.
    session: String,
    error: Option<String>,
    #[serde(default, skip_serializing_if = "NoSession::is_empty")]
    no_session: NoSession,
    requested: Vec<String>,
    source: String,
    graph_kind: Option<String>,
    eps: BTreeMap<String, ExplainedEp>,
    cpu_nodes: Vec<ExplainedNode>,
    npu_partitions: Vec<PartitionSize>,
    /// Names of the nodes on the NPU, in ONNX Runtime's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    npu_nodes: Vec<String>,
    fingerprint: Option<String>,
    pub(crate) fingerprint_normalised: Option<String>,
    reasons: Vec<ExplainedReason>,
    /// The message `Placement` in base64, for a certificate; empty without a session.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    encoded: String,
}

/// Further facts if there is no session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct NoSession {
    way_out: Option<String>,
}

impl NoSession {
    fn is_empty(&self) -> bool {
        self.way_out.is_none()
    }
}

impl Placed {
    /// The placement of a session that was made.
    pub(crate) fn of(
        chipset: &str,
        soc_model: &str,
        placement: &Placement,
        npu_partitions: Vec<PartitionSize>,
        npu_nodes: Vec<String>,
    ) -> Self {
        Self {
            chipset: chipset.to_owned(),
            soc_model: soc_model.to_owned(),
            session: "ok".to_owned(),
            error: None,
            no_session: NoSession::default(),
            requested: placement.requested_eps.clone(),
            source: placement.source.as_str().to_owned(),
            graph_kind: Some(placement.graph_kind.as_str().to_owned()),
            eps: ExplainedEp::all_of(placement),
            cpu_nodes: ExplainedNode::all_of(placement),
            npu_partitions,
            npu_nodes,
            fingerprint: placement.exact.map(|print| print.to_string()),
            fingerprint_normalised: placement.normalised.map(|print| print.to_string()),
            reasons: placement.reasons.iter().copied().map(Into::into).collect(),
            encoded: STANDARD.encode(v1::Placement::from(placement).encode_to_vec()),
        }
    }

    /// A session that could not be made, with the reason if it is known.
    pub(crate) fn failed(
        chipset: &str,
        soc_model: &str,
        error: String,
        reason: Option<ExplainedReason>,
    ) -> Self {
        Self {
            chipset: chipset.to_owned(),
            soc_model: soc_model.to_owned(),
            session: "failed".to_owned(),
            error: Some(error),
            no_session: NoSession::default(),
            requested: vec![QNN_EP.to_owned()],
            source: "unavailable".to_owned(),
            graph_kind: None,
            eps: BTreeMap::new(),
            cpu_nodes: Vec::new(),
            npu_partitions: Vec::new(),
            npu_nodes: Vec::new(),
            fingerprint: None,
            fingerprint_normalised: None,
            reasons: vec![reason.unwrap_or_else(|| ReasonCode::Unknown.into())],
            encoded: String::new(),
        }
    }

    /// The same with a way out, in addition to the reason's own.
    pub(crate) fn with_way_out(mut self, way_out: &str) -> Self {
        self.no_session.way_out = Some(way_out.to_owned());
        self
    }

    /// A session that shows nothing about the chipset.
    pub(crate) fn unproven(chipset: &str, soc_model: &str, error: &str) -> Self {
        Self {
            session: "unproven".to_owned(),
            ..Self::failed(chipset, soc_model, error.to_owned(), None)
        }
    }

    /// Why there is no session.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// What a message calls a placement without a session.
    pub(crate) fn word(&self) -> &'static str {
        match self.session.as_str() {
            "unproven" => "no answer",
            _ => "no session",
        }
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.session == "ok"
    }
}

impl RunDocument {
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }

    /// Writes the file as a whole or not at all, because a reader may be waiting for it.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let mut half = path.as_os_str().to_owned();
        half.push(".part");
        let half = PathBuf::from(half);
        fs::write(&half, serde_json::to_vec(self)?)?;
        fs::rename(half, path)
    }
}
