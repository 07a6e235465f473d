//! A snapshot of the SDK for people and programs. It shows where each session runs, why and how fast, and which
//! directives apply. It also shows which data is sent, when and to whom. The JSON has the names of
//! `epwatch inspect --json`.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    time::Duration,
};

use epwatch_proto::{
    Accelerator, Asked, CpuNode, Placement, PlacementSource, ReasonCode, SelectionPolicy, Session,
    SparseHistogram, StartFailure, chipset::soc_by_soc_model,
};
use serde::{Deserialize, Serialize};

use crate::host::{
    preflight::Check,
    runtime::{self, RuntimeError, RuntimeTelemetry},
};

/// Maximum number of CPU nodes of a session in the text.
const SHOWN_NODES: usize = 10;

/// Everything that a host, or a person with one of its devices, may want to know about the SDK.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Empty until a session has been made.
    pub ort_version: String,
    /// Whether ONNX Runtime sends telemetry of its own, to Microsoft.
    pub runtime_telemetry: RuntimeTelemetry,
    /// The device's normalised chipset, for example `SM8650`.
    pub chipset: String,
    /// Id with which `epwatch devices` finds the installation; `None` without consent.
    pub installation: Option<String>,
    /// The collector's address.
    pub endpoint: String,
    /// Sessions observed now.
    pub sessions: Vec<ExplainedSession>,
    /// Sessions of this process that could not be made; the first sixteen kinds.
    pub start_failures: Vec<ExplainedStartFailure>,
    /// Lost runs and reports by reason, as in `health_dropped_runs` of the store.
    pub dropped: BTreeMap<&'static str, ExplainedLoss>,
    /// Findings of the latest [`Watch::preflight`](crate::Watch::preflight).
    pub failed_checks: Vec<FailedCheck>,
    /// Held directives, one or more lines each, and counts of refused ones.
    pub directives: Vec<String>,
    /// The latest upload; `None` before the first.
    pub last_upload: Option<ExplainedUpload>,
    /// Reports on disk.
    pub spool_reports: usize,
    /// Bytes of the reports on disk.
    pub spool_bytes: u64,
    /// Time until the next upload.
    pub next_upload_seconds: f64,
    /// The network as set by the host.
    pub network: String,
    /// Bytes sent today over unmetered networks.
    pub sent_unmetered_bytes: u64,
    /// Bytes sent today over metered networks.
    pub sent_metered_bytes: u64,
    /// Whether the SDK may record, in words.
    pub consent: String,
    /// Installations whose deletion the collector has not confirmed.
    pub deletions_waiting: usize,
    /// The latest problem, cleared by the next success.
    pub last_problem: Option<String>,
    /// Panics of the SDK that were caught.
    pub internal_errors: u64,
}

/// Sessions of one model that could not be made for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ExplainedStartFailure {
    /// Id of the model.
    pub model: String,
    /// Version of the model.
    pub version: String,
    /// The reason's code, meaning and fix.
    pub reason: ExplainedReason,
    /// ONNX Runtime's message, without paths and numbers.
    pub text: String,
    /// Number of them.
    pub count: u64,
}

/// Losses for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExplainedLoss {
    /// Sealed reports.
    pub reports: u64,
    /// Runs, including runs in the reports.
    pub runs: u64,
}

/// The latest request to the collector.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ExplainedUpload {
    /// Seconds since its end.
    pub seconds_ago: f64,
    /// The collector's answer in words, or why there is none.
    pub answer: String,
}

/// One session: its speed, the EPs of its nodes, and the reasons.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ExplainedSession {
    /// Id of the model.
    pub model: String,
    /// Version of the model.
    pub version: String,
    /// The chipset that QNN was given, if known; on a desktop the emulated chipset.
    pub soc_model: Option<&'static str>,
    /// Runs that were sealed.
    pub runs: u64,
    /// Runs that failed, among the sealed ones.
    pub failed_runs: u64,
    /// Median of these runs in microseconds; `None` without runs.
    pub p50_us: Option<f64>,
    /// EPs that the app asked for, without the CPU EP.
    pub requested: Vec<String>,
    /// EPs in effect, after directives. `policy:` with a policy's name if ONNX Runtime chose and its choice is not known.
    pub requested_in_effect: Vec<String>,
    /// ONNX Runtime's policy for the choice of devices, as the app gave it, for example `prefer_npu`.
    pub selection_policy: Option<&'static str>,
    /// Type of the device that the EP was to run on, as the app said or ONNX Runtime's list has it, for example `gpu`.
    pub device_type: Option<&'static str>,
    /// Devices to which ONNX Runtime gives the session's inputs and outputs, for example `OpenVINOExecutionProvider on GPU
    /// (Intel)`. Empty if it does not say.
    pub devices: Vec<String>,
    /// Id of the directive that changed the request.
    pub directive: Option<String>,
    /// Runtime of this session, if it is not ONNX Runtime, for example `LiteRT 2.3.0`.
    pub runtime: Option<String>,
    /// `assignment_api`, `log`, `host` or `unavailable`.
    pub source: String,
    /// `jit` or `epcontext`.
    pub graph_kind: String,
    /// Nodes of each EP, by the EP's name.
    pub eps: BTreeMap<String, ExplainedEp>,
    /// Nodes on the CPU, as many as fit into a report.
    pub cpu_nodes: Vec<ExplainedNode>,
    /// Whether the list of CPU nodes is incomplete.
    pub cpu_nodes_truncated: bool,
    /// Hash of all pairs of node and EP.
    pub fingerprint: Option<String>,
    /// Hash of computing nodes only, with names that are the same in all runtime versions.
    pub fingerprint_normalised: Option<String>,
    /// Reasons for nodes that the NPU did not get.
    pub reasons: Vec<ExplainedReason>,
}

/// A finding of a pre-flight check.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FailedCheck {
    /// Code, meaning and fix.
    #[serde(flatten)]
    pub reason: ExplainedReason,
    /// The value or path that was found.
    pub seen: String,
}

/// The share of one EP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExplainedEp {
    /// Number of nodes.
    pub nodes: u32,
    /// `None` for the CPU, where the number has no meaning.
    pub partitions: Option<u32>,
    /// Share of the model's MACs, 0 to 1. Needs a manifest.
    pub macs_share: Option<f64>,
}

/// A node on the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExplainedNode {
    /// Name as in ORT; may be empty.
    pub name: String,
    /// ONNX op type.
    pub op_type: String,
    /// Empty for ONNX's own domain.
    pub domain: String,
    /// Reason code, as in `epwatch inspect --json`.
    pub reason: String,
    /// The validator's sentence, if the log was captured.
    pub reason_text: Option<String>,
    /// Share of the model's MACs, 0 to 1. Needs a manifest.
    pub macs_share: Option<f64>,
    /// Expected on the CPU: the edge of a quantised graph.
    pub benign: bool,
}

/// A reason code with its meaning and its fix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExplainedReason {
    /// The code's name in SQL and JSON.
    pub code: String,
    /// The code's meaning, in one sentence.
    pub meaning: String,
    /// How to fix it. For a code with several causes, each cause has its own fix, the likeliest first.
    pub fix: String,
}

impl Explanation {
    /// Returns the snapshot as one JSON object on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers serialise")
    }
}

impl ExplainedSession {
    /// Returns the session as one JSON object on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers serialise")
    }

    pub(crate) fn of(session: &Session, sealed: &SparseHistogram, failed_runs: u64) -> Self {
        let placement = &session.placement;
        Self {
            model: session.model.id.clone(),
            version: session.model.version.clone(),
            soc_model: soc_by_soc_model(&session.options.soc_model).map(|soc| soc.soc),
            runs: sealed.total(),
            failed_runs,
            p50_us: sealed.quantile_us(0.5),
            requested: session.requested_eps.clone(),
            requested_in_effect: placement.requested_eps.clone(),
            selection_policy: session
                .options
                .selection_policy
                .map(|policy| policy.as_str()),
            device_type: session.options.device_type.map(|device| device.as_str()),
            devices: session.devices.iter().map(ToString::to_string).collect(),
            directive: Some(session.directive_id.clone()).filter(|id| !id.is_empty()),
            runtime: None,
            source: placement.source.as_str().to_owned(),
            graph_kind: placement.graph_kind.as_str().to_owned(),
            eps: ExplainedEp::all_of(placement),
            cpu_nodes: ExplainedNode::all_of(placement),
            cpu_nodes_truncated: placement.cpu_nodes_truncated,
            fingerprint: placement.exact.map(|f| f.to_string()),
            fingerprint_normalised: placement.normalised.map(|f| f.to_string()),
            reasons: ExplainedReason::all_of(placement),
        }
    }
}

impl ExplainedReason {
    /// Reasons of a placement, in the words of the accelerator that the session asked for.
    pub(crate) fn all_of(placement: &Placement) -> Vec<Self> {
        let accelerator = placement
            .asked()
            .map_or(Accelerator::Npu, |asked| asked.accelerator);
        let in_words = |reason: &ReasonCode| {
            let explained = Self::from(*reason);
            if *reason == ReasonCode::AssignmentNotRecorded && !accelerator.is_recorded() {
                let label = accelerator.label();
                return Self {
                    meaning: format!("ONNX Runtime records few of the nodes that run on {label}."),
                    fix: "Look at ONNX Runtime's own log at VERBOSE: it lists them all.".to_owned(),
                    ..explained
                };
            }
            Self {
                meaning: accelerator.in_words(&explained.meaning).into_owned(),
                fix: match (*reason, placement.source) {
                    (ReasonCode::Unknown, PlacementSource::Host) => {
                        "Ask the runtime's own log: epwatch knows reasons of ONNX Runtime only."
                            .to_owned()
                    }
                    _ => accelerator.in_words(&explained.fix).into_owned(),
                },
                ..explained
            }
        };
        placement.reasons.iter().map(in_words).collect()
    }
}

impl ExplainedEp {
    /// Shares of a placement, by the EP's name.
    #[doc(hidden)]
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
    /// CPU nodes of a placement, in ORT's order.
    #[doc(hidden)]
    pub fn all_of(placement: &Placement) -> Vec<Self> {
        Self::each_of(&placement.cpu_nodes)
    }

    /// Each of these nodes.
    #[doc(hidden)]
    pub fn each_of(nodes: &[CpuNode]) -> Vec<Self> {
        nodes.iter().map(Self::of).collect()
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

#[doc(hidden)]
impl From<&StartFailure> for ExplainedStartFailure {
    fn from(failure: &StartFailure) -> Self {
        Self {
            model: failure.model.id.clone(),
            version: failure.model.version.clone(),
            reason: failure.reason.into(),
            text: failure.text.clone(),
            count: failure.count,
        }
    }
}

impl From<&Check> for FailedCheck {
    fn from(check: &Check) -> Self {
        Self {
            reason: ReasonCode::from(check.reason).into(),
            seen: check.seen.clone(),
        }
    }
}

#[doc(hidden)]
impl From<ReasonCode> for ExplainedReason {
    fn from(reason: ReasonCode) -> Self {
        Self {
            code: reason.as_str().to_owned(),
            meaning: reason.meaning().to_owned(),
            fix: reason.way_out(&[]),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.ort_version.as_str() {
            "" => "(version not known)",
            version => version,
        };
        writeln!(f, "ONNX Runtime {version} on {}", self.chipset)?;
        // Without a version, the sessions' own reasons explain why there is no placement.
        if !self.ort_version.is_empty() && !runtime::has_assignment_api(&self.ort_version) {
            let found = self.ort_version.clone();
            writeln!(f, "  {}", RuntimeError::NoAssignmentApi { found })?;
        }
        if let Some(sentence) = self.runtime_telemetry.sentence() {
            writeln!(f, "  {sentence}")?;
        }
        for session in &self.sessions {
            write!(f, "{session}")?;
        }
        for failure in &self.start_failures {
            let ExplainedStartFailure {
                model,
                version,
                reason,
                text,
                count,
            } = failure;
            let times = match count {
                1 => "once".to_owned(),
                count => format!("{count} times"),
            };
            writeln!(
                f,
                "model {model} version {version} could not be made, {times}: {}: {text}",
                reason.code
            )?;
        }
        for (reason, loss) in &self.dropped {
            writeln!(
                f,
                "lost: {} and {}: {reason}",
                count(loss.runs, "run"),
                count(loss.reports, "report")
            )?;
        }
        for check in &self.failed_checks {
            let ExplainedReason { code, meaning, fix } = &check.reason;
            writeln!(f, "{code}: {meaning} {fix} ({})", check.seen)?;
        }
        for line in &self.directives {
            writeln!(f, "{line}")?;
        }
        let wait = Duration::try_from_secs_f64(self.next_upload_seconds).unwrap_or(Duration::MAX);
        if let Some(installation) = &self.installation {
            writeln!(f, "installation: {installation}")?;
        }
        writeln!(f, "collector: {}", self.endpoint)?;
        if let Some(ExplainedUpload {
            seconds_ago,
            answer,
        }) = &self.last_upload
        {
            writeln!(f, "last upload, {seconds_ago:.0} s ago: {answer}")?;
        }
        writeln!(
            f,
            "spool: {}, {}; next upload in {wait:.0?}",
            count(self.spool_reports as u64, "report"),
            count(self.spool_bytes, "byte")
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
        write!(f, "model {} version {}: ", self.model, self.version)?;
        match self.p50_us {
            Some(p50_us) if p50_us < 1000.0 => {
                writeln!(f, "{}, p50 {p50_us:.0} µs", count(self.runs, "run"))?;
            }
            Some(p50_us) => {
                let runs = count(self.runs, "run");
                writeln!(f, "{runs}, p50 {:.1} ms", p50_us / 1000.0)?;
            }
            None => writeln!(f, "no run is sealed yet")?,
        }
        if self.failed_runs > 0 {
            writeln!(f, "  failed runs: {}", self.failed_runs)?;
        }
        let mut eps = self.requested_in_effect.clone();
        eps.retain(|ep| SelectionPolicy::of_request(ep).is_none());
        let mut requested = match (eps.is_empty(), self.requested_in_effect.is_empty()) {
            (true, true) => "nothing but the CPU".to_owned(),
            (true, false) => "the choice of ONNX Runtime".to_owned(),
            _ => eps.join(", "),
        };
        if let Some(policy) = self.selection_policy {
            let _ = write!(requested, " (policy {policy})");
        }
        if let Some(device) = self.device_type {
            let _ = write!(requested, " (device {device})");
        }
        let on = self
            .soc_model
            .map_or(String::new(), |soc| format!(" on {soc}"));
        let placement = match self.source.as_str() {
            "unavailable" => "not known".to_owned(),
            "host" => "as the app says".to_owned(),
            source => format!("from {source}"),
        };
        let runtime = self.runtime.as_ref();
        let with = runtime.map_or(String::new(), |runtime| format!(" with {runtime}"));
        writeln!(
            f,
            "  asked for {requested}{on}{with}; placement {placement}"
        )?;
        let asked = Asked::by_names(&self.requested_in_effect);
        if let Some(unknown) = asked.filter(|asked| asked.accelerator == Accelerator::Unknown) {
            let ep = unknown.ep;
            match SelectionPolicy::of_request(ep) {
                None => writeln!(
                    f,
                    "  epwatch does not know the EP {ep}: its sessions are not judged"
                )?,
                Some(_) => writeln!(
                    f,
                    "  no node shows which EP ONNX Runtime chose: the session is not judged"
                )?,
            }
        }
        if !self.devices.is_empty() {
            writeln!(f, "  devices: {}", self.devices.join(", "))?;
        }
        for (name, ep) in &self.eps {
            write!(f, "  {name}: {}", count(ep.nodes.into(), "node"))?;
            if let Some(partitions) = ep.partitions {
                write!(f, " in {}", count(partitions.into(), "partition"))?;
            }
            if let Some(share) = ep.macs_share {
                write!(f, ", {:.1} % of the MACs", 100.0 * share)?;
            }
            writeln!(f)?;
        }
        // A session that asked for the CPU has all its nodes on the CPU.
        let asked_for_more = !self.requested_in_effect.is_empty() || self.directive.is_some();
        let listed = self.cpu_nodes.iter().filter(|_| asked_for_more);
        let mut on_cpu = listed.clone().filter(|node| !node.benign);
        for node in on_cpu.by_ref().take(SHOWN_NODES) {
            write!(f, "    on the CPU: {} ({})", node.name, node.op_type)?;
            if node.reason != ReasonCode::Unknown.as_str() {
                write!(f, ": {}", node.reason)?;
            }
            writeln!(f)?;
        }
        let (more, plus) = (
            on_cpu.count(),
            if self.cpu_nodes_truncated {
                "at least "
            } else {
                ""
            },
        );
        if more > 0 {
            let more = count(more as u64, "more node");
            writeln!(f, "    and {plus}{more} on the CPU")?;
        }
        let n_benign = listed.filter(|node| node.benign).count();
        if n_benign > 0 {
            let as_usual = "on the CPU as usual: conversions at the model's inputs and outputs";
            writeln!(f, "    {n_benign} {as_usual}")?;
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

/// A number and its noun.
fn count(n: u64, noun: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use epwatch_proto::{
        EpShare, PlacementSource, SessionOptions,
        placement::{CPU_EP, QNN_EP},
    };

    use super::*;
    use crate::{config::ModelInfo, random_session_uid};

    fn session(n_cpu: usize) -> ExplainedSession {
        let share = |ep: &str, n_nodes, n_partitions, macs_share| EpShare {
            ep: ep.to_owned(),
            n_nodes,
            n_partitions,
            op_types: BTreeMap::new(),
            macs_share,
        };
        let on_cpu = |at| CpuNode {
            name: format!("fc{at}"),
            op_type: "Gemm".to_owned(),
            domain: String::new(),
            reason: ReasonCode::Fp16NotSupported,
            reason_text: String::new(),
            macs_share: None,
            benign: at == n_cpu,
        };
        let requested = vec![QNN_EP.to_owned()];
        let placement = Placement {
            eps: vec![
                share(QNN_EP, 30, Some(2), Some(0.746)),
                share(CPU_EP, 12, None, None),
            ],
            cpu_nodes: (0..=n_cpu).map(on_cpu).collect(),
            source: PlacementSource::AssignmentApi,
            reasons: vec![ReasonCode::Fp16NotSupported],
            ..Placement::unavailable(requested.clone(), ReasonCode::Unknown)
        };
        let session = Session {
            uid: random_session_uid(),
            model: ModelInfo::new("segmenter", "3").unwrap().into(),
            requested_eps: requested,
            directive_id: String::new(),
            options: SessionOptions {
                soc_model: "68".to_owned(),
                ..SessionOptions::default()
            },
            placement,
            creation_us: None,
            created_at_unix_ms: 0,
            devices: Vec::new(),
        };
        let mut sealed = SparseHistogram::default();
        sealed.record_n(12_200, 100);
        ExplainedSession::of(&session, &sealed, 0)
    }

    #[test]
    fn the_text_of_a_session_has_its_runs_its_chipset_and_ten_nodes() {
        let text = session(12).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "model segmenter version 3: 100 runs, p50 12.2 ms");
        assert_eq!(
            lines[1],
            "  asked for QNNExecutionProvider on SM8635; placement from assignment_api"
        );
        assert!(
            text.contains("  QNNExecutionProvider: 30 nodes in 2 partitions, 74.6 % of the MACs\n")
        );
        assert_eq!(text.matches("    on the CPU: fc").count(), 10);
        assert!(
            text.contains("    and 2 more nodes on the CPU\n    1 on the CPU as usual"),
            "{text}"
        );
        assert!(!session(10).to_string().contains("more nodes"));
    }

    #[test]
    fn one_of_a_thing_is_no_plural() {
        let mut session = session(11);
        session.runs = 1;
        session.eps.get_mut(QNN_EP).unwrap().partitions = Some(1);
        session.eps.get_mut(CPU_EP).unwrap().nodes = 1;
        let text = session.to_string();
        let expected = [
            ": 1 run, p50",
            ": 30 nodes in 1 partition,",
            "CPUExecutionProvider: 1 node\n",
            "    and 1 more node on the CPU\n",
        ];
        for part in expected {
            assert!(text.contains(part), "{text}");
        }
        let explanation = Explanation {
            spool_reports: 1,
            ..Explanation::default()
        };
        let text = explanation.to_string();
        assert!(text.contains("\nspool: 1 report, 0 bytes;"), "{text}");
    }

    /// For such a session the list would contain every node of the model.
    #[test]
    fn a_session_that_asked_for_the_cpu_lists_no_node_there() {
        let mut session = session(12);
        session.requested_in_effect = Vec::new();
        let text = session.to_string();
        assert!(text.contains("asked for nothing but the CPU"), "{text}");
        assert!(!text.contains("on the CPU: fc") && !text.contains("more nodes"));
        session.directive = Some("off".to_owned());
        assert!(session.to_string().contains("on the CPU: fc"));
    }

    #[test]
    fn a_session_by_a_policy_names_it() {
        let mut session = session(2);
        session.selection_policy = Some("prefer_npu");
        let text = session.to_string();
        let expected = "asked for QNNExecutionProvider (policy prefer_npu) on SM8635;";
        assert!(text.contains(expected), "{text}");
        session.device_type = Some("npu");
        session.devices = vec![format!("{QNN_EP} on NPU (Qualcomm)")];
        let text = session.to_string();
        let expected = "(policy prefer_npu) (device npu) on SM8635;";
        assert!(text.contains(expected), "{text}");
        let expected = "devices: QNNExecutionProvider on NPU (Qualcomm)\n";
        assert!(text.contains(expected), "{text}");
        session.device_type = None;
        session.requested_in_effect = vec!["policy:prefer_npu".to_owned()];
        let text = session.to_string();
        let expected = "asked for the choice of ONNX Runtime (policy prefer_npu) on SM8635;";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("no node shows which EP"), "{text}");
    }

    #[test]
    fn a_run_below_a_millisecond_is_told_in_microseconds() {
        let mut session = session(0);
        session.p50_us = Some(48.2);
        session.source = "unavailable".to_owned();
        let text = session.to_string();
        assert!(text.contains("100 runs, p50 48 µs\n"), "{text}");
        assert!(text.contains("; placement not known\n"), "{text}");
    }

    /// C, Kotlin and Python show the same sentences.
    #[test]
    fn sentences_name_no_function_of_rust() {
        let mut texts: Vec<String> = Vec::new();
        for reason in ReasonCode::ALL {
            texts.extend([reason.meaning().to_owned(), reason.way_out(&[])]);
        }
        let endpoints = ["", "ftp://x", "http://192.0.2.1", "https://x/path"];
        for endpoint in endpoints {
            let config = crate::SdkConfig::builder("app", endpoint, "key", "folder");
            texts.push(config.build().unwrap_err().to_string());
        }
        let trusted = crate::SdkConfig::builder("app", "https://x", "key", "folder");
        let trusted = trusted.with_trusted_roots(crate::TrustedRoots::Only);
        texts.push(trusted.build().unwrap_err().to_string());
        let found = "1.22.0".to_owned();
        texts.push(RuntimeError::NoAssignmentApi { found }.to_string());
        for text in texts {
            assert!(!text.contains("::") && !text.contains("with_"), "{text}");
        }
    }

    /// If the reason is unknown, the text names the call that finds it.
    #[test]
    fn the_text_of_an_unknown_reason_names_the_next_step() {
        let mut session = session(1);
        session.reasons = vec![ReasonCode::Unknown.into()];
        let text = session.to_string();
        let step = "log at VERBOSE";
        assert!(
            text.contains("\n  unknown: ") && text.contains(step),
            "{text}"
        );
    }

    /// Lists cut ids to 8 digits; this text has the whole id.
    #[test]
    fn the_text_names_the_installation() {
        let id = "00112233445566778899aabbccddeeff".to_owned();
        let installation = Some(id.clone());
        let text = Explanation {
            installation,
            ..Explanation::default()
        };
        let line = format!("\ninstallation: {id}\n");
        assert!(text.to_string().contains(&line), "{text}");
        let none = Explanation::default().to_string();
        assert!(!none.contains("installation"), "{none}");
    }

    #[test]
    fn programs_read_names_and_numbers() {
        let json = serde_json::to_value(session(1)).unwrap();
        assert_eq!(json["eps"][QNN_EP]["partitions"], 2);
        assert_eq!(json["eps"][CPU_EP]["partitions"], serde_json::Value::Null);
        assert_eq!(json["source"], "assignment_api");
        assert_eq!(json["cpu_nodes"][0]["reason"], "fp16_not_supported");
        assert_eq!(
            (&json["runs"], &json["soc_model"]),
            (&100.into(), &"SM8635".into())
        );
    }
}
