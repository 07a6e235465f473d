//! One folder of the cache, `<name>-<version>/`: its record, its checks, and how it comes to be.
//!
//! An entry is there or not: it is fetched into a staging folder beside it, verified, and
//! renamed. `engine.json` in it records each file's size and sha256. Hashing 570 MB at each start
//! would cost seconds, so a use compares sizes (which finds torn copies and full disks) and
//! `verify` hashes. A lock file beside the entry lets one process fetch while others wait.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{EngineError, Progress, lock};

/// The record inside an entry.
const RECORD_FILE: &str = "engine.json";
/// A record lists a few dozen files; anything larger is not ours.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// A file that must be in the entry, and its sha256 where this project pins it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pin {
    /// Relative path with `/`.
    pub(crate) path: &'static str,
    /// Lower-case hex.
    pub(crate) sha256: Option<&'static str>,
}

/// What an entry must be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec<'a> {
    /// The entry's folder name.
    pub(crate) name: &'a str,
    /// Files it must have.
    pub(crate) pins: &'a [Pin],
    /// About what comes over the network, for progress.
    pub(crate) download_bytes: u64,
}

/// What was fetched; written last, so that an entry without it is no entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The entry's folder name, so that a folder renamed by hand is not taken for another.
    pub(crate) name: String,
    /// Version as its source calls it.
    pub(crate) version: String,
    /// Relative path with `/` -> size and hash.
    pub(crate) files: BTreeMap<String, RecordedFile>,
}

/// One file of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordedFile {
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Lower-case hex.
    pub(crate) sha256: String,
}

/// Where a fetch puts things. Both folders are gone afterwards, whatever happens.
#[derive(Debug)]
pub(crate) struct Staging<'a> {
    /// For downloads, logs and whatever else.
    pub(crate) work: &'a Path,
    /// Becomes the entry.
    pub(crate) out: &'a Path,
}

/// Fills `Staging::out` and returns the version it fetched.
pub(crate) type Fetch<'f> =
    dyn FnMut(&Staging<'_>, &mut dyn FnMut(Progress)) -> Result<String, EngineError> + 'f;

/// What a look at an entry finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    /// No such folder.
    Missing,
    /// The folder is there but is not what it must be.
    Damaged(String),
    /// Sizes and pinned hashes of the record are right.
    Good(Record),
}

/// Looks at an entry without hashing: record, pins, sizes.
pub(crate) fn look(cache: &Path, spec: Spec<'_>) -> Look {
    let dir = cache.join(spec.name);
    if !dir.is_dir() {
        return Look::Missing;
    }
    let record = match read_record(&dir) {
        Ok(record) => record,
        Err(error) => return Look::Damaged(format!("{RECORD_FILE}: {error}")),
    };
    if record.name != spec.name {
        return Look::Damaged(format!("{RECORD_FILE} belongs to {}", record.name));
    }
    for pin in spec.pins {
        match (record.files.get(pin.path), pin.sha256) {
            (None, _) => return Look::Damaged(format!("{} was never fetched", pin.path)),
            (Some(file), Some(pinned)) if file.sha256 != pinned => {
                return Look::Damaged(format!("{} is another build", pin.path));
            }
            _ => {}
        }
    }
    for (path, file) in &record.files {
        match fs::metadata(dir.join(path)) {
            Ok(metadata) if metadata.len() == file.bytes => {}
            Ok(metadata) => {
                let found = metadata.len();
                return Look::Damaged(format!("{path} has {found} bytes, not {}", file.bytes));
            }
            Err(error) => return Look::Damaged(format!("{path}: {error}")),
        }
    }
    Look::Good(record)
}

/// Hashes every file of an entry against its record and the pins.
///
/// # Errors
/// The first file that is missing or differs.
pub(crate) fn verify(cache: &Path, spec: Spec<'_>) -> Result<(), EngineError> {
    let dir = cache.join(spec.name);
    let record = read_record(&dir).map_err(EngineError::io("read", dir.join(RECORD_FILE)))?;
    for (path, file) in &record.files {
        let found = hash_file(&dir.join(path))?.sha256;
        if found != file.sha256 {
            return Err(mismatch(spec.name, path, &file.sha256, found, &dir));
        }
    }
    check_pins(spec, &record.files, &dir)
}

/// Returns the entry's record, fetching it if it is missing or damaged.
///
/// # Errors
/// Whatever `fetch` fails with, a file without its pinned hash, a lock held too long, I/O.
pub(crate) fn ensure(
    cache: &Path,
    spec: Spec<'_>,
    fetch: &mut Fetch<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Record, EngineError> {
    let dir = cache.join(spec.name);
    let name = || spec.name.to_owned();
    // Before the lock, so that a read-only cache serves.
    if let Look::Good(record) = look(cache, spec) {
        progress(Progress::Ready { name: name(), dir });
        return Ok(record);
    }

    fs::create_dir_all(cache).map_err(EngineError::io("create cache folder", cache))?;
    let _lock = lock::lock(cache, spec.name, lock::TIMEOUT, progress)?;
    let damaged = match look(cache, spec) {
        // The process we waited for has fetched it.
        Look::Good(record) => {
            progress(Progress::Ready { name: name(), dir });
            return Ok(record);
        }
        Look::Missing => false,
        Look::Damaged(reason) => {
            tracing::warn!(
                entry = spec.name,
                reason,
                "cached engine is damaged, fetching again"
            );
            true
        }
    };

    lock::remove_stale_staging(cache, spec.name)?;
    progress(Progress::Started {
        name: name(),
        download_bytes: spec.download_bytes,
    });
    let staging = tempfile::Builder::new()
        .prefix(&lock::staging_prefix(spec.name))
        .tempdir_in(cache)
        .map_err(EngineError::io("create staging folder in", cache))?;
    let (work, out) = (staging.path().join("work"), staging.path().join("out"));
    for folder in [&work, &out] {
        fs::create_dir(folder).map_err(EngineError::io("create", folder))?;
    }

    let version = fetch(
        &Staging {
            work: &work,
            out: &out,
        },
        progress,
    )?;
    let record = Record {
        name: name(),
        version,
        files: hash_tree(&out)?,
    };
    check_pins(spec, &record.files, &out)?;
    write_record(&out, &record)?;
    progress(Progress::Verified {
        name: name(),
        files: record.files.len(),
        bytes: record.files.values().map(|file| file.bytes).sum(),
    });

    if damaged {
        let aside = staging.path().join("damaged");
        fs::rename(&dir, &aside).map_err(EngineError::io("move aside", &dir))?;
    }
    fs::rename(&out, &dir).map_err(EngineError::io("move into place", &dir))?;
    progress(Progress::Ready { name: name(), dir });
    Ok(record)
}

fn check_pins(
    spec: Spec<'_>,
    files: &BTreeMap<String, RecordedFile>,
    dir: &Path,
) -> Result<(), EngineError> {
    for pin in spec.pins {
        let Some(file) = files.get(pin.path) else {
            return Err(EngineError::FileMissing {
                name: spec.name.to_owned(),
                file: pin.path.to_owned(),
                dir: dir.to_owned(),
            });
        };
        if let Some(pinned) = pin.sha256.filter(|pinned| *pinned != file.sha256) {
            return Err(mismatch(
                spec.name,
                pin.path,
                pinned,
                file.sha256.clone(),
                dir,
            ));
        }
    }
    Ok(())
}

fn mismatch(name: &str, file: &str, expected: &str, found: String, dir: &Path) -> EngineError {
    EngineError::HashMismatch {
        name: name.to_owned(),
        file: file.to_owned(),
        expected: expected.to_owned(),
        found,
        dir: dir.to_owned(),
    }
}

fn read_record(dir: &Path) -> io::Result<Record> {
    let mut bytes = Vec::new();
    File::open(dir.join(RECORD_FILE))?
        .take(MAX_RECORD_BYTES)
        .read_to_end(&mut bytes)?;
    let record: Record = serde_json::from_slice(&bytes)?;
    // A record may come with a copied cache: its paths must stay inside the entry.
    let is_inside = |path: &String| {
        Path::new(path)
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)))
    };
    match record.files.keys().find(|path| !is_inside(path)) {
        Some(path) => Err(io::Error::other(format!("path {path:?} leaves the entry"))),
        None => Ok(record),
    }
}

fn write_record(dir: &Path, record: &Record) -> Result<(), EngineError> {
    let path = dir.join(RECORD_FILE);
    let json = serde_json::to_vec_pretty(record).expect("a record has only text keys and numbers");
    fs::write(&path, json).map_err(EngineError::io("write", path))
}

/// Records every regular file below `root`; links and devices are no part of an engine.
fn hash_tree(root: &Path) -> Result<BTreeMap<String, RecordedFile>, EngineError> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(EngineError::io("list", &folder))? {
            let entry = entry.map_err(EngineError::io("list", &folder))?;
            let kind = entry
                .file_type()
                .map_err(EngineError::io("look at", entry.path()))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let relative = path.strip_prefix(root).expect("listed below root");
                let key = relative.to_string_lossy().replace('\\', "/");
                files.insert(key, hash_file(&path)?);
            }
        }
    }
    Ok(files)
}

fn hash_file(path: &Path) -> Result<RecordedFile, EngineError> {
    let mut file = File::open(path).map_err(EngineError::io("open", path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let n = file
            .read(&mut buffer)
            .map_err(EngineError::io("read", path))?;
        if n == 0 {
            break;
        }
        bytes += n as u64;
        hasher.update(&buffer[..n]);
    }
    let sha256 = epwatch_proto::hex(&hasher.finalize());
    Ok(RecordedFile { bytes, sha256 })
}

/// Returns the bytes below `root`, skipping what vanishes meanwhile: only progress asks.
pub(crate) fn tree_bytes(root: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(root) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => tree_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Returns the only path in `folder` whose name `is_wanted` accepts.
pub(crate) fn find_one(
    name: &str,
    folder: &Path,
    what: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<PathBuf, EngineError> {
    let entries = fs::read_dir(folder).map_err(EngineError::io("list", folder))?;
    entries
        .flatten()
        .find(|entry| is_wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .ok_or_else(|| EngineError::FileMissing {
            name: name.to_owned(),
            file: what.to_owned(),
            dir: folder.to_owned(),
        })
}
