//! Files of the command line. Each is checked before the first byte is read, because a FIFO may wait for ever and a
//! device never ends.

use std::{fmt, fs::File, io::Read, os::unix::fs::FileTypeExt, path::Path};

/// Purpose of a file, which bounds its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilePurpose {
    /// An ONNX model, or the side-car of one: read in parts.
    Model,
    /// MACs by node.
    SideCar,
    /// Measurements of a launch, which are read in parts.
    Run,
    /// A log: read by lines.
    Log,
    /// A policy, a public key, a certificate, a document that people write.
    Document,
    /// A private key. It may come through any FIFO.
    Secret,
    /// Evidence of a gate.
    Evidence,
    /// A shared library.
    Library,
}

impl FilePurpose {
    /// Returns the most bytes of a file; `None` for kinds that are read in parts, whose readers have their own limits.
    fn most_bytes(self) -> Option<u64> {
        match self {
            Self::Model | Self::Run | Self::Log | Self::Library => None,
            Self::SideCar => Some(256 << 20),
            Self::Document | Self::Secret => Some(1 << 20),
            Self::Evidence => Some(16 << 20),
        }
    }
}

/// Refuses a path that is not a plain file, and a file that is too large for its kind.
///
/// # Errors
/// The problem as a text, without the path.
pub(crate) fn check(path: &Path, kind: FilePurpose) -> Result<(), String> {
    let found = path.metadata().map_err(|error| error.to_string())?;
    let is = found.file_type();
    let is_read_once = is.is_fifo() && may_be_pipe(path, kind);
    if let Some(strange) = epwatch_server::irregular_kind(is).filter(|_| !is_read_once) {
        let log = match kind {
            FilePurpose::Log => ", or - for standard input",
            _ => "",
        };
        return Err(format!("it is {strange}; expected a file{log}"));
    }
    match kind.most_bytes() {
        Some(most) if found.len() > most => {
            Err(too_long(&format_args!("{} bytes", found.len()), most))
        }
        _ => Ok(()),
    }
}

/// Whether the file may be a pipe, which is read once from the beginning. A pipe of the shell has a writer:
/// `cmd | .. /dev/stdin` and `<(cmd)`. A named FIFO may wait for ever.
fn may_be_pipe(path: &Path, kind: FilePurpose) -> bool {
    let is_of_shell = path == Path::new("/dev/stdin")
        || path.starts_with("/dev/fd")
        || path.starts_with("/proc/self/fd");
    match kind {
        FilePurpose::Secret => true,
        FilePurpose::Model | FilePurpose::Library => false,
        _ => is_of_shell,
    }
}

/// Opens a file that [`check`] accepts.
///
/// # Errors
/// Errors of [`check`] and of the system.
pub(crate) fn open(path: &Path, kind: FilePurpose) -> Result<File, String> {
    check(path, kind)?;
    File::open(path).map_err(|error| error.to_string())
}

/// Returns the SHA-256 of a file that [`check`] accepts, hexadecimal. Reads it in parts.
///
/// # Errors
/// Errors of [`check`] and of the system.
pub(crate) fn sha256(path: &Path, kind: FilePurpose) -> Result<String, String> {
    check(path, kind)?;
    epwatch_manifest::sha256_of_file(path).map_err(|error| error.to_string())
}

/// Reads a plain file, up to the limit of its kind.
///
/// # Errors
/// Fails as [`open`] does.
pub(crate) fn read(path: &Path, kind: FilePurpose) -> Result<Vec<u8>, String> {
    let (file, most) = (open(path, kind)?, kind.most_bytes().unwrap_or(u64::MAX));
    let mut bytes = Vec::new();
    // The read is limited, because the file may grow, and files of /proc report no size.
    let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    match bytes.len() as u64 > most {
        true => Err(too_long(&"more", most)),
        false => Ok(bytes),
    }
}

/// Reads a file like [`read`], as UTF-8 text.
///
/// # Errors
/// Errors of [`read`], and bytes that are not UTF-8.
pub(crate) fn read_text(path: &Path, kind: FilePurpose) -> Result<String, String> {
    String::from_utf8(read(path, kind)?).map_err(|_| "it is not UTF-8 text".to_owned())
}

fn too_long(found: &dyn fmt::Display, most: u64) -> String {
    format!("it has {found}; expected at most {} MiB", most >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_files_of_their_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("long.toml");
        File::create(&long).unwrap().set_len((1 << 20) + 1).unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, words) in [
            (dir.path(), "a folder"),
            (socket.as_path(), "a socket"),
            (Path::new("/dev/zero"), "a device"),
            (long.as_path(), "1048577 bytes; expected at most 1 MiB"),
            (&dir.path().join("none"), "No such file"),
        ] {
            let error = read(path, FilePurpose::Document).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(check(&long, FilePurpose::Model), Ok(()));
        let error = check(Path::new("/dev/zero"), FilePurpose::Log).unwrap_err();
        assert!(error.contains("- for standard input"), "{error}");
    }
}
