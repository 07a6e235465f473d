//! The file of a launch, as this program writes it and reads it again: the gate's document with the SDK's placement.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_gate::run_document::{self, MeasuredOn};
use epwatch_proto::{Placement, ReasonCode, v1};
use epwatch_sdk::{ExplainedEp, ExplainedNode, ExplainedReason, placement::PartitionSize};
use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::{change::changed, job::Job};

/// One launch of this program.
pub(crate) type RunDocument = run_document::RunDocument<Placed>;

/// The placement, in the form of an element of `chipsets` of `epwatch inspect --json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    pub(crate) fn failed(job: &Job, error: String, reason: Option<ExplainedReason>) -> Self {
        Self {
            chipset: job.chipset().to_owned(),
            soc_model: job.ep.soc_model().to_owned(),
            session: "failed".to_owned(),
            error: Some(error),
            requested: vec![job.ep.name().to_owned()],
            source: "unavailable".to_owned(),
            reasons: vec![reason.unwrap_or_else(|| ReasonCode::Unknown.into())],
            ..Self::default()
        }
    }

    /// The same with a way out, in addition to the reason's own.
    pub(crate) fn with_way_out(mut self, way_out: &str) -> Self {
        self.no_session.way_out = Some(way_out.to_owned());
        self
    }

    /// A session that shows nothing about the chipset.
    pub(crate) fn unproven(job: &Job, error: String) -> Self {
        Self {
            session: "unproven".to_owned(),
            ..Self::failed(job, error, None)
        }
    }

    /// A model that no EP takes. No launch is written with it: the command cannot be used.
    pub(crate) fn broken(job: &Job, error: String) -> Self {
        Self {
            session: "broken".to_owned(),
            ..Self::failed(job, error, None)
        }
    }

    /// Why no EP takes the model; `None` if one might.
    pub(crate) fn why_broken(&self) -> Option<&str> {
        self.error().filter(|_| self.session == "broken")
    }

    /// Why there is no session.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The name of a placement without a session in messages.
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

/// The first part in which two targets differ, in words: launches of two firmwares are not launches of one device.
pub(crate) fn difference(before: &MeasuredOn, now: &MeasuredOn) -> Option<String> {
    let parts = [
        ("chipset", &before.chipset, &now.chipset),
        ("device", &before.device, &now.device),
        ("firmware", &before.firmware, &now.firmware),
    ];
    let differing = parts.into_iter().find(|(_, was, is)| was != is);
    differing.map(|(what, was, is)| changed(what, was.as_ref(), is.as_ref()))
}

pub(crate) fn read(path: &Path) -> io::Result<RunDocument> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Writes the file as a whole or not at all, because a reader may be waiting for it.
pub(crate) fn write(document: &RunDocument, path: &Path) -> io::Result<()> {
    let mut half = path.as_os_str().to_owned();
    half.push(".part");
    let half = PathBuf::from(half);
    fs::write(&half, serde_json::to_vec(document)?)?;
    fs::rename(half, path)
}

#[cfg(test)]
mod tests {
    use epwatch_gate::{
        read::{ReadOptions, read as read_launches},
        run_document::SCHEMA,
    };

    use super::*;

    /// The placement is a type of its own on each side, so the shared document alone does not prove this.
    #[test]
    fn the_gate_reads_a_placement_as_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("candidate-001.json");
        let refused = Placed {
            chipset: "SM8650".to_owned(),
            soc_model: "57".to_owned(),
            session: "failed".to_owned(),
            error: Some("refused".to_owned()),
            source: "unavailable".to_owned(),
            ..Placed::default()
        };
        let document = RunDocument {
            schema: SCHEMA.to_owned(),
            target: MeasuredOn {
                chipset: Some("SM8650".to_owned()),
                ..MeasuredOn::default()
            },
            placement: Some(refused.with_way_out("use another op")),
            ..RunDocument::default()
        };
        write(&document, &path).unwrap();
        assert_eq!(read(&path).unwrap(), document);
        let bytes = fs::read(&path).unwrap();
        let runs = read_launches(&*bytes, ReadOptions::default()).unwrap();
        let placed = runs[0].placed.as_ref().unwrap();
        assert_eq!((&*placed.session, &*placed.soc_model), ("failed", "57"));
        assert_eq!(placed.error.as_deref(), Some("refused"));
        let way_out = placed.no_session.way_out.as_deref();
        assert_eq!(way_out, Some("use another op"));
    }
}
