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
/// A manifest is read up to this length, which is more than a valid one has.
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
    /// Version of the program that made the backup.
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
    /// Hash of the document's text before this field, without spaces between its values.
    #[serde(default)]
    sha256: String,
}

/// The position of the saved WAL.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SavedWal {
    /// The id as text, because JSON numbers cannot hold 64 bits exactly.
    pub(super) collector_id: String,
    /// The archive has all records below this offset; the WAL replays from here.
    pub(super) checkpoint: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedFile {
    /// The file's path relative to the backup's folder.
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
            sha256: String::new(),
        }
    }

    /// Returns the hash of all fields before `sha256`, which is the last.
    fn own_digest(&self) -> anyhow::Result<String> {
        let text = serde_json::to_string(self)?;
        let own = format!(",\"sha256\":\"{}\"}}", self.sha256);
        let before = text
            .strip_suffix(&own)
            .context("its sha256 is not a hash")?;
        Ok(epwatch_proto::hex(&Sha256::digest(before.as_bytes())))
    }

    /// Writes the manifest durably into the backup's folder.
    pub(super) fn write(&mut self, dir: &Path) -> anyhow::Result<()> {
        let path = dir.join(NAME);
        self.sha256 = self.own_digest()?;
        let text = serde_json::to_vec_pretty(self)?;
        epwatch_server::replace_file(&path, &text)
            .with_context(|| format!("failed to write {}", path.display()))
    }

    /// Reads the manifest, and checks every file that it names.
    pub(super) fn read(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(NAME);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let shown = dir.display();
                if !dir.is_dir() {
                    return Err(No(format!("there is no folder {shown}")).into());
                }
                return Err(No(format!(
                    "{shown} is not a whole backup: {NAME} is not there, which is written last"
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
        let manifest =
            Self::parse(&text).map_err(|problem| No(format!("{}: {problem}", path.display())))?;
        for file in &manifest.files {
            file.check(dir)?;
        }
        Ok(manifest)
    }

    /// Parses the document, without reading the files that it names.
    ///
    /// # Errors
    /// Returns the document's problem as a text.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!(
                "format: expected {FORMAT}, got {}; use the epwatch that made it ({})",
                manifest.format, manifest.epwatch
            ));
        }
        if !manifest.is_whole() {
            return Err("is damaged, or was edited: its content has another SHA-256 than it says; use another backup".to_owned());
        }
        Ok(manifest)
    }

    /// Whether the document is unchanged since it was written.
    pub(super) fn is_whole(&self) -> bool {
        self.own_digest().is_ok_and(|digest| digest == self.sha256)
    }

    /// Returns the entry of a file that every backup has.
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

    /// Makes each file call fail in each way. A backup that can be read must be whole.
    #[test]
    fn no_failing_call_makes_half_a_backup() {
        let n_faults = epwatch_io_faults::each_fault(
            1,
            || tempfile::tempdir().unwrap(),
            |dir| {
                std::fs::write(dir.path().join(ARCHIVE), b"rows").ok();
                let mut manifest = Manifest::new("epwatch", 1);
                let saved = SavedFile::of(dir.path(), ARCHIVE).ok();
                let is_written = saved.is_some_and(|file| {
                    manifest.files = vec![file];
                    manifest.write(dir.path()).is_ok()
                });
                (dir, is_written)
            },
            |(dir, is_written), fault, nth| {
                let read = Manifest::read(dir.path());
                let at = format!("after {fault:?} at call {nth}");
                assert!(read.is_ok() || !is_written, "{at}: {read:?}");
                if let Ok(manifest) = read {
                    let archive = std::fs::read(dir.path().join(ARCHIVE)).unwrap();
                    assert_eq!(manifest.files[0].bytes, archive.len() as u64, "{at}");
                }
            },
        );
        assert!(n_faults > 20, "{n_faults}");
    }

    #[test]
    fn no_flipped_or_cut_byte_goes_unnoticed() {
        let dir = tempfile::tempdir().unwrap();
        backup(dir.path());
        let text = |manifest: &Manifest| serde_json::to_string(manifest).unwrap();
        let whole = text(&Manifest::read(dir.path()).unwrap());
        for name in [NAME, ARCHIVE] {
            let mut n_refused = 0;
            let path = dir.path().join(name);
            let n_damages = epwatch_io_faults::each_damage(&path, 1, |place, damage| {
                match Manifest::read(dir.path()) {
                    // The damage only replaced one blank by another.
                    Ok(read) => assert_eq!(text(&read), whole, "{name}, {damage} at {place:?}"),
                    Err(error) => {
                        n_refused += 1;
                        assert!(error.to_string().contains(name), "{error}");
                    }
                }
            });
            assert!(n_refused * 10 > n_damages * 9, "{n_refused} of {n_damages}");
        }
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
            "not a whole backup",
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
