//! Settings of a run: the faults, their number, and the load.

use std::path::PathBuf;
use std::time::Duration;

/// Which processes take the reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Servers {
    /// Two `epwatch collector` before one store, each killed on its own.
    Collectors,
    /// One `epwatch serve` with the store inside.
    Serve,
}

/// One run of the harness.
#[derive(Debug, Clone)]
pub struct FaultOptions {
    /// The `epwatch` command.
    pub program: PathBuf,
    /// The folder of the collectors' WALs, the store and their output.
    pub dir: PathBuf,
    /// Which processes take the reports.
    pub servers: Servers,
    /// Processes to kill before the end.
    pub kills: u64,
    /// No fault begins after this, whatever the number of kills; the processes have started by then.
    pub length: Duration,
    /// Equal seeds choose equal faults; when they hit, the machine decides.
    pub seed: u64,
    /// Devices that send.
    pub devices: usize,
    /// Mean pause of a device between two uploads.
    pub pause: Duration,
    /// Mean pause between two faults.
    pub fault_pause: Duration,
    /// Mean length of a spell without a store.
    pub spell: Duration,
    /// How long, after the last fault, nothing may happen while reports are neither acknowledged nor in
    /// every view.
    pub drain: Duration,
}
