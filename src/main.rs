//! The `epwatch` command: one file a subcommand, no logic of its own.
//!
//! Exit codes: 0 fine, 1 the answer is no, 2 wrong use, 3 could not find out.

mod config;
mod engines;
mod output;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Finds models that silently fall back from the phone's NPU to its CPU.
///
/// Start with `epwatch demo`: everything on this machine, with a simulated fleet and real ONNX
/// Runtime and QNN sessions. Then `epwatch serve`, and link the SDK into an app.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 fine, 1 the answer is no, 2 wrong use, 3 could not find out."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Engines(engines::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Engines(args) => engines::run(args),
    };
    result.unwrap_or_else(|error| output::failure(&error))
}
