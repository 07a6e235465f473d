//! `epwatch run`: measures a model on this machine. The crate `epwatch-run` does this; on boards it is a separate
//! program.

use std::process::ExitCode;

use crate::output::WrongUse;

/// Measures a model on this machine, launch by launch, and writes files for `gate --runs`.
///
/// A launch is a process of its own with one session. With --against, launches of both models take turns. A launch that the
/// device throttled is made again. `epwatch gate --local` runs this and judges the files. Exit code 0: all launches were
/// made. Exit code 2: wrong use. Exit code 3: a launch could not be made.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    command: epwatch_run::Command,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    epwatch_run::run(args.command, &["run"]).map_err(|error| {
        match error.downcast::<epwatch_run::WrongUse>() {
            Ok(wrong) => WrongUse(wrong.to_string()).into(),
            Err(error) => error,
        }
    })
}
