//! The SDK's cost: time and allocations of a run, start of the SDK, memory and wire bytes of a series.
//!
//! `cargo bench -p epwatch-sdk --bench cost` prints a table, `-- --json` one JSON object on standard output. Times are
//! medians of rounds. The compared sides take turns within a round, so that a busy machine slows both. With `--test`, or
//! under `cargo test`, each measurement runs once and quickly, and the figures mean nothing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "prints its figures, and ends with an error if it cannot measure"
)]

mod figures;
mod memory;
mod model;
mod time;
mod wire;

use figures::Figures;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    // `cargo bench` passes --bench.
    let rounds = match has("--bench") && !has("--test") {
        true => Rounds::MEASURE,
        false => Rounds::TRY,
    };
    let figures = Figures::measure(rounds);
    match has("--json") {
        true => println!("{}", figures.json()),
        false => print!("{}", figures.table()),
    }
}

/// Size of the measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    /// Rounds per median.
    pub(crate) rounds: usize,
    /// Runs per round.
    pub(crate) runs: u32,
    /// How often the SDK is started.
    pub(crate) starts: usize,
    /// Runs of the real model, each with and without the SDK.
    pub(crate) model_runs: usize,
}

impl Rounds {
    const MEASURE: Self = Self {
        rounds: 201,
        runs: 10_000,
        starts: 101,
        model_runs: 20_001,
    };
    const TRY: Self = Self {
        rounds: 3,
        runs: 100,
        starts: 3,
        model_runs: 21,
    };
}
