//! Lines that people paste and that neither ONNX Runtime nor QNN writes, for example an app's own summary. Their origin
//! is not known, so they are kept apart from a session's own data.

use epwatch_proto::clipped;

/// Maximum number of lines that are kept for a session.
const MAX_LINES: usize = 32;
/// Longest line that is kept, in bytes.
const MAX_LINE_BYTES: usize = 256;

/// Data from lines of unknown origin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pasted {
    /// Nodes on the NPU by the last summary that names any.
    pub npu_nodes: Option<u32>,
    /// Nodes on the CPU by the same summary.
    pub cpu_nodes: Option<u32>,
    /// The lines, each once.
    pub lines: Vec<PastedLine>,
}

/// A line of unknown origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastedLine {
    /// Its subject.
    pub kind: PastedKind,
    /// The line.
    pub text: String,
}

/// Subject of a line of unknown origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PastedKind {
    /// Nodes by EP.
    Summary,
    /// Something runs on the CPU.
    Fallback,
    /// Ops were fused.
    Fusing,
    /// The line is about scales and zero points.
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

/// Whether a line is of one of these kinds.
pub(super) fn is_pasted(text: &str) -> bool {
    kind(text).is_some()
}

/// Whether a line says that something runs on the CPU. ONNX Runtime itself also writes such a line, as a warning
/// without names.
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

/// Nodes on NPU and CPU in words such as `23 nodes assigned to QNN, 7 to CPU`, `QNNExecutionProvider: 23 nodes`,
/// `23 of 30 nodes run on QNN` and `QNN 23/30, CPU 7/30`. Percentages are a summary without numbers of nodes. ONNX
/// Runtime's own list is not such a summary.
fn summary(text: &str) -> Option<(Option<u32>, Option<u32>)> {
    let lower = text.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let is_own = has(&["placed on [", "supported by qnn"]);
    let is_monitor = has(&["usage", "util", "load", "gpu", "memory", "temp", "hz"]);
    if lower.len() > MAX_LINE_BYTES || is_own {
        return None;
    }
    let words = || {
        let words = lower.split(|c: char| !c.is_alphanumeric());
        words.filter(|word| !word.is_empty())
    };
    let has_unit = words().any(|word| UNITS.contains(&word));
    let is_bare = || words().all(|word| BARE.contains(&word) || is_ep(word) || is_number(word));
    if has_wrong_count(&lower) {
        return None;
    }
    let tokens = merged(tokens(&lower));
    let sides = Sides::of(&tokens)?;
    let counts = match contradicts(&tokens, &sides) {
        true => (None, None),
        false => (sides.npu, sides.cpu),
    };
    match () {
        () if has_unit && sides.has_counts() => Some(counts),
        () if sides.are_parts() && (sides.names_both || is_bare()) => Some(counts),
        () if sides.is_percent && (sides.names_both || has_unit) && !is_monitor => {
            Some((None, None))
        }
        () => None,
    }
}

/// Whether a number in the position of a count cannot be one: it has a sign or a decimal point, or does not fit. Other
/// numbers in the line are versions, times or processes.
fn has_wrong_count(lower: &str) -> bool {
    let words: Vec<&str> = lower.split_whitespace().collect();
    words.iter().enumerate().any(|(at, word)| {
        let before = at.checked_sub(1).map_or("", |at| words[at]);
        let behind = words.get(at + 1).copied().unwrap_or_default();
        let is_share = behind.starts_with('%') || behind.starts_with("percent");
        let is_labelled = before.strip_suffix([':', '=']).is_some_and(is_ep);
        let is_count = word.contains(['/', '=']) || is_unit(behind) || is_labelled;
        let value = word.rsplit('=').next().unwrap_or_default();
        is_count && !is_share && value.split('/').any(is_wrong_count)
    })
}

fn is_wrong_count(part: &str) -> bool {
    let is_edge = |c: char| ",;:()[]|.".contains(c);
    let part = part.trim_matches(is_edge);
    let digits = part.trim_start_matches(['+', '-']);
    let is_whole = digits.len() == part.len() && digits.replace(',', "").parse::<u32>().is_ok();
    is_number(digits) && !is_whole
}

fn is_unit(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_alphanumeric());
    UNITS.contains(&word) || ["of", "out"].contains(&word)
}

/// Whether the parts in a line have different wholes, or do not add up to the whole. A whole without nodes has no
/// meaning.
fn contradicts(tokens: &[Token], sides: &Sides) -> bool {
    let parts = tokens.iter().filter_map(|token| match token {
        Token::Part(part, all) => Some((u64::from(*part), u64::from(*all))),
        _ => None,
    });
    let parts: Vec<(u64, u64)> = parts.collect();
    let sum: u64 = parts.iter().map(|(part, _)| part).sum();
    let is_whole = parts.iter().all(|(_, all)| *all == sum);
    (sides.npu, sides.cpu) == (Some(0), Some(0)) || (parts.len() > 1 && !is_whole)
}

/// Words for what is counted.
const UNITS: [&str; 4] = ["nodes", "ops", "operators", "layers"];
/// Words that may be next to one EP and a part of a whole, such as `23/30 on QNN (76.7 %)`.
const BARE: [&str; 12] = [
    "on",
    "to",
    "of",
    "out",
    "ep",
    "the",
    "assigned",
    "placed",
    "delegated",
    "running",
    "total",
    "percent",
];

/// A part of a summary.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Token {
    Npu,
    Cpu,
    Count(u32),
    /// `23/30` and `23 of 30`.
    Part(u32, u32),
    Percent,
    /// A slash or the word `of`.
    Of,
    /// A comma, a semicolon, a bar, or the word `and`.
    End,
}

impl Token {
    fn is_ep(self) -> bool {
        matches!(self, Self::Npu | Self::Cpu)
    }

    fn is_count(self) -> bool {
        matches!(self, Self::Count(_) | Self::Part(..))
    }

    fn is_number(self) -> bool {
        self.is_count() || self == Self::Percent
    }
}

fn tokens(lower: &str) -> Vec<Token> {
    let (mut found, mut rest) = (Vec::new(), lower);
    while let Some(first) = rest.chars().next() {
        let is_part = |(at, c): &(usize, char)| {
            let next = rest[at + c.len_utf8()..].chars().next();
            let joins = matches!(c, '.' | ',') && next.is_some_and(|c| c.is_ascii_digit());
            c.is_alphanumeric() || (joins && first.is_ascii_digit())
        };
        let len: usize = rest
            .char_indices()
            .take_while(is_part)
            .map(|(_, c)| c.len_utf8())
            .sum();
        let (word, behind) = rest.split_at(len.max(first.len_utf8()));
        match word {
            "/" | "of" => found.push(Token::Of),
            "," | ";" | "|" | "and" => found.push(Token::End),
            word if is_npu(word) => found.push(Token::Npu),
            word if is_cpu(word) => found.push(Token::Cpu),
            word if is_number(word) => {
                let unit = behind.trim_start();
                match unit.starts_with('%') || unit.starts_with("percent") {
                    true => found.push(Token::Percent),
                    // Commas part thousands.
                    false => found.extend(word.replace(',', "").parse().ok().map(Token::Count)),
                }
            }
            _ => {}
        }
        rest = behind;
    }
    found
}

/// Merges a part and its whole into one token. Other slashes separate two EPs or two numbers.
fn merged(tokens: Vec<Token>) -> Vec<Token> {
    let mut merged: Vec<Token> = Vec::new();
    for token in tokens {
        match (merged.as_slice(), token) {
            ([.., Token::Count(part), Token::Of], Token::Count(all)) if *part <= all => {
                let part = Token::Part(*part, all);
                merged.truncate(merged.len() - 2);
                merged.push(part);
            }
            _ => merged.push(token),
        }
    }
    merged
}

/// Counts of each EP in a summary.
#[derive(Debug, Default)]
struct Sides {
    npu: Option<u32>,
    cpu: Option<u32>,
    names_both: bool,
    /// Number of EPs for which the line has a part of a whole.
    n_parts: usize,
    n_eps: usize,
    is_percent: bool,
}

impl Sides {
    fn of(tokens: &[Token]) -> Option<Self> {
        let names = |ep: Token| tokens.contains(&ep);
        let mut sides = Self {
            names_both: names(Token::Npu) && names(Token::Cpu),
            is_percent: names(Token::Percent),
            ..Self::default()
        };
        if let Some(pair) = labelled(tokens) {
            (sides.npu, sides.cpu) = pair;
            return Some(sides);
        }
        let is_behind = numbers_are_behind(tokens)?;
        let mut rest = None;
        for (at, ep) in tokens.iter().enumerate().filter(|(_, token)| token.is_ep()) {
            let is_own = |token: &&Token| !token.is_ep();
            let mut own: Vec<Token> = match is_behind {
                true => tokens[at + 1..]
                    .iter()
                    .take_while(is_own)
                    .copied()
                    .collect(),
                false => tokens[..at]
                    .iter()
                    .rev()
                    .take_while(is_own)
                    .copied()
                    .collect(),
            };
            own.retain(|token| token.is_number());
            sides.n_eps += 1;
            let part = own.iter().find_map(|token| match token {
                Token::Part(part, all) => Some((*part, *all)),
                _ => None,
            });
            let count = own.iter().find_map(|token| match token {
                Token::Count(count) => Some(*count),
                _ => None,
            });
            sides.n_parts += usize::from(part.is_some());
            let side = match ep {
                Token::Npu => &mut sides.npu,
                _ => &mut sides.cpu,
            };
            *side = match (*side, part) {
                (Some(sum), Some((part, _))) => Some(sum.saturating_add(part)),
                (side, part) => side.or(part.map(|(part, _)| part)).or(count),
            };
            rest = rest.or(part.map(|(part, all)| all - part));
        }
        // If the line has one EP's part, the rest belongs to the other EP.
        match (sides.npu, sides.cpu) {
            (Some(_), None) => sides.cpu = rest,
            (None, Some(_)) => sides.npu = rest,
            _ => {}
        }
        Some(sides)
    }

    fn has_counts(&self) -> bool {
        self.npu.is_some() || self.cpu.is_some()
    }

    fn are_parts(&self) -> bool {
        self.n_parts > 0 && self.n_parts == self.n_eps
    }
}

/// The two numbers behind `QNN/CPU` or `CPU/QNN`, in that order.
fn labelled(tokens: &[Token]) -> Option<(Option<u32>, Option<u32>)> {
    let labels = tokens
        .windows(3)
        .position(|three| three[0].is_ep() && three[1] == Token::Of && three[2].is_ep())?;
    let numbers = match tokens.get(labels + 3..)? {
        [Token::Part(a, b), ..] | [Token::Count(a), Token::Of, Token::Count(b), ..] => (*a, *b),
        _ => return None,
    };
    Some(match tokens[labels] {
        Token::Npu => (Some(numbers.0), Some(numbers.1)),
        _ => (Some(numbers.1), Some(numbers.0)),
    })
}

/// Whether each number comes after its EP; `None` without an EP or a number.
fn numbers_are_behind(tokens: &[Token]) -> Option<bool> {
    // A percentage is often on the other side of its EP than the number.
    let has_counts = tokens.iter().any(|token| token.is_count());
    let is_value = |token: &Token| token.is_number() && (token.is_count() || !has_counts);
    let is_it = |token: &&Token| token.is_ep() || is_value(token);
    let (first, last) = (tokens.iter().find(is_it)?, tokens.iter().rfind(is_it)?);
    let ep = tokens.iter().position(|token| token.is_ep())?;
    tokens.iter().find(|token| is_value(token))?;
    Some(match (first.is_ep(), last.is_ep()) {
        (true, _) => true,
        (false, true) => false,
        // A total comes first or last: `30 nodes, QNN: 23, CPU: 7` and `23 on QNN, 7 on CPU, 30 nodes`.
        (false, false) => tokens.get(ep + 1).is_some_and(|next| next.is_number()),
    })
}

fn is_number(word: &str) -> bool {
    let is_it = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',');
    word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(is_it)
}

fn is_ep(word: &str) -> bool {
    is_npu(word) || is_cpu(word)
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
            ("QNN 23/30, CPU 7/30", Some(23), Some(7)),
            ("QNN: 23 / 30 | CPU: 7 / 30", Some(23), Some(7)),
            ("QNN 23/30 (76.7 %), CPU 7/30 (23.3 %)", Some(23), Some(7)),
            ("QNN: 23 of 30, CPU: 7 of 30", Some(23), Some(7)),
            ("CPU 7 out of 30, NPU 23 out of 30", Some(23), Some(7)),
            (
                "76.7% (23/30) on QNN, 23.3% (7/30) on CPU",
                Some(23),
                Some(7),
            ),
            ("23/30 ops on QNN", Some(23), Some(7)),
            ("NPU: 23/30 (76.7 percent)", Some(23), Some(7)),
            (
                "23 of the 30 layers run on the NPU (76.7 %)",
                Some(23),
                Some(7),
            ),
            ("QNN/CPU nodes: 7/23", Some(7), Some(23)),
            ("CPU/QNN nodes: 7/23", Some(23), Some(7)),
            ("23 QNN / 7 CPU ops", Some(23), Some(7)),
            ("Total nodes: 30, QNN: 23, CPU: 7", Some(23), Some(7)),
            ("23 on QNN, 7 on CPU, 30 nodes in total", Some(23), Some(7)),
            ("nodes: QNN 1,234 CPU 17", Some(1_234), Some(17)),
            ("QNN 2.47: 23 nodes", Some(23), None),
            ("QNN 76.7 %, CPU 23.3 %", None, None),
            ("76.7 % of the nodes run on QNN", None, None),
            (
                "76.7 percent on the NPU and 23.3 percent on the CPU",
                None,
                None,
            ),
        ] {
            assert_eq!(summary(text), Some((npu, cpu)), "{text}");
        }
        for text in [
            "All nodes placed on [CPUExecutionProvider]. Number of nodes: 8",
            "Number of partitions supported by QNN EP: 1, number of nodes in the graph: 3, number of nodes supported by QNN: 1",
            "cpu 7 is hot",
            "node 12 of the CPU list failed",
            "a node of the cpu list",
            "CPU 93 %",
            "cpu 40% npu 12% gpu 3%",
            "CPU usage 40 %, NPU usage 12 %",
            "QNN 2.47, CPU EP 1.31",
            "QNN retry 2/3 failed",
            "CPU 3/8 is hot",
            "qnn/cpu",
            "QNN drops 3 frames, CPU 4",
            "",
        ] {
            assert_eq!(summary(text), None, "{text}");
        }
    }

    #[test]
    fn a_number_that_is_no_count_makes_no_summary() {
        for text in [
            "4294967296 nodes assigned to QNN, 7 to CPU",
            "QNN 23.5/30, CPU 6.5/30",
            "QNN: 23.5 nodes, CPU: 7 nodes",
            "-23 nodes assigned to QNN, 7 to CPU",
            "QNN=-23 CPU=7 nodes",
            "QNN: +23, CPU: 7 nodes",
            "23.5 of 30 nodes run on QNN",
        ] {
            assert_eq!(summary(text), None, "{text}");
        }
        for (text, npu, cpu) in [
            ("QNN 0/0, CPU 0/0", None, None),
            (
                "1764313200123 app: QNN: 23 nodes, CPU: 7 nodes, 12.5 ms",
                Some(23),
                Some(7),
            ),
            ("QNN 23/30, CPU 9/30", None, None),
            ("QNN 23/30, CPU 7/31", None, None),
            ("QNN 0/30, CPU 30/30", Some(0), Some(30)),
            ("QNN 20/30, GPU 3/30, CPU 7/30", Some(20), Some(7)),
            ("QNN 10/30, HTP 13/30, CPU 7/30", Some(23), Some(7)),
        ] {
            assert_eq!(summary(text), Some((npu, cpu)), "{text}");
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
