//! Deletion of an installation. Its secret is kept until the collector has deleted the installation; everything else is
//! wiped.
//!
//! `DIR/deletions/<installation>` holds the 32 bytes of a secret whose installation is to be deleted. One rename moves
//! the secret there, which is the moment of withdrawal: nothing has changed before it, and the installation has ended
//! after it. Files that a kill leaves behind belong to no secret, so the next start wipes them. It wipes them at once
//! if a secret waits here, and in any case before a new secret is made. The file is removed after the collector's
//! answer, once the wipe is done. Without consent these files and the empty `lock` are all that exists.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use epwatch_proto::InstallationId;

use super::secret::{SECRET_BYTES, Secret};
use crate::{
    folder::{
        self,
        files::{self, FileLock},
    },
    spool,
};

/// Maximum number of deletions that are read in one pass. There is one for each withdrawal that the collector has not
/// acknowledged.
const MAX_LOOKED_AT: usize = 256;

/// Forgets the installation of this folder; returns the runs that waited in its spool.
///
/// A missing folder counts as wiped and is not created. A folder without the SDK's files is not changed.
///
/// # Errors
/// Fails if the secret cannot be moved, or a file cannot be removed. The caller must repeat it.
pub(crate) fn forget(dir: &Path) -> io::Result<u64> {
    if !dir.try_exists()? || kept(dir)?.is_empty() {
        return Ok(0);
    }
    let _lock = FileLock::wait(&dir.join(folder::LOCK))?;
    retire(dir)?;
    wipe(dir)
}

/// Finishes an interrupted wipe.
pub(crate) fn finish_interrupted(dir: &Path) -> io::Result<u64> {
    let is_left =
        !dir.join(folder::SECRET).try_exists()? && dir.join(folder::DELETIONS).try_exists()?;
    if !is_left {
        return Ok(0);
    }
    let _lock = FileLock::wait(&dir.join(folder::LOCK))?;
    // Another process may have begun a new installation.
    match dir.join(folder::SECRET).try_exists()? {
        true => Ok(0),
        false => wipe(dir),
    }
}

fn retire(dir: &Path) -> io::Result<()> {
    let path = dir.join(folder::SECRET);
    let secret = match fs::read(&path) {
        Ok(bytes) => Secret::from_bytes(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let Some(secret) = secret else {
        // A truncated secret cannot authorise a deletion. It is wiped with the rest.
        return Ok(());
    };
    let deletions = dir.join(folder::DELETIONS);
    files::create_private_dir(&deletions)?;
    fs::rename(&path, deletions.join(secret.installation().to_hex()))?;
    files::sync_dir(&deletions)?;
    files::sync_dir(dir)
}

/// Removes the files of the installation; returns the runs in them. The caller holds the folder's lock.
pub(crate) fn wipe(dir: &Path) -> io::Result<u64> {
    let runs = spool::runs_left(dir);
    let streams = dir.join(folder::STREAMS);
    for path in kept(dir)? {
        gone(match path == streams {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        })?;
    }
    files::sync_dir(dir)?;
    Ok(runs)
}

/// Existing files of the installation. Only known names count, because the host's folder may hold other files.
fn kept(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut kept = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_ours =
            folder::OF_INSTALLATION.contains(&&*name) || name.starts_with(files::UNFINISHED);
        if is_ours {
            kept.push(entry.path());
        }
    }
    Ok(kept)
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the secrets whose installations are to be deleted.
pub(crate) fn pending(dir: &Path) -> Vec<Secret> {
    let Ok(entries) = fs::read_dir(dir.join(folder::DELETIONS)) else {
        return Vec::new();
    };
    let mut secrets = Vec::new();
    for entry in entries.flatten().take(MAX_LOOKED_AT) {
        let is_one = entry
            .metadata()
            .is_ok_and(|m| m.len() == SECRET_BYTES as u64);
        let secret = is_one.then(|| fs::read(entry.path()).ok()).flatten();
        secrets.extend(secret.and_then(|bytes| Secret::from_bytes(&bytes)));
    }
    secrets
}

/// Removes a secret whose installation the collector has deleted.
pub(crate) fn settle(dir: &Path, installation: &InstallationId) -> io::Result<()> {
    let deletions = dir.join(folder::DELETIONS);
    gone(fs::remove_file(deletions.join(installation.to_hex())))?;
    // Fails while other secrets wait, which is intended.
    let _ = fs::remove_dir(&deletions);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation;

    #[test]
    fn forgetting_keeps_the_secret_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let secret = installation::load_or_create(dir.path()).unwrap();
        fs::create_dir_all(dir.path().join(folder::STREAMS).join("0123456789abcdef")).unwrap();
        fs::write(dir.path().join(folder::BASELINES), b"{}").unwrap();
        fs::write(dir.path().join("the app's own file"), b"kept").unwrap();
        assert_eq!(forget(dir.path()).unwrap(), 0);
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [folder::DELETIONS, folder::LOCK, "the app's own file"]
        );
        let pending = pending(dir.path());
        assert_eq!(pending.len(), 1);
        assert_eq!(pending[0].bytes(), secret.bytes());

        settle(dir.path(), &secret.installation()).unwrap();
        assert!(!dir.path().join(folder::DELETIONS).exists());
        let new = installation::load_or_create(dir.path()).unwrap();
        assert_ne!(new.bytes(), secret.bytes());
    }

    #[test]
    fn a_kill_in_the_middle_is_finished_by_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        installation::load_or_create(dir.path()).unwrap();
        fs::create_dir_all(dir.path().join(folder::STREAMS)).unwrap();
        retire(dir.path()).unwrap();
        finish_interrupted(dir.path()).unwrap();
        assert!(!dir.path().join(folder::STREAMS).exists());
        assert_eq!(pending(dir.path()).len(), 1);
    }

    /// The wipe is also complete after an earlier secret was damaged.
    #[test]
    fn a_secret_put_aside_keeps_no_wipe_back() {
        let dir = tempfile::tempdir().unwrap();
        installation::load_or_create(dir.path()).unwrap();
        fs::write(dir.path().join(folder::UNREADABLE_SECRET), b"short").unwrap();
        fs::create_dir_all(dir.path().join(folder::STREAMS)).unwrap();
        retire(dir.path()).unwrap();
        finish_interrupted(dir.path()).unwrap();
        assert_eq!(kept(dir.path()).unwrap(), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_folder_that_was_never_made_or_used_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        let never = dir.path().join("never");
        assert_eq!(forget(&never).unwrap(), 0);
        assert!(!never.exists());
        fs::write(dir.path().join("the app's own file"), b"kept").unwrap();
        assert_eq!(forget(dir.path()).unwrap(), 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
