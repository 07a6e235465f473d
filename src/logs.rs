//! `epwatch logs`: what a log of ONNX Runtime and QNN says about placements.

use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use epwatch_proto::{ReasonCode, placement::QNN_EP};
use epwatch_sdk::{
    ExplainedNode,
    placement::{
        PlacementInput,
        log::{LogReader, SessionLog},
    },
};
use serde::Serialize;

use crate::{
    inspect::Placed,
    output::{self, WrongUse},
};

/// Name and version of the document.
const SCHEMA: &str = "epwatch.logs/1";
/// Longest part of a line that is read.
const MOST_LINE_BYTES: u64 = 64 << 10;

/// Shows what a log says about where nodes run, and why not on the NPU.
///
/// FILE is a logcat, ONNX Runtime's log at VERBOSE, or lines that somebody pasted: from a phone that
/// nobody can reach, or from a runtime older than `inspect` has. For each session it prints the nodes
/// by EP, each refused node with its reason and way out, and errors of the start. The SDK reads logs by the same rules.
/// A log is text: nobody checked where it comes from, and lines may be missing.
///
/// Exit codes: 0 it says something, 2 FILE cannot be read, 3 it says nothing about placements.
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

/// A session by its lines.
#[derive(Debug, Serialize)]
struct LoggedSession {
    /// The chipset that the log names.
    chipset: Option<String>,
    /// Empty without ONNX Runtime's list of nodes (`source` is `unavailable`).
    #[serde(flatten)]
    placed: Placed,
    /// Nodes that the validator refused; those of a placement are among its CPU nodes.
    refused: Vec<ExplainedNode>,
    /// The first message of a failed start.
    problem: Option<String>,
}

impl LoggedSession {
    fn of(log: &SessionLog, requested_eps: &[String]) -> Self {
        let placement = log.placement(PlacementInput {
            requested_eps,
            ..PlacementInput::default()
        });
        let mut placed = Placed::of(&placement, Vec::new());
        // It says that there is only a log.
        let unread = ReasonCode::AssignmentApiUnavailable.as_str();
        placed.reasons.retain(|reason| reason.code != unread);
        let refused = match placement.cpu_nodes.is_empty() {
            true => ExplainedNode::each_of(&log.refused()),
            false => Vec::new(),
        };
        Self {
            chipset: log.soc().map(|soc| soc.soc.to_owned()),
            placed,
            refused,
            problem: log.problem().map(ToOwned::to_owned),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = args.file.display();
    let sessions = read(&args.file)
        .map_err(|error| WrongUse(format!("failed to read FILE {shown}: {error}")))?;
    if sessions.is_empty() {
        anyhow::bail!(
            "{shown} says nothing about placements; log at VERBOSE while the session is made \
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
        false => Box::new(File::open(path)?),
    };
    let mut input = BufReader::new(input);
    let (mut reader, mut line, mut names_qnn) = (LogReader::default(), Vec::new(), false);
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
        names_qnn |= text.contains("QNN");
        reader.line(text.trim_end());
    }
    // A log does not say what was asked for. Lines of QNN come only if it was.
    let requested: Vec<String> = names_qnn.then(|| QNN_EP.to_owned()).into_iter().collect();
    let sessions = reader.finish();
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
            if session.placed.eps.is_empty() {
                write!(
                    f,
                    "\n  the list of nodes (Node placements) is missing or not whole"
                )?;
            }
            let refused = Placed {
                cpu_nodes: session.refused.clone(),
                ..Placed::default()
            };
            let lines = session.problem.iter().cloned();
            let lines = lines.chain(refused.story()).chain(session.placed.story());
            for line in lines {
                let plain = line.replace(char::is_control, " ");
                write!(f, "\n  {plain}")?;
            }
        }
        Ok(())
    }
}
