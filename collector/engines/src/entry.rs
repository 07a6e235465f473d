//! One folder of the cache, `<name>-<version>/`: its creation, its record and its checks.
//!
//! An entry is whole or absent: it is fetched into a staging folder next to its final place, verified, and renamed. Its
//! `engine.json` records each file's size and sha256. Hashing 570 MB at each start would take seconds. So each use only
//! compares sizes, which finds torn copies and full disks; `verify` hashes. While one process fetches, others wait for
//! the lock file next to the entry.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{EngineError, cache::Say, lock, pins::Plan};

/// The record inside an entry.
pub(crate) const RECORD_FILE: &str = "engine.json";
/// A record lists a few dozen files, so a larger file cannot be a record.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// The content of a whole entry. It is written last, so an interrupted fetch leaves none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EntryRecord {
    /// The entry's folder name. It shows that a folder was renamed by hand.
    pub(crate) name: String,
    pub(crate) version: String,
    /// Whether the user accepted files without a pinned hash, trusting their source.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unpinned: bool,
    /// Relative path with `/` -> size and hash.
    pub(crate) files: BTreeMap<String, RecordedFile>,
}

impl EntryRecord {
    pub(crate) fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }
}

/// One file of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordedFile {
    pub(crate) bytes: u64,
    /// Lower-case hex.
    pub(crate) sha256: String,
}

/// The two folders of a fetch, which are removed afterwards, whether it succeeds or fails, and its partial download.
#[derive(Debug)]
pub(crate) struct Staging<'a> {
    /// For downloads and logs.
    pub(crate) work: &'a Path,
    /// Becomes the entry.
    pub(crate) out: &'a Path,
    /// A file that stays after a broken download, for the next fetch to continue.
    pub(crate) partial: &'a Path,
}

/// Fills `Staging::out`.
pub(crate) type Fetch<'f> = dyn FnMut(&Staging<'_>, &mut Say<'_>) -> Result<(), EngineError> + 'f;

/// An entry's state, without hashing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// The folder does not exist.
    Missing,
    /// The folder exists, but record, pins or sizes differ.
    Damaged(String),
    /// The sizes, and the record's pinned hashes, are right.
    Good(EntryRecord),
}

/// Checks record, pins and sizes of an entry, without hashing.
pub(crate) fn entry_state(cache: &Path, plan: &Plan) -> EntryState {
    let dir = cache.join(&plan.name);
    if !dir.is_dir() {
        return EntryState::Missing;
    }
    let record = match read_record(&dir) {
        Ok(record) => record,
        Err(error) => return EntryState::Damaged(format!("{RECORD_FILE}: {error}")),
    };
    if record.name != plan.name {
        return EntryState::Damaged(format!("{RECORD_FILE} belongs to {}", record.name));
    }
    if plan.is_unpinned() && !record.unpinned {
        return EntryState::Damaged(
            "no hash is pinned for it, and nobody took it without".to_owned(),
        );
    }
    if let Some(path) = unpinned_library(plan, &record.files) {
        return EntryState::Damaged(format!("{path} is a library without a pin"));
    }
    for pin in &plan.pins {
        match (record.files.get(pin.path), pin.sha256) {
            (None, _) => return EntryState::Damaged(format!("{} was never fetched", pin.path)),
            (Some(file), Some(pinned)) if file.sha256 != pinned => {
                return EntryState::Damaged(format!("{} is another build", pin.path));
            }
            _ => {}
        }
    }
    for (path, file) in &record.files {
        match fs::metadata(dir.join(path)) {
            Ok(metadata) if metadata.len() == file.bytes => {}
            Ok(metadata) => {
                let found = metadata.len();
                return EntryState::Damaged(format!(
                    "{path} has {found} bytes, not {}",
                    file.bytes
                ));
            }
            Err(error) => return EntryState::Damaged(format!("{path}: {error}")),
        }
    }
    EntryState::Good(record)
}

/// Hashes every file of an entry against its record and the pins.
///
/// # Errors
/// The first file that is missing or differs.
pub(crate) fn verify(cache: &Path, plan: &Plan) -> Result<(), EngineError> {
    let dir = cache.join(&plan.name);
    let record = read_record(&dir).map_err(EngineError::io("read", dir.join(RECORD_FILE)))?;
    for (path, file) in &record.files {
        let found = hash_file(&dir.join(path))?.sha256;
        if found != file.sha256 {
            return Err(mismatch(&plan.name, path, &file.sha256, found, &dir));
        }
    }
    check_pins(plan, &record.files, &dir)
}

/// Returns the entry's record, fetching it if it is missing or damaged.
///
/// # Errors
/// An error of `fetch`, a file without its pinned hash, a lock held too long, I/O.
pub(crate) fn ensure(
    cache: &Path,
    plan: &Plan,
    fetch: &mut Fetch<'_>,
    say: &mut Say<'_>,
) -> Result<EntryRecord, EngineError> {
    let (name, dir) = (&plan.name, cache.join(&plan.name));
    // Checked before the lock is taken, so that a read-only cache works.
    if let EntryState::Good(record) = entry_state(cache, plan) {
        return Ok(record);
    }

    if plan.is_unpinned() && !plan.is_unpinned_allowed {
        return Err(EngineError::NotPinned { name: name.clone() });
    }

    fs::create_dir_all(cache).map_err(|source| EngineError::NoCache {
        path: cache.to_owned(),
        source,
    })?;
    let _lock = lock::lock(cache, name, lock::TIMEOUT, say)?;
    let damaged = match entry_state(cache, plan) {
        // Another process fetched it while this one waited.
        EntryState::Good(record) => {
            say(&format!("ready {name}: {}", dir.display()));
            return Ok(record);
        }
        EntryState::Missing => false,
        EntryState::Damaged(reason) => {
            tracing::warn!(
                entry = name,
                reason,
                "cached engine is damaged, fetching again"
            );
            true
        }
    };

    lock::remove_stale_staging(cache, name)?;
    let staging = tempfile::Builder::new()
        .prefix(&lock::staging_prefix(name))
        .tempdir_in(cache)
        .map_err(EngineError::io("create staging folder in", cache))?;
    let (work, out) = (staging.path().join("work"), staging.path().join("out"));
    for folder in [&work, &out] {
        fs::create_dir(folder).map_err(EngineError::io("create", folder))?;
    }

    let (work, out) = (&work, &out);
    let partial = &cache.join(format!(".{name}.part"));
    fetch(&Staging { work, out, partial }, say)?;
    let record = EntryRecord {
        name: name.clone(),
        version: plan.version.to_owned(),
        unpinned: plan.is_unpinned(),
        files: hash_tree(out)?,
    };
    check_pins(plan, &record.files, out)?;
    write_record(out, &record)?;
    let (n_files, bytes) = (record.files.len(), record.bytes());
    say(&format!(
        "verified {name}: {n_files} files, {}",
        megabytes(bytes)
    ));

    if damaged {
        let aside = staging.path().join("damaged");
        fs::rename(&dir, &aside).map_err(EngineError::io("move aside", &dir))?;
    }
    fs::rename(out, &dir).map_err(EngineError::io("move into place", &dir))?;
    say(&format!("ready {name}: {}", dir.display()));
    Ok(record)
}

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

fn check_pins(
    plan: &Plan,
    files: &BTreeMap<String, RecordedFile>,
    dir: &Path,
) -> Result<(), EngineError> {
    for pin in &plan.pins {
        let Some(file) = files.get(pin.path) else {
            return Err(EngineError::FileMissing {
                name: plan.name.to_owned(),
                file: pin.path.to_owned(),
                dir: dir.to_owned(),
            });
        };
        if let Some(pinned) = pin.sha256.filter(|pinned| *pinned != file.sha256) {
            return Err(mismatch(
                &plan.name,
                pin.path,
                pinned,
                file.sha256.clone(),
                dir,
            ));
        }
    }
    match unpinned_library(plan, files) {
        None => Ok(()),
        Some(file) => Err(EngineError::UnknownLibrary {
            name: plan.name.clone(),
            file: file.to_owned(),
            dir: dir.to_owned(),
        }),
    }
}

/// A library next to the pinned ones is loaded like them, so it needs a pin too.
fn unpinned_library<'a>(plan: &Plan, files: &'a BTreeMap<String, RecordedFile>) -> Option<&'a str> {
    let is_library = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        name.contains(".so") || name.contains(".dylib")
    };
    let mut paths = files.keys().map(String::as_str);
    paths.find(|path| is_library(path) && plan.pins.iter().all(|pin| pin.path != *path))
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

fn read_record(dir: &Path) -> io::Result<EntryRecord> {
    let mut bytes = Vec::new();
    File::open(dir.join(RECORD_FILE))?
        .take(MAX_RECORD_BYTES)
        .read_to_end(&mut bytes)?;
    let record: EntryRecord = serde_json::from_slice(&bytes)?;
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

fn write_record(dir: &Path, record: &EntryRecord) -> Result<(), EngineError> {
    let path = dir.join(RECORD_FILE);
    let json = serde_json::to_vec_pretty(record).expect("a record has only text keys and numbers");
    fs::write(&path, json).map_err(EngineError::io("write", path))
}

/// Records every regular file below `root`; links and devices are not part of an engine.
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

/// Returns the bytes below `root`, without files that vanish meanwhile: they count for progress only.
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
