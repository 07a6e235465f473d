//! Whether a model's files are still the files that were hashed. Launches read them again, one after the other.
//!
//! A large model is not hashed for each launch. Its identity and times are compared instead. A file that was replaced has
//! another inode. A file that was written or renamed has another time of its last change.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// A file as it was before it was hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileState {
    path: PathBuf,
    /// Of the path itself, which may be a link, and of the file.
    state: [State; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    /// The file as it is now.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            state: states(path)?,
        })
    }

    /// The file, if it was changed, replaced or removed since.
    pub(crate) fn changed(&self) -> Option<&Path> {
        match states(&self.path) {
            Ok(now) if now == self.state => None,
            _ => Some(&self.path),
        }
    }
}

fn states(path: &Path) -> io::Result<[State; 2]> {
    let each = [path.symlink_metadata()?, path.metadata()?];
    Ok(each.map(|found| State {
        device: found.dev(),
        inode: found.ino(),
        bytes: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    }))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// A file that is put back has its old inode, size and time of writing. Only the time of its last change differs.
    #[test]
    fn a_file_that_was_replaced_for_a_while_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (file, link) = (at("m.onnx"), at("link.onnx"));
        fs::write(&file, "one").unwrap();
        fs::write(at("other"), "two").unwrap();
        symlink(&file, &link).unwrap();
        let [of_file, of_link] = [&file, &link].map(|path| FileState::of(path).unwrap());
        assert_eq!((of_file.changed(), of_link.changed()), (None, None));
        let is_later = || {
            // The clock of a file system may be coarse.
            let changed = |path: &Path| path.metadata().map(|of| (of.ctime(), of.ctime_nsec()));
            let before = changed(&file).unwrap();
            while {
                fs::write(at("clock"), "x").unwrap();
                changed(&at("clock")).unwrap() <= before
            } {}
        };
        is_later();
        fs::rename(&file, at("aside")).unwrap();
        assert_eq!(of_file.changed(), Some(&*file));
        fs::rename(at("aside"), &file).unwrap();
        assert_eq!(of_file.changed(), Some(&*file));
        let of_file = FileState::of(&file).unwrap();
        fs::remove_file(&link).unwrap();
        symlink(at("other"), &link).unwrap();
        assert_eq!((of_file.changed(), of_link.changed()), (None, Some(&*link)));
    }
}
