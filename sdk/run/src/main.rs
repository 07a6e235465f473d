//! `epwatch-run`: the runner as a program of its own, for boards and phones. The library's documentation describes the
//! runner.

use std::process::ExitCode;

use clap::Parser;
use epwatch_run::{Command, exit_code, run, say};

/// Measures an ONNX model on this device, launch by launch, and writes what it saw as files for `epwatch gate --runs`.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    command: Command,
}

fn main() -> ExitCode {
    match run(Cli::parse().command, &[]) {
        Ok(code) => code,
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::from(exit_code(&error))
        }
    }
}
