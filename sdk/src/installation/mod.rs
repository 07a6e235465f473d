//! The installation: a random secret that this app keeps on this device.
//!
//! `DIR/secret` holds exactly 32 bytes, readable by this user only. Its SHA-256, cut to 16 bytes, is the installation's
//! id. Presenting the secret authorises deletion. The file is written under another name and then renamed, under the
//! folder's lock. So processes that start together agree on one secret, and a kill leaves either no secret or a whole
//! one.

pub(crate) mod deletion;
mod secret;

use std::{fs, io, path::Path};

use crate::folder::{
    self, FolderError,
    files::{self, FileLock},
};

use secret::SECRET_BYTES;
pub(crate) use secret::{Secret, exists, is_still};

/// Reads the secret of this folder, or creates it.
///
/// # Errors
/// Fails if the secret cannot be stored, or if the system gives no random numbers: an id that can be guessed is worse
/// than none.
pub(crate) fn load_or_create(dir: &Path) -> Result<Secret, FolderError> {
    let io = |source| {
        let action = format!("keep the installation's secret in {}", dir.display());
        FolderError::new(action, source)
    };
    files::create_private_dir(dir).map_err(io)?;
    // If the folder lacks our lock file, the SDK never used it, and other files may have the names of ours.
    let was_ours = dir.join(folder::LOCK).try_exists().map_err(io)?;
    let _lock = FileLock::wait(&dir.join(folder::LOCK)).map_err(io)?;
    let path = dir.join(folder::SECRET);
    match fs::read(&path) {
        Ok(bytes) => match Secret::from_bytes(&bytes) {
            Some(secret) => return Ok(secret),
            // A damaged secret cannot be used, so a new installation begins.
            None => fs::rename(&path, dir.join(folder::UNREADABLE_SECRET)).map_err(io)?,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if was_ours {
                // An interrupted wipe left these files. A new installation must not take them over.
                deletion::wipe(dir).map_err(io)?;
            }
        }
        Err(error) => return Err(io(error)),
    }
    let mut secret = [0; SECRET_BYTES];
    let none = |_| io(io::Error::other("the system gives no random numbers"));
    getrandom::fill(&mut secret).map_err(none)?;
    files::replace(&path, &secret).map_err(io)?;
    Ok(Secret::new(secret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, thread};

    #[test]
    fn many_that_start_together_agree_on_one() {
        let dir = tempfile::tempdir().unwrap();
        let ids: BTreeSet<_> = thread::scope(|s| {
            let threads: Vec<_> = (0..8)
                .map(|_| s.spawn(|| load_or_create(dir.path()).unwrap().installation()))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(ids.len(), 1);
        let again = load_or_create(dir.path()).unwrap().installation();
        assert!(ids.contains(&again));
    }

    #[cfg(unix)]
    #[test]
    fn nobody_else_may_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        load_or_create(dir.path()).unwrap();
        let metadata = fs::metadata(dir.path().join(folder::SECRET)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_cut_secret_makes_a_new_installation_and_is_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let old = load_or_create(dir.path()).unwrap().installation();
        fs::write(dir.path().join(folder::SECRET), b"short").unwrap();
        let new = load_or_create(dir.path()).unwrap().installation();
        assert_ne!(old, new);
        assert!(dir.path().join("secret.unreadable").exists());
    }

    #[test]
    fn a_new_installation_takes_nothing_over() {
        let dir = tempfile::tempdir().unwrap();
        let streams = dir.path().join(folder::STREAMS);
        fs::create_dir_all(&streams).unwrap();
        load_or_create(dir.path()).unwrap();
        // The folder was never used by the SDK, so the file is not ours.
        assert!(streams.exists());

        fs::write(dir.path().join(folder::BASELINES), b"{}").unwrap();
        fs::remove_file(dir.path().join(folder::SECRET)).unwrap();
        load_or_create(dir.path()).unwrap();
        assert!(!streams.exists());
        assert!(!dir.path().join(folder::BASELINES).exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        let error = load_or_create(&file.join("sub")).unwrap_err();
        assert!(error.to_string().contains("sub"), "{error}");
    }

    #[test]
    fn debug_output_hides_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let secret = load_or_create(dir.path()).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(***)");
    }
}
