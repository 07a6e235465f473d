//! `backup.json`: the content of a backup, with the hash of each file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use epwatch_collector::schema;
use epwatch_store::embedded::backup::{SqlFunction, TableSize};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::output::No;

pub(super) const NAME: &str = "backup.json";
/// A longer manifest is not read further.
const MAX_BYTES: u64 = 16 << 20;
/// The only format that this version writes and reads.
const FORMAT: u32 = 1;

/// The archive's name in a backup.
pub(super) const ARCHIVE: &str = "store.tar.zst";
/// The folder of the WAL in a backup.
pub(super) const WAL: &str = "wal";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    /// Version of the program that made it.
    pub(super) epwatch: String,
    pub(super) database: String,
    /// Empty in backups from before 0.1.0.
    #[serde(default)]
    pub(super) schema_series: String,
    pub(super) schema_version: u32,
    /// Time of the WAL's copy, in milliseconds since 1970. The backup holds every report acknowledged before.
    pub(super) taken_at_ms: u64,
    pub(super) functions: Vec<SqlFunction>,
    /// Sizes just after the archive was made; under load the tables had grown by then.
    pub(super) tables: Vec<TableSize>,
    pub(super) wal: Option<SavedWal>,
    pub(super) files: Vec<SavedFile>,
}

/// The position of the saved WAL.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SavedWal {
    /// Text, since it has 64 bits.
    pub(super) collector_id: String,
    /// The archive holds everything below; the WAL replays from here.
    pub(super) checkpoint: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedFile {
    /// Relative to the backup's folder.
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// Makes a folder that only this user can read, since it holds reports.
pub(super) fn private_dir(dir: &Path) -> anyhow::Result<()> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("failed to make {}", dir.display()))
}

impl Manifest {
    pub(super) fn new(database: &str, taken_at_ms: u64) -> Self {
        Self {
            format: FORMAT,
            epwatch: env!("CARGO_PKG_VERSION").to_owned(),
            database: database.to_owned(),
            schema_series: schema::MIGRATIONS.series.to_owned(),
            schema_version: 0,
            taken_at_ms,
            functions: Vec::new(),
            tables: Vec::new(),
            wal: None,
            files: Vec::new(),
        }
    }

    /// Writes it durably into the backup's folder.
    pub(super) fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let path = dir.join(NAME);
        let text = serde_json::to_vec_pretty(self)?;
        epwatch_server::replace_file(&path, &text)
            .with_context(|| format!("failed to write {}", path.display()))
    }

    /// Reads it, and checks every file it names.
    pub(super) fn read(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(NAME);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let shown = dir.display();
                return Err(No(format!(
                    "{shown} is no whole backup: {NAME} is not there, which is written last"
                ))
                .into());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("failed to read {}", path.display()));
            }
        };
        let mut text = Vec::new();
        file.take(MAX_BYTES)
            .read_to_end(&mut text)
            .with_context(|| format!("failed to read {}", path.display()))?;
        let unsound = |problem: String| No(format!("{}: {problem}", path.display()));
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|error| unsound(error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(unsound(format!(
                "format: expected {FORMAT}, got {}; use the epwatch that made it ({})",
                manifest.format, manifest.epwatch
            ))
            .into());
        }
        for file in &manifest.files {
            file.check(dir)?;
        }
        Ok(manifest)
    }

    /// Returns the file of a path that every backup has.
    pub(super) fn file(&self, path: &str) -> Result<&SavedFile, No> {
        let found = self.files.iter().find(|file| file.path == path);
        found.ok_or_else(|| No(format!("{NAME}: names no {path}")))
    }
}

impl SavedFile {
    /// Describes a file as it is on disk.
    pub(super) fn of(dir: &Path, path: &str) -> io::Result<Self> {
        let (bytes, sha256) = digest(&dir.join(path))?;
        Ok(Self {
            path: path.to_owned(),
            bytes,
            sha256,
        })
    }

    fn check(&self, dir: &Path) -> anyhow::Result<()> {
        let relative = PathBuf::from(&self.path);
        let is_inside = relative
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if self.path.is_empty() || !is_inside {
            let text = format!("{NAME}: path {:?} leads out of the backup", self.path);
            return Err(No(text).into());
        }
        let full = dir.join(&relative);
        let found = match digest(&full) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("{} is missing from the backup", full.display());
                return Err(No(text).into());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("failed to read {}", full.display()));
            }
        };
        if found != (self.bytes, self.sha256.clone()) {
            let text = format!(
                "{} is damaged: expected {} bytes with SHA-256 {}, got {} with {}",
                full.display(),
                self.bytes,
                self.sha256,
                found.0,
                found.1
            );
            return Err(No(text).into());
        }
        Ok(())
    }
}

/// Length and SHA-256 of a file, lower-case hex.
fn digest(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut n_bytes = 0;
    loop {
        let n_read = file.read(&mut buffer)?;
        if n_read == 0 {
            break;
        }
        hash.update(&buffer[..n_read]);
        n_bytes += n_read as u64;
    }
    Ok((n_bytes, epwatch_proto::hex(&hash.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(dir: &Path) -> Manifest {
        std::fs::write(dir.join("store.tar.zst"), b"rows").unwrap();
        let mut manifest = Manifest::new("epwatch", 1);
        manifest.files = vec![SavedFile::of(dir, "store.tar.zst").unwrap()];
        manifest.write(dir).unwrap();
        manifest
    }

    #[track_caller]
    fn check(change: impl FnOnce(&Path, &mut Manifest), expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = backup(dir.path());
        assert!(Manifest::read(dir.path()).is_ok());
        change(dir.path(), &mut manifest);
        let error = Manifest::read(dir.path()).unwrap_err();
        assert!(error.is::<No>(), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn whatever_is_not_as_it_was_written_is_refused() {
        check(
            |dir, _| std::fs::write(dir.join("store.tar.zst"), b"rowz").unwrap(),
            "is damaged",
        );
        check(
            |dir, _| std::fs::remove_file(dir.join("store.tar.zst")).unwrap(),
            "is missing",
        );
        check(
            |dir, _| std::fs::remove_file(dir.join(NAME)).unwrap(),
            "no whole backup",
        );
        check(|dir, _| std::fs::write(dir.join(NAME), b"{").unwrap(), NAME);
        check(
            |dir, manifest| {
                manifest.format = 2;
                manifest.write(dir).unwrap();
            },
            "format: expected 1, got 2",
        );
        check(
            |dir, manifest| {
                manifest.files[0].path = "../store.tar.zst".to_owned();
                manifest.write(dir).unwrap();
            },
            "leads out",
        );
    }
}
