//! `epwatch detector calibrate`: base rates of a healthy fleet.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use epwatch_detector::BaseRates;
use epwatch_detector::replay::{self, CalledFalse};

use crate::{
    output::{self, No},
    replay as command,
};

/// Learns how often healthy devices of a fleet look slow or misplaced, from a period without faults.
///
/// Windows with a finding teach nothing. Incidents of the period that people called false are counted, by
/// verdict and by signal, and teach nothing either. Seven windows are enough. The detector reads the file at its
/// next start (detector.rates_file), `epwatch replay` with --rates.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    over: command::Over,
    /// File to write the rates to.
    #[arg(long, value_name = "FILE", default_value = "epwatch-rates.json")]
    out: PathBuf,
    /// Print one JSON document: the rates, and what people called false.
    #[arg(long)]
    json: bool,
}

/// The document of `--json`.
#[derive(serde::Serialize)]
struct Learnt<'a> {
    rates: &'a BaseRates,
    /// `null` if nothing was called false, or if the reports are from files.
    called_false: Option<&'a CalledFalse>,
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
        output::json(&Learnt {
            rates: &rates,
            called_false: replayed.summary.called_false.as_ref(),
        })?;
    } else {
        output::line(format!(
            "learnt {} rates from {} cohort windows; wrote {}",
            rates.0.len(),
            replayed.summary.cohort_windows,
            args.out.display()
        ))?;
        if let Some(called) = &replayed.summary.called_false {
            output::line(command::false_in_words(called))?;
        }
    }
    Ok(command::exit_code(is_whole))
}
