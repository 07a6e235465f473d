//! The lock of a data folder: one process of epwatch at a time has the embedded store open.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};

use crate::account::account_of;

const NAME: &str = "lock";

/// The lock is held as long as the process uses the folder. The system releases it when the process ends in any way.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes the lock. Makes the folder if it does not exist, for this user alone whatever the umask.
    ///
    /// # Errors
    /// Another process holds the lock, and the text names it; or the folder cannot be written.
    pub(crate) fn take(data_dir: &Path) -> anyhow::Result<Self> {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(data_dir);
        made.with_context(|| format!("failed to make {}", data_dir.display()))?;
        let path = data_dir.join(NAME);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(&path);
        let mut file = file.map_err(|error| {
            let whose = match error.kind() {
                io::ErrorKind::PermissionDenied => whose(data_dir),
                _ => None,
            };
            let said = format!(
                "failed to open {}{}",
                path.display(),
                whose.unwrap_or_default()
            );
            anyhow::Error::new(error).context(said)
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                bail!(
                    "the data folder {} is in use by process {}; stop that one, or choose another --data-dir",
                    data_dir.display(),
                    holder.trim()
                );
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("failed to lock {}", path.display()));
            }
        }
        // The text is only for people; the lock works without it.
        let command = std::env::args().nth(1).unwrap_or_default();
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{} (epwatch {command})", std::process::id()));
        Ok(Self { _file: file })
    }
}

/// Returns the way out, if another user owns the folder.
pub(crate) fn whose(data_dir: &Path) -> Option<String> {
    let owner = data_dir.metadata().ok()?.uid();
    let me = rustix::process::geteuid().as_raw();
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    whose_of(owner, me, |user| account_of(&accounts, user))
}

fn whose_of(owner: u32, me: u32, name: impl Fn(u32) -> Option<String>) -> Option<String> {
    let name = |user: u32| name(user).unwrap_or_else(|| user.to_string());
    (owner != me).then(|| {
        format!(
            "; the data folder is of user {}, and this process runs as {}: run it as that user, for example with \
             `sudo -u`, or choose another --data-dir",
            name(owner),
            name(me)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_another_user_is_said_to_be() {
        let name = |user: u32| (user == 0).then(|| "root".to_owned());
        let text = whose_of(0, 1000, name).unwrap();
        let expected =
            "; the data folder is of user root, and this process runs as 1000: run it as that user";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(whose_of(1000, 1000, name), None);
    }
}
