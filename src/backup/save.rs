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

use super::kept;
use super::manifest::{ARCHIVE, Manifest, SavedFile, SavedWal, WAL, private_dir};
use crate::output::WrongUse;
use crate::server_config::ServerConfig;
use crate::store_args::StoreArgs;
use crate::{output, store::Store};

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

/// Makes the backup `to`; `keep` is the folder of backups by time with the number of them that stay.
pub(super) async fn backup(
    to: &Path,
    keep: Option<(&Path, usize)>,
    args: &StoreArgs,
    json: bool,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut config = args.load()?;
    let data_dir = embedded_data_dir(&config)?;
    // The WAL is in the data folder unless the config names another.
    if let Ok(name) = config.collector.wal.dir.strip_prefix(&config.data_dir) {
        config.collector.wal.dir = data_dir.join(name);
    }
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
    kept::note(&data_dir, manifest.taken_at_ms);
    let removed = match keep {
        Some((folder, keep)) => kept::prune(folder, keep)?,
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
    // A killed process with the same number may have left one.
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
        // `to` is on another file system.
        fs::copy(from, to).with_context(|| format!("failed to write {}", to.display()))?;
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::File::open(to)?.sync_all())
        .with_context(|| format!("failed to write {}", to.display()))
}

/// Returns the data folder of the embedded store.
fn embedded_data_dir(config: &ServerConfig) -> anyhow::Result<PathBuf> {
    let Some(address) = &config.store.clickhouse else {
        return Ok(config.data_dir.clone());
    };
    let socket = address
        .strip_prefix("unix:")
        .map(|path| PathBuf::from(path.strip_prefix("//").unwrap_or(path)));
    let Some(socket) = socket else {
        bail!(WrongUse(format!(
            "{address} is a ClickHouse server, which has a BACKUP of its own (see docs/operations.md); \
             this command saves the embedded store of a `serve`: give its --data-dir"
        )));
    };
    // The layout of `serve`: DATA/engine/store.sock. With a long path the socket is elsewhere.
    let engine = socket.parent().filter(|dir| dir.ends_with("engine"));
    let data_dir = engine.and_then(Path::parent);
    Ok(data_dir.unwrap_or(&config.data_dir).to_owned())
}

/// The store of a running `serve`, or an engine started on its folder.
struct OpenStore {
    target: StoreTarget,
    own: Option<Store>,
}

impl OpenStore {
    async fn at(config: &ServerConfig, data_dir: &Path) -> anyhow::Result<Self> {
        let database = &config.store.database;
        if !epwatch_store::embedded::engine_dir(data_dir)
            .join("db")
            .exists()
        {
            bail!(WrongUse(format!(
                "{} holds no embedded store; give the --data-dir of a `serve`",
                data_dir.display()
            )));
        }
        let socket = format!(
            "unix:{}",
            epwatch_store::embedded::default_socket(data_dir)?.display()
        );
        for socket in config.store.clickhouse.iter().chain([&socket]) {
            if let Ok(target) = StoreTarget::parse(socket, database)
                && answers(&target).await
            {
                return Ok(Self { target, own: None });
            }
        }
        let own = Store::open_as_it_is(&config.store, data_dir)
            .await
            .context("failed to open the store, which no `serve` seems to have open")?;
        Ok(Self {
            target: own.target.clone(),
            own: Some(own),
        })
    }

    async fn close(self) {
        if let Some(own) = self.own {
            own.stop().await;
        }
    }
}

async fn answers(target: &StoreTarget) -> bool {
    let server = epwatch_store::client(&target.clone().with_database(""));
    server.query("SELECT 1").fetch_one::<u8>().await.is_ok()
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
    let made = tempfile::Builder::new()
        .prefix(&format!("{}.unfinished-", name.to_string_lossy()))
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(parent);
    made.with_context(|| format!("failed to make a folder in {}", parent.display()))
}
