//! Makes a data folder from a backup: checks it, restores the database, removes rows beyond the WAL's checkpoint, and
//! puts the WAL next to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use epwatch_collector::backup::{SavedDeletions, WalCopy, cut_back};
use epwatch_collector::schema;
use epwatch_store::embedded::backup::{TableSize, backups_dir, bring_back, tables};
use epwatch_store::{MADE_IN_DEVELOPMENT, Migrations};
use serde::Serialize;

use super::manifest::{ARCHIVE, Manifest, SavedWal, WAL, private_dir};
use crate::output::{No, WrongUse};
use crate::server_config::ServerConfig;
use crate::store_args::FolderArgs;
use crate::{output, store::Store};

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct RestoreDocument {
    data_dir: PathBuf,
    database: String,
    schema_version: u32,
    /// Reports acknowledged before this time are restored; milliseconds since 1970.
    taken_at_ms: u64,
    tables: Vec<TableSize>,
    wal: Option<SavedWal>,
    /// Rows of `reports` that the archive had beyond the WAL's checkpoint; the WAL replays them.
    left_to_the_log: u64,
    /// Deletions of `--deletions`, which the next `serve` carries out.
    deletions: usize,
    seconds: f64,
}

pub(super) async fn restore(
    from: &Path,
    deletions: Option<&Path>,
    folder: &FolderArgs,
    json: bool,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let config = folder.load()?;
    refuse_a_used_place(&config)?;
    let dir = from.to_owned();
    let manifest = tokio::task::spawn_blocking(move || Manifest::read(&dir)).await??;
    refuse_what_does_not_fit(&manifest, &config)?;
    let deletions = deletions.map(|file| {
        let saved = SavedDeletions::read(file);
        saved.with_context(|| format!("failed to use --deletions {}", file.display()))
    });
    let deletions = deletions.transpose()?;

    let mut made = Made(Vec::new());
    let done = put_back(from, &manifest, &config, &mut made).await;
    let (tables, left_to_the_log) = done?;
    let wal_dir = &config.collector.wal.dir;
    if let Some(deletions) = &deletions {
        private_dir(wal_dir)?;
        deletions
            .add_to(wal_dir)
            .context("failed to add the deletions to the WAL")?;
    }
    made.0.clear();

    let done = RestoreDocument {
        data_dir: config.data_dir.clone(),
        database: manifest.database,
        schema_version: manifest.schema_version,
        taken_at_ms: manifest.taken_at_ms,
        tables,
        wal: manifest.wal,
        left_to_the_log,
        deletions: deletions.as_ref().map_or(0, SavedDeletions::n_deletions),
        seconds: started.elapsed().as_secs_f64(),
    };
    if json {
        return output::json(&done);
    }
    let rows: u64 = done.tables.iter().map(|table| table.rows).sum();
    output::line(format_args!(
        "restored {} ({rows} rows in {} tables) in {:.1} s",
        done.data_dir.display(),
        done.tables.len(),
        done.seconds
    ))?;
    if let Some(wal) = &done.wal {
        output::line(format_args!(
            "the next `epwatch serve` replays its log from offset {} on",
            wal.checkpoint
        ))?;
    }
    match deletions {
        Some(_) => output::line(format_args!(
            "it then carries out {} deletions",
            done.deletions
        ))?,
        None => output::line(
            "deletions that devices asked for after the backup was made are not in it: see --deletions",
        )?,
    }
    Ok(())
}

/// A restore never overwrites anything.
fn refuse_a_used_place(config: &ServerConfig) -> Result<(), WrongUse> {
    if let Some(address) = &config.store.clickhouse {
        return Err(WrongUse(format!(
            "a backup is restored into an embedded store, not into {address}: give --data-dir and no \
             --clickhouse"
        )));
    }
    for place in [&config.data_dir, &config.collector.wal.dir] {
        let is_used = match fs::read_dir(place) {
            Ok(mut entries) => entries.next().is_some(),
            Err(_) => place.exists(),
        };
        if is_used {
            return Err(WrongUse(format!(
                "{} is not empty; give a --data-dir that is new, or move it away",
                place.display()
            )));
        }
    }
    Ok(())
}

fn refuse_what_does_not_fit(manifest: &Manifest, config: &ServerConfig) -> anyhow::Result<()> {
    let Migrations { series, files } = schema::MIGRATIONS;
    if manifest.schema_series.is_empty() {
        bail!(No(format!("the backup was {MADE_IN_DEVELOPMENT}")));
    }
    if manifest.schema_series != series {
        bail!(No(format!(
            "the backup has the schema series {}, which this epwatch ({series}) cannot convert; use \
             epwatch {}, which made it, or start a new data_dir",
            manifest.schema_series, manifest.epwatch
        )));
    }
    let known = files.last().map_or(0, |last| last.version);
    if manifest.schema_version > known {
        bail!(No(format!(
            "the backup has schema version {}, this epwatch knows {known}; use epwatch {}",
            manifest.schema_version, manifest.epwatch
        )));
    }
    if manifest.database != config.store.database {
        bail!(WrongUse(format!(
            "the backup is of database {:?}; store.database is {:?}: set it to the former",
            manifest.database, config.store.database
        )));
    }
    manifest.file(ARCHIVE)?;
    Ok(())
}

async fn put_back(
    from: &Path,
    manifest: &Manifest,
    config: &ServerConfig,
    made: &mut Made,
) -> anyhow::Result<(Vec<TableSize>, u64)> {
    if !config.data_dir.exists() {
        made.0.push(config.data_dir.clone());
    }
    made.0
        .push(epwatch_store::embedded::engine_dir(&config.data_dir));
    let backups = backups_dir(&config.data_dir);
    private_dir(&backups)?;
    let archive = backups.join(ARCHIVE);
    copy(&from.join(ARCHIVE), &archive).await?;

    let store = Store::open_as_it_is(&config.store, &config.data_dir).await?;
    let restored = async {
        bring_back(&store.target, ARCHIVE, &manifest.functions).await?;
        let left = match &manifest.wal {
            Some(wal) => {
                let copy = wal_copy(wal)?;
                cut_back(store.client(), &copy, manifest.taken_at_ms).await?
            }
            None => 0,
        };
        anyhow::Ok((tables(&store.target).await?, left))
    }
    .await;
    store.stop().await;
    let restored = restored?;
    fs::remove_file(&archive).with_context(|| format!("failed to remove {}", archive.display()))?;
    put_back_wal(from, manifest, &config.collector.wal.dir, made).await?;
    Ok(restored)
}

fn wal_copy(wal: &SavedWal) -> Result<WalCopy, No> {
    let collector_id = wal.collector_id.parse().map_err(|_| {
        let text = format!("wal.collector_id: {:?} is not a number", wal.collector_id);
        No(text)
    })?;
    Ok(WalCopy {
        collector_id,
        checkpoint: wal.checkpoint,
        files: Vec::new(),
    })
}

async fn put_back_wal(
    from: &Path,
    manifest: &Manifest,
    dir: &Path,
    made: &mut Made,
) -> anyhow::Result<()> {
    if manifest.wal.is_none() {
        return Ok(());
    }
    made.0.push(dir.to_owned());
    private_dir(dir)?;
    let prefix = format!("{WAL}/");
    for file in &manifest.files {
        if let Some(name) = file.path.strip_prefix(&prefix) {
            copy(&from.join(&file.path), &dir.join(name)).await?;
        }
    }
    fs::File::open(dir)
        .and_then(|dir| dir.sync_all())
        .with_context(|| format!("failed to sync {}", dir.display()))
}

async fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let (from, to) = (from.to_owned(), to.to_owned());
    let copied = tokio::task::spawn_blocking(move || {
        fs::copy(&from, &to)
            .and_then(|_| fs::File::open(&to)?.sync_all())
            .with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))
    });
    copied.await?
}

/// Folders that this restore made. Dropping it removes the folders that are still in it.
struct Made(Vec<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        for place in self.0.iter().rev() {
            let _ = fs::remove_dir_all(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::manifest::SavedFile;
    use super::*;

    #[track_caller]
    fn check(series: Option<&str>, version: u32, expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ARCHIVE), b"rows").unwrap();
        let mut manifest = Manifest::new("epwatch", 1);
        manifest.files = vec![SavedFile::of(dir.path(), ARCHIVE).unwrap()];
        manifest.schema_version = version;
        manifest.schema_series = series.unwrap_or_default().to_owned();
        manifest.write(dir.path()).unwrap();
        let manifest = Manifest::read(dir.path()).unwrap();
        let fits = refuse_what_does_not_fit(&manifest, &ServerConfig::default());
        let said = fits.map_or_else(|error| error.to_string(), |()| "fits".to_owned());
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("upgrade epwatch"), "{said}");
    }

    #[test]
    fn a_backup_of_another_schema_is_refused_with_what_to_do() {
        check(Some(schema::MIGRATIONS.series), 1, "fits");
        check(None, 15, "made by a development version");
        check(None, 1, "start a new data_dir");
        check(Some(schema::MIGRATIONS.series), 1_000, "use epwatch");
        check(Some("epwatch-2"), 1, "schema series epwatch-2");
    }
}
