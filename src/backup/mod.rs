//! `epwatch store`: saves the embedded store together with the WAL, restores both, and checks a store.
//!
//! A backup is a folder with three entries. `store.tar.zst` is the engine's own archive of the database, and `wal/` is
//! the WAL just before it. `backup.json` names every file with its SHA-256, and is written last.

mod manifest;
mod open_store;
mod restore;
mod retention;
mod save;

use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) use open_store::{OpenStore, embedded_data_dir, move_wal};
pub(crate) use retention::metrics;

use crate::store_args::{FolderArgs, StoreArgs};
use crate::store_check;

/// Saves and restores the embedded store, and checks any.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StoreCommand {
    Backup(BackupArgs),
    Restore(RestoreArgs),
    Check(store_check::Args),
}

/// Saves the embedded store and the WAL of a `serve`, while it runs or stopped.
///
/// Reports that were acknowledged before the backup began are in it. Restore with `epwatch store restore`. A ClickHouse
/// server has its own BACKUP.
#[derive(Debug, clap::Args)]
struct BackupArgs {
    /// Folder to make; it must not exist yet.
    #[arg(value_name = "FOLDER", required_unless_present = "into")]
    to: Option<PathBuf>,
    /// Make the backup in this folder, under the time as its name.
    #[arg(long, value_name = "FOLDER", conflicts_with = "to")]
    into: Option<PathBuf>,
    /// Afterwards remove all but the latest N backups that were made with --into.
    #[arg(long, value_name = "N", requires = "into", conflicts_with = "to", value_parser = clap::value_parser!(u16).range(1..))]
    keep: Option<u16>,
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
    /// A copy of the file `deletions` of the WAL that is later than the backup: its deletions are carried out too.
    #[arg(long, value_name = "FILE")]
    deletions: Option<PathBuf>,
    #[command(flatten)]
    folder: FolderArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        StoreCommand::Backup(args) => {
            let by_time = || {
                args.into
                    .as_ref()
                    .map(|folder| folder.join(retention::name_now()))
            };
            let to = args.to.clone().or_else(by_time).unwrap_or_default();
            let keep = args.into.as_deref().zip(args.keep.map(usize::from));
            save::backup(&to, keep, &args.store, args.json).await?;
        }
        StoreCommand::Restore(args) => {
            let deletions = args.deletions.as_deref();
            restore::restore(&args.from, deletions, &args.folder, args.json).await?;
        }
        StoreCommand::Check(args) => return store_check::run(&args).await,
    }
    Ok(ExitCode::SUCCESS)
}
