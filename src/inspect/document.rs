//! The document of `inspect --json`, and its text form.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_manifest::{GraphFacts, ModelOutline, Place, Uncounted};
use epwatch_proto::{Accelerator, ReasonCode, placement::CPU_EP};
use epwatch_sdk::{ExplainedEp, ExplainedReason};
use serde::Serialize;

use crate::output::one_line;

use super::{
    answer::{Answer, Failed, InspectedNode, NodeName, Placed},
    chipset::SocModel,
    ep::InspectedEp,
    fail_on::FailOn,
};

/// Maximum number of CPU nodes of a chipset in the text; `--json` has all.
const SHOWN_NODES: usize = 20;

/// QNN's sentence about a node that its table of ops keeps on the CPU.
const BY_AFFINITY: &str = "filtered off QNN by the op_affinity provider option";

/// States of a session that say nothing about the placement.
const UNANSWERED: [&str; 4] = ["timed_out", "no_answer", "needs_custom_ops", "unproven"];

/// The one document of `inspect --json`.
#[derive(Debug, Serialize)]
pub(crate) struct InspectDocument {
    pub(super) model: String,
    /// Why there are no shares of the MACs; `null` if they were counted.
    pub(super) macs_error: Option<String>,
    /// MACs that were counted; `null` with `macs_error`, or if they were given.
    pub(super) total_macs: Option<u64>,
    /// Nodes whose MACs are unknown, or only known in part.
    pub(super) uncounted: Vec<Uncounted>,
    /// A sentence that names all uncounted nodes.
    #[serde(skip)]
    pub(super) not_counted: Option<String>,
    /// The chipsets in the order of `--soc`.
    pub(super) chipsets: Vec<OnChipset>,
    /// The requested EP.
    #[serde(skip)]
    pub(super) ep: InspectedEp,
}

/// The model on one chipset.
#[derive(Debug, Serialize)]
pub(super) struct OnChipset {
    /// For example `SM8650`.
    chipset: String,
    /// The chipset's value in `--soc`.
    soc_model: String,
    name: Option<&'static str>,
    hexagon_arch: Option<u32>,
    /// `ok`, `failed`, or nothing could be found out: `timed_out`, `no_answer`, `needs_custom_ops` or `unproven`.
    session: &'static str,
    /// The error; `null` for `ok`.
    error: Option<String>,
    /// Other facts about a failed session.
    no_session: NoSession,
    requested: Vec<String>,
    #[serde(skip)]
    ep: &'static str,
    #[serde(flatten)]
    pub(super) placed: Placed,
    /// The message `Placement`, in base64; empty without a session.
    #[serde(skip)]
    encoded: String,
}

/// Node and way out of a failed session, as far as they are known.
#[derive(Debug, Default, Serialize)]
struct NoSession {
    node: Option<NodeName>,
    way_out: Option<String>,
}

impl InspectDocument {
    /// Each chipset with a session, and the message `Placement`.
    pub(crate) fn placements(&self) -> impl Iterator<Item = (&str, Vec<u8>)> {
        let made = self.chipsets.iter().filter(|on| !on.encoded.is_empty());
        made.filter_map(|on| Some((&*on.chipset, STANDARD.decode(&on.encoded).ok()?)))
    }
}

/// Returns the reason of a code. A newer program may have written unknown codes.
fn why(code: &str) -> ExplainedReason {
    let reason = ReasonCode::ALL.iter().find(|r| r.as_str() == code);
    reason.copied().unwrap_or(ReasonCode::Unknown).into()
}

impl OnChipset {
    pub(super) fn new(
        soc: &SocModel,
        ep: InspectedEp,
        answer: Answer,
        facts: Option<&GraphFacts>,
    ) -> Self {
        let known = soc.soc();
        let without = |code: &str| Placed {
            source: "unavailable".to_owned(),
            reasons: vec![why(code)],
            ..Placed::default()
        };
        let mut message = String::new();
        let mut no_session = NoSession::default();
        let (session, error, placed) = match answer {
            Answer::Placed {
                mut placed,
                npu_nodes,
                encoded,
            } => {
                message = encoded;
                if let Some(facts) = facts {
                    placed.locate(facts, ep.ep(), &npu_nodes);
                }
                if ep == InspectedEp::Cpu {
                    // The command asked for the CPU, so nothing is missing.
                    let advice = ReasonCode::EpNotRequested.as_str();
                    placed.reasons.retain(|why| why.code != advice);
                }
                ("ok", None, *placed)
            }
            Answer::Failed(Failed {
                error,
                reason,
                way_out,
            }) => {
                no_session.way_out = way_out;
                ("failed", Some(error), without(&reason))
            }
            Answer::Crashed(crash) => {
                let (error, way_out) = crash.in_words(match ep {
                    InspectedEp::Qnn => "QNN",
                    _ => "ONNX Runtime",
                });
                no_session = NoSession {
                    node: crash.node,
                    way_out,
                };
                ("failed", Some(error), without("unknown"))
            }
            Answer::NoModel(error) | Answer::WrongUse(error) => {
                ("failed", Some(error), without("unknown"))
            }
            Answer::TimedOut(error) => ("timed_out", Some(error), without("unknown")),
            Answer::Unanswered(error) => ("no_answer", Some(error), without("unknown")),
            Answer::NeedsCustomOps(error) => ("needs_custom_ops", Some(error), without("unknown")),
            Answer::Unproven(error) => ("unproven", Some(error), without("unknown")),
            Answer::OnCpu(_) => {
                let error = "the session was made for the CPU alone".to_owned();
                ("no_answer", Some(error), without("unknown"))
            }
        };
        Self {
            chipset: soc.chipset(),
            soc_model: match soc.qnn_id {
                Some(_) => soc.asked.clone(),
                None => String::new(),
            },
            name: known.map(|soc| soc.name),
            hexagon_arch: known.map(|soc| soc.hexagon_arch),
            session,
            error,
            no_session,
            requested: ep.requested(),
            ep: ep.ep(),
            placed,
            encoded: message,
        }
    }

    /// If the model leaves dimensions open, names the option that fixes them as the app does.
    pub(super) fn name_open_dims(&mut self, outline: &ModelOutline) {
        let open: Vec<String> = outline
            .open_dims()
            .into_iter()
            .map(|name| format!("--dim {name}=1"))
            .collect();
        let code = ReasonCode::DynamicShape.as_str();
        for reason in self
            .placed
            .reasons
            .iter_mut()
            .filter(|why| why.code == code)
        {
            if !open.is_empty() {
                reason
                    .fix
                    .push_str(&format!(" {} judges the latter.", open.join(" ")));
            }
        }
    }

    /// Names the way out of an op that the plugin keeps off the NPU by its default.
    pub(super) fn name_default_affinity(&mut self) {
        let chipset = &self.chipset;
        for InspectedNode { node, .. } in &mut self.placed.cpu_nodes {
            let text = node.reason_text.as_deref().unwrap_or_default();
            if text.contains(BY_AFFINITY) {
                let op_type = &node.op_type;
                node.reason_text = Some(format!(
                    "The plugin's default keeps {op_type} on the CPU; --ep-option op_affinity=FILE with \
                     {{\"op_type\":{{\"{op_type}\":\"htp\"}}}} opts in, in the app too. The same command with it \
                     shows whether {chipset} takes the op."
                ));
            }
        }
    }

    /// Returns the requested EP, unless it is the CPU EP.
    fn npu(&self) -> Option<&ExplainedEp> {
        let npu = self.placed.eps.get(self.ep);
        npu.filter(|_| self.ep != CPU_EP)
    }

    /// Returns the error if the session says nothing about the placement.
    pub(super) fn unanswered(&self) -> Option<String> {
        let is_it = UNANSWERED.contains(&self.session);
        let error = self.error.as_ref().filter(|_| is_it)?;
        Some(format!("{}: {}", self.chipset, one_line(error)))
    }

    /// The sentence for a rule that this chipset breaks; `None` if it keeps the rule.
    pub(super) fn broken(&self, rule: FailOn) -> Option<String> {
        let cpu = self.placed.eps.get(CPU_EP);
        let how = match rule {
            _ if self.error.is_some() => "the session cannot be made".to_owned(),
            FailOn::Failed => return None,
            FailOn::Cpu => {
                let nodes = self.placed.cpu_nodes.iter().filter(|n| !n.benign);
                match nodes.count() {
                    0 => return None,
                    n => format!("{n} nodes that compute are on the CPU"),
                }
            }
            FailOn::Macs(most) => {
                let share = cpu.and_then(|cpu| cpu.macs_share).unwrap_or(0.0);
                if share <= most {
                    return None;
                }
                format!("{:.1} % of the MACs are on the CPU", 100.0 * share)
            }
        };
        Some(format!("{}: {how}", self.chipset))
    }

    /// The sentence for a rule that cannot be judged, because a part of the MACs is not counted.
    pub(super) fn undecided(&self, rule: FailOn, not_counted: Option<&str>) -> Option<String> {
        let why = not_counted.filter(|_| matches!(rule, FailOn::Macs(_)))?;
        let has_cpu = self.placed.cpu_nodes.iter().any(|node| !node.benign);
        (has_cpu && self.error.is_none()).then(|| {
            let why = one_line(why);
            format!("{}: the share of the CPU is not known: {why}", self.chipset)
        })
    }

    /// Nodes, partitions and share of the MACs on the NPU, nodes on the CPU.
    fn cells(&self, has_shares: bool) -> [String; 4] {
        if self.error.is_some() {
            return [self.session, "", "", ""].map(str::to_owned);
        }
        let share =
            |share: Option<f64>| share.map_or("-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
        let npu = self.npu();
        let cpu = self.placed.eps.get(CPU_EP);
        let on_cpu = self.placed.cpu_nodes.len();
        let is_edge = |node: &&InspectedNode| {
            node.benign && node.place.is_none_or(|place| place == Place::Edge)
        };
        let edges = self.placed.cpu_nodes.iter().filter(is_edge).count();
        [
            npu.map_or(0, |npu| npu.nodes).to_string(),
            npu.and_then(|npu| npu.partitions).unwrap_or(0).to_string(),
            match npu {
                _ if !has_shares => share(None),
                Some(npu) => share(npu.macs_share),
                // An EP without a node has no entry.
                None => share(cpu.and_then(|cpu| cpu.macs_share).map(|_| 0.0)),
            },
            match edges {
                0 => on_cpu.to_string(),
                edges => format!("{on_cpu} ({edges} at the edges)"),
            },
        ]
    }

    /// Lines below the table; chipsets with the same lines share them.
    fn story(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(error) = &self.error {
            let word = match self.session {
                "failed" => "no session",
                _ => "no answer",
            };
            lines.push(format!("{word}: {error}"));
        }
        lines.extend(self.no_session.way_out.clone());
        lines.extend(self.placed.story());
        lines
    }
}

impl Placed {
    /// Nodes on the CPU with their reasons, then the reasons with their way out.
    pub(crate) fn story(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let computing = self.cpu_nodes.iter().filter(|node| !node.benign);
        let shown: Vec<&InspectedNode> = computing.clone().take(SHOWN_NODES).collect();
        for node in &shown {
            let macs = node.macs_share.filter(|share| *share > 0.0);
            let macs = macs.map_or(String::new(), |s| {
                format!(", {:.1} % of the MACs", 100.0 * s)
            });
            let text = node.reason_text.as_deref().unwrap_or_default();
            let why = match (node.reason.as_str(), text) {
                ("unknown", "") => String::new(),
                ("unknown", text) => format!(": {text}"),
                (reason, "") => format!(": {reason}"),
                (reason, text) => format!(": {reason}: {text}"),
            };
            lines.push(format!(
                "on the CPU: {} {}{macs}{why}",
                node.op_type, node.name
            ));
        }
        let more = computing.count() - shown.len();
        if more > 0 {
            lines.push(format!("and {more} more; --json has all"));
        }
        let explains =
            |why: &&ExplainedReason| why.code != "edge_quantization" && why.code != "unknown";
        for why in self.reasons.iter().filter(explains) {
            lines.push(format!("{}: {} {}", why.code, why.meaning, why.fix));
        }
        lines
    }
}

const HEAD: [&str; 6] = [
    "chipset",
    "HTP",
    "NPU nodes",
    "partitions",
    "NPU MACs",
    "CPU nodes",
];

impl fmt::Display for InspectDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![HEAD.map(str::to_owned)];
        for on in &self.chipsets {
            let htp = match (on.hexagon_arch, self.ep) {
                (Some(arch), _) => format!("v{arch}"),
                (None, InspectedEp::Qnn) => "?".to_owned(),
                (None, _) => "-".to_owned(),
            };
            let name = match on.chipset.as_str() {
                "unknown" => format!("QNN {}", on.soc_model),
                chipset => chipset.to_owned(),
            };
            let is_whole =
                self.uncounted.is_empty() || on.placed.cpu_nodes.iter().all(|n| n.benign);
            let has_shares = is_whole && self.total_macs != Some(0);
            let [nodes, partitions, macs, cpu] = on.cells(has_shares);
            rows.push([name, htp, nodes, partitions, macs, cpu]);
        }
        writeln!(f, "{}", one_line(&self.model))?;
        let told = self.told(&rows)?;
        let accelerator = match self.ep.accelerator() {
            Accelerator::Cpu => Accelerator::Npu,
            other => other,
        };
        f.write_str(accelerator.in_words(&told).trim_end())
    }
}

impl InspectDocument {
    /// Returns the table and the text below it, with the NPU as the name of the accelerator.
    fn told(&self, rows: &[[String; 6]]) -> Result<String, fmt::Error> {
        use fmt::Write as _;

        let mut text = String::new();
        let f = &mut text;
        for row in rows {
            let mut line = String::from(" ");
            for (column, cell) in row.iter().enumerate() {
                let width = rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
                line.push_str(&format!(" {cell:<width$} "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        for why in self.macs_error.iter().chain(&self.not_counted) {
            writeln!(f, "\n  NPU MACs: {}", one_line(why))?;
        }
        let mut told: Vec<(Vec<String>, Vec<&str>)> = Vec::new();
        for (on, row) in self.chipsets.iter().zip(rows.iter().skip(1)) {
            let story = on.story();
            match told.iter_mut().find(|(same, _)| *same == story) {
                Some((_, chipsets)) => chipsets.push(&row[0]),
                None => told.push((story, vec![&row[0]])),
            }
        }
        for (story, chipsets) in told.iter().filter(|(story, _)| !story.is_empty()) {
            writeln!(f, "\n{}", chipsets.join(", "))?;
            for line in story {
                writeln!(f, "  {}", one_line(line))?;
            }
        }
        Ok(text)
    }
}
