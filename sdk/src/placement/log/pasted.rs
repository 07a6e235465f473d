//! Lines that people paste and that neither ONNX Runtime nor QNN writes: an app's or a tool's own summary. Their origin is
//! not known, so they are kept apart from the facts of a session.

use epwatch_proto::clipped;

/// Most lines that are kept of a session.
const MAX_LINES: usize = 32;
/// Longest line that is kept, in bytes.
const MAX_LINE_BYTES: usize = 256;

/// What lines of unknown origin say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pasted {
    /// Nodes on the NPU by the last summary that names any.
    pub npu_nodes: Option<u32>,
    /// Nodes on the CPU by it.
    pub cpu_nodes: Option<u32>,
    /// The lines, each once.
    pub lines: Vec<PastedLine>,
}

/// A line of unknown origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastedLine {
    /// What it is about.
    pub kind: PastedKind,
    /// The line.
    pub text: String,
}

/// What a line of unknown origin is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PastedKind {
    /// Nodes by EP.
    Summary,
    /// Something runs on the CPU.
    Fallback,
    /// Ops were put together.
    Fusing,
    /// Scales and zero points.
    Quantization,
}

impl PastedKind {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Summary => "summary",
            Self::Fallback => "fallback",
            Self::Fusing => "fusing",
            Self::Quantization => "quantization",
        }
    }
}

/// Whether a line is one of these.
pub(super) fn is_pasted(text: &str) -> bool {
    kind(text).is_some()
}

/// Whether a line says that something runs on the CPU, which ONNX Runtime itself also writes, as a warning without names.
pub(super) fn is_fallback(text: &str) -> bool {
    kind(text) == Some(PastedKind::Fallback)
}

/// Reads a line of unknown origin, if it is one.
pub(super) fn read(text: &str, into: &mut Pasted) {
    let Some(kind) = kind(text) else { return };
    if let (PastedKind::Summary, Some((npu, cpu))) = (kind, summary(text)) {
        into.npu_nodes = npu.or(into.npu_nodes);
        into.cpu_nodes = cpu.or(into.cpu_nodes);
    }
    let line = PastedLine {
        kind,
        text: clipped(text, MAX_LINE_BYTES),
    };
    if into.lines.len() < MAX_LINES && !into.lines.contains(&line) {
        into.lines.push(line);
    }
}

fn kind(text: &str) -> Option<PastedKind> {
    let lower = text.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if summary(text).is_some() {
        Some(PastedKind::Summary)
    } else if has(&[
        "fallback to cpu",
        "falling back to cpu",
        "fell back to cpu",
        "fall back to cpu",
    ]) && !has(&["explicitly disabled", "disable_cpu_ep_fallback"])
        || has(&["some nodes were not assigned to the preferred execution providers"])
    {
        Some(PastedKind::Fallback)
    } else if has(&["fusing operation", "fusing op ", "fused operation"]) {
        Some(PastedKind::Fusing)
    } else if has(&[
        "quantization params",
        "quantization parameters:",
        "quant params",
    ]) {
        Some(PastedKind::Quantization)
    } else {
        None
    }
}

/// Nodes on NPU and CPU in words such as `23 nodes assigned to QNN, 7 to CPU`, `QNNExecutionProvider: 23 nodes` and
/// `23 of 30 nodes run on QNN`. ONNX Runtime's own list is none of them.
fn summary(text: &str) -> Option<(Option<u32>, Option<u32>)> {
    let lower = text.to_ascii_lowercase();
    let is_own = lower.contains("placed on [") || lower.contains("supported by qnn");
    if lower.len() > MAX_LINE_BYTES || !lower.contains("nodes") || is_own {
        return None;
    }
    let words = lower.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| is_npu(word) || is_cpu(word) || word.parse::<u32>().is_ok());
    let words: Vec<&str> = words.collect();
    let is_ep = |word: &&str| is_npu(word) || is_cpu(word);
    // Either each number comes before its EP, or each behind.
    let is_behind = is_ep(words.first()?);
    let (mut npu, mut cpu) = (None, None);
    for (at, ep) in words.iter().enumerate().filter(|(_, word)| is_ep(word)) {
        let numbers: Vec<u32> = if is_behind {
            let behind = words[at + 1..].iter().take_while(|word| !is_ep(word));
            behind.filter_map(|word| word.parse().ok()).collect()
        } else {
            let before = words[..at].iter().rev().take_while(|word| !is_ep(word));
            let mut before: Vec<u32> = before.filter_map(|word| word.parse().ok()).collect();
            before.reverse();
            before
        };
        let (side, other) = match is_npu(ep) {
            true => (&mut npu, &mut cpu),
            false => (&mut cpu, &mut npu),
        };
        match numbers.as_slice() {
            [part, all] if lower.contains(" of ") => {
                *side = side.or(Some(*part));
                *other = other.or(all.checked_sub(*part));
            }
            [.., last] if !is_behind => *side = side.or(Some(*last)),
            [first, ..] => *side = side.or(Some(*first)),
            [] => {}
        }
    }
    (npu.is_some() || cpu.is_some()).then_some((npu, cpu))
}

fn is_npu(word: &str) -> bool {
    ["qnn", "qnnexecutionprovider", "npu", "htp", "qnnep"].contains(&word)
}

fn is_cpu(word: &str) -> bool {
    ["cpu", "cpuexecutionprovider", "cpuep"].contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_in_their_spellings() {
        for (text, npu, cpu) in [
            (
                "23 nodes assigned to QNNExecutionProvider, 7 nodes assigned to CPUExecutionProvider",
                Some(23),
                Some(7),
            ),
            ("23 nodes assigned to QNN, 7 to CPU", Some(23), Some(7)),
            (
                "23 nodes assigned to QNN and 7 nodes to CPU",
                Some(23),
                Some(7),
            ),
            (
                "Assigned 23 nodes to QNNExecutionProvider; 7 nodes to CPUExecutionProvider",
                Some(23),
                Some(7),
            ),
            (
                "QNNExecutionProvider: 23 nodes, CPUExecutionProvider: 7 nodes",
                Some(23),
                Some(7),
            ),
            ("QNN=23 CPU=7 nodes", Some(23), Some(7)),
            ("23 of 30 nodes run on QNN", Some(23), Some(7)),
            ("All 30 nodes running on CPU", None, Some(30)),
            ("[app] NPU nodes: 23, CPU nodes: 7", Some(23), Some(7)),
        ] {
            assert_eq!(summary(text), Some((npu, cpu)), "{text}");
        }
        for text in [
            "All nodes placed on [CPUExecutionProvider]. Number of nodes: 8",
            "Number of partitions supported by QNN EP: 1, number of nodes in the graph: 3, number of nodes supported by QNN: 1",
            "cpu 7 is hot",
            "node 12 of the CPU list failed",
            "a node of the cpu list",
            "",
        ] {
            assert_eq!(summary(text), None, "{text}");
        }
    }

    #[test]
    fn other_lines_have_their_kind() {
        for (text, expected) in [
            ("Fallback to CPU: GridSample_12", Some(PastedKind::Fallback)),
            (
                "Some nodes were not assigned to the preferred execution providers which may or may not have an negative impact on performance.",
                Some(PastedKind::Fallback),
            ),
            ("Fusing operation Conv + Relu", Some(PastedKind::Fusing)),
            (
                "Quantization params: scale=0.02, zero_point=128",
                Some(PastedKind::Quantization),
            ),
            (
                "This session contains graph nodes that are assigned to the default CPU EP, but fallback to CPU EP has been explicitly disabled by the user.",
                None,
            ),
            ("hello", None),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
    }
}
