//! `epwatch detector calibrate`: base rates of a healthy fleet.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use epwatch_detector::replay;

use crate::{
    output::{self, No},
    replay as command,
};

/// Learns how often healthy devices of a fleet look slow or misplaced, from a period without faults.
///
/// Windows with a finding teach nothing. Seven windows are enough. The detector reads the file at its
/// next start (detector.rates_file), `epwatch replay` with --rates.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    over: command::Over,
    /// File to write the rates to.
    #[arg(long, value_name = "FILE", default_value = "epwatch-rates.json")]
    out: PathBuf,
    /// Print the rates as one JSON document.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (source, options, is_whole) = args.over.prepared(false).await?;
    let replayed = replay::replay(source, &options, &mut |_| Ok(())).await?;
    let Some(rates) = replayed.rates else {
        let why = "fewer than seven windows: the built-in rates stay; give a longer period";
        bail!(No(why.to_owned()));
    };
    rates.write(&args.out)?;
    if args.json {
        output::json(&rates)?;
    } else {
        output::line(format!(
            "learnt {} rates from {} cohort windows; wrote {}",
            rates.0.len(),
            replayed.summary.cohort_windows,
            args.out.display()
        ))?;
    }
    Ok(command::exit_code(is_whole))
}
