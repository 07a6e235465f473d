//! `epwatch store`: saves the embedded store together with the WAL, and restores both.
//!
//! A backup is a folder: `store.tar.zst` (the engine's own archive of the database), `wal/` (the WAL just before it),
//! and `backup.json`, which names every file with its SHA-256 and is written last.

mod manifest;
mod restore;
mod save;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::store_args::{FolderArgs, StoreArgs};

/// Saves and restores the embedded store.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StoreCommand {
    Backup(BackupArgs),
    Restore(RestoreArgs),
}

/// Saves the embedded store and the WAL of a `serve`, while it runs or stopped.
///
/// What was acknowledged before the backup began is in it. Restore with `epwatch store restore`. A
/// ClickHouse server has its own BACKUP.
#[derive(Debug, clap::Args)]
struct BackupArgs {
    /// Folder to make; it must not exist yet.
    #[arg(value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Makes the data folder of a `serve` from a backup.
///
/// The next `epwatch serve` on it replays the WAL that was saved: nothing acknowledged before the
/// backup is missing, nothing counts twice. Do not run it while the saved one runs.
#[derive(Debug, clap::Args)]
struct RestoreArgs {
    /// Folder that `epwatch store backup` made.
    #[arg(value_name = "FOLDER")]
    from: PathBuf,
    #[command(flatten)]
    folder: FolderArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        StoreCommand::Backup(args) => save::backup(&args.to, &args.store, args.json).await?,
        StoreCommand::Restore(args) => {
            restore::restore(&args.from, &args.folder, args.json).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
