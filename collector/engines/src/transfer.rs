//! Engines for machines without internet: one archive, made on a machine that could fetch them.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    EngineError,
    cache::Say,
    command::{self, Purpose, UNPACK_TIMEOUT},
    entry::{self, EntryState, RECORD_FILE, Staging},
    pins::Plan,
};

/// Writes the entries of `plans` into an archive. The end of the file's name chooses the compression (`.tar.gz`; `.tar`
/// for none).
pub(crate) fn export(cache: &Path, plans: &[Plan], file: &Path) -> Result<(), EngineError> {
    for plan in plans {
        if !matches!(entry::entry_state(cache, plan), EntryState::Good(_)) {
            let name = plan.name.clone();
            return Err(EngineError::NotFetched { name });
        }
    }
    let names = plans.iter().map(|plan| OsStr::new(&plan.name));
    tar(
        cache,
        [OsStr::new("-caf"), file.as_os_str()]
            .into_iter()
            .chain(names),
        file,
    )
}

/// Imports the entries of `plans` from the archive into the cache, each with its hashes verified. Returns their names.
pub(crate) fn import(
    cache: &Path,
    plans: &[Plan],
    file: &Path,
    say: &mut Say<'_>,
) -> Result<Vec<String>, EngineError> {
    fs::create_dir_all(cache).map_err(EngineError::io("create cache folder", cache))?;
    let unpacked = tempfile::Builder::new()
        .prefix(".import-")
        .tempdir_in(cache)
        .map_err(EngineError::io("create staging folder in", cache))?;
    tar(
        unpacked.path(),
        [
            "-xaf".as_ref(),
            file.as_os_str(),
            "--no-same-owner".as_ref(),
        ],
        file,
    )?;
    let mut imported = Vec::new();
    for plan in plans {
        let from = unpacked.path().join(&plan.name);
        if !from.is_dir() {
            continue;
        }
        // An imported entry is verified like a fetched one, whatever the archive's own record says.
        let mut fetch = |staging: &Staging<'_>, say: &mut Say<'_>| {
            say(&format!("importing {} from {}", plan.name, file.display()));
            move_all(&from, staging.out)
        };
        entry::ensure(cache, plan, &mut fetch, say)?;
        imported.push(plan.name.clone());
    }
    if imported.is_empty() {
        return Err(EngineError::NothingToImport {
            file: file.to_owned(),
            expected: plans
                .iter()
                .map(|plan| plan.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        });
    }
    Ok(imported)
}

fn tar<'a>(
    folder: &Path,
    args: impl IntoIterator<Item = &'a OsStr>,
    file: &Path,
) -> Result<(), EngineError> {
    let work =
        tempfile::tempdir().map_err(EngineError::io("create folder in", std::env::temp_dir()))?;
    let mut command = Command::new("tar");
    command.arg("-C").arg(folder).args(args);
    let purpose = Purpose {
        name: file.display().to_string(),
        install: "install tar".to_owned(),
        way_out: "check that the archive is whole and the disk has room (about 1 GB)".to_owned(),
    };
    command::run(command, work.path(), UNPACK_TIMEOUT, &purpose, &mut || ())
}

fn move_all(from: &Path, to: &Path) -> Result<(), EngineError> {
    for item in fs::read_dir(from).map_err(EngineError::io("list", from))? {
        let path: PathBuf = item.map_err(EngineError::io("list", from))?.path();
        let name = path.file_name().unwrap_or_default();
        if name != RECORD_FILE {
            fs::rename(&path, to.join(name)).map_err(EngineError::io("move", &path))?;
        }
    }
    Ok(())
}
