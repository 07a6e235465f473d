//! What the SDK has to say about itself: where each session runs and why, what directs it, and what
//! is sent when. As text for people, and as JSON with the names that `epwatch inspect --json` has.

use std::{collections::BTreeMap, fmt, time::Duration};

use epwatch_proto::{CpuNode, Placement, ReasonCode, Session};
use serde::{Deserialize, Serialize};

use crate::host::{
    preflight::Check,
    runtime::{self, RuntimeError},
};

/// A snapshot of everything a host, or a person with one of its devices, may ask.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Empty: not known yet.
    pub ort_version: String,
    /// Normalised, for example `SM8650`.
    pub chipset: String,
    /// Sessions that are observed now.
    pub sessions: Vec<ExplainedSession>,
    /// What [`Watch::preflight`](crate::Watch::preflight) found last.
    pub failed_checks: Vec<FailedCheck>,
    /// Directives that are held, a line or more each, and the refused ones counted.
    pub directives: Vec<String>,
    /// Reports on disk, and their bytes.
    pub spool_reports: usize,
    /// See [`Self::spool_reports`].
    pub spool_bytes: u64,
    /// Seconds until the next upload.
    pub next_upload_seconds: f64,
    /// The network as the host said it.
    pub network: String,
    /// Bytes sent today over networks that cost nothing, and over metered ones.
    pub sent_unmetered_bytes: u64,
    /// See [`Self::sent_unmetered_bytes`].
    pub sent_metered_bytes: u64,
    /// Whether it may record at all, in words.
    pub consent: String,
    /// Installations whose deletion the collector has not confirmed.
    pub deletions_waiting: usize,
    /// What went wrong last, if nothing went well since.
    pub last_problem: Option<String>,
    /// Panics of the SDK's own that were caught.
    pub internal_errors: u64,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ExplainedSession {
    /// The model's id.
    pub model: String,
    /// The model's version.
    pub version: String,
    /// EPs that the app asked for, without the CPU.
    pub requested: Vec<String>,
    /// EPs that were asked for in effect.
    pub requested_in_effect: Vec<String>,
    /// The directive that changed the request.
    pub directive: Option<String>,
    /// `assignment_api`, `log` or `unavailable`.
    pub source: String,
    /// `jit` or `epcontext`.
    pub graph_kind: String,
    /// What each EP got.
    pub eps: BTreeMap<String, ExplainedEp>,
    /// Nodes on the CPU, as many as a report holds.
    pub cpu_nodes: Vec<ExplainedNode>,
    /// Whether there are more.
    pub cpu_nodes_truncated: bool,
    /// Of the pairs of node and EP.
    pub fingerprint: Option<String>,
    /// Why the NPU did not get everything.
    pub reasons: Vec<ExplainedReason>,
}

/// A pre-flight check that found something.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FailedCheck {
    /// What it means, and what to do.
    #[serde(flatten)]
    pub reason: ExplainedReason,
    /// What was seen.
    pub seen: String,
}

/// What one EP got.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExplainedEp {
    /// Nodes.
    pub nodes: u32,
    /// `None` for the CPU, where the count means nothing.
    pub partitions: Option<u32>,
    /// Share of the model's MACs, 0 to 1, with a manifest.
    pub macs_share: Option<f64>,
}

/// A node on the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExplainedNode {
    /// As ORT names it.
    pub name: String,
    /// Op type.
    pub op_type: String,
    /// Empty for ONNX's own.
    pub domain: String,
    /// A reason code.
    pub reason: String,
    /// The validator's own sentence, if its log was heard.
    pub reason_text: Option<String>,
    /// Share of the model's MACs, 0 to 1, with a manifest.
    pub macs_share: Option<f64>,
    /// Belongs there: the edge of a quantised graph.
    pub benign: bool,
}

/// A reason code, what it means, and what to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExplainedReason {
    /// The code.
    pub code: String,
    /// One sentence: what it means.
    pub meaning: String,
    /// One sentence: what to do.
    pub fix: String,
}

impl Explanation {
    /// The same as JSON: one object, a line without line ends.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers serialise")
    }
}

impl ExplainedSession {
    pub(crate) fn of(session: &Session) -> Self {
        let placement = &session.placement;
        Self {
            model: session.model.id.clone(),
            version: session.model.version.clone(),
            requested: session.requested_eps.clone(),
            requested_in_effect: placement.requested_eps.clone(),
            directive: Some(session.directive_id.clone()).filter(|id| !id.is_empty()),
            source: placement.source.as_str().to_owned(),
            graph_kind: placement.graph_kind.as_str().to_owned(),
            eps: ExplainedEp::all_of(placement),
            cpu_nodes: ExplainedNode::all_of(placement),
            cpu_nodes_truncated: placement.cpu_nodes_truncated,
            fingerprint: placement.exact.map(|f| f.to_string()),
            reasons: placement.reasons.iter().copied().map(Into::into).collect(),
        }
    }
}

impl ExplainedEp {
    /// What each EP of a placement got, by the EP's name.
    pub fn all_of(placement: &Placement) -> BTreeMap<String, Self> {
        let eps = placement.eps.iter().map(|share| {
            let ep = Self {
                nodes: share.n_nodes,
                partitions: share.n_partitions,
                macs_share: share.macs_share,
            };
            (share.ep.clone(), ep)
        });
        eps.collect()
    }
}

impl ExplainedNode {
    /// The CPU nodes of a placement, in ORT's order.
    pub fn all_of(placement: &Placement) -> Vec<Self> {
        placement.cpu_nodes.iter().map(Self::of).collect()
    }

    fn of(node: &CpuNode) -> Self {
        Self {
            name: node.name.clone(),
            op_type: node.op_type.clone(),
            domain: node.domain.clone(),
            reason: node.reason.as_str().to_owned(),
            reason_text: Some(node.reason_text.clone()).filter(|text| !text.is_empty()),
            macs_share: node.macs_share,
            benign: node.benign,
        }
    }
}

impl From<&Check> for FailedCheck {
    fn from(check: &Check) -> Self {
        Self {
            reason: check.reason.into(),
            seen: check.seen.clone(),
        }
    }
}

impl From<ReasonCode> for ExplainedReason {
    fn from(reason: ReasonCode) -> Self {
        Self {
            code: reason.as_str().to_owned(),
            meaning: reason.meaning().to_owned(),
            fix: reason.fix().to_owned(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.ort_version.as_str() {
            "" => "(version not known)",
            version => version,
        };
        writeln!(f, "ONNX Runtime {version}")?;
        if !runtime::tells_placement(&self.ort_version) {
            let found = self.ort_version.clone();
            writeln!(f, "  {}", RuntimeError::TooOldToTell { found })?;
        }
        for session in &self.sessions {
            write!(f, "{session}")?;
        }
        for check in &self.failed_checks {
            let ExplainedReason { code, meaning, fix } = &check.reason;
            writeln!(f, "{code}: {meaning} {fix} ({})", check.seen)?;
        }
        for line in &self.directives {
            writeln!(f, "{line}")?;
        }
        let wait = Duration::try_from_secs_f64(self.next_upload_seconds).unwrap_or(Duration::MAX);
        writeln!(
            f,
            "spool: {} reports, {} bytes; next upload in {wait:.0?}",
            self.spool_reports, self.spool_bytes
        )?;
        writeln!(
            f,
            "network: {}; sent today: {} bytes unmetered, {} metered",
            self.network, self.sent_unmetered_bytes, self.sent_metered_bytes
        )?;
        writeln!(f, "consent: {}", self.consent)?;
        if self.deletions_waiting > 0 {
            writeln!(f, "deletions that wait: {}", self.deletions_waiting)?;
        }
        if let Some(problem) = &self.last_problem {
            writeln!(f, "last problem: {problem}")?;
        }
        if self.internal_errors > 0 {
            writeln!(f, "internal errors: {}", self.internal_errors)?;
        }
        Ok(())
    }
}

impl fmt::Display for ExplainedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "model {} version {}", self.model, self.version)?;
        let requested = match self.requested_in_effect.is_empty() {
            true => "nothing but the CPU".to_owned(),
            false => self.requested_in_effect.join(", "),
        };
        writeln!(f, "  asked for {requested}; placement from {}", self.source)?;
        for (name, ep) in &self.eps {
            write!(f, "  {name}: {} nodes", ep.nodes)?;
            if let Some(partitions) = ep.partitions {
                write!(f, " in {partitions} partitions")?;
            }
            if let Some(share) = ep.macs_share {
                write!(f, ", {:.1} % of the MACs", 100.0 * share)?;
            }
            writeln!(f)?;
        }
        for node in self.cpu_nodes.iter().filter(|node| !node.benign) {
            write!(f, "    on the CPU: {} ({})", node.name, node.op_type)?;
            if node.reason != ReasonCode::Unknown.as_str() {
                write!(f, ": {}", node.reason)?;
            }
            writeln!(f)?;
        }
        for reason in &self.reasons {
            writeln!(f, "  {}: {} {}", reason.code, reason.meaning, reason.fix)?;
        }
        if let Some(directive) = &self.directive {
            writeln!(f, "  changed by directive {directive}")?;
        }
        Ok(())
    }
}
