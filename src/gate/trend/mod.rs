//! `epwatch gate trend`: results of a folder over time, as a table, a document and a chart.

mod read;
mod svg;

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;

use crate::output::{self, WrongUse};

/// Name and version of the document.
const SCHEMA: &str = "epwatch.trend/1";

/// Shows how results of gates changed over time, by model and chipset.
///
/// Reads each gate.json of the folder and of the folders in it; other files are passed over. The order is the time in
/// the documents (`made_at`), not that of the files. --svg draws the share of the MACs on the NPU, the nodes on the CPU,
/// the bytes that cross, and the median of launches.
///
/// Exit codes: 0 shown; 2 wrong use, or no result in the folder.
#[derive(Debug, clap::Args)]
pub(crate) struct TrendArgs {
    /// The folder, for example one that artifacts of a pipeline were unpacked into.
    folder: PathBuf,
    /// Write a chart (SVG).
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON document, epwatch.trend/1.
    #[arg(long)]
    json: bool,
}

/// All results of a folder.
#[derive(Debug, Serialize)]
struct Trend {
    schema: &'static str,
    series: Vec<Series>,
    /// Files that look like results and are none, each with the reason.
    skipped: Vec<Skipped>,
}

/// A model on a chipset.
#[derive(Debug, PartialEq, Serialize)]
struct Series {
    /// As on the command line of the gate; `null` for launches without a model.
    model: Option<String>,
    chipset: String,
    /// The oldest first.
    points: Vec<Point>,
}

/// One result.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Point {
    made_at: Timestamp,
    /// The document.
    file: String,
    /// `pass`, `warn`, `undecided` or `fail`: the gravest check.
    result: String,
    npu_macs: Option<f64>,
    partitions: Option<u64>,
    /// Nodes that compute on the CPU.
    cpu_nodes: Option<u64>,
    /// Both ways, in a run.
    crossing_bytes: Option<u64>,
    median_ms: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Skipped {
    file: String,
    why: String,
}

pub(super) fn trend(args: &TrendArgs) -> anyhow::Result<ExitCode> {
    let shown = args.folder.display();
    let trend = read::folder(&args.folder)
        .map_err(|error| WrongUse(format!("failed to read the folder {shown}: {error}")))?;
    for Skipped { file, why } in &trend.skipped {
        output::remark(format_args!("passed over {file}: {why}"));
    }
    if trend.series.is_empty() {
        let text = format!(
            "{shown} has no result: expected gate.json files of `epwatch gate --out`, with their time"
        );
        return Err(WrongUse(text).into());
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::chart(&trend.series))
            .with_context(|| format!("failed to write the chart {}", path.display()))?;
    }
    if args.json {
        output::json(&trend)?;
    } else {
        output::line(trend.table().trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Series {
    fn name(&self) -> String {
        match &self.model {
            Some(model) => format!("{}  {model}", self.chipset),
            None => self.chipset.clone(),
        }
    }
}

impl Trend {
    fn table(&self) -> String {
        let has_times = self
            .series
            .iter()
            .flat_map(|series| &series.points)
            .any(|point| point.median_ms.is_some());
        let mut text = String::new();
        for series in &self.series {
            let name = epwatch_proto::visible(&series.name());
            _ = writeln!(text, "{name}");
            let median = if has_times { "     median" } else { "" };
            _ = writeln!(
                text,
                "  time              result       NPU  parts  CPU ops      bytes{median}  since before"
            );
            let mut before: Option<&Point> = None;
            for point in &series.points {
                let line = point.line(has_times, before);
                _ = writeln!(text, "  {}", line.trim_end());
                before = Some(point);
            }
            text.push('\n');
        }
        text
    }
}

impl Point {
    fn line(&self, has_times: bool, before: Option<&Self>) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or("-".to_owned());
        let count = |number: Option<u64>| or_dash(number.map(|n| n.to_string()));
        let mut line = format!(
            "{}  {:<9} {:>7}  {:>5}  {:>7}  {:>9}",
            self.made_at.strftime("%Y-%m-%d %H:%M"),
            match self.result.as_str() {
                "fail" => "FAIL",
                result => result,
            },
            or_dash(self.npu_macs.map(|share| format!("{:.1} %", 100.0 * share))),
            count(self.partitions),
            count(self.cpu_nodes),
            count(self.crossing_bytes),
        );
        if has_times {
            let median = self.median_ms.map(|ms| format!("{ms:.2} ms"));
            _ = write!(line, "  {:>9}", or_dash(median));
        }
        let changes = before
            .map(|before| self.changes(before))
            .unwrap_or_default();
        _ = write!(line, "  {}", changes.join(", "));
        line
    }

    /// What changed, for example `+3 CPU ops`.
    fn changes(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        if let (Some(now), Some(was)) = (self.npu_macs, before.npu_macs) {
            let points = 100.0 * (now - was);
            if points.abs() >= 0.05 {
                changes.push(format!("{points:+.1} points"));
            }
        }
        for (now, was, what) in [
            (self.partitions, before.partitions, "partitions"),
            (self.cpu_nodes, before.cpu_nodes, "CPU ops"),
            (self.crossing_bytes, before.crossing_bytes, "bytes"),
        ] {
            match (now, was) {
                (Some(now), Some(was)) if now > was => {
                    changes.push(format!("+{} {what}", now - was));
                }
                (Some(now), Some(was)) if now < was => {
                    changes.push(format!("-{} {what}", was - now));
                }
                _ => {}
            }
        }
        if let (Some(now), Some(was)) = (self.median_ms, before.median_ms)
            && was > 0.0
            && !(0.95..=1.05).contains(&(now / was))
        {
            changes.push(format!("{:.2} x the median", now / was));
        }
        changes
    }
}
