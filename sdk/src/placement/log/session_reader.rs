//! Reads the lines of one session.

use epwatch_proto::{
    ReasonCode,
    chipset::soc_by_soc_model,
    clipped,
    placement::{MAX_EP_NAME_BYTES, MAX_EPS, MAX_NODE_NAME_BYTES, MAX_REASONS},
};

use super::{
    MAX_LOG_NODES,
    line::Line,
    pasted,
    reason::setup_reason,
    run_error::run_error,
    session::{Capability, NodeRefusal, PlacedEp, SessionLog, ValidatedNode},
    unsupported::unsupported_nodes,
};
use crate::placement::AssignedNode;

/// Longest node name. It is longer than the names of a placement, so that clipped names still differ.
const MAX_NAME_BYTES: usize = 4 * MAX_NODE_NAME_BYTES;
/// The session's data read so far, and the state between its lines.
#[derive(Debug, Default)]
pub(super) struct SessionReader {
    now: SessionLog,
    /// Whether a pass of the validator has ended, as far as the form of its lines shows.
    pass_ended: bool,
    n_nodes: usize,
    unit: Option<Unit>,
    /// Number of items of ORT's list that still follow.
    list_left: u32,
    config: Option<OpConfig>,
    /// Set if the back end's op check refused a node: whether the node has a float input. The verdict on its unit
    /// follows.
    rejected: Option<bool>,
    /// The built-in EP's sentence about a node; the verdict on the node follows.
    sentence: Option<(String, String)>,
}

/// A group of nodes with one verdict of the validator.
#[derive(Debug)]
struct Unit {
    first: usize,
    /// The refusal without its sentence, which follows the nodes.
    refusal: Option<NodeRefusal>,
}

/// The dump of an op, which comes before the back end checks the op.
#[derive(Debug)]
struct OpConfig {
    is_inputs: bool,
    has_float_input: bool,
}

impl SessionReader {
    pub(super) fn finish(self) -> SessionLog {
        self.now
    }

    pub(super) fn is_empty(&self) -> bool {
        self.now.is_empty()
    }

    pub(super) fn line(&mut self, line: Line<'_>) {
        let text = line.text.trim_start();
        if text.is_empty() {
            return;
        }
        let continues = self.unit_line(text) || self.list_item(line) || self.config_line(text);
        if continues {
            return;
        }
        if let Some(soc_model) = text.strip_prefix("User specified soc_model: ") {
            self.now.soc_model = clipped(soc_model.trim(), MAX_EP_NAME_BYTES);
        }
        self.validator_line(text);
        self.placement_line(text);
        self.setup_line(text);
        if let Some(error) = run_error(text) {
            self.now.add_run_error(error);
        }
        if line.header.is_empty() || pasted::is_fallback(text) {
            pasted::read(text, &mut self.now.pasted);
        }
    }

    // QNN's validator.

    fn validator_line(&mut self, text: &str) {
        if text.starts_with("GetCapability pass ") {
            self.new_pass();
        } else if let Some(rest) = text.strip_prefix("Validation ") {
            self.verdict(rest);
        } else if let Some(rest) = text.strip_prefix("Node supported: [") {
            self.built_in_verdict(rest);
        } else if let Some(rest) = text.strip_prefix("Number of partitions supported by QNN EP: ") {
            self.now.capability = capability(rest);
            self.pass_ended = true;
        } else if let Some(list) = text.strip_prefix("Unsupported nodes in QNN EP: ") {
            for (name, op_type) in unsupported_nodes(list) {
                if self.has_room() {
                    self.now.unsupported.push(node(op_type, name));
                }
            }
        } else if text.starts_with("Qnn_OpConfig node name: ") {
            self.config = Some(OpConfig {
                is_inputs: false,
                has_float_input: false,
            });
        } else if text.starts_with("QNN.backendValidateOpConfig() failed for node `") {
            let has_float_input = self.config.take().is_some_and(|c| c.has_float_input);
            self.rejected = Some(has_float_input);
        } else if let Some((head, sentence)) = text.split_once("` is not supported: ") {
            let name = head.split_once(" node `").map_or("", |(_, name)| name);
            self.sentence = Some((name.to_owned(), clipped(sentence, MAX_NODE_NAME_BYTES)));
        } else if text.starts_with("Operators of type `") || text.starts_with("Non-QDQ ") {
            let name = text.split_once(" node `").map(|(_, n)| n);
            let name = name.and_then(|n| n.split('`').next()).unwrap_or_default();
            let name = name.trim_end_matches(" will not be assigned to QNN EP.");
            self.sentence = Some((name.to_owned(), clipped(text, MAX_NODE_NAME_BYTES)));
        }
    }

    fn new_pass(&mut self) {
        self.n_nodes -= self.now.validated.len().min(self.n_nodes);
        self.now.validated.clear();
        self.now.capability = None;
        self.pass_ended = false;
        self.rejected = None;
        self.sentence = None;
    }

    /// `FAILED for 1 nodes in OrtNodeUnit (TopK) :`, `PASSED for 5 nodes in NodeUnit (Conv) :`
    fn verdict(&mut self, rest: &str) {
        let is_taken = rest.starts_with("PASSED for ");
        if !is_taken && !rest.starts_with("FAILED for ") {
            return;
        }
        if self.pass_ended {
            self.new_pass();
        }
        let refusal = self.refusal(String::new());
        self.config = None;
        self.sentence = None;
        self.unit = Some(Unit {
            first: self.now.validated.len(),
            refusal: (!is_taken).then_some(refusal),
        });
    }

    /// `Operator type: TopK Node name: topk Node index: 32`, `REASON : Failed to add node.`
    fn unit_line(&mut self, text: &str) -> bool {
        let Some(unit) = &self.unit else {
            return false;
        };
        if let Some(rest) = text.strip_prefix("Operator type: ") {
            let Some((op_type, rest)) = rest.split_once(" Node name: ") else {
                return false;
            };
            let name = rest
                .rsplit_once(" Node index: ")
                .map_or(rest, |(name, _)| name);
            let refusal = unit.refusal.clone();
            self.validated(op_type, name, refusal);
            return true;
        }
        if let Some(reason) = text.strip_prefix("REASON :") {
            let reason = clipped(reason.trim_start(), MAX_NODE_NAME_BYTES);
            let first = unit.first;
            for node in self.now.validated.iter_mut().skip(first) {
                if let Some(refusal) = &mut node.refusal {
                    refusal.text.clone_from(&reason);
                }
            }
            self.unit = None;
            return true;
        }
        false
    }

    /// `[0] index: [1] name: [n] Operator type: [Conv] as part of the NodeUnit ...`: the form of the
    /// EP that was built into ORT up to about 1.19.
    fn built_in_verdict(&mut self, rest: &str) {
        let Some((taken, rest)) = rest.split_once("] index: [") else {
            return;
        };
        let Some((name, rest)) = rest
            .split_once("] name: [")
            .and_then(|(_, rest)| rest.split_once("] Operator type: ["))
        else {
            return;
        };
        let op_type = rest.split(']').next().unwrap_or_default();
        if self.pass_ended {
            self.new_pass();
        }
        let text = match self.sentence.take() {
            Some((of, sentence)) if of == name => sentence,
            _ => String::new(),
        };
        let refusal = self.refusal(text);
        self.validated(op_type, name, (taken.trim() == "0").then_some(refusal));
    }

    /// Makes the refusal for the next verdict, if that verdict is a refusal.
    fn refusal(&mut self, text: String) -> NodeRefusal {
        let rejected = self.rejected.take();
        NodeRefusal {
            text,
            by_backend: rejected.is_some(),
            has_float_input: rejected.unwrap_or(false),
        }
    }

    fn validated(&mut self, op_type: &str, name: &str, refusal: Option<NodeRefusal>) {
        if self.has_room() {
            let node = node(op_type, name);
            self.now.validated.push(ValidatedNode { node, refusal });
        }
    }

    fn config_line(&mut self, text: &str) -> bool {
        let Some(config) = &mut self.config else {
            return false;
        };
        match text {
            "node_inputs:" => config.is_inputs = true,
            "node_outputs:" | "node_params:" => config.is_inputs = false,
            _ if config.is_inputs && text.starts_with("name=") => {
                // Weights and constants need no exception, because a quantised op has no float constants either.
                config.has_float_input |= text.contains(" dataType=QNN_DATATYPE_FLOAT_");
            }
            _ => return false,
        }
        true
    }

    // ORT's list.

    fn placement_line(&mut self, text: &str) {
        if text == "Node placements" {
            self.now.n_lists = self.now.n_lists.saturating_add(1);
        }
        let all = text.strip_prefix("All nodes placed on [");
        let some = text.strip_prefix("Node(s) placed on [");
        let Some(rest) = all.or(some) else {
            return;
        };
        let Some((ep, n_nodes)) = rest.split_once("]. Number of nodes: ") else {
            return;
        };
        let Ok(n_nodes) = n_nodes.trim().parse::<u32>() else {
            return;
        };
        self.unit = None;
        self.config = None;
        // The following items belong to this EP, so it must be the last entry.
        match self.now.placed.iter().position(|p| p.ep == ep) {
            Some(at) => {
                // The bodies of If and Loop have lists of their own.
                let mut known = self.now.placed.remove(at);
                known.n_nodes = known.n_nodes.saturating_add(n_nodes);
                self.now.placed.push(known);
            }
            None if self.now.placed.len() < MAX_EPS => self.now.placed.push(PlacedEp {
                ep: clipped(ep, MAX_EP_NAME_BYTES),
                n_nodes,
                nodes: Vec::new(),
            }),
            None => {
                self.now.is_truncated = true;
                return;
            }
        }
        self.list_left = some.map_or(0, |_| n_nodes);
    }

    /// `  TopK (topk)` under `Node(s) placed on [...]`.
    fn list_item(&mut self, line: Line<'_>) -> bool {
        let is_ours = line.header.contains("VerifyEachNodeIsAssignedToAnEp");
        let is_indented = line.text.starts_with("  ");
        let is_item = is_indented && (is_ours || line.header.is_empty());
        if self.list_left == 0 || !is_item {
            // The line is not an item: other threads write between the items, and only another head ends the list.
            return false;
        }
        self.list_left -= 1;
        let text = line.text.trim();
        let (op_type, name) = match text.split_once(" (") {
            Some((op_type, name)) => (op_type, name.strip_suffix(')').unwrap_or(name)),
            None => (text, ""),
        };
        if self.has_room()
            && let Some(placed) = self.now.placed.last_mut()
        {
            placed.nodes.push(node(op_type, name));
        }
        true
    }

    // The back end and the whole graph.

    fn setup_line(&mut self, text: &str) {
        let Some(reason) = setup_reason(text) else {
            return;
        };
        // Both messages are about one failure, and the first has the cause.
        let is_consequence = reason == ReasonCode::BackendSetupFailed && self.has_setup_failure();
        if is_consequence
            || self.now.reasons.contains(&reason)
            || self.now.reasons.len() >= MAX_REASONS
        {
            return;
        }
        if self.now.reason_text.is_empty() {
            self.now.reason_text = clipped(text, 512);
        }
        let given = &self.now.soc_model;
        let is_bad_option = reason == ReasonCode::DeviceCreationFailed
            && !given.is_empty()
            && soc_by_soc_model(given).is_none();
        if is_bad_option && !self.now.reasons.contains(&ReasonCode::SocModelUnknown) {
            self.now.reasons.push(ReasonCode::SocModelUnknown);
        }
        self.now.reasons.push(reason);
    }

    fn has_setup_failure(&self) -> bool {
        self.now.reasons.iter().any(|r| r.is_setup_failure())
    }

    fn has_room(&mut self) -> bool {
        let has_room = self.n_nodes < MAX_LOG_NODES;
        match has_room {
            true => self.n_nodes += 1,
            false => self.now.is_truncated = true,
        }
        has_room
    }
}

/// `1, number of nodes in the graph: 3, number of nodes supported by QNN: 1`, or `0`
fn capability(rest: &str) -> Option<Capability> {
    let mut numbers = rest.split(", ").map(|part| {
        let digits = part.rsplit(' ').next().unwrap_or_default();
        digits.trim().parse::<u32>().ok()
    });
    let n_partitions = numbers.next()??;
    let nodes = match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(all), Some(taken)) => Some((all, taken)),
        _ => None,
    };
    Some(Capability {
        n_partitions,
        nodes,
    })
}

/// The beginning of a text, at most this many bytes, cut between characters.
pub(super) fn up_to(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// A log has no domains.
fn node(op_type: &str, name: &str) -> AssignedNode {
    AssignedNode {
        name: up_to(name, MAX_NAME_BYTES).to_owned(),
        op_type: clipped(op_type, MAX_EP_NAME_BYTES),
        domain: String::new(),
    }
}
