//! `epwatch logs`: reads placements from a log of ONNX Runtime and QNN.

mod utf16;

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use epwatch_proto::{
    ReasonCode,
    placement::{CPU_EP, QNN_EP},
};
use epwatch_sdk::{
    ExplainedNode,
    placement::{
        PlacementInput,
        log::{LogReader, RunError, SessionLog},
    },
};
use serde::Serialize;

use crate::{
    input_file::{self, FilePurpose},
    inspect::{Placed, each},
    output::{self, WrongUse},
};

/// Name and version of the document.
const SCHEMA: &str = "epwatch.logs/1";
/// Maximum number of nodes of ONNX Runtime's list in the text; the JSON has all.
const SHOWN_NODES: usize = 20;
/// Maximum number of bytes that are read of a line.
const MOST_LINE_BYTES: u64 = 64 << 10;

/// Shows what a log says about where nodes run, and why not on the NPU.
///
/// FILE is a logcat, ONNX Runtime's log at VERBOSE, or pasted lines. They may come from a phone that is out of reach,
/// or from a runtime older than `inspect` has. UTF-8 and UTF-16 are read. For each session it prints the nodes by EP,
/// or QNN's counts of them. It prints each refused node with its reason and way out, and errors of the start and of
/// runs. Lines of unknown origin ("23 nodes assigned to QNN", "QNN 23/30, CPU 7/30") are printed separately. The SDK
/// reads logs by the same rules. A log is text: its origin is not checked, and lines may be missing.
///
/// Exit codes: 0 it says something, 2 FILE cannot be read, 3 it says nothing about placements or runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The log; - is standard input.
    file: PathBuf,
    /// Print one JSON document, epwatch.logs/1.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct LogsDocument {
    schema: &'static str,
    sessions: Vec<LoggedSession>,
}

/// A session, reconstructed from its lines in the log.
#[derive(Debug, Serialize)]
struct LoggedSession {
    /// The chipset that the log names.
    chipset: Option<String>,
    /// Empty without ONNX Runtime's list of nodes (`source` is `unavailable`).
    #[serde(flatten)]
    placed: Placed,
    /// Numbers of nodes, if the log has no placement; `null` if it lacks them too.
    counts: Option<LoggedCounts>,
    /// Nodes of ONNX Runtime's own list by EP, if the log has no placement. A partition of the NPU is one node.
    listed: BTreeMap<String, Vec<String>>,
    /// Nodes that the validator refused. If there is a placement, they are among its CPU nodes.
    refused: Vec<ExplainedNode>,
    /// Runs that failed, by node and QNN's number.
    run_errors: Vec<LoggedRunError>,
    /// Lines of unknown origin: neither ONNX Runtime nor QNN writes them.
    pasted: Vec<PastedText>,
    /// The first message of a failed start.
    problem: Option<String>,
}

/// Nodes by QNN's own counts, ONNX Runtime's list, or a pasted line.
#[derive(Debug, Serialize)]
struct LoggedCounts {
    /// The source of the counts: `qnn`, `list`, or `pasted`, whose origin is not known.
    source: &'static str,
    npu_nodes: Option<u32>,
    cpu_nodes: Option<u32>,
    partitions: Option<u32>,
}

/// A partition that failed when it ran.
#[derive(Debug, Serialize)]
struct LoggedRunError {
    node: String,
    code: Option<u32>,
    count: u64,
    reason: &'static str,
    text: String,
    fix: String,
}

/// A line of unknown origin.
#[derive(Debug, Serialize)]
struct PastedText {
    kind: &'static str,
    text: String,
}

impl LoggedSession {
    fn of(log: &SessionLog, requested_eps: &[String]) -> Self {
        let placement = log.placement(PlacementInput {
            requested_eps,
            ..PlacementInput::default()
        });
        let mut placed = Placed::of(&placement, Vec::new());
        // These reasons do not apply, because a log names neither the requested EPs nor a missing API.
        let unread = [
            ReasonCode::AssignmentApiUnavailable,
            ReasonCode::EpNotRequested,
        ]
        .map(ReasonCode::as_str);
        placed
            .reasons
            .retain(|reason| !unread.contains(&reason.code.as_str()));
        for reason in &mut placed.reasons {
            if let Some(code) = ReasonCode::from_name(&reason.code) {
                reason.fix = code.way_out(log.reasons());
            }
        }
        let is_placed = !placed.eps.is_empty();
        let refused = match placement.cpu_nodes.is_empty() {
            true => ExplainedNode::each_of(&log.refused()),
            false => Vec::new(),
        };
        let each = log.pasted().lines.iter().map(|line| PastedText {
            kind: line.kind.as_str(),
            text: line.text.clone(),
        });
        Self {
            chipset: log.soc().map(|soc| soc.soc.to_owned()),
            placed,
            counts: (!is_placed).then(|| LoggedCounts::of(log)).flatten(),
            listed: if is_placed {
                BTreeMap::new()
            } else {
                listed(log)
            },
            refused,
            run_errors: log.run_errors().iter().map(LoggedRunError::of).collect(),
            pasted: each.collect(),
            problem: log.problem().map(ToOwned::to_owned),
        }
    }
}

/// Whether a line is ONNX Runtime's own warning that some nodes are on the CPU, without their names.
fn is_warning(line: &PastedText) -> bool {
    line.text
        .contains("Some nodes were not assigned to the preferred execution providers")
}

/// Returns the nodes by EP in ONNX Runtime's own list, for example `TopK /head/TopK`.
fn listed(log: &SessionLog) -> BTreeMap<String, Vec<String>> {
    let each = log.listed().into_iter().map(|listed| {
        let nodes = listed.nodes.iter();
        let nodes = nodes.map(|(op_type, name)| format!("{op_type} {name}").trim_end().to_owned());
        (listed.ep, nodes.collect())
    });
    each.collect()
}

impl LoggedCounts {
    fn of(log: &SessionLog) -> Option<Self> {
        if let Some((npu, all, partitions)) = log.qnn_counts() {
            return Some(Self {
                source: "qnn",
                npu_nodes: Some(npu),
                cpu_nodes: Some(all - npu),
                partitions: Some(partitions),
            });
        }
        let list = log.listed();
        if !list.is_empty() {
            let on = |ep: &str| {
                list.iter()
                    .find(|listed| listed.ep == ep)
                    .map_or(0, |l| l.n_nodes)
            };
            return Some(Self {
                source: "list",
                npu_nodes: None,
                cpu_nodes: Some(on(CPU_EP)),
                partitions: Some(on(QNN_EP)),
            });
        }
        let pasted = log.pasted();
        let has_any = pasted.npu_nodes.or(pasted.cpu_nodes).is_some();
        has_any.then_some(Self {
            source: "pasted",
            npu_nodes: pasted.npu_nodes,
            cpu_nodes: pasted.cpu_nodes,
            partitions: None,
        })
    }
}

impl fmt::Display for LoggedCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |number: Option<u32>| number.map_or("?".to_owned(), |n| n.to_string());
        let all = self.npu_nodes.zip(self.cpu_nodes);
        let all = all.map(|(npu, cpu)| format!(" of {}", npu.saturating_add(cpu)));
        let whose = match self.source {
            "qnn" => "by QNN's own counts",
            "list" => "by ONNX Runtime's list, after it fused nodes",
            _ => "by a pasted line of unknown origin",
        };
        match (self.npu_nodes, self.partitions) {
            (None, Some(partitions)) => write!(f, "{partitions} partitions on the NPU")?,
            (npu, partitions) => {
                write!(
                    f,
                    "{}{} nodes on the NPU",
                    shown(npu),
                    all.unwrap_or_default()
                )?;
                if let Some(partitions) = partitions {
                    let unit = if partitions == 1 {
                        "partition"
                    } else {
                        "partitions"
                    };
                    write!(f, " in {partitions} {unit}")?;
                }
            }
        }
        match self.cpu_nodes {
            Some(0) => write!(f, ", none on the CPU")?,
            cpu => write!(f, ", {} on the CPU", shown(cpu))?,
        }
        let is_total = self.npu_nodes == Some(0) || self.partitions == Some(0);
        let total = if is_total { ": total fallback" } else { "" };
        write!(f, "{total} ({whose})")
    }
}

impl LoggedRunError {
    fn of(error: &RunError) -> Self {
        Self {
            node: error.node.clone(),
            code: error.code,
            count: error.count,
            reason: error.reason.as_str(),
            text: error.text.clone(),
            fix: error.reason.fix().to_owned(),
        }
    }
}

impl fmt::Display for LoggedRunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = match self.node.as_str() {
            "" => "a partition",
            node => node,
        };
        write!(f, "failed when it ran: {node}")?;
        if let Some(code) = self.code {
            write!(f, ", QNN error {code}")?;
        }
        if self.count > 1 {
            write!(f, ", {} times", self.count)?;
        }
        write!(f, ": {}", self.text)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = args.file.display();
    let sessions = read(&args.file)
        .map_err(|error| WrongUse(format!("failed to read FILE {shown}: {error}")))?;
    if sessions.is_empty() {
        anyhow::bail!(
            "{shown} says nothing about placements or failed runs; log at VERBOSE while the session is made and runs \
             (ONNX Runtime's log severity 0, then `adb logcat -d`)"
        );
    }
    let document = LogsDocument {
        schema: SCHEMA,
        sessions,
    };
    if args.json {
        output::json(&document)?;
    } else {
        output::line(&document)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> io::Result<Vec<LoggedSession>> {
    let input: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(io::stdin()),
        false => Box::new(input_file::open(path, FilePurpose::Log).map_err(io::Error::other)?),
    };
    let mut input = BufReader::new(utf16::as_utf8(input)?);
    let (mut reader, mut line) = (LogReader::default(), Vec::new());
    loop {
        line.clear();
        let mut part = input.by_ref().take(MOST_LINE_BYTES);
        if part.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.last() != Some(&b'\n') {
            input.skip_until(b'\n')?;
        }
        let text = String::from_utf8_lossy(&line);
        reader.line(text.trim_end());
    }
    let sessions = reader.finish();
    // The reader needs the requested EPs, which a log does not have.
    let requested = [QNN_EP.to_owned()];
    Ok(sessions
        .iter()
        .map(|log| LoggedSession::of(log, &requested))
        .collect())
}

impl fmt::Display for LogsDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "by text alone: nobody checked where it comes from, and lines may be missing"
        )?;
        for (at, session) in self.sessions.iter().enumerate() {
            write!(f, "\n\nsession {}", at + 1)?;
            if let Some(chipset) = &session.chipset {
                write!(f, " on {chipset}")?;
            }
            for (ep, share) in &session.placed.eps {
                write!(f, "\n  {ep}: nodes {}", share.nodes)?;
                if let Some(partitions) = share.partitions {
                    write!(f, ", partitions {partitions}")?;
                }
            }
            if let Some(counts) = &session.counts {
                write!(f, "\n  {counts}")?;
            } else if session.placed.eps.is_empty()
                && session.run_errors.is_empty()
                && !session.pasted.iter().any(|line| line.kind == "summary")
            {
                write!(
                    f,
                    "\n  the list of nodes (Node placements) is missing or not whole"
                )?;
            }
            let on_cpu = session.listed.get(CPU_EP).into_iter().flatten();
            let on_cpu = on_cpu.map(|node| format!("on the CPU: {node}"));
            let on_cpu: Vec<String> = match session.refused.is_empty() {
                true => on_cpu.take(SHOWN_NODES).collect(),
                false => Vec::new(),
            };
            let runs = session.run_errors.iter();
            let runs = runs.flat_map(|error| {
                [
                    error.to_string(),
                    format!("{}: {}", error.reason, error.fix),
                ]
            });
            // A list of nodes makes the warning about such nodes redundant.
            let is_listed = !session.placed.eps.is_empty();
            let pasted = session.pasted.iter();
            let pasted = pasted.filter(|line| !(is_listed && is_warning(line)));
            let pasted = pasted.map(|line| match is_warning(line) {
                true => format!(
                    "some nodes are on the CPU, says ONNX Runtime; log at VERBOSE (severity 0) while the session is made to \
                     see which: {}",
                    line.text
                ),
                false => format!("of unknown origin ({}): {}", line.kind, line.text),
            });
            let mut codes: Vec<ReasonCode> = Vec::new();
            for node in &session.refused {
                let code = ReasonCode::from_name(&node.reason);
                codes.extend(code.filter(|code| !codes.contains(code)));
            }
            let refused = Placed {
                cpu_nodes: each(session.refused.clone()),
                reasons: codes.into_iter().map(Into::into).collect(),
                ..Placed::default()
            };
            let is_run = |text: &&String| session.run_errors.iter().any(|e| &e.text == *text);
            let lines = session.problem.iter().filter(|text| !is_run(text)).cloned();
            let lines = lines.chain(refused.story()).chain(on_cpu).chain(runs);
            let is_told = |line: &String| {
                let mut runs = session.run_errors.iter();
                runs.any(|error| line.starts_with(&format!("{}: ", error.reason)))
            };
            let story = session.placed.story();
            let lines = lines.chain(story.into_iter().filter(|line| !is_told(line)));
            let mut shown: Vec<String> = Vec::new();
            for line in lines.chain(pasted) {
                if !shown.contains(&line) {
                    shown.push(line);
                }
            }
            let lines = shown.into_iter();
            for line in lines {
                let plain = line.replace(char::is_control, " ");
                write!(f, "\n  {plain}")?;
            }
        }
        Ok(())
    }
}
