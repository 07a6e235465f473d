//! Files of a server. The files of a config are read with a limit. Others are replaced so that they survive a power cut,
//! and only the server's own user can read them.

use std::collections::BTreeSet;
use std::fs::{self, File, FileType, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::units::ByteSize;

/// The most bytes of a config file, or of a file that a config names. 4,096 app keys need a quarter of them.
const MAX_CONFIG_FILE: ByteSize = ByteSize(4 << 20);

/// The mark U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Makes a folder that only this user can enter, whatever the umask. In an existing folder other users lose their
/// rights.
///
/// # Errors
/// The folder cannot be made, or belongs to another user.
pub fn private_dir(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Returns the kind of a path that is not a plain file, for an error. Reading a FIFO may wait for ever, and a device may
/// never end.
#[must_use]
pub fn irregular_kind(found: FileType) -> Option<&'static str> {
    match () {
        () if found.is_dir() => Some("a folder"),
        () if found.is_fifo() => Some("a FIFO"),
        () if found.is_socket() => Some("a socket"),
        () if found.is_char_device() || found.is_block_device() => Some("a device"),
        () => None,
    }
}

/// Reads a config file, or a file that a config names.
///
/// # Errors
/// It is not a plain file, is larger than 4 MiB, or cannot be read.
pub fn read_config_file(path: &Path) -> io::Result<Vec<u8>> {
    // The kind is checked before the file is opened, because to open some devices has an effect.
    if let Some(kind) = irregular_kind(fs::metadata(path)?.file_type()) {
        return Err(io::Error::other(format!("it is {kind}; expected a file")));
    }
    let mut bytes = Vec::new();
    let mut limited = File::open(path)?.take(MAX_CONFIG_FILE.0 + 1);
    limited.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_CONFIG_FILE.0 {
        return Err(io::Error::other(format!(
            "is larger than {MAX_CONFIG_FILE}"
        )));
    }
    Ok(bytes)
}

/// Reads a file as [`read_config_file`] does, as text. The byte order mark that some editors write first is not part of
/// the text: a token or secret behind it would never match.
///
/// # Errors
/// Errors of [`read_config_file`], and bytes that are not UTF-8.
pub fn read_config_text(path: &Path) -> io::Result<String> {
    let mut bytes = read_config_file(path)?;
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    let text = String::from_utf8(bytes);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Reads the secret in a file that a config key or an option names, and warns as [`warn_of_readers`] does.
///
/// # Errors
/// Errors of [`read_config_text`].
pub fn read_secret(path: &Path, key: &str) -> io::Result<String> {
    let text = read_config_text(path)?;
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
    fn a_byte_order_mark_is_not_part_of_a_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        for (text, expected) in [("\u{feff}abc", "abc"), ("abc\u{feff}", "abc\u{feff}")] {
            fs::write(&path, text).unwrap();
            assert_eq!(read_secret(&path, "a.key").unwrap(), expected);
        }
    }

    #[test]
    fn only_plain_files_up_to_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let [long, odd] = ["long", "odd"].map(|name| dir.path().join(name));
        File::create(&long)
            .unwrap()
            .set_len(MAX_CONFIG_FILE.0 + 1)
            .unwrap();
        fs::write(&odd, [0xff]).unwrap();
        for (path, expected) in [
            (Path::new("/dev/zero"), "it is a device; expected a file"),
            (dir.path(), "it is a folder; expected a file"),
            (&long, "is larger than 4MiB"),
            (&odd, "it is not UTF-8 text"),
        ] {
            assert_eq!(read_config_text(path).unwrap_err().to_string(), expected);
        }
        File::options()
            .write(true)
            .open(&long)
            .unwrap()
            .set_len(MAX_CONFIG_FILE.0)
            .unwrap();
        assert_eq!(
            read_config_file(&long).unwrap().len() as u64,
            MAX_CONFIG_FILE.0
        );
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
