//! `epwatch gate trend`: results of a folder over time, as a table, a document and a chart.

mod read;
mod series;
mod svg;

use std::{path::PathBuf, process::ExitCode};

use epwatch_run::{ReportKind, replace_report};

use self::series::Skipped;
use crate::output::{self, WrongUse};

/// Shows how results of gates changed over time, by model and chipset.
///
/// Reads each gate.json of the folder and of the folders in it; other files are passed over. The order is the time in
/// the documents (`made_at`), not the time of the files. --svg draws the share of the MACs on the NPU, the nodes on the
/// CPU, the bytes that cross, and the median of launches.
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

pub(super) fn trend(args: &TrendArgs) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.svg {
        output::check_report("--svg", path, ReportKind::Text(svg::BEGINS))?;
    }
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
        let written = replace_report(path, &svg::chart(&trend.series));
        written.map_err(|error| WrongUse(format!("--svg {}: {error}", path.display())))?;
    }
    if args.json {
        output::json(&trend)?;
    } else {
        output::line(trend.table().trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}
