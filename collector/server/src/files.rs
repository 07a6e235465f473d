//! Replacement of small files that must survive a power cut.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Replaces a file: readers see the old content or the new one, also after a power cut.
///
/// Writes `<path>.tmp` first; one writer at a time. A leftover of a crash is overwritten by the next call.
///
/// # Errors
/// The folder cannot be written; the old content is still there.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_added_extension("tmp");
    let mut file = File::create(&temporary)?;
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
