//! Files of a server. They are replaced so that they survive a power cut, and only the server's own user can read them.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Makes a folder that only this user can enter, whatever the umask. In an existing folder other users lose their
/// rights.
///
/// # Errors
/// The folder cannot be made, or belongs to another user.
pub fn private_dir(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Reads the secret in a file that a config key or an option names, and warns as [`warn_of_readers`] does.
///
/// # Errors
/// The file cannot be read, or is not UTF-8.
pub fn read_secret(path: &Path, key: &str) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    warn_of_readers(path, key);
    Ok(text)
}

/// Logs a warning, once for each file, if every user of the machine can read the secret in it, or its group can change
/// it. A group may read it without a warning: this is how a service gets it whose user is made at each start.
pub fn warn_of_readers(path: &Path, key: &str) {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mode = fs::metadata(path).map_or(0, |file| file.permissions().mode());
    let is_first = || {
        let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
        warned.insert(path.to_owned())
    };
    if is_open_to_others(mode) && is_first() {
        let mode = format!("{:04o}", mode & 0o7777);
        let path = path.display();
        tracing::warn!(%path, mode, key, "others can use the secret in this file: chmod 640 or 600 it");
    }
}

fn is_open_to_others(mode: u32) -> bool {
    mode & 0o027 != 0
}

/// Replaces a file, with mode 0600: readers see the old content or the new one, also after a power cut.
///
/// Writes `<path>.tmp` first; one writer at a time. The next call overwrites a temporary file that a crash left behind.
///
/// # Errors
/// The folder cannot be written; the old content is still there.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with_mode(path, content, 0o600)
}

/// Replaces a file without secrets as [`replace_file`] does, with mode 0644 whatever the umask. Root writes such a file
/// for a server that runs as another user.
///
/// # Errors
/// The folder cannot be written; the old content is still there.
pub fn replace_readable_file(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with_mode(path, content, 0o644)
}

fn replace_with_mode(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = path.with_added_extension("tmp");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&temporary)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    // The name is durable only once its folder is.
    let folder = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_may_be_read_by_its_group_alone() {
        for (mode, expected) in [
            (0o600, false),
            // The mode of the certificate's key in docs/first-hour.md.
            (0o640, false),
            (0o644, true),
            (0o660, true),
            (0o604, true),
        ] {
            assert_eq!(is_open_to_others(0o100_000 | mode), expected, "{mode:o}");
        }
    }

    #[test]
    fn content_is_replaced_and_nothing_is_left_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("names.json");
        for content in ["a longer first content", "short"] {
            replace_file(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
