//! Settings of a run: the faults, their number, and the load.

use std::path::PathBuf;

use epwatch_server::Period;
use serde::Serialize;

/// The processes that take the reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Servers {
    /// Two `epwatch collector` processes with one store, each of them killed separately.
    Collectors,
    /// One `epwatch serve`, which includes the store.
    Serve,
}

/// One run of the harness.
#[derive(Debug, Clone, clap::Args)]
pub struct FaultOptions {
    /// Processes to kill before the end.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub kills: u64,
    /// The servers: two collectors before one store, or `serve` with the store inside.
    #[arg(long, value_enum, default_value = "collectors")]
    pub servers: Servers,
    /// No fault begins after this, whatever the number of kills; the processes have started by then.
    #[arg(long, value_name = "TIME", default_value = "2h")]
    pub length: Period,
    /// Equal seeds choose equal faults; when they hit, the machine decides [default: random].
    #[arg(long, value_name = "N", default_value_t = fastrand::u64(..1 << 32), hide_default_value = true)]
    pub seed: u64,
    /// Devices that send.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub devices: u16,
    /// Mean pause of a device between two uploads.
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub pause: Period,
    /// Mean pause between two faults.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub fault_pause: Period,
    /// Mean length of a spell without a store.
    #[arg(long, value_name = "TIME", default_value = "20s")]
    pub spell: Period,
    /// How long, after the last fault, nothing may happen while reports are neither acknowledged nor in every view.
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub drain: Period,
    /// How long rows stay hidden from the collectors' reads, as by a replica that lags. Only with `--servers collectors`.
    #[arg(long, value_name = "TIME")]
    pub late_reads: Option<Period>,
    /// The epwatch command [default: the one in this program's folder].
    #[arg(long, value_name = "FILE", default_value_os_t = command_of_this_build(), hide_default_value = true)]
    pub program: PathBuf,
}

/// Returns the command in this program's folder.
fn command_of_this_build() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.with_file_name("epwatch")
}
