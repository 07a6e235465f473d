//! Makes a backup: the WAL first, then the engine's archive, then the list of both.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use epwatch_collector::backup::{WalCopy, copy_wal};
use epwatch_store::StoreTarget;
use epwatch_store::embedded::backup::{self, backups_dir};
use serde::Serialize;
use tempfile::TempDir;

use super::manifest::{ARCHIVE, Manifest, SavedFile, SavedWal, WAL, private_dir};
use super::open_store::{OpenStore, embedded_data_dir, move_wal};
use super::retention;
use crate::output;
use crate::output::WrongUse;
use crate::server_config::ServerConfig;
use crate::store_args::StoreArgs;

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct BackupDocument<'a> {
    backup: PathBuf,
    bytes: u64,
    seconds: f64,
    /// Earlier backups that were removed.
    removed: Vec<PathBuf>,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

/// Makes the backup `to`; `keep` is the folder of backups by time with the number of backups to keep.
pub(super) async fn backup(
    to: &Path,
    keep: Option<(&Path, usize)>,
    args: &StoreArgs,
    json: bool,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut config = args.load()?;
    let data_dir = embedded_data_dir(&config)?;
    move_wal(&mut config, &data_dir);
    if to.exists() {
        let shown = to.display();
        bail!(WrongUse(format!(
            "{shown} exists; name a folder that does not"
        )));
    }
    let unfinished = unfinished(to)?;
    let open = OpenStore::at(&config, &data_dir).await?;
    let made = save(&config, &data_dir, &open.target, unfinished.path()).await;
    open.close().await;
    let manifest = made?;
    fs::rename(unfinished.path(), to)
        .with_context(|| format!("failed to name the backup {}", to.display()))?;
    retention::note(&data_dir, manifest.taken_at_ms);
    let removed = match keep {
        Some((folder, keep)) => retention::prune(folder, keep)?,
        None => Vec::new(),
    };

    let bytes = manifest.files.iter().map(|file| file.bytes).sum();
    let done = BackupDocument {
        backup: to.to_owned(),
        bytes,
        seconds: started.elapsed().as_secs_f64(),
        removed,
        manifest: &manifest,
    };
    if json {
        return output::json(&done);
    }
    let rows: u64 = manifest.tables.iter().map(|table| table.rows).sum();
    output::line(format_args!(
        "saved {} ({rows} rows in {} tables, {bytes} bytes) in {:.1} s",
        to.display(),
        manifest.tables.len(),
        done.seconds
    ))?;
    for path in &done.removed {
        output::line(format_args!("removed {}", path.display()))?;
    }
    output::line(format_args!(
        "restore with: epwatch store restore {} --data-dir NEW-FOLDER",
        to.display()
    ))?;
    Ok(())
}

async fn save(
    config: &ServerConfig,
    data_dir: &Path,
    target: &StoreTarget,
    to: &Path,
) -> anyhow::Result<Manifest> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let taken_at_ms = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
    let mut manifest = Manifest::new(target.database(), taken_at_ms);
    let copy = save_wal(&config.collector.wal.dir, to).await?;

    manifest.schema_version = epwatch_store::schema_version(target).await?;
    manifest.functions = backup::functions(target).await?;
    save_store(data_dir, target, &to.join(ARCHIVE)).await?;
    manifest.tables = backup::tables(target).await?;

    let mut paths = vec![ARCHIVE.to_owned()];
    if let Some(copy) = &copy {
        manifest.wal = Some(SavedWal {
            collector_id: copy.collector_id.to_string(),
            checkpoint: copy.checkpoint,
        });
        paths.extend(copy.files.iter().map(|name| format!("{WAL}/{name}")));
    }
    for path in paths {
        let (dir, of) = (to.to_owned(), path.clone());
        let file = tokio::task::spawn_blocking(move || SavedFile::of(&dir, &of)).await?;
        let file = file.with_context(|| format!("failed to read {path}"))?;
        manifest.files.push(file);
    }
    manifest.write(to)?;
    Ok(manifest)
}

/// Copies the WAL; `None` if no collector ever ran.
async fn save_wal(dir: &Path, to: &Path) -> anyhow::Result<Option<WalCopy>> {
    if !dir.exists() {
        return Ok(None);
    }
    let (dir, to) = (dir.to_owned(), to.join(WAL));
    let copied = tokio::task::spawn_blocking(move || {
        private_dir(&to)?;
        anyhow::Ok(copy_wal(&dir, &to)?)
    });
    copied.await?.map(Some)
}

/// Makes the engine's archive and moves it into the backup.
async fn save_store(data_dir: &Path, target: &StoreTarget, to: &Path) -> anyhow::Result<()> {
    let name = format!("backup-{}.tar.zst", std::process::id());
    let made = backups_dir(data_dir).join(&name);
    // A killed process with the same process id may have left an archive.
    let _ = fs::remove_file(&made);
    let saved = backup::save(target, &name).await;
    let moved = match saved {
        Ok(()) => {
            let (from, to) = (made.clone(), to.to_owned());
            tokio::task::spawn_blocking(move || move_file(&from, &to)).await?
        }
        Err(error) => Err(error.into()),
    };
    let _ = fs::remove_file(&made);
    moved
}

fn move_file(from: &Path, to: &Path) -> anyhow::Result<()> {
    if fs::rename(from, to).is_err() {
        // A rename fails if `to` is on another file system.
        fs::copy(from, to).with_context(|| format!("failed to write {}", to.display()))?;
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::File::open(to)?.sync_all())
        .with_context(|| format!("failed to write {}", to.display()))
}

/// Makes a backup's folder under another name until it is whole; removed when dropped.
fn unfinished(to: &Path) -> anyhow::Result<TempDir> {
    let (Some(name), Some(parent)) = (to.file_name(), to.parent()) else {
        bail!(WrongUse(format!("{} names no folder", to.display())));
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    if !parent.is_dir() {
        let parent = parent.display();
        bail!(WrongUse(format!(
            "there is no folder {parent}, in which {} would be made; make it first",
            to.display()
        )));
    }
    let made = tempfile::Builder::new()
        .prefix(&format!("{}.unfinished-", name.to_string_lossy()))
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(parent);
    made.with_context(|| format!("failed to make a folder in {}", parent.display()))
}
