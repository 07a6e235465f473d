//! `epwatch run`: measures a model on this machine. The crate `epwatch-run` does this; on boards it is a separate
//! program.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use crate::output::{self, INTERRUPTED, WrongUse};

/// Measures a model on this machine, launch by launch, and writes files for `gate --runs`.
///
/// A launch is a process of its own with one session. With --against, launches of both models take turns. A launch that the
/// device throttled is made again. `epwatch gate --local` runs this and judges the files. Exit code 0: all launches were
/// made. Exit code 2: wrong use. Exit code 3: a launch could not be made. Exit code 130: interrupted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    command: epwatch_run::Command,
}

/// Returns this process's arguments. The gate copies this program to a board under the runner's name, where it has to be
/// the runner without the word `run`.
pub(crate) fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = env::args_os().collect();
    // A link with the runner's name is the runner too.
    let is_link = arguments
        .first()
        .is_some_and(|name| is_name_of_runner(Path::new(name)));
    if is_link || is_runner() {
        arguments.insert(1, "run".into());
    }
    arguments
}

/// The program that started this process may give it any name, so the file's name counts.
fn is_runner() -> bool {
    env::current_exe().is_ok_and(|file| is_name_of_runner(&file))
}

fn is_name_of_runner(file: &Path) -> bool {
    file.file_name()
        .is_some_and(|name| name == epwatch_run::PROGRAM)
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let subcommand: &[&str] = if is_runner() { &[] } else { &["run"] };
    let ended = epwatch_run::run(args.command, subcommand);
    ended.or_else(|error| match epwatch_run::exit_code(&error) {
        INTERRUPTED => {
            output::remark(format_args!("{error:#}"));
            Ok(ExitCode::from(INTERRUPTED))
        }
        _ => Err(match error.downcast::<epwatch_run::WrongUse>() {
            Ok(wrong) => WrongUse(wrong.to_string()).into(),
            Err(error) => error,
        }),
    })
}
