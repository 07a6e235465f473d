//! What watching costs: time and allocations of a run, start of the SDK, memory and wire bytes of
//! a series.
//!
//! `cargo bench -p epwatch-sdk --bench cost` prints a table, `-- --json` one JSON object on
//! standard output. Times are medians of rounds in which the things compared take turns, so that
//! a busy machine slows both. With `--test`, or run by `cargo test`, everything is done once,
//! quickly, and the figures mean nothing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that prints what it measured, and ends where it cannot"
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
    // Cargo says --bench where the figures are wanted.
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

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    /// Rounds that a median is taken of.
    pub(crate) rounds: usize,
    /// Runs in each.
    pub(crate) runs: u32,
    /// Starts of the SDK.
    pub(crate) starts: usize,
    /// Runs of the real model, each with and without.
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
